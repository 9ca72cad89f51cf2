"""A scheduler in memory that keeps every promise, and the histories that it leaves behind.

Time is what the simulation says. Requests take effect somewhere between their beginning and their answer; starts lag;
functions return, raise, take too long, or go down with their executors, some of which only seem to be dead; pickers
are away for a while.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from random import Random

import msgspec
from tests.support.scheduler_history.expected import fire_times
from tests.support.scheduler_history.records import (
    FAILURES,
    SECOND,
    Attempt,
    Delay,
    History,
    Incident,
    IncidentKind,
    Interval,
    Minutes,
    Misfire,
    Occurrence,
    Once,
    Outcome,
    Overlap,
    Policy,
    Request,
    Result,
    Run,
    Schedule,
    StoredTask,
    Verb,
)

START = 1_800_000_000 * SECOND
_MILLISECOND = SECOND // 1000
_AHEAD, _GRACE, _PROMISE = 120 * SECOND, 30 * SECOND, 30 * SECOND


class _Open(msgspec.Struct, kw_only=True):
    """An occurrence on its way; what its current attempt will come to, once it runs."""

    fire_at: int
    picked_at: int
    due_at: int
    is_manual: bool = False
    attempts: list[Attempt] = []
    started_at: int | None = None
    run: Run | None = None
    outcome: Outcome | None = None
    ends: int = 0
    is_over: bool = False

    @property
    def number(self) -> int:
        """The number of the current attempt."""
        return len(self.attempts) + 1


class Simulation:
    """One history of a few tasks, or of many."""

    def __init__(self, random: Random) -> None:
        self._random = random
        outage = START + random.randrange(60) * SECOND
        self._outage = range(outage, outage + random.choice([0, 0, 20, 50, 90]) * SECOND)

    def run(self, tasks: int) -> History:
        """The history of so many tasks."""
        history = History(requests=[], runs=[], tasks=[], occurrences=[], incidents=[])
        for number in range(tasks):
            _Task(self._random, f"task-{number}", self._outage, history).simulate()
        return history


class _Task:
    """The life of one task."""

    def __init__(self, random: Random, name: str, outage: range, history: History) -> None:
        self._random = random
        self._name = name
        self._outage = outage
        self._history = history
        self._policy = Policy(
            overlap=random.choice(list(Overlap)),
            misfire=random.choice(list(Misfire)),
            misfire_limit=random.choice([1, 3]),
            misfire_window=random.choice([40, 60]) * SECOND,
            max_retries=random.choice([0, 0, 1, 2]),
            rerun_after_crash=random.random() < 0.5,
        )
        self._requests: list[Request] = []
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = itertools.count()
        self._running: _Open | None = None
        self._waiting: _Open | None = None
        self._cancelled_at = 2**62
        self._open: list[_Open] = []

    def simulate(self) -> None:
        """Live, and write the history of that."""
        moment = START + self._random.randrange(0, 20 * SECOND, 2)
        schedule = self._schedule(moment)
        made_at = self._ask(Verb.CREATE, moment, schedule=schedule, policy=self._policy)
        once_at = made_at + schedule.length if isinstance(schedule, Delay) else None
        task = StoredTask(name=self._name, created_at=made_at, once_at=once_at)
        begun_at, is_active = made_at, True
        for verb in [*self._middle(), self._random.choice([Verb.PAUSE, Verb.CANCEL])]:
            moment += self._random.randrange(6, 30) * SECOND
            before = schedule
            schedule = self._schedule(moment, is_new=False) if verb is Verb.CHANGE else schedule
            done_at = self._ask(verb, moment, schedule=schedule if verb is Verb.CHANGE else None)
            if verb is Verb.RUN:
                self._add(done_at, done_at, is_manual=True)
                continue
            if is_active and verb is not Verb.RESUME:
                self._pick(sorted(fire_times(before, task, begun_at + 1, done_at)), begun_at, done_at)
            if verb is Verb.CANCEL:
                self._at(done_at, self._cancel)
            begun_at = done_at
            is_active = verb in {Verb.RESUME, Verb.CHANGE}
        while self._events:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        self._requests.sort(key=lambda request: request.begun_at)
        self._history.tasks.append(task)
        self._history.requests += self._requests
        self._history.occurrences += [
            Occurrence(
                task=self._name,
                fire_at=one.fire_at,
                picked_at=one.picked_at,
                attempts=one.attempts,
                is_manual=one.is_manual,
            )
            for one in self._open
        ]

    # What is asked

    def _schedule(self, moment: int, *, is_new: bool = True) -> Schedule:
        step = self._random.choice([1, 2, 5]) * SECOND
        recurring: list[Schedule] = [
            Interval(every=step),
            Interval(every=step, anchor=moment + 3 * SECOND),
            Minutes(step=self._random.choice([1, 2]), zone="Asia/Kathmandu", ahead_minutes=345),
        ]
        once: list[Schedule] = [Once(at=moment + 5 * SECOND), Delay(length=5 * SECOND)]
        return self._random.choice(recurring + once if is_new else recurring)

    def _middle(self) -> Sequence[Verb]:
        return self._random.choice(
            [
                [],
                [Verb.RUN],
                [Verb.CHANGE],
                [Verb.PAUSE, Verb.RESUME],
                [Verb.PAUSE, Verb.RUN, Verb.RESUME, Verb.CHANGE],
            ]
        )

    def _ask(
        self,
        verb: Verb,
        moment: int,
        *,
        schedule: Schedule | None = None,
        policy: Policy | None = None,
        fire_at: int | None = None,
    ) -> int:
        """Ask for something; return when it took effect: for a run by hand a moment that is no other fire time."""
        begun_at = moment - self._random.randrange(2, SECOND, 2)
        answered_at = moment + self._random.randrange(2, SECOND, 2)
        done_at = self._random.randrange(begun_at, answered_at, 2) + (verb is Verb.RUN)
        request = Request(
            task=self._name,
            verb=verb,
            begun_at=begun_at,
            answered_at=answered_at,
            schedule=schedule,
            policy=policy,
            fire_at=done_at if verb is Verb.RUN else fire_at,
        )
        self._requests.append(request)
        return done_at

    # What is picked

    def _pick(self, times: Sequence[int], begun_at: int, ended_at: int) -> None:
        """Fire times of one reign; what was not picked at its end is picked by what ends it."""
        late: list[int] = []
        back_at = min(self._outage.stop + self._lag(), ended_at)
        for fire_at in times:
            nominal = max(begun_at, fire_at - _AHEAD) + self._random.randrange(SECOND)
            if nominal in self._outage:
                late.append(fire_at)
            else:
                self._add(fire_at, min(nominal, ended_at))
        missed = [fire_at for fire_at in late if fire_at < back_at - _GRACE]
        skipped = set(missed) - set(self._made_up_for(missed, back_at))
        for fire_at in late:
            self._add(fire_at, back_at, is_skipped=fire_at in skipped)

    def _made_up_for(self, missed: Sequence[int], now: int) -> Sequence[int]:
        match self._policy.misfire:
            case Misfire.SKIP:
                return []
            case Misfire.LATEST:
                return missed[-1:]
            case Misfire.ALL:
                return missed[-self._policy.misfire_limit :]
            case Misfire.WINDOW:
                return [fire_at for fire_at in missed if fire_at >= now - self._policy.misfire_window]

    def _add(self, fire_at: int, picked_at: int, *, is_manual: bool = False, is_skipped: bool = False) -> None:
        one = _Open(fire_at=fire_at, picked_at=picked_at, due_at=fire_at, is_manual=is_manual)
        self._open.append(one)
        if is_skipped:
            self._skip(one, picked_at, "misfire")
        else:
            self._at(max(picked_at, fire_at), lambda now: self._come_due(one, now))

    # What runs

    def _come_due(self, one: _Open, now: int) -> None:
        self._at(now + self._lag(), lambda later: self._start(one, later))

    def _start(self, one: _Open, now: int) -> None:
        if one.is_over or one.started_at is not None:
            return
        if self._running is None or self._policy.overlap is Overlap.ALLOW:
            self._run(one, now)
        elif self._policy.overlap is Overlap.SKIP or (
            self._policy.overlap is Overlap.QUEUE and self._waiting is not None and self._waiting is not one
        ):
            self._skip(one, now, "overlap")
        else:
            if self._waiting is not None and self._waiting is not one:
                self._skip(self._waiting, now, "overlap")
            self._waiting = one
            if self._policy.overlap is Overlap.REPLACE:
                self._cut_off(self._running, now)

    def _run(self, one: _Open, now: int) -> None:
        """Record the start, and decide what comes of it."""
        self._running = one
        one.started_at = now
        if now - one.due_at > _PROMISE:
            self._tell(IncidentKind.MISSED, one, cause=self._random.choice(["picker late", "executor busy"]))
        begun_at = now + self._random.randrange(1, 20) * _MILLISECOND
        over_at = begun_at + self._random.choice([0, 100, 1500, 4000]) * _MILLISECOND
        lost_at = over_at + 5 * SECOND
        run = Run(task=self._name, fire_at=one.fire_at, attempt=one.number, process="1", begun_at=begun_at)
        cases: list[tuple[Outcome, Run | None, int]] = [
            (Outcome.SUCCEEDED, _ended(run, over_at, Result.RETURNED), over_at + _MILLISECOND),
            (Outcome.FAILED, _ended(run, over_at, Result.RAISED), over_at + _MILLISECOND),
            (Outcome.TIMED_OUT, _ended(run, over_at, Result.CANCELLED), over_at + _MILLISECOND),
            (Outcome.CRASHED, run, lost_at),
            (Outcome.CRASHED, None, lost_at),  # died before it began
            (Outcome.CRASHED, _ended(run, over_at, Result.RETURNED), lost_at),  # died before it said so
            (Outcome.CRASHED, _ended(run, lost_at + 3 * SECOND, Result.RETURNED), lost_at),  # only seemed to be dead
        ]
        one.outcome, one.run, ends_at = self._random.choices(cases, [12, 3, 2, 1, 1, 1, 1])[0]
        self._end_at(one, ends_at)

    def _end_at(self, one: _Open, moment: int) -> None:
        one.ends += 1
        version = one.ends
        self._at(moment, lambda now: self._end(one, now) if one.ends == version else None)

    def _cut_off(self, one: _Open, now: int) -> None:
        """Cancel what runs, unless its executor is dead, or it has just ended."""
        if one.outcome is Outcome.CRASHED or one.run is None or one.run.begun_at >= now:
            return
        if one.run.ended_at is not None and one.run.ended_at > now:
            cut_at = now + self._random.randrange(1, 900) * _MILLISECOND
            if cut_at < one.run.ended_at:
                one.outcome, one.run = Outcome.CANCELLED, _ended(one.run, cut_at, Result.CANCELLED)
                self._end_at(one, cut_at + _MILLISECOND)

    def _end(self, one: _Open, now: int) -> None:
        if one.run is not None:
            self._history.runs.append(one.run)
        outcome, number = one.outcome, one.number
        assert outcome is not None
        self._close_attempt(one, now, outcome)
        if self._running is one:
            self._running = None
        if now < self._cancelled_at and self._is_tried_again(outcome, number):
            self._try_again(one, now if outcome is Outcome.CRASHED else now + 3 * SECOND)
        else:
            one.is_over = True
            if outcome in FAILURES:
                self._tell(IncidentKind(outcome.value), one, attempt=number)
                if now < self._cancelled_at and self._random.random() < 0.1:
                    asked_at = self._ask(Verb.RETRY, now + 2 * SECOND, fire_at=one.fire_at)
                    if asked_at < self._cancelled_at:
                        self._try_again(one, asked_at)
        if self._waiting is not None and self._running is None:
            waiting, self._waiting = self._waiting, None
            waiting.due_at = now
            self._come_due(waiting, now)

    def _try_again(self, one: _Open, due_at: int) -> None:
        one.is_over, one.started_at, one.outcome, one.run, one.due_at = False, None, None, None, due_at
        self._at(due_at, lambda later: self._come_due(one, later))

    def _is_tried_again(self, outcome: Outcome, number: int) -> bool:
        if outcome is Outcome.CRASHED:
            return self._policy.rerun_after_crash and number < 3
        return outcome in FAILURES and number <= self._policy.max_retries

    def _skip(self, one: _Open, now: int, cause: str) -> None:
        self._close_attempt(one, now, Outcome.SKIPPED)
        one.is_over = True
        self._tell(IncidentKind.SKIPPED, one, cause=cause, last_fire_at=one.fire_at)

    def _cancel(self, now: int) -> None:
        self._cancelled_at = now
        self._waiting = None
        for one in self._open:
            if not one.is_over and one.started_at is None and one.picked_at <= now:
                self._close_attempt(one, now, Outcome.CANCELLED)
                one.is_over = True

    def _close_attempt(self, one: _Open, now: int, outcome: Outcome) -> None:
        attempt = Attempt(
            number=one.number,
            due_at=one.due_at,
            dispatched_at=None if one.started_at is None else max(one.picked_at, one.due_at - SECOND),
            started_at=one.started_at,
            ended_at=now,
            outcome=outcome,
        )
        one.attempts = [*one.attempts, attempt]

    def _tell(
        self,
        kind: IncidentKind,
        one: _Open,
        *,
        cause: str | None = None,
        attempt: int | None = None,
        last_fire_at: int | None = None,
    ) -> None:
        if attempt is None and kind is not IncidentKind.SKIPPED:
            attempt = one.number
        incident = Incident(
            task=self._name, kind=kind, fire_at=one.fire_at, last_fire_at=last_fire_at, attempt=attempt, cause=cause
        )
        self._history.incidents.append(incident)

    def _lag(self) -> int:
        return self._random.choice([1, 5, 20, 20, 200, 1500, 1500, 31_000]) * _MILLISECOND

    def _at(self, moment: int, happen: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), happen))


def _ended(run: Run, moment: int, result: Result) -> Run:
    return msgspec.structs.replace(run, ended_at=moment, result=result)
