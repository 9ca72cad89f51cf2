"""The next 24 hours as a heat map: a row for each hour by the clock, a cell for each minute."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Protocol

import msgspec

HOURS = 24
_MOST_NAMES_TOLD = 3
_LONGEST_NAME_TOLD = 32
_LEVELS = (1, 3, 10, 30, 100, 300, 1000)
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)

LEVEL_WORDS = (
    *(f"{least:,} to {following - 1:,}" for least, following in pairwise(_LEVELS)),
    f"{_LEVELS[-1]:,} or more",
)
"""How many fire times a cell of each level has."""


class Load(Protocol):
    """A minute with what comes in it; `tasks` has the first of the names."""

    @property
    def minute(self) -> datetime:
        """Its beginning."""
        ...

    @property
    def fire_times(self) -> int:
        """How many there are."""
        ...

    @property
    def tasks(self) -> Sequence[str]:
        """The names of the first tasks."""
        ...


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A minute in which something comes: its place in the hour, how dark it is (from 1), and what it says."""

    minute: datetime
    level: int
    words: str

    @property
    def x(self) -> int:
        """How many minutes past the hour."""
        return self.minute.minute


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """An hour by the clock; the minutes before `first` and from `end` on are not shown."""

    begin: datetime
    first: int
    end: int
    cells: tuple[Cell, ...]
    fire_times: int

    @property
    def next(self) -> datetime:
        """The beginning of the hour after it."""
        return self.begin + _HOUR


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """The hours, and what can be said of all of them."""

    hours: tuple[Hour, ...]
    fire_times: int
    busiest: datetime | None
    busiest_fire_times: int


def begin_of(now: datetime) -> datetime:
    """The minute that a calendar begins with."""
    return now.replace(second=0, microsecond=0)


def calendar_of(loads: Sequence[Load], now: datetime) -> Calendar:
    """Lay out the minutes of 24 hours from now on: parts of the first and the last hour, and all between them."""
    begin = begin_of(now)
    end = begin + HOURS * _HOUR
    shown = [load for load in loads if begin <= load.minute < end]
    first_hour = begin.replace(minute=0)
    hours = [first_hour + index * _HOUR for index in range(HOURS + (begin > first_hour))]
    busiest = max(shown, key=lambda load: load.fire_times, default=None)
    return Calendar(
        hours=tuple(_hour(hour, shown, begin, end) for hour in hours),
        fire_times=sum(load.fire_times for load in shown),
        busiest=None if busiest is None else busiest.minute,
        busiest_fire_times=0 if busiest is None else busiest.fire_times,
    )


def _hour(hour: datetime, loads: Sequence[Load], begin: datetime, end: datetime) -> Hour:
    here = [load for load in loads if hour <= load.minute < hour + _HOUR]
    return Hour(
        begin=hour,
        first=max(0, (begin - hour) // _MINUTE),
        end=min(60, (end - hour) // _MINUTE),
        cells=tuple(Cell(minute=load.minute, level=level_of(load.fire_times), words=_words(load)) for load in here),
        fire_times=sum(load.fire_times for load in here),
    )


def level_of(fire_times: int) -> int:
    """How dark a cell is: by half powers of ten."""
    return bisect_right(_LEVELS, fire_times)


def _words(load: Load) -> str:
    names = [_short(name) for name in load.tasks[:_MOST_NAMES_TOLD]]
    more = " and more" if len(load.tasks) > _MOST_NAMES_TOLD else ""
    return f"{load.minute:%H:%M} UTC, {load.fire_times:,}: {', '.join(names)}{more}"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME_TOLD else name[: _LONGEST_NAME_TOLD - 1] + "…"
