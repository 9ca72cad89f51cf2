"""Changes of tasks meet pickers, dispatchers and executors in the middle of their transactions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from tests.support.scheduler_definitions import AT_ONCE, DAILY, EVERY_20_SECONDS, task
from tests.support.scheduler_engine import Engine
from tests.support.waiting import until_sessions_wait

from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import NotFound
from bellringer.scheduler import occurrence_store
from bellringer.scheduler.model import Outcome, TaskState
from bellringer.scheduler.service import Tasks

PICKED = """
WITH picked AS (
    INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
    SELECT number, next_fire_at, 0, next_fire_at, clock_timestamp() FROM bellringer.tasks WHERE name = $1
)
UPDATE bellringer.tasks SET next_fire_at = next_fire_at + interval '20 s' WHERE name = $1 RETURNING next_fire_at
"""


@asynccontextmanager
async def meanwhile(
    database: Database, work: Coroutine[Any, Any, Any], statement: str, *arguments: object
) -> AsyncIterator[Connection]:
    """Let `work` wait for a transaction that ran the statement; it goes on when the block ends, and finishes."""
    async with database.transaction() as connection:
        await connection.execute(statement, *arguments)
        changing = asyncio.create_task(work)
        await until_sessions_wait(connection)
        yield connection
    await changing


async def times(tasks: Tasks, home: UUID, name: str) -> list[datetime]:
    return sorted(occurrence.fire_at for occurrence in await tasks.occurrences(home, name))


LOCK = "SELECT FROM bellringer.tasks FOR NO KEY UPDATE"


async def test_a_change_that_meets_a_picker_takes_back_what_it_picked(
    tasks: Tasks, home: UUID, database: Database
) -> None:
    made, _ = await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    async with meanwhile(database, tasks.put(home, "poll", task(EVERY_20_SECONDS, b"1")), LOCK) as connection:
        assert await connection.fetchval(PICKED, "poll") != made.next_fire_at
    assert await times(tasks, home, "poll") == []
    assert (await tasks.read(home, "poll")).next_fire_at == made.next_fire_at


@pytest.mark.parametrize("state", [TaskState.PAUSED, TaskState.CANCELLED])
async def test_a_stop_that_meets_a_picker_takes_back_what_it_picked(
    tasks: Tasks, home: UUID, database: Database, state: TaskState
) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    stop = tasks.pause if state is TaskState.PAUSED else tasks.cancel
    async with meanwhile(database, stop(home, "poll"), LOCK) as connection:
        await connection.execute(PICKED, "poll")
    assert await times(tasks, home, "poll") == []
    stopped = await tasks.read(home, "poll")
    assert (stopped.state, stopped.next_fire_at) == (state, None)


async def test_a_picker_passes_by_a_task_that_is_being_changed(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    await tasks.create(home, "changing", task(EVERY_20_SECONDS))
    await tasks.create(home, "other", task(EVERY_20_SECONDS))
    async with database.transaction() as connection:
        await connection.execute("SELECT FROM bellringer.tasks WHERE name = 'changing' FOR NO KEY UPDATE")
        await engine.pick()
        assert len(await times(tasks, home, "other")) == 6
        assert await times(tasks, home, "changing") == []
    await engine.pick()
    assert len(await times(tasks, home, "changing")) == 6


async def test_a_pause_that_meets_a_dispatcher_takes_back_what_it_hands_over(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    async with meanwhile(database, tasks.pause(home, "poll"), occurrence_store.DISPATCH, 150.0, 1000):
        pass
    assert await times(tasks, home, "poll") == []


async def test_a_pause_that_meets_a_start_leaves_what_has_started(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    for overlap in ("allow", "skip"):
        name = f"poll-{overlap}"
        await tasks.create(home, name, task(EVERY_20_SECONDS, overlap=overlap))
        await engine.pick()
        first = (await times(tasks, home, name))[0]
        await engine.make_due(name, first)
        (dispatch, *_) = [one for one in await engine.dispatch() if one.fire_at == first]
        start = ([dispatch.task], [dispatch.fire_at], [1], [dispatch.dispatched_at], [0.0], [0.0], 30.0, 20.0)
        async with meanwhile(database, tasks.pause(home, name), occurrence_store.START, engine.executor, *start):
            pass
        assert await times(tasks, home, name) == [first]
        assert (await tasks.read(home, name)).state is TaskState.PAUSED
        assert await engine.end(dispatch)


async def test_a_start_that_meets_a_pause_does_not_take_place(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    dispatches = await engine.dispatch()
    async with database.transaction() as connection:
        await connection.execute("SELECT * FROM bellringer.stop_task($1, 'mail', 'paused')", home)
        assert await engine.start(dispatches) == ["wait"]
    assert await engine.start(dispatches) == ["gone"]


async def test_two_puts_of_a_new_name_make_one_task(tasks: Tasks, home: UUID) -> None:
    for round_ in range(5):
        definitions = [task(EVERY_20_SECONDS, b"%d" % number) for number in range(4)]
        answers = await asyncio.gather(*(tasks.put(home, f"poll-{round_}", each) for each in definitions))
        assert [is_new for _, is_new in answers].count(True) == 1
        assert len({answer.number for answer, _ in answers}) == 1
    assert len(await tasks.list(home)) == 5


async def test_two_makings_of_the_same_task_are_one(tasks: Tasks, home: UUID) -> None:
    answers = await asyncio.gather(*(tasks.create(home, "mail", task(DAILY)) for _ in range(4)))
    assert [is_new for _, is_new in answers].count(True) == 1
    assert len({answer.number for answer, _ in answers}) == 1


async def test_a_put_that_meets_a_deletion_makes_the_task_anew(tasks: Tasks, home: UUID, database: Database) -> None:
    made, _ = await tasks.create(home, "mail", task(DAILY))
    async with meanwhile(
        database, tasks.put(home, "mail", task(DAILY, b"1")), "DELETE FROM bellringer.tasks WHERE name = 'mail'"
    ):
        pass
    assert (await tasks.read(home, "mail")).number != made.number


async def test_what_meets_a_deletion_finds_no_task(tasks: Tasks, home: UUID, database: Database) -> None:
    for operation in (tasks.run_now, tasks.pause, tasks.cancel, tasks.resume):
        await tasks.create(home, "mail", task(DAILY))
        with pytest.raises(NotFound):
            async with meanwhile(database, operation(home, "mail"), "DELETE FROM bellringer.tasks WHERE name = 'mail'"):
                pass


async def test_an_occurrence_that_ends_while_it_is_cancelled_has_ended(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    (dispatch,) = await engine.dispatch()
    await engine.start([dispatch])

    async def cancel() -> None:
        with pytest.raises(Exception, match="over: succeeded"):
            await tasks.cancel_occurrence(home, "mail", dispatch.fire_at)

    end = ([dispatch.task], [dispatch.fire_at], [1], ["succeeded"], [None])
    async with meanwhile(database, cancel(), occurrence_store.END, *end):
        pass
    assert (await tasks.occurrence(home, "mail", dispatch.fire_at))[0].outcome is Outcome.SUCCEEDED


async def test_pauses_and_resumes_among_pickers_lose_and_double_no_fire_time(
    tasks: Tasks, engine: Engine, home: UUID
) -> None:
    made, _ = await tasks.create(home, "poll", task(EVERY_20_SECONDS))

    async def toggle() -> None:
        for _ in range(10):
            await tasks.pause(home, "poll")
            await tasks.resume(home, "poll")

    async def pick() -> None:
        for _ in range(20):
            await engine.pick()

    await asyncio.gather(toggle(), pick(), pick())
    await engine.pick()
    found = await times(tasks, home, "poll")
    assert found[0] == made.next_fire_at
    assert {(later - earlier).total_seconds() for earlier, later in itertools.pairwise(found)} == {20.0}
