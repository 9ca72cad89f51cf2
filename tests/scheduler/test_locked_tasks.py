"""Nobody stands still for a task that SQL of a client changes in a transaction that goes on and on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.support.scheduler import BOB, Stage

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import Outcome

ENVIRONMENT = "acme/production"
SCHEDULE = """
SELECT bellringer.schedule($1, '{"type": "http", "url": "https://acme.example/other"}', every_seconds => $2)
"""
UNSCHEDULE = "SELECT bellringer.unschedule($1)"


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[Connection]:
    """A connection inside a transaction that ends when the test does, or before."""
    async with stage.database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        if connection.is_in_transaction():
            await connection.execute("ROLLBACK")


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """Whoever waited for the client would wait for ever."""
    async with asyncio.timeout(10):
        yield


async def test_other_tasks_start_while_one_is_locked(stage: Stage, client: Connection) -> None:
    locked, other = await stage.add_task("locked", overlap="skip"), await stage.add_task("other", overlap="skip")
    first, second = await stage.due(locked), await stage.due(other)
    await client.execute(SCHEDULE, "locked", 60.0)
    started = await stage.start(first, second)
    assert [one.verdict for one in started] == ["wait", "run"]
    assert started[0].wait_seconds == pytest.approx(0.1)


async def test_what_is_locked_starts_when_it_is_free_again(stage: Stage, client: Connection) -> None:
    dispatch = await stage.due(await stage.add_task("locked", overlap="skip"))
    await client.execute(SCHEDULE, "locked", 60.0)
    assert await stage.verdicts(dispatch) == ["wait"]
    await client.execute("COMMIT")
    assert await stage.verdicts(dispatch) == ["run"]


async def test_others_start_while_one_is_taken_back(stage: Stage, client: Connection) -> None:
    locked, other = await stage.add_task("locked"), await stage.add_task("other")
    first, second = await stage.due(locked), await stage.due(other)
    await client.execute(UNSCHEDULE, "locked")
    assert await stage.verdicts(first, second) == ["wait", "run"]
    await client.execute("COMMIT")
    assert await stage.verdicts(first) == ["gone"]


async def test_other_runs_end_while_a_task_is_locked(stage: Stage, client: Connection) -> None:
    first = await stage.running(await stage.add_task("locked", overlap="skip"))
    second = await stage.running(await stage.add_task("other", overlap="skip"))
    await client.execute(SCHEDULE, "locked", 60.0)
    assert await stage.end(first, second) == [None, True]
    assert (await stage.occurrence(first))["outcome"] is None
    await client.execute("COMMIT")
    assert await stage.end(first) == [True]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CRASHED])
async def test_nothing_is_tried_again_while_its_task_is_locked(
    stage: Stage, client: Connection, outcome: Outcome
) -> None:
    task = await stage.add_task("locked", overlap="skip", max_retries=1, rerun_after_crash=True)
    dispatch = await stage.running(task)
    await client.execute(UNSCHEDULE, "locked")
    assert await stage.end(dispatch, outcome=outcome) == [None]
    await client.execute("COMMIT")
    await stage.end(dispatch, outcome=outcome)
    assert await stage.outcomes(task) == [outcome]


async def test_a_crash_is_found_when_its_task_is_free_again(stage: Stage, client: Connection) -> None:
    task = await stage.add_task("locked", overlap="skip")
    dispatch = await stage.running(task)
    await stage.lose()
    await client.execute(SCHEDULE, "locked", 60.0)
    assert await stage.verdicts(dispatch, executor=BOB) == ["wait"]
    assert await stage.outcomes(task) == [None]
    await client.execute("COMMIT")
    await stage.verdicts(dispatch, executor=BOB)
    assert await stage.outcomes(task) == ["crashed"]


async def test_runs_of_tasks_that_allow_overlaps_end_whoever_has_them_locked(stage: Stage, client: Connection) -> None:
    dispatch = await stage.running(await stage.add_task("locked", overlap="allow"))
    await client.execute(SCHEDULE, "locked", 60.0)
    assert await stage.end(dispatch) == [True]


async def test_what_is_taken_back_starts_neither_before_nor_after(stage: Stage, client: Connection) -> None:
    task = await stage.add_task("locked", next_fire_at=await stage.now() + timedelta(hours=1))
    fire_at = await stage.now() + timedelta(minutes=1)
    await stage.pick(task, fire_at)
    dispatch = await stage.hand_over(task, fire_at)
    await client.execute(SCHEDULE, "locked", 60.0)
    assert await stage.verdicts(dispatch) == ["wait"]
    await client.execute("COMMIT")
    assert await stage.verdicts(dispatch) == ["gone"]
