"""The calendar tells every fire time to come once, wherever it stands by now, and takes little to do so."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from tests.support.scheduler_definitions import EVERY_20_SECONDS, MINUTELY, task
from tests.support.scheduler_engine import Engine

from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler import calendar
from bellringer.scheduler.calendar import MinuteLoad
from bellringer.scheduler.model import Schedule
from bellringer.scheduler.service import Tasks

HOUR = timedelta(hours=1)
MANY = """
INSERT INTO bellringer.tasks (environment_id, name, queue, cron, every_seconds, call, overlap, next_fire_at)
SELECT $1, $2 || number, 1, $3::text, $4::float8, '{"type": "function", "name": "f"}', 'skip',
    $5::timestamptz + CASE WHEN $3 IS NULL THEN number ELSE 0 END * interval '1 ms'
FROM generate_series(1, $6) AS number
"""


def minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def counts(loads: list[MinuteLoad]) -> dict[datetime, int]:
    return {load.minute: load.fire_times for load in loads}


async def test_every_fire_time_stands_in_its_minute(tasks: Tasks, home: UUID) -> None:
    now = await tasks.now()
    start = minute_of(now) + HOUR
    expected: Counter[datetime] = Counter()
    for name, every in (("a", 7.5), ("b", 45.0), ("c", 60.0), ("d", 90.0), ("e", 3600.0), ("f", 1000.25)):
        made, _ = await tasks.put(home, name, task(Schedule(every_seconds=every, starting_at=now + HOUR / 3)))
        fire_time = made.next_fire_at
        while fire_time is not None and fire_time < start + 2 * HOUR:
            expected[minute_of(fire_time)] += fire_time >= start
            fire_time += timedelta(seconds=every)
    for name, cron in (("g", "*/7 * * * *"), ("h", "30 * * * *"), ("i", "30 * * * *")):
        await tasks.put(home, name, task(Schedule(cron=cron)))
    for step in range(120):
        minute = start + step * timedelta(minutes=1)
        expected[minute] += (minute.minute % 7 == 0) + 2 * (minute.minute == 30)
    for name, at in (("j", start + HOUR), ("k", start + 2 * HOUR), ("l", start - timedelta(seconds=1))):
        await tasks.put(home, name, task(Schedule(at=at)))
    expected[start + HOUR] += 1
    assert counts(await tasks.calendar(home, start + timedelta(seconds=30), 2)) == +expected


async def test_what_is_picked_is_told_once(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.put(home, "poll", task(EVERY_20_SECONDS))
    await tasks.put(home, "tick", task(MINUTELY))
    await tasks.put(home, "mail", task(Schedule(at=datetime.now(UTC) + timedelta(seconds=90))))
    start = await tasks.now()
    before = await tasks.calendar(home, start, 1)
    await engine.pick()
    assert await tasks.calendar(home, start, 1) == before
    await engine.dispatch()
    assert await tasks.calendar(home, start, 1) == before


async def test_a_minute_names_ten_tasks_at_most(tasks: Tasks, home: UUID, database: Database) -> None:
    next_hour = minute_of(await tasks.now()).replace(minute=0) + HOUR
    async with database.connection() as connection:
        await connection.execute(MANY, home, "b", "0 * * * *", None, next_hour, 30)
    await tasks.put(home, "a", task(Schedule(cron="0,30 * * * *")))
    found = {load.minute: load for load in await tasks.calendar(home, next_hour, 1)}
    assert found[next_hour].fire_times == 31
    assert found[next_hour].tasks == sorted(["a", *(f"b{number}" for number in range(1, 31))])[:10]
    assert found[next_hour + HOUR / 2].tasks == ["a"]


async def test_other_environments_and_stopped_tasks_are_left_out(tasks: Tasks, home: UUID) -> None:
    await tasks.put(home, "tick", task(MINUTELY))
    assert await tasks.calendar(UUID(int=5), await tasks.now(), 1) == []
    await tasks.pause(home, "tick")
    assert await tasks.calendar(home, await tasks.now(), 24) == []


async def test_many_tasks_of_few_schedules_take_a_moment(tasks: Tasks, home: UUID, database: Database) -> None:
    start = minute_of(await tasks.now())
    next_minute = start + timedelta(minutes=1)
    async with database.connection() as connection:
        await connection.execute(MANY, home, "cron", "* * * * *", None, next_minute, 20_000)
        await connection.execute(MANY, home, "interval", None, 300.0, next_minute, 20_000)
    began = time.perf_counter()
    found = await tasks.calendar(home, start, 24)
    assert time.perf_counter() - began < 10, "a second or so, when nothing else runs"
    assert sum(load.fire_times for load in found) == 20_000 * (24 * 60 - 1) + 20_000 * 24 * 12
    assert len(found) == 24 * 60 - 1


async def test_a_calendar_ends_early_rather_than_late(
    tasks: Tasks, home: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks.put(home, "tick", task(MINUTELY))
    await tasks.put(home, "tock", task(Schedule(cron="*/1 * * * *")))
    whole = await tasks.calendar(home, await tasks.now(), 1)
    monkeypatch.setattr(calendar, "MOST_STEPS", 21)
    assert await tasks.calendar(home, await tasks.now(), 1) == whole[:10]


async def test_of_many_schedules_those_that_fire_first_are_read(
    tasks: Tasks, home: UUID, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = minute_of(await tasks.now()) + HOUR
    async with database.connection() as connection:
        for minute in (3, 9, 6):
            first = start + minute * timedelta(minutes=1) - 10 * timedelta(seconds=1000.25)
            await connection.execute(MANY, home, f"b{minute}-", None, 1000.25, first, 20)
    await tasks.put(home, "tick", task(MINUTELY))
    whole = await tasks.calendar(home, start, 1)
    monkeypatch.setattr(calendar, "MOST_STEPS", 30)
    assert await tasks.calendar(home, start, 1) == whole[:6]
    assert [load.fire_times for load in whole[:6]] == [1, 1, 1, 21, 1, 1]
    async with database.connection() as connection:
        coming = await calendar.read_coming(connection, home, start, start + HOUR)
    assert (len(coming.schedules), coming.end) == (30, start + timedelta(minutes=6))


@pytest.mark.parametrize(
    ("start", "hours", "field"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), 0, "hours"),
        (datetime(2026, 1, 1, tzinfo=UTC), 169, "hours"),
        (datetime(2026, 1, 1), 1, "start"),  # noqa: DTZ001 - that is the point
        (datetime(9999, 12, 31, 23, tzinfo=UTC), 2, "start"),
    ],
)
async def test_what_is_no_calendar_is_refused(
    tasks: Tasks, home: UUID, start: datetime, hours: int, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await tasks.calendar(home, start, hours)
    assert refused.value.field == field
