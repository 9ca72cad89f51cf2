"""What the rooms of the scheduler show, read through its services: for a page, and for who keeps looking at it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from statistics import median
from typing import Any, TypeAlias

import msgspec

from bellringer.console.attempt_line import Axis, Line, Times, line_of
from bellringer.console.calendar_plot import HOURS, LEVEL_WORDS, begin_of, calendar_of
from bellringer.console.fragments import View
from bellringer.console.task_plots import task_plots
from bellringer.edge.model import Environment
from bellringer.kernel.errors import NotFound
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.fire_times import FIRST_YEAR, fire_times_of
from bellringer.scheduler.history_store import ExecutorView
from bellringer.scheduler.model import (
    Incident,
    IncidentKind,
    Occurrence,
    OccurrenceState,
    Outcome,
    PastAttempt,
    Task,
    TaskState,
)
from bellringer.scheduler.samples import Samples
from bellringer.scheduler.service import Tasks
from bellringer.scheduler.zones import LAST_YEAR

TASKS_SHOWN = 25
OCCURRENCES_SHOWN = 50
INCIDENTS_SHOWN = 50
_FIRE_TIMES_SHOWN = 8
_COMING_SHOWN = 3  # what fires every second is picked two minutes ahead: that is no history
_LARGEST_ID = 2**63 - 1
_INCIDENT_KINDS: Mapping[str, tuple[IncidentKind, ...]] = {
    "": (),
    "missed": (IncidentKind.MISSED,),
    "skipped": (IncidentKind.SKIPPED,),
    "all": tuple(IncidentKind),
}

Fragments: TypeAlias = Mapping[str, Mapping[str, Any]]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Reads some fragments of a room; for who keeps looking it holds for so many seconds."""

    seconds: float
    read: Callable[[Environment, View], Awaitable[Fragments]]


class ListedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the list and when it fires next: not when it is picked next, which is later."""

    task: Task
    next_fire_at: datetime | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a fire time, with its drawing."""

    number: int
    times: Times
    line: Line
    outcome: Outcome | None
    detail: str | None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An occurrence in a task's history: its newest attempt."""

    occurrence: Occurrence
    attempt: Attempt
    can_retry: bool
    can_cancel: bool


class Punctuality(msgspec.Struct, frozen=True, kw_only=True):
    """What the occurrences that are shown say of a task: starts, those in time, and how long runs take."""

    starts: int
    in_time: int
    lag_seconds: float | None
    run_seconds: float | None
    longest_seconds: float | None


class TaskReader:
    """Reads what views show, by the clock of the database."""

    def __init__(self, tasks: Tasks, samples: Samples, config: SchedulerConfig) -> None:
        self._tasks = tasks
        self._samples = samples
        self._promise_seconds = config.start_promise_seconds
        self._executor_lost = timedelta(seconds=config.executor_lost_seconds)
        self._readings: Mapping[str, Sequence[Reading]] = {
            "tasks": (
                Reading(seconds=1, read=self._list),
                Reading(seconds=2, read=self._figures),
                Reading(seconds=5, read=self._plots),
            ),
            "calendar": (Reading(seconds=15, read=self._calendar),),
            "task": (Reading(seconds=1, read=self._task),),
            "occurrence": (Reading(seconds=1, read=self._occurrence),),
            "failures": (Reading(seconds=1, read=self._incidents),),
        }

    def readings(self, view: View) -> Sequence[Reading]:
        """What has to be read for a view of tasks."""
        return self._readings[view.room]

    async def read(self, environment: Environment, view: View) -> dict[str, Any]:
        """All that the page of a view shows. Raises `NotFound`, `Unavailable`."""
        values: dict[str, Any] = {"view": view}
        for reading in self.readings(view):
            for parts in (await reading.read(environment, view)).values():
                values |= parts
        return values

    async def _list(self, environment: Environment, view: View) -> Fragments:
        page = await self._tasks.page(
            environment.id,
            state=_state_of(view.state) if view.state else None,
            prefix=view.prefix,
            after=view.after,
            limit=TASKS_SHOWN,
        )
        now = await self._tasks.now()
        listed = [ListedTask(task=task, next_fire_at=next(_fire_times(task, now), None)) for task in page.tasks]
        return {
            "task-list": {"listed": listed, "next_page": page.next, "view": view, "states": list(TaskState)},
        }

    async def _figures(self, environment: Environment, _view: View) -> Fragments:
        figures = (await self._samples.figures([environment.id]))[environment.id]
        alive = [one for one in await self._tasks.executors() if figures.now.at - one.seen_at < self._executor_lost]
        return {
            "task-figures": {
                "figures": figures,
                "executors": _Executors.of(alive),
                "promise_seconds": self._promise_seconds,
            },
            "executor-list": {"executor_list": alive},
        }

    async def _plots(self, environment: Environment, view: View) -> Fragments:
        samples = await self._samples.over(environment.id, view.period.seconds)
        current = (await self._samples.now([environment.id]))[environment.id]
        plots = task_plots(samples, current, view.period)
        return {"task-plots": {"plots": plots, "view": view}}

    async def _calendar(self, environment: Environment, view: View) -> Fragments:
        now = await self._tasks.now()
        loads = await self._tasks.calendar(environment.id, begin_of(now), HOURS)
        opened = moment_of(view.at).replace(second=0, microsecond=0) if view.at else None
        begin = begin_of(now) if opened is None else opened.replace(minute=0)
        end = begin + timedelta(hours=1)
        return {
            "calendar": {"calendar": calendar_of(loads, now), "level_words": LEVEL_WORDS, "begin": begin, "view": view},
            "calendar-hour": {
                "loads": [load for load in loads if begin <= load.minute < end],
                "begin": begin,
                "end": end,
                "opened": opened,
            },
        }

    async def _task(self, environment: Environment, view: View) -> Fragments:
        now = await self._tasks.now()
        task = await self._tasks.read(environment.id, view.name)
        fire_times = list(islice(_fire_times(task, now), _FIRE_TIMES_SHOWN))
        before = moment_of(view.before) if view.before else None
        if before is None and len(fire_times) > _COMING_SHOWN:
            before = fire_times[_COMING_SHOWN]
        found = await self._tasks.occurrences(environment.id, view.name, before=before, limit=OCCURRENCES_SHOWN + 1)
        axis = Axis.over([Times.of(one) for one in found[:OCCURRENCES_SHOWN]], self._promise_seconds, now)
        entries = [_entry(one, axis, now) for one in found]
        return {
            "task-actions": {"task": task},
            "task-state": {
                "task": task,
                "punctuality": _punctuality(found, self._promise_seconds),
                "fire_times": fire_times,
            },
            "task-next": {"task": task, "fire_times": fire_times},
            "task-history": {
                "task": task,
                "axis": axis,
                "entries": entries,
                "most_entries": OCCURRENCES_SHOWN,
                "view": view,
            },
        }

    async def _occurrence(self, environment: Environment, view: View) -> Fragments:
        now = await self._tasks.now()
        newest, past = await self._tasks.occurrence(environment.id, view.name, moment_of(view.at))
        all_times = [Times.of(newest), *(Times.of_past(one, newest.picked_at) for one in past)]
        axis = Axis.over(all_times, self._promise_seconds, now)
        attempts = [_past(one, newest, axis, now) for one in past]
        return {
            "occurrence": {
                "newest": _entry(newest, axis, now),
                "attempts": [*attempts, _newest(newest, axis, now)],
                "axis": axis,
                "view": view,
            }
        }

    async def _incidents(self, environment: Environment, view: View) -> Fragments:
        if view.kind not in _INCIDENT_KINDS:
            raise NotFound("There are no incidents of this kind.")
        found: list[Incident] = await self._tasks.incidents(
            environment.id,
            kinds=_INCIDENT_KINDS[view.kind],
            unresolved=not view.kind,
            before=_id_of(view.before) if view.before else None,
            limit=INCIDENTS_SHOWN + 1,
        )
        return {
            "incident-list": {
                "incidents": found,
                "most_incidents": INCIDENTS_SHOWN,
                "promise_seconds": self._promise_seconds,
                "view": view,
            }
        }


