"""What is to come: from tasks that are due to the slots that they need, second by second. No I/O.

A run that is shorter than the window may wait for others to end and still start within the promise, so such runs share
slots: all that is due within a window, times how long each takes, divided by the window. A longer run keeps a slot to
itself as long as it lasts. For runs that come in a steady stream both are the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate

import msgspec

from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.fire_times import fire_times_of
from bellringer.scheduler.model import Schedule


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks or occurrences that are alike: `tasks` of them, due `second` seconds from now, or before now if negative.

    Of recurring ones `cron` and `time_zone`, or `every_seconds`, say what follows. `seconds` is how long a run takes.
    """

    second: int
    tasks: float
    seconds: float
    cron: str | None = None
    time_zone: str = "UTC"
    every_seconds: float | None = None
    may_overlap: bool = True


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that come due in the same second, counted from now, and how long each of them takes."""

    second: int
    runs: float
    seconds: float


def loads(dues: Iterable[Due], now: datetime, look_ahead_seconds: int) -> Iterator[Load]:
    """Every run that comes due in the next `look_ahead_seconds`; what was due before now is due now.

    A task whose runs may not overlap has none while one of its own still lasts.
    """
    for due in dues:
        free_at = 0.0
        for second in _seconds_of(due, now, look_ahead_seconds):
            if due.may_overlap or second >= free_at:
                free_at = second + due.seconds
                yield Load(second=second, runs=due.tasks, seconds=due.seconds)


def demand(loads: Iterable[Load], look_ahead_seconds: int, window_seconds: int) -> list[float]:
    """The slots needed in the window that begins so many seconds from now: `look_ahead_seconds + 1` numbers."""
    changes = [0.0] * (look_ahead_seconds + 2)
    for load in loads:
        if not 0 <= load.second <= look_ahead_seconds:
            continue
        if load.seconds < window_seconds:
            slots = load.runs * load.seconds / window_seconds
            begin, end = max(0, load.second - window_seconds + 1), load.second + 1
        else:
            slots, begin, end = load.runs, load.second, load.second + math.ceil(load.seconds)
        changes[begin] += slots
        changes[min(end, look_ahead_seconds + 1)] -= slots
    # What is left where everything has been taken away again is the error of the sums.
    return [max(0.0, round(slots, 6)) for slots in accumulate(changes[:-1])]


def peak(needs: Sequence[float], until_second: int) -> tuple[float, int]:
    """The most slots that are needed up to that second, and the first second at which they are."""
    most = max(needs[: until_second + 1], default=0.0)
    return most, needs.index(most) if needs else 0


def _seconds_of(due: Due, now: datetime, look_ahead_seconds: int) -> Iterator[int]:
    first = max(0, due.second)
    if first > look_ahead_seconds:
        return
    yield first
    if due.every_seconds is not None:
        skipped = max(0, math.floor(-due.second / due.every_seconds))
        moment = due.second + (skipped + 1) * due.every_seconds
        while moment <= look_ahead_seconds:
            yield max(0, math.floor(moment))
            moment += due.every_seconds
    elif due.cron is not None:
        whole = now.replace(microsecond=0)
        yield from _cron_seconds(due.cron, due.time_zone, whole, first, look_ahead_seconds)


@lru_cache(maxsize=4096)
def _cron_seconds(cron: str, time_zone: str, now: datetime, first: int, last: int) -> tuple[int, ...]:
    """The fire times after `first` up to `last`, in seconds from now. Tasks by the thousand have the same ones."""
    try:
        fire_times = fire_times_of(Schedule(cron=cron, time_zone=time_zone), created_at=now)
    except InvalidInput:  # the rules of its zone have gone since; the picker refuses it
        return ()
    seconds = []
    for moment in fire_times.upcoming(now + timedelta(seconds=first)):
        second = math.floor((moment - now).total_seconds())
        if second > last:
            break
        seconds.append(second)
    return tuple(seconds)
