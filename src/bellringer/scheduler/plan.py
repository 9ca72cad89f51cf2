"""Which fire times of a task run and which are skipped, up to a horizon."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile

import msgspec

from bellringer.scheduler.fire_times import FireTimes
from bellringer.scheduler.model import Misfire, MisfirePolicy


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the next fire times, each in ascending order, and the first one after them."""

    runs: list[datetime]
    skips: list[datetime]
    next_fire_at: datetime | None


def plan(
    fire_times: FireTimes,
    next_fire_at: datetime,
    *,
    now: datetime,
    horizon: datetime,
    misfire: MisfirePolicy,
    grace_seconds: float,
    limit: int = 1000,
) -> Plan:
    """Plan the fire times from `next_fire_at`, one itself, up to `horizon`, at most `limit` of them.

    One is missed when it lies more than `grace_seconds` before `now`. Whether a missed one runs hangs on nothing but
    whether it lies before a threshold, which is the same for every piece of a plan that is made in pieces.
    """
    missed_before = now - timedelta(seconds=grace_seconds)
    threshold = missed_before
    if next_fire_at < missed_before:
        threshold = _threshold(fire_times, next_fire_at, missed_before, now, misfire)
    runs: list[datetime] = []
    skips: list[datetime] = []
    upcoming = _from(fire_times, next_fire_at)
    for fire_at in islice(upcoming, limit):
        if fire_at > horizon:
            return Plan(runs=runs, skips=skips, next_fire_at=fire_at)
        (runs if fire_at >= threshold else skips).append(fire_at)
    return Plan(runs=runs, skips=skips, next_fire_at=next(upcoming, None))


def _threshold(
    fire_times: FireTimes, first: datetime, missed_before: datetime, now: datetime, misfire: MisfirePolicy
) -> datetime:
    """The moment from which on fire times run."""
    match misfire.policy:
        case Misfire.SKIP:
            return missed_before
        case Misfire.LATEST:
            return _last(fire_times, first, missed_before, 1)
        case Misfire.ALL:
            return _last(fire_times, first, missed_before, misfire.limit)
        case Misfire.WINDOW:
            window = timedelta(seconds=misfire.window_seconds)
            return min(now - window, missed_before)


def _last(fire_times: FireTimes, first: datetime, end: datetime, number: int) -> datetime:
    """The `number`-th last fire time before `end`, or `first` when there are fewer from there on.

    Goes back from the end in spans that grow where fire times are rare and shrink where they are dense: it looks at
    a few times as many as it was asked for, however many there are.
    """
    most = number + 64
    span = timedelta(seconds=max(number, 1))
    while number > 0 and end > first:
        start = max(end - span, first) if end - first > span else first
        found = list(islice(_between(fire_times, start, end), most))
        if len(found) == most:
            span /= 8
            continue
        if len(found) >= number:
            return found[-number]
        number -= len(found)
        end = start
        span *= 2
    return end


def _between(fire_times: FireTimes, start: datetime, end: datetime) -> Iterator[datetime]:
    """The fire times from `start` on and before `end`."""
    first = fire_times.first_from(start)
    upcoming = () if first is None else _from(fire_times, first)
    return takewhile(lambda fire_at: fire_at < end, upcoming)


def _from(fire_times: FireTimes, first: datetime) -> Iterator[datetime]:
    return chain([first], fire_times.upcoming(first))
