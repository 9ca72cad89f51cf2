"""Tasks are made, changed, stopped and run, whatever pickers and executors do at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.accesses import accesses_of  # noqa: F401

from bellringer.broker import Broker
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound
from bellringer.scheduler.model import (
    HttpCall,
    Overlap,
    Schedule,
    TaskDefinition,
    TaskState,
)
from bellringer.scheduler.service import Tasks, preview

CALL = HttpCall(url="https://example.org/hook")
DAILY = Schedule(cron="0 2 * * *", time_zone="Europe/Berlin")


def task(schedule: Schedule = DAILY, payload: object = None, **options: Any) -> TaskDefinition:  # noqa: ANN401 - of each
    return TaskDefinition(schedule=schedule, call=CALL, payload=msgspec.Raw(msgspec.json.encode(payload)), **options)


@pytest.fixture
def tasks(database: Database, broker: Broker) -> Tasks:
    return Tasks(database, broker)


async def test_a_task_is_made_once(tasks: Tasks, environment: Environment) -> None:
    made, is_new = await tasks.create(environment.id, "backup", task())
    assert (made.name, made.state, is_new, made.definition.overlap) == ("backup", TaskState.ACTIVE, True, Overlap.SKIP)
    assert await tasks.create(environment.id, "backup", task()) == (made, False)
    with pytest.raises(Conflict):
        await tasks.create(environment.id, "backup", task(payload=1))
    assert await tasks.read(environment.id, "backup") == made
    changed, is_new = await tasks.put(environment.id, "backup", task(payload=1))
    assert not is_new
    assert (await tasks.pause(environment.id, "backup")).state is TaskState.PAUSED
    assert (await tasks.resume(environment.id, "backup")).next_fire_at == made.next_fire_at
    ran = await tasks.run_now(environment.id, "backup")
    assert (await tasks.occurrences(environment.id, "backup")) == [ran]
    await tasks.cancel_occurrence(environment.id, "backup", ran.fire_at)
    again = await tasks.retry(environment.id, "backup", ran.fire_at)
    assert again.attempt == 2
    assert len(await tasks.calendar(environment.id, datetime.now(UTC), 48)) == 3
    for state in [None, *TaskState]:
        print(state, len(await tasks.list(environment.id, state=state)))
    async with database_of(tasks).connection() as connection:
        print(
            await connection.fetchval(
                """SELECT bellringer.schedule('x', '{"type": "http", "url": "http://a"}', cron => '* * * * *')"""
            )
        )
        print(
            await connection.fetchval(
                """SELECT bellringer.schedule('x', '{"type": "http", "url": "http://a"}', cron => '* * * * *')"""
            )
        )
        print(
            await connection.fetchval(
                """SELECT bellringer.schedule('x', '{"type": "http", "url": "http://a"}', cron => '1 * * * *')"""
            )
        )
    print(await tasks.read(environment.id, "x"))
    await tasks.cancel(environment.id, "backup")
    await tasks.delete(environment.id, "backup")


def database_of(tasks):
    return tasks._database
