"""Which fire times a task has, computed from what was asked of it and from nothing that the scheduler computes with.

A request took effect at some moment between its beginning and its answer. So there are fire times that certainly took
place, and some near a request that may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from tests.support.scheduler_history.records import (
    MINUTE,
    Delay,
    Interval,
    MalformedHistory,
    Minutes,
    Once,
    Policy,
    Request,
    Schedule,
    StoredTask,
    Verb,
)

_ENDS = {Verb.PAUSE, Verb.CANCEL, Verb.CHANGE}
_BEGINS = {Verb.CREATE, Verb.RESUME, Verb.CHANGE}


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The fire times of a task: those that must have taken place, and all that can have."""

    certain: frozenset[int]
    possible: frozenset[int]


class _Reign(msgspec.Struct, kw_only=True):
    """A time in which a schedule is in force: begun by one request, and ended by another."""

    schedule: Schedule
    beginning: Request
    end: Request | None = None


def policy_of(requests: Sequence[Request]) -> Policy:
    """What a task says about things that go wrong. Raises `MalformedHistory` where it was never made."""
    if not requests or requests[0].policy is None:
        raise MalformedHistory("a task was used before it was made")
    return requests[0].policy


def expected_fire_times(requests: Sequence[Request], task: StoredTask) -> Expected:
    """The fire times of a task. Raises `MalformedHistory` where its schedule never ends."""
    certain, possible = set[int](), set[int]()
    for reign in _reigns(requests):
        if reign.end is None:
            raise MalformedHistory(f"{task.name} goes on after the end of its history")
        earliest, latest = reign.beginning.begun_at, reign.end.answered_at
        for fire_at in fire_times(reign.schedule, task, earliest, latest):
            possible.add(fire_at)
            if reign.beginning.answered_at < fire_at < reign.end.begun_at:
                certain.add(fire_at)
    return Expected(certain=frozenset(certain), possible=frozenset(possible))


def fire_times(schedule: Schedule, task: StoredTask, earliest: int, latest: int) -> Iterator[int]:
    """The fire times of a schedule within a time, both ends included."""
    match schedule:
        case Once(at=at):
            yield from [at] if earliest <= at <= latest else []
        case Delay():
            once_at = task.once_at
            yield from [once_at] if once_at is not None and earliest <= once_at <= latest else []
        case Interval(every=every, anchor=anchor):
            # Counted from when the task was made, that moment itself is none.
            first = task.created_at + every if anchor is None else anchor
            skipped = max(0, -((first - earliest) // every))
            yield from range(first + skipped * every, latest + 1, every)
        case Minutes(step=step, ahead_minutes=ahead_minutes):
            for minute in range(-(-earliest // MINUTE), latest // MINUTE + 1):
                if (minute + ahead_minutes) % 60 % step == 0:
                    yield minute * MINUTE


def _reigns(requests: Sequence[Request]) -> Iterator[_Reign]:
    schedule: Schedule | None = None
    reign: _Reign | None = None
    for request in requests:
        if reign is not None and request.verb in _ENDS:
            reign.end = request
            yield reign
            reign = None
        schedule = request.schedule or schedule
        if reign is None and request.verb in _BEGINS:
            if schedule is None:
                raise MalformedHistory(f"{request.task} was {request.verb}d without a schedule")
            reign = _Reign(schedule=schedule, beginning=request)
    if reign is not None and not _is_over(reign.schedule):
        yield reign
    elif reign is not None:
        yield msgspec.structs.replace(reign, end=_never(reign.beginning))


def _is_over(schedule: Schedule) -> bool:
    """Whether it comes to an end by itself."""
    return isinstance(schedule, Once | Delay)


def _never(request: Request) -> Request:
    return msgspec.structs.replace(request, verb=Verb.CANCEL, begun_at=2**62, answered_at=2**62)
