"""An attempt at a fire time as a line: picked, dispatched, due, started, ended, and the promise to start by.

Milliseconds matter as much as hours, so seconds from the due time on are drawn by powers (of an inverse hyperbolic
sine, which is straight around nothing). All lines of a page share one axis and can be compared. A line is 1,000 units
wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from bellringer.console.formats import took
from bellringer.console.plot import WIDTH, Label
from bellringer.scheduler.model import Occurrence, OccurrenceState, Outcome, PastAttempt

_EARLIEST_SECONDS = -130.0  # pickers look two minutes ahead
_AFTER_PROMISE = 1.5  # at least so much of the promised time is on every axis
_STRAIGHT_SECONDS = 0.2
_BEFORE = 0.5  # what happens ahead of time matters less, and gets less room
_LEAST_WIDTH = 4.0
_MARKS = (
    (-120.0, "\N{MINUS SIGN}2 min"),
    (-5.0, "\N{MINUS SIGN}5 s"),
    (0.0, "due"),
    (1.0, "1 s"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (86_400.0, "1 d"),
)
_CLOSEST_MARKS = 6.0  # in hundredths of the width

PartKind = Literal["ahead", "wait", "late", "run", "good", "bad", "ended"]

_RUNS: dict[Outcome | None, PartKind] = {
    None: "run",
    Outcome.SUCCEEDED: "good",
    Outcome.FAILED: "bad",
    Outcome.TIMED_OUT: "bad",
    Outcome.CRASHED: "bad",
    Outcome.CANCELLED: "ended",
    Outcome.SKIPPED: "ended",
}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one attempt."""

    due_at: datetime
    picked_at: datetime | None
    dispatched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: Outcome | None
    is_waiting: bool

    @classmethod
    def of(cls, occurrence: Occurrence) -> Times:
        """Those of the newest attempt; to pick belongs to the first."""
        return cls(
            due_at=occurrence.due_at,
            picked_at=occurrence.picked_at if occurrence.attempt == 1 else None,
            dispatched_at=occurrence.dispatched_at,
            started_at=occurrence.started_at,
            ended_at=occurrence.ended_at,
            outcome=occurrence.outcome,
            is_waiting=occurrence.state not in {OccurrenceState.STARTED, OccurrenceState.ENDED},
        )

    @classmethod
    def of_past(cls, past: PastAttempt, picked_at: datetime) -> Times:
        """Those of an attempt before."""
        return cls(
            due_at=past.due_at,
            picked_at=picked_at if past.attempt == 1 else None,
            dispatched_at=past.dispatched_at,
            started_at=past.started_at,
            ended_at=past.ended_at,
            outcome=past.outcome,
            is_waiting=False,
        )

    @property
    def lag_seconds(self) -> float | None:
        """How long after it was due it started."""
        return None if self.started_at is None else _between(self.due_at, self.started_at)

    @property
    def run_seconds(self) -> float | None:
        """How long it ran, if that is over."""
        if self.started_at is None or self.ended_at is None:
            return None
        return _between(self.started_at, self.ended_at)


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Where moments stand; `marks` in hundredths of the width."""

    latest: float
    promise_seconds: float
    marks: tuple[Label, ...]

    @classmethod
    def over(cls, all_times: Sequence[Times], promise_seconds: float, now: datetime) -> Axis:
        """One that has every end on it, and the moment by which a start is promised."""
        ends = [
            _between(times.due_at, times.ended_at or now) for times in all_times if times.started_at or times.ended_at
        ]
        latest = max(_AFTER_PROMISE * promise_seconds, 1.1 * max(ends, default=0.0))
        bare = cls(latest=latest, promise_seconds=promise_seconds, marks=())
        marks: list[Label] = []
        for seconds, text in sorted([*_MARKS, (promise_seconds, took(promise_seconds))]):
            at = round(bare.at(seconds) / WIDTH * 100, 2)
            if seconds < bare.latest and (not marks or at - marks[-1].at >= _CLOSEST_MARKS):
                marks.append(Label(at=at, text=text))
        return msgspec.structs.replace(bare, marks=tuple(marks))

    def at(self, seconds: float) -> float:
        """Where so many seconds after the due time are."""
        low, high = _stretch(_EARLIEST_SECONDS), _stretch(self.latest)
        place = _stretch(min(max(seconds, _EARLIEST_SECONDS), self.latest))
        return round(WIDTH * (place - low) / (high - low), 1)

    @property
    def due(self) -> float:
        """Where an attempt is due."""
        return self.at(0.0)

    @property
    def promise(self) -> float:
        """By where it has to have started."""
        return self.at(self.promise_seconds)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a line."""

    kind: PartKind
    x: float
    width: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, drawn, and told in words for who cannot see it."""

    parts: tuple[Part, ...]
    picked: float | None
    dispatched: float | None
    words: str


def line_of(times: Times, axis: Axis, now: datetime) -> Line:
    """Draw an attempt; what goes on reaches up to now."""

    def place(moment: datetime | None) -> float | None:
        return None if moment is None else axis.at(_between(times.due_at, moment))

    return Line(
        parts=tuple(_parts(times, axis, now)),
        picked=place(times.picked_at),
        dispatched=place(times.dispatched_at),
        words=_words(times, now),
    )


def _parts(times: Times, axis: Axis, now: datetime) -> list[Part]:
    def part(kind: PartKind, begin: datetime, end: datetime, least: float = 0.0) -> Part:
        x = axis.at(_between(times.due_at, begin))
        return Part(kind=kind, x=x, width=round(max(axis.at(_between(times.due_at, end)) - x, least), 1))

    parts = []
    first = times.picked_at or times.dispatched_at
    # Up to the last thing that happened, not up to now: a page on which nothing happens stays as it is.
    last = times.due_at if times.due_at <= now else times.dispatched_at
    if first is not None and last is not None and first < last:
        parts.append(part("ahead", first, min(last, times.due_at)))
    begun_at = times.started_at or (now if times.is_waiting else None)
    if begun_at is not None and begun_at > times.due_at:
        is_late = _between(times.due_at, begun_at) > axis.promise_seconds
        parts.append(part("late" if is_late else "wait", times.due_at, begun_at))
    if times.started_at is not None:
        parts.append(part(_RUNS[times.outcome], times.started_at, times.ended_at or now, _LEAST_WIDTH))
    return parts


def _words(times: Times, now: datetime) -> str:
    told = [
        f"{name} {_relative(_between(times.due_at, moment))}"
        for name, moment in (
            ("picked", times.picked_at),
            ("dispatched", times.dispatched_at),
            ("started", times.started_at),
        )
        if moment is not None
    ]
    if times.run_seconds is not None:
        told.append(f"ran {took(times.run_seconds)}")
    elif times.started_at is not None:
        told.append(f"runs for {took(_between(times.started_at, now))}")
    if times.outcome is not None:
        told.append(times.outcome.replace("_", " "))
    return ", ".join(told)


def _relative(seconds: float) -> str:
    return f"{took(-seconds)} before it was due" if seconds < 0 else f"{took(seconds)} after it was due"


def _stretch(seconds: float) -> float:
    stretched = math.asinh(seconds / _STRAIGHT_SECONDS)
    return stretched * _BEFORE if stretched < 0 else stretched


def _between(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()
