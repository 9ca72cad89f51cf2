"""What is to come, minute by minute."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.fire_times import fire_times_of
from bellringer.scheduler.model import Schedule

MOST_NAMES = 10
MOST_STEPS = 100_000
"""A calendar ends before the minute for which it would take more steps, or more schedules; about a second of work."""

_MINUTE = timedelta(minutes=1)

# One row for all tasks with the same fire times from then on: an interval of whole minutes counts by its minute.
# Those that fire first come first. Index: tasks_due. OFFSET 0: by their times first, never all of an environment.
COMING = """
SELECT cron, time_zone, every_seconds, first, count(*) AS tasks,
    (array_agg(name ORDER BY name))[1:$4] AS names
FROM (
    SELECT name, cron, time_zone, every_seconds, CASE
            WHEN cron IS NOT NULL THEN GREATEST(next_fire_at, $2)
            WHEN once_at IS NOT NULL OR every_seconds::numeric % 60 = 0 THEN date_trunc('minute', next_fire_at, 'UTC')
            ELSE next_fire_at + make_interval(secs => every_seconds)
                * GREATEST(0, ceil(EXTRACT(epoch FROM $2 - next_fire_at) / every_seconds::numeric))::float8
        END AS first
    FROM (SELECT * FROM bellringer.tasks WHERE next_fire_at < $3 OFFSET 0) AS due
    WHERE environment_id = $1 AND (once_at IS NULL OR next_fire_at >= $2) AND is_planned
) AS coming
GROUP BY cron, time_zone, every_seconds, first
ORDER BY GREATEST(first, $2)
LIMIT $5
"""
# Index: occurrences_open.
WAITING = """
SELECT date_trunc('minute', due_at, 'UTC') AS minute, count(*) AS fire_times,
    (array_agg(DISTINCT name ORDER BY name))[1:$4] AS names
FROM bellringer.occurrences JOIN bellringer.tasks ON number = task
WHERE stage IN (0, 1) AND due_at >= $2 AND due_at < $3 AND environment_id = $1
GROUP BY minute
"""


class MinuteLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How many fire times lie in a minute, and the first names of their tasks, ten at most."""

    minute: datetime
    fire_times: int
    tasks: list[str]


class Coming(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored of the time to come: schedules with their tasks, and minutes that are known already; as far as
    `end`, before which none is left out.
    """

    schedules: Sequence[asyncpg.Record]
    minutes: list[MinuteLoad]
    end: datetime


async def read_coming(connection: Connection, environment_id: UUID, start: datetime, end: datetime) -> Coming:
    """What an environment has from `start` to before `end`, as of one moment: nothing is counted twice."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        schedules = await connection.fetch(COMING, environment_id, start, end, MOST_NAMES, MOST_STEPS)
        waiting = await connection.fetch(WAITING, environment_id, start, end, MOST_NAMES)
    if len(schedules) == MOST_STEPS:
        end = max(start, schedules[-1]["first"].replace(second=0, microsecond=0))
    minutes = [
        MinuteLoad(minute=row["minute"], fire_times=row["fire_times"], tasks=row["names"])
        for row in waiting
        if row["minute"] < end
    ]
    return Coming(schedules=schedules, minutes=minutes, end=end)


def calendar_of(coming: Coming, start: datetime) -> list[MinuteLoad]:
    """The minutes in which anything is to start. `start` is the beginning of one."""
    schedules = coming.schedules
    fires = heapq.merge(*(_fires(place, row, start, coming.end) for place, row in enumerate(schedules)))
    loads = {load.minute: load for load in coming.minutes}
    for step, (minute, place, times) in enumerate(fires):
        if step == MOST_STEPS:
            return sorted((load for load in loads.values() if load.minute < minute), key=_by_minute)
        load, row = loads.get(minute), schedules[place]
        fire_times, names = times * row["tasks"], row["names"]
        if load is not None:
            fire_times += load.fire_times
            names = sorted({*names, *load.tasks})[:MOST_NAMES]
        loads[minute] = MinuteLoad(minute=minute, fire_times=fire_times, tasks=names)
    return sorted(loads.values(), key=_by_minute)


def _fires(place: int, row: asyncpg.Record, start: datetime, end: datetime) -> Iterator[tuple[datetime, int, int]]:
    """The minutes of a schedule, in order: each with the place of the schedule and how often a task fires in it."""
    first: datetime = row["first"]
    if row["cron"] is not None:
        fire_times = fire_times_of(Schedule(cron=row["cron"], time_zone=row["time_zone"]), created_at=start)
        following = fire_times.first_from(first)
        while following is not None and following < end:
            yield following, place, 1
            following = fire_times.after(following)
    elif row["every_seconds"] is not None:
        every = timedelta(seconds=row["every_seconds"])
        if first < start:
            first += -((first - start) // every) * every
        while first < end:
            minute = first.replace(second=0, microsecond=0)
            times = -((first - minute - _MINUTE) // every)
            yield minute, place, times
            first += times * every
    elif first < end:
        yield first, place, 1


def _by_minute(load: MinuteLoad) -> datetime:
    return load.minute
