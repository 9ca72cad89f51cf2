"""The executor when things end: itself, the database, the hold of a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Self

import pytest
from tests.support.queues import sweep_all
from tests.support.scheduler import Act, Recorder, Stage, executing
from tests.support.scheduler_database import Interrupted
from tests.support.waiting import until

from bellringer.broker.loops import Sweeper
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.database import Connection, DatabaseConfig
from bellringer.scheduler import executor as executor_module
from bellringer.scheduler import records as records_module
from bellringer.scheduler import run as run_module
from bellringer.scheduler.model import Invocation


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are a hundredth of what they are."""
    monkeypatch.setattr(executor_module, "_END_SECONDS", 0.3)
    monkeypatch.setattr(executor_module, "_LOOK_FOR_CANCELLED_SECONDS", 0.01)
    monkeypatch.setattr(records_module, "BACKOFF", Backoff(first_seconds=0.002, cap_seconds=0.05))
    monkeypatch.setattr(run_module, "GRACE_SECONDS", 0.05)


@pytest.fixture
async def interrupted(database_arguments: dict[str, Any]) -> AsyncIterator[Interrupted]:
    opened = await Interrupted.open(DatabaseConfig(pool_size=4), database_arguments)
    assert isinstance(opened, Interrupted)
    yield opened
    await opened.close()


async def forever(_invocation: Invocation) -> None:
    await asyncio.Event().wait()


async def deaf(_invocation: Invocation) -> None:
    for _ in range(20):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


async def counts(stage: Stage) -> tuple[int, int, int]:
    found = (await stage.broker.counts([stage.queue]))[stage.queue.id]
    return found.pending, found.in_flight, found.delayed


async def until_in_flight(stage: Stage, number: int = 1) -> None:
    async def are() -> bool:
        return (await counts(stage))[1] == number

    await until(are)


async def soon(stage: Stage, seconds: float = 4) -> None:
    """An occurrence that is due so soon, and its message."""
    task = await stage.add_task("soon")
    fire_at = await stage.now() + timedelta(seconds=seconds)
    await stage.pick(task, fire_at)
    await stage.post(await stage.hand_over(task, fire_at))


# Shutdown


async def test_what_has_not_started_goes_back_at_once(stage: Stage) -> None:
    await soon(stage)
    async with executing(stage, Recorder()):
        await until_in_flight(stage)
    assert await counts(stage) == (1, 0, 0)


async def test_what_waits_for_a_slot_goes_back_at_once(stage: Stage) -> None:
    task = await stage.add_task("slow")
    await stage.post(*await stage.several_due(task, 3))
    caller = Recorder({"slow": forever})
    async with executing(stage, caller, concurrency=1):
        await caller.next()
        await until_in_flight(stage, 3)
    assert await counts(stage) == (2, 0, 0)
    assert len(caller.invocations) == 1


async def test_what_runs_may_end_in_its_time(stage: Stage) -> None:
    task = await stage.add_task()
    await stage.post(await stage.due(task))
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller):
        await caller.next()
        asyncio.get_running_loop().call_later(0.03, caller.is_open.set)
    assert await stage.outcomes(task) == ["succeeded"]
    assert await counts(stage) == (0, 0, 0)


@pytest.mark.parametrize("act", [forever, deaf])
async def test_what_runs_for_too_long_is_ended_and_recorded(stage: Stage, act: Act) -> None:
    task = await stage.add_task("slow")
    await stage.post(await stage.due(task))
    caller = Recorder({"slow": act})
    async with executing(stage, caller):
        await caller.next()
    (row,) = await stage.occurrences(task)
    assert (row["outcome"], row["detail"]) == ("crashed", "its executor was stopped while it ran")
    assert await counts(stage) == (0, 0, 0)


async def test_what_was_ended_with_its_executor_runs_again_if_its_task_says_so(stage: Stage) -> None:
    task = await stage.add_task("slow", rerun_after_crash=True)
    await stage.post(await stage.due(task))
    caller = Recorder({"slow": forever})
    async with executing(stage, caller):
        await caller.next()
    (row,) = await stage.occurrences(task)
    assert (row["stage"], row["attempt"]) == (0, 2)


async def test_an_executor_stops_though_the_database_is_gone(stage: Stage, interrupted: Interrupted) -> None:
    task = await stage.add_task()
    await stage.post(await stage.due(task))
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller, database=interrupted):
        await caller.next()
        interrupted.is_down = True
        caller.is_open.set()
    assert await stage.outcomes(task) == [None]


# The database goes away


async def test_the_end_of_a_run_waits_for_the_database(stage: Stage, interrupted: Interrupted) -> None:
    task = await stage.add_task()
    await stage.post(await stage.due(task))
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller, database=interrupted):
        await caller.next()
        interrupted.is_down = True
        caller.is_open.set()
        await asyncio.sleep(0.02)
        interrupted.is_down = False
        await stage.until_ended(task)
        await stage.until_acknowledged()
    assert await stage.outcomes(task) == ["succeeded"]