class _Executors(msgspec.Struct, frozen=True, kw_only=True):
    """All executors together."""

    count: int
    slots: int
    running: int
    held: int

    @classmethod
    def of(cls, executors: Sequence[ExecutorView]) -> _Executors:
        return cls(
            count=len(executors),
            slots=sum(one.concurrency for one in executors),
            running=sum(one.running for one in executors),
            held=sum(one.held for one in executors),
        )


def moment_of(text: str) -> datetime:
    """A moment from an address, with its zone. Raises `NotFound`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NotFound("There is no such moment.") from None
    if moment.tzinfo is None or not FIRST_YEAR <= moment.year < LAST_YEAR:
        raise NotFound("There is no such moment: one looks like 2026-01-05T10:01:00Z.")
    return moment.astimezone(UTC)


def _state_of(text: str) -> TaskState:
    try:
        return TaskState(text)
    except ValueError:
        raise NotFound("There is no such state.") from None


def _id_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _LARGEST_ID):
        raise NotFound("There is no page that begins there.")
    return int(text)


def _fire_times(task: Task, now: datetime) -> Iterator[datetime]:
    """The fire times to come, those too that are picked already; first the one that is overdue, if pickers are."""
    if task.state is not TaskState.ACTIVE:
        return
    if task.next_fire_at is not None and task.next_fire_at <= now:
        yield task.next_fire_at
    yield from fire_times_of(task.definition.schedule, created_at=task.created_at).upcoming(now)


def _punctuality(occurrences: Sequence[Occurrence], promise_seconds: float) -> Punctuality:
    times = [Times.of(one) for one in occurrences]
    lags = [one.lag_seconds for one in times if one.lag_seconds is not None]
    runs = sorted(one.run_seconds for one in times if one.run_seconds is not None)
    return Punctuality(
        starts=len(lags),
        in_time=sum(lag <= promise_seconds for lag in lags),
        lag_seconds=median(lags) if lags else None,
        run_seconds=median(runs) if runs else None,
        longest_seconds=runs[-1] if runs else None,
    )


def _entry(occurrence: Occurrence, axis: Axis, now: datetime) -> Entry:
    has_ended = occurrence.state is OccurrenceState.ENDED
    return Entry(
        occurrence=occurrence,
        attempt=_newest(occurrence, axis, now),
        can_retry=has_ended and occurrence.outcome is not Outcome.SUCCEEDED,
        can_cancel=not has_ended and not occurrence.cancel_requested,
    )


def _newest(occurrence: Occurrence, axis: Axis, now: datetime) -> Attempt:
    times = Times.of(occurrence)
    return Attempt(
        number=occurrence.attempt,
        times=times,
        line=line_of(times, axis, now),
        outcome=occurrence.outcome,
        detail=occurrence.detail,
    )


def _past(past: PastAttempt, newest: Occurrence, axis: Axis, now: datetime) -> Attempt:
    times = Times.of_past(past, newest.picked_at)
    return Attempt(
        number=past.attempt, times=times, line=line_of(times, axis, now), outcome=past.outcome, detail=past.detail
    )
