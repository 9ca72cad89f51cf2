"""Tasks are paused, resumed, cancelled and deleted; what was picked and has not started goes along."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from tests.support.scheduler_definitions import AT_ONCE, DAILY, EVERY_20_SECONDS, MINUTELY, task
from tests.support.scheduler_engine import Engine

from bellringer.kernel.database import Database
from bellringer.kernel.errors import Conflict
from bellringer.scheduler.model import Outcome, Schedule, TaskState
from bellringer.scheduler.service import Tasks, preview


async def fire_times(tasks: Tasks, home: UUID, name: str) -> list[datetime]:
    return [occurrence.fire_at for occurrence in await tasks.occurrences(home, name)]


async def test_a_pause_takes_back_what_has_not_started(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    first, *_ = sorted(await fire_times(tasks, home, "poll"))
    await engine.make_due("poll", first)
    dispatches = await engine.dispatch()
    await engine.start(dispatches[:1])
    paused = await tasks.pause(home, "poll")
    assert (paused.state, paused.next_fire_at) == (TaskState.PAUSED, None)
    assert await tasks.pause(home, "poll") == paused
    assert await fire_times(tasks, home, "poll") == [first]
    assert await engine.start(dispatches[1:]) == ["gone"] * 5
    assert await engine.end(dispatches[0]), "what runs comes to its end"
    await engine.pick()
    assert await fire_times(tasks, home, "poll") == [first]


async def test_what_is_due_when_a_task_is_paused_does_not_start_and_is_recorded(
    tasks: Tasks, engine: Engine, home: UUID
) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    dispatches = await engine.dispatch()
    await tasks.pause(home, "mail")
    (occurrence,) = await tasks.occurrences(home, "mail")
    assert (occurrence.outcome, occurrence.detail) == (Outcome.CANCELLED, "the task was paused")
    assert await engine.start(dispatches) == ["gone"]


async def test_a_resumed_task_takes_up_the_fire_times_to_come_each_once(
    tasks: Tasks, engine: Engine, home: UUID
) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    picked = sorted(await fire_times(tasks, home, "poll"))
    await engine.make_due("poll", picked[0])
    old = await engine.dispatch()
    await tasks.pause(home, "poll")
    resumed = await tasks.resume(home, "poll")
    assert (resumed.state, resumed.next_fire_at) == (TaskState.ACTIVE, picked[0])
    assert await tasks.resume(home, "poll") == resumed
    await engine.pick()
    assert sorted(await fire_times(tasks, home, "poll"))[: len(picked)] == picked
    await engine.make_due("poll", picked[0])
    new = await engine.dispatch()
    assert await engine.start(old) == ["gone"] * len(old), "a message of before the pause starts nothing"
    assert (await engine.start(new))[0] == "run"


async def test_fire_times_during_a_pause_do_not_take_place(tasks: Tasks, home: UUID, database: Database) -> None:
    made, _ = await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await tasks.create(home, "mail", task(Schedule(at=datetime.now(UTC) + timedelta(seconds=60))))
    for name in ("poll", "mail"):
        await tasks.pause(home, name)
    async with database.connection() as connection:
        await connection.execute("""
            UPDATE bellringer.tasks SET created_at = created_at - interval '70 s', once_at = once_at - interval '70 s'
        """)
    assert (await tasks.resume(home, "poll")).next_fire_at == made.created_at + timedelta(seconds=10)
    assert (await tasks.resume(home, "mail")).state is TaskState.FINISHED


async def test_a_pause_lets_those_be_that_somebody_asked_for(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    (ran,) = await engine.run(Outcome.FAILED)
    await tasks.retry(home, "mail", ran.fire_at)
    by_hand = await tasks.run_now(home, "mail")
    await tasks.pause(home, "mail")
    assert {dispatch.fire_at for dispatch in await engine.run()} == {ran.fire_at, by_hand.fire_at}
    assert (await tasks.run_now(home, "mail")).is_manual


async def test_a_cancelled_task_starts_nothing_any_more(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    (ran,) = await engine.run(Outcome.FAILED)
    await tasks.retry(home, "mail", ran.fire_at)
    await tasks.run_now(home, "mail")
    cancelled = await tasks.cancel(home, "mail")
    assert cancelled.state is TaskState.CANCELLED
    assert await tasks.cancel(home, "mail") == cancelled
    assert await engine.run() == []
    assert [one.outcome for one in await tasks.occurrences(home, "mail")] == [Outcome.CANCELLED] * 2
    for operation in (tasks.pause, tasks.resume, tasks.run_now):
        with pytest.raises(Conflict):
            await operation(home, "mail")
    with pytest.raises(Conflict):
        await tasks.retry(home, "mail", ran.fire_at)
    assert (await tasks.create(home, "mail", task(AT_ONCE)))[0].state is TaskState.CANCELLED


async def test_a_cancelled_task_is_put_again(tasks: Tasks, engine: Engine, home: UUID) -> None:
    for definition in (task(DAILY), task(Schedule(delay_seconds=60))):
        await tasks.put(home, "trial", definition)
        await tasks.cancel(home, "trial")
        again, is_new = await tasks.put(home, "trial", definition)
        assert (is_new, again.state) == (False, TaskState.ACTIVE)
        assert again.next_fire_at is not None
        assert again.next_fire_at > again.modified_at
    await engine.pick()
    assert len(await tasks.occurrences(home, "trial")) == 1


async def test_a_paused_task_is_changed_and_stays_paused(tasks: Tasks, home: UUID) -> None:
    await tasks.put(home, "trial", task(DAILY))
    await tasks.pause(home, "trial")
    changed, _ = await tasks.put(home, "trial", task(MINUTELY))
    assert (changed.state, changed.next_fire_at, changed.definition.schedule) == (TaskState.PAUSED, None, MINUTELY)
    resumed = await tasks.resume(home, "trial")
    assert resumed.next_fire_at == preview(MINUTELY, 1, resumed.modified_at)[0]


async def test_a_deleted_task_leaves_nothing(tasks: Tasks, engine: Engine, home: UUID, database: Database) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    (ran,) = await engine.run(Outcome.FAILED)
    await tasks.retry(home, "mail", ran.fire_at)
    (again,) = await engine.dispatch()
    assert await engine.start([again]) == ["run"]
    await tasks.delete(home, "mail")
    assert not await engine.end(again)
    async with database.connection() as connection:
        for table in ("tasks", "occurrences", "past_attempts", "incidents"):
            assert await connection.fetchval(f"SELECT count(*) FROM bellringer.{table}") == 0, table
    assert (await tasks.create(home, "mail", task(DAILY)))[1]