async def test_a_start_whose_answer_was_lost_runs_once(stage: Stage, interrupted: Interrupted) -> None:
    task = await stage.add_task(overlap="skip")
    caller = Recorder()
    async with executing(stage, caller, database=interrupted):
        await soon(stage)
        await until_in_flight(stage)  # it has signed on
        interrupted.loses_answers = True
        dispatch = await stage.due(task)
        await stage.post(dispatch)

        async def started() -> bool:
            return (await stage.occurrence(dispatch))["started_at"] is not None

        await until(started)
        interrupted.loses_answers = False
        (row,) = await stage.until_ended(task)
    assert (row["outcome"], len(caller.invocations), row["attempt"]) == ("succeeded", 1, 1)
    assert (await stage.counts())["started"] == 1


async def test_an_end_whose_answer_was_lost_is_an_end(stage: Stage, interrupted: Interrupted) -> None:
    class Mark:
        @classmethod
        async def apply(cls, connection: Connection, _effects: Sequence[Self]) -> None:
            await connection.execute("INSERT INTO bellringer.run_durations VALUES (gen_random_uuid()::text, '{1}')")

        def committed(self) -> None:
            pass

    async def mark(_invocation: Invocation) -> Mark:
        interrupted.loses_answers = True
        asyncio.get_running_loop().call_later(0.05, setattr, interrupted, "loses_answers", False)
        return Mark()

    task = await stage.add_task("marking", time_limit_seconds=5.0)
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"marking": mark}), database=interrupted):
        (row,) = await stage.until_ended(task)
        await stage.until_acknowledged()
        assert row["outcome"] == "succeeded"
        marks = "SELECT FROM bellringer.run_durations WHERE subject NOT LIKE 'task %'"
        assert len(await stage.fetch(marks)) == 1


async def test_a_start_waits_for_a_task_that_is_locked(stage: Stage) -> None:
    task = await stage.add_task(overlap="skip")
    dispatch = await stage.due(task)
    other = await stage.due(await stage.add_task("other", overlap="skip"))
    caller = Recorder()
    async with stage.database.transaction() as connection, executing(stage, caller):
        await connection.execute("SELECT FROM bellringer.tasks WHERE number = $1 FOR NO KEY UPDATE", task)
        await stage.post(dispatch, other)
        assert (await caller.next()).task == "other"
        await connection.execute("COMMIT; BEGIN")
        await stage.until_ended(task)


async def test_an_end_waits_for_a_task_that_is_locked(stage: Stage) -> None:
    task = await stage.add_task(overlap="skip")
    await stage.post(await stage.due(task))
    caller = Recorder()
    caller.is_open.clear()
    async with stage.database.transaction() as connection, executing(stage, caller):
        await caller.next()
        await connection.execute("SELECT FROM bellringer.tasks WHERE number = $1 FOR NO KEY UPDATE", task)
        other = await stage.add_task("other", overlap="skip")
        await stage.post(await stage.due(other))
        caller.is_open.set()
        await stage.until_ended(other)
        assert await stage.outcomes(task) == [None]
        await connection.execute("COMMIT; BEGIN")
        await stage.until_ended(task)


# Holds


async def test_what_runs_for_long_is_held_for_as_long(stage: Stage) -> None:
    task = await stage.add_task()
    await stage.post(await stage.due(task))
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller, visibility_timeout_seconds=0.4):
        await caller.next()

        begun = await stage.now()

        async def is_past_the_first_hold() -> bool:
            return await stage.now() > begun + timedelta(seconds=0.8)

        await until(is_past_the_first_hold)
        await Sweeper(stage.database, stage.broker).run_once()
        assert await counts(stage) == (0, 1, 0)
        caller.is_open.set()
        await stage.until_acknowledged()
    assert await stage.outcomes(task) == ["succeeded"]


async def test_a_message_that_comes_back_to_where_it_runs_changes_nothing(stage: Stage) -> None:
    task = await stage.add_task()
    await stage.post(await stage.due(task))
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller) as executor:
        await caller.next()
        await sweep_all(stage.database, stage.broker)
        await until_in_flight(stage)
        assert executor.standing() == (1, 0)
        caller.is_open.set()
        await stage.until_ended(task)
        await stage.until_acknowledged()
    assert (await stage.outcomes(task), len(caller.invocations)) == (["succeeded"], 1)


async def test_what_was_lost_before_it_started_is_another_s(stage: Stage) -> None:
    await soon(stage)
    async with executing(stage, Recorder(), visibility_timeout_seconds=0.4) as executor:
        await until_in_flight(stage)
        await stage.broker.pause_queue(stage.queue)
        await sweep_all(stage.database, stage.broker)

        async def has_nothing() -> bool:
            return executor.standing() == (0, 0)

        await until(has_nothing)
    assert (await counts(stage))[0] == 1
