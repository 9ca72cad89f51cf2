"""Any sequence of what happens to the occurrences of one task, against a model in memory: both stand the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.support.scheduler import ALICE, BOB, Stage
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.scheduler import history_store, task_store
from bellringer.scheduler.model import Outcome, TaskState
from bellringer.scheduler.occurrence_store import Dispatch

T = TypeVar("T")

MOST_CRASHES = 3
EXECUTORS = st.sampled_from([ALICE, BOB])
PLACES = st.integers(min_value=0, max_value=100)
OUTCOMES = st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED])
_STAGES = {"picked": 0, "due": 1, "waiting": 3}


class Entry(msgspec.Struct, kw_only=True):
    """What the model knows of an occurrence; `state`: picked, due (dispatched), waiting, running, or how it ended."""

    fire_at: datetime
    state: str = "picked"
    attempt: int = 1
    dispatch: Dispatch | None = None
    executor: UUID | None = None
    is_manual: bool = False
    cancel_requested: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.state in set(Outcome)


class OverlapMachine(RuleBasedStateMachine):
    """One task of one overlap policy."""

    overlap: ClassVar[str]
    loop: ClassVar[asyncio.AbstractEventLoop]
    stage: ClassVar[Stage]
    names = itertools.count(1)

    def do(self, operation: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(operation, self.loop).result(PATIENCE_SECONDS)

    @initialize(max_retries=st.integers(0, 2), rerun_after_crash=st.booleans())
    def open(self, *, max_retries: int, rerun_after_crash: bool) -> None:
        self.max_retries, self.rerun_after_crash = max_retries, rerun_after_crash
        self.entries: list[Entry] = []
        self.dispatches: list[Dispatch] = []
        self.alive = {ALICE, BOB}
        self.task_state = TaskState.ACTIVE
        self.name = f"task-{next(self.names)}"
        self.task = self.do(
            self.stage.add_task(
                self.name, overlap=self.overlap, max_retries=max_retries, rerun_after_crash=rerun_after_crash
            )
        )
        self.fire_ats = (self.do(self.stage.now()) - timedelta(hours=2) + n * timedelta(seconds=1) for n in range(3600))
        for executor in self.alive:
            self.do(self.stage.beat(executor))

    # What pickers and dispatchers do

    @precondition(lambda self: self.task_state is TaskState.ACTIVE)
    @rule(number=st.integers(1, 3))
    def pick(self, number: int) -> None:
        fire_ats = list(itertools.islice(self.fire_ats, number))
        self.do(self.stage.pick(self.task, *fire_ats))
        self.entries += [Entry(fire_at=fire_at) for fire_at in fire_ats]

    @precondition(lambda self: any(entry.state == "picked" for entry in self.entries))
    @rule()
    def dispatch(self) -> None:
        self.do(self.stage.make_due(self.task))
        for entry in self._in("picked"):
            entry.dispatch = self.do(self.stage.hand_over(self.task, entry.fire_at))
            entry.state = "due"
            self.dispatches.append(entry.dispatch)

    # What executors do

    @precondition(lambda self: self.dispatches)
    @rule(executor=EXECUTORS, places=st.lists(PLACES, min_size=1, max_size=4))
    def start(self, executor: UUID, places: list[int]) -> None:
        """With messages that may be old."""
        asked = {place % len(self.dispatches) for place in places}
        dispatches = [self.dispatches[-1 - place] for place in sorted(asked)]
        self.alive.add(executor)
        self.do(self.stage.beat(executor))
        told = self.do(self.stage.start(*dispatches, executor=executor))
        expected = self._start(dispatches, executor)
        assert [answer.verdict for answer in told] == [expected[dispatch] for dispatch in dispatches]

    @precondition(lambda self: self.task_state is TaskState.ACTIVE)
    @rule(executor=EXECUTORS)
    def come_due_and_start(self, executor: UUID) -> None:
        """What happens most."""
        self.pick(1)
        self.dispatch()
        self.start(executor, [0])

    @precondition(lambda self: self.dispatches)
    @rule(places=st.lists(PLACES, min_size=1, max_size=3), outcome=OUTCOMES)
    def end(self, places: list[int], outcome: Outcome) -> None:
        """Also what never started, was given up, or has ended."""
        asked = {place % len(self.dispatches) for place in places}
        dispatches = [self.dispatches[-1 - place] for place in sorted(asked)]
        are_news = self.do(self.stage.end(*dispatches, outcome=outcome))
        assert are_news == self._end(dispatches, outcome)

    @precondition(lambda self: self._in("running"))
    @rule(outcome=OUTCOMES)
    def end_what_runs(self, outcome: Outcome) -> None:
        dispatch = self._in("running")[0].dispatch
        assert dispatch is not None
        assert self.do(self.stage.end(dispatch, outcome=outcome)) == self._end([dispatch], outcome) == [True]

    @rule(executor=EXECUTORS)
    def lose(self, executor: UUID) -> None:
        self.do(self.stage.lose(executor))
        self.alive.discard(executor)

    # What people do

    @precondition(lambda self: self.task_state is TaskState.ACTIVE)
    @rule()
    def pause(self) -> None:
        self.do(self._stop(TaskState.PAUSED))
        self.task_state = TaskState.PAUSED
        for entry in self._in("picked", "due", "waiting"):
            if entry.attempt == 1 and not entry.is_manual:
                entry.state = Outcome.CANCELLED

    @precondition(lambda self: self.task_state is TaskState.PAUSED)
    @rule()
    def resume(self) -> None:
        self.do(self.stage.change_task(self.task, state=TaskState.ACTIVE))
        self.task_state = TaskState.ACTIVE

    @precondition(lambda self: self.task_state is not TaskState.CANCELLED and len(self.entries) > 10)
    @rule()
    def cancel_task(self) -> None:
        self.do(self._stop(TaskState.CANCELLED))
        self.task_state = TaskState.CANCELLED
        for entry in self._in("picked", "due", "waiting"):
            entry.state = Outcome.CANCELLED

    @precondition(lambda self: self.task_state is not TaskState.CANCELLED)
    @rule()
    def run_by_hand(self) -> None:
        self.entries.append(Entry(fire_at=self.do(self._run_now()), is_manual=True))

    @precondition(lambda self: self.entries)
    @rule(place=PLACES)
    def retry(self, place: int) -> None:
        entry = self.entries[place % len(self.entries)]
        verdict = self.do(self._retry(entry.fire_at))
        if not entry.has_ended:
            assert verdict == "open"
        elif entry.state == Outcome.SUCCEEDED:
            assert verdict == "succeeded"
        elif self.task_state is TaskState.CANCELLED:
            assert verdict == "cancelled"
        else:
            assert verdict == "done"
            entry.state, entry.cancel_requested = "picked", False
            entry.attempt += 1

    @precondition(lambda self: self.entries)
    @rule(place=PLACES)
    def cancel(self, place: int) -> None:
        entry = self.entries[place % len(self.entries)]
        verdict = self.do(self._cancel(entry.fire_at))
        if entry.has_ended:
            assert verdict == ("done" if entry.state == Outcome.CANCELLED else entry.state)
        elif entry.state == "running":
            entry.cancel_requested = True
        else:
            entry.state = Outcome.CANCELLED

    # How everything stands

    @invariant()
    def stands_as_the_model_does(self) -> None:
        rows = self.do(self.stage.occurrences(self.task))
        found = [
            (
                row["fire_at"],
                row["stage"],
                row["attempt"],
                row["outcome"],
                row["started_at"] is not None and row["ended_at"] is None,
                row["cancel_requested"] and row["ended_at"] is None,
            )
            for row in rows
        ]
        self.entries.sort(key=lambda entry: entry.fire_at)
        assert found == [
            (
                entry.fire_at,
                _STAGES.get(entry.state, 2),
                entry.attempt,
                entry.state if entry.has_ended else None,
                entry.state == "running",
                entry.cancel_requested and not entry.has_ended,
            )
            for entry in self.entries
        ]

    @invariant()
    def nothing_runs_or_waits_in_vain(self) -> None:
        if self.overlap != "allow":
            assert len(self._in("running")) <= 1
            assert len(self._in("waiting")) <= len(self._in("running"))

    # The model

    def _in(self, *states: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.state in states]

    def _entry(self, dispatch: Dispatch) -> Entry:
        return next(entry for entry in self.entries if entry.fire_at == dispatch.fire_at)

    def _start(self, dispatches: Sequence[Dispatch], executor: UUID) -> dict[Dispatch, str]:
        verdicts = {}
        crashed = []
        for dispatch in sorted(dispatches, key=lambda dispatch: dispatch.fire_at):
            entry = self._entry(dispatch)
            verdicts[dispatch] = "gone"
            if dispatch != entry.dispatch:
                continue
            if entry.state == "running" and entry.executor == executor:
                verdicts[dispatch] = "here"
            elif entry.state == "running" and entry.executor in self.alive:
                verdicts[dispatch] = "elsewhere"
            elif entry.state == "running":
                verdicts[dispatch] = "wait"
                crashed.append(dispatch)
            elif entry.state == "due" and self._may_start(entry):
                verdicts[dispatch] = "run"
                entry.state, entry.executor = "running", executor
        self._end(crashed, Outcome.CRASHED)
        return verdicts

    def _may_start(self, entry: Entry) -> bool:
        """Whether it runs; if not, it waits or is skipped."""
        running, waiting = self._in("running"), self._in("waiting")
        if self.overlap == "allow" or not running:
            return True
        is_superseded = any(other.fire_at > entry.fire_at for other in [*running, *waiting])
        if (
            self.overlap == "skip"
            or (self.overlap == "queue" and waiting)
            or (self.overlap == "replace" and is_superseded)
        ):
            entry.state = Outcome.SKIPPED
            return False
        if self.overlap == "replace":
            for other in waiting:
                other.state = Outcome.SKIPPED
            running[0].cancel_requested = True
        entry.state = "waiting"
        return False

    def _end(self, dispatches: Sequence[Dispatch], outcome: Outcome) -> list[bool]:
        are_news = []
        for dispatch in dispatches:
            entry = self._entry(dispatch)
            is_news = entry.state == "running" and entry.attempt == dispatch.attempt
            are_news.append(is_news)
            if is_news and self._is_tried_again(entry, outcome):
                entry.state = "picked"
                entry.attempt += 1
            elif is_news:
                entry.state = outcome
        if not self._in("running"):
            for waiting in self._in("waiting"):
                waiting.state = "picked"
        return are_news

    def _is_tried_again(self, entry: Entry, outcome: Outcome) -> bool:
        if entry.cancel_requested or self.task_state is TaskState.CANCELLED:
            return False
        if outcome is Outcome.CRASHED:
            return self.rerun_after_crash and entry.attempt < max(MOST_CRASHES, self.max_retries + 1)
        return outcome in {Outcome.FAILED, Outcome.TIMED_OUT} and entry.attempt <= self.max_retries

    # The database

    async def _stop(self, state: TaskState) -> None:
        async with self.stage.database.connection() as connection:
            await task_store.stop_task(connection, self.stage.environment_id, self.name, state)

    async def _run_now(self) -> datetime:
        async with self.stage.database.connection() as connection:
            answer = await task_store.run_task(connection, self.task)
        assert answer is not None
        return answer[1]

    async def _retry(self, fire_at: datetime) -> str | None:
        async with self.stage.database.connection() as connection:
            return await history_store.retry(connection, self.task, fire_at)

    async def _cancel(self, fire_at: datetime) -> str | None:
        async with self.stage.database.connection() as connection:
            return await history_store.cancel(connection, self.task, fire_at)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "replace"])
async def test_occurrences_stand_as_their_model_does(stage: Stage, overlap: str) -> None:
    members = {"loop": asyncio.get_running_loop(), "stage": stage, "overlap": overlap}
    machine = type("Machine", (OverlapMachine,), members)
    patient = settings(max_examples=30, stateful_step_count=40, suppress_health_check=list(HealthCheck))
    await asyncio.to_thread(run_machine, machine, settings=patient)
