"""Time zones as stretches of time in which the offset from UTC stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from bellringer.kernel.errors import InvalidInput

LAST_YEAR = 9998
"""The last year that can be asked for; local clocks run ahead of the next one, and `datetime` ends there."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = 24 * 3600


class Stretch(NamedTuple):
    """A time with one offset; in seconds since 1970, `end` not included. Ends at the latest with the year.

    `reached` is what the local clock had come up to before the stretch. It is later than the local time at the start
    where the clock was put back: what lies between happens for the second time.
    """

    start: int
    end: int
    offset: int
    reached: int


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """The zone of that name in the IANA database; `InvalidInput` names `schedule.time_zone` when there is none."""
    if name not in _names():
        raise InvalidInput(
            f"{name[:64]!r} is no time zone; take a name of the IANA database such as 'Europe/Berlin'",
            field="schedule.time_zone",
        )
    return ZoneInfo(name)


def stretches_from(zone: ZoneInfo, second: int, *, years: int) -> Iterator[Stretch]:
    """The stretch in which that second lies, and those that follow in so many years, up to `LAST_YEAR`."""
    year = (EPOCH + timedelta(seconds=second)).year
    for stretch in _stretches(zone, year) if year <= LAST_YEAR else ():
        if stretch.end > second:
            yield stretch
    for later in range(year + 1, min(year + years, LAST_YEAR) + 1):
        yield from _stretches(zone, later)


@cache
def _names() -> frozenset[str]:
    """What the machine calls its own zone, and the stand-in for one that was never set, name no zone."""
    return frozenset(available_timezones() - {"localtime", "Factory"})


@lru_cache(maxsize=16_384)
def _stretches(zone: ZoneInfo, year: int) -> tuple[Stretch, ...]:
    """The stretches of a year. Looks at every day: no offset changed twice in one since 1970, as a test holds to.

    It takes 0.2 ms, and 1 KB is kept. Starts two days early, for a clock that was put back just before the year.
    """
    first, last = _second(year), _second(year + 1)
    days = [(second, _offset(zone, second)) for second in range(first - 2 * _DAY, last + 1, _DAY)]
    changes = [_change(zone, day, next_day) for (day, old), (next_day, new) in pairwise(days) if old != new]
    stretches = []
    reached = first - 4 * _DAY
    for start, end in pairwise([first - 2 * _DAY, *changes, last]):
        offset = _offset(zone, start)
        if end > first:
            stretches.append(Stretch(max(start, first), end, offset, reached))
        reached = max(reached, end + offset)
    return tuple(stretches)


def _change(zone: ZoneInfo, before: int, after: int) -> int:
    """The first second with the offset of `after`."""
    old = _offset(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == old:
            before = middle
        else:
            after = middle
    return after


def _offset(zone: ZoneInfo, second: int) -> int:
    return (datetime.fromtimestamp(second, zone).replace(tzinfo=UTC) - EPOCH) // _SECOND - second


def _second(year: int) -> int:
    return (datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // _SECOND
