"""Tasks are made and changed; what was picked goes along with the change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.support.scheduler_definitions import AT_ONCE, DAILY, EVERY_20_SECONDS, MINUTELY, task
from tests.support.scheduler_engine import Engine

from bellringer.kernel.errors import Conflict, InvalidInput, NotFound
from bellringer.scheduler.model import (
    HttpCall,
    IncidentKind,
    MessageCall,
    Outcome,
    Overlap,
    Schedule,
    TaskDefinition,
    TaskState,
)
from bellringer.scheduler.service import Tasks, preview

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
LONG = timedelta(days=30)


def once(at: datetime) -> TaskDefinition:
    return task(Schedule(at=at))


async def fire_times(tasks: Tasks, home: UUID, name: str) -> list[datetime]:
    return [occurrence.fire_at for occurrence in await tasks.occurrences(home, name)]


# Making


async def test_a_name_makes_a_task_once(tasks: Tasks, home: UUID) -> None:
    made, is_new = await tasks.create(home, "backup", task(payload=b'{"a": 1}'))
    assert (is_new, made.name, made.state, made.definition.overlap) == (True, "backup", TaskState.ACTIVE, Overlap.SKIP)
    assert made.next_fire_at == preview(DAILY, 1, made.created_at)[0]
    assert await tasks.create(home, "backup", task(payload=b'{"a":1}')) == (made, False)
    for other in (task(payload=b'{"a":2}'), task(MINUTELY, b'{"a": 1}'), task(payload=b'{"a": 1}', overlap="allow")):
        with pytest.raises(Conflict):
            await tasks.create(home, "backup", other)
    assert await tasks.read(home, "backup") == made


async def test_a_task_without_a_name_gets_one_of_its_own(tasks: Tasks, home: UUID) -> None:
    names = {(await tasks.create(home, None, task()))[0].name for _ in range(3)}
    assert len(names) == 3
    assert {one.name for one in await tasks.list(home)} == names


async def test_names_belong_to_an_environment(tasks: Tasks, home: UUID, keys: Any) -> None:  # noqa: ANN401
    other = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment.id
    await tasks.create(home, "backup", task())
    assert (await tasks.create(other, "backup", task(MINUTELY)))[1]
    await tasks.delete(home, "backup")
    assert (await tasks.read(other, "backup")).definition.schedule == MINUTELY
    for operation in (tasks.read, tasks.pause, tasks.resume, tasks.cancel, tasks.run_now, tasks.delete):
        with pytest.raises(NotFound):
            await operation(home, "backup")


async def test_a_delay_becomes_a_time_and_is_compared_as_a_delay(tasks: Tasks, engine: Engine, home: UUID) -> None:
    made, _ = await tasks.create(home, "mail", task(AT_ONCE))
    assert made.definition.schedule == Schedule(at=made.created_at)
    assert made.next_fire_at == made.created_at
    assert made.definition.overlap is Overlap.ALLOW
    await engine.pick()
    await engine.run()
    for operation in (tasks.create, tasks.put):
        same, is_new = await operation(home, "mail", task(AT_ONCE))
        assert (is_new, same.state, same.next_fire_at) == (False, TaskState.FINISHED, None)
    with pytest.raises(Conflict):
        await tasks.create(home, "mail", task(Schedule(delay_seconds=1)))


async def test_a_time_that_has_passed_is_the_same_task_and_no_other(tasks: Tasks, engine: Engine, home: UUID) -> None:
    made, _ = await tasks.create(home, "mail", task(AT_ONCE))
    at = made.created_at
    await tasks.delete(home, "mail")
    with pytest.raises(InvalidInput) as refused:
        await tasks.put(home, "mail", once(at))
    assert refused.value.field == "schedule.at"
    later = at + timedelta(seconds=5)
    await tasks.put(home, "mail", once(later))
    await engine.pick()
    await engine.make_due("mail", later)
    assert len(await engine.run()) == 1
    assert (await tasks.read(home, "mail")).state is TaskState.FINISHED
    assert (await tasks.put(home, "mail", once(later)))[0].state is TaskState.FINISHED


async def test_an_interval_counts_from_the_making_and_keeps_its_step(tasks: Tasks, home: UUID) -> None:
    made, _ = await tasks.create(home, "poll", task(Schedule(every_seconds=600)))
    assert made.next_fire_at == made.created_at + timedelta(seconds=600)
    changed, _ = await tasks.put(home, "poll", task(Schedule(every_seconds=300)))
    assert changed.next_fire_at == made.created_at + timedelta(seconds=300)


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        (task(Schedule(cron="0 0 31 2 *")), "schedule.cron"),
        (task(Schedule(cron="* * * * * *")), "schedule.cron"),
        (task(Schedule(cron="0 2 * * *", time_zone="Mars/Base")), "schedule.time_zone"),
        (task(Schedule(cron="0 2 * * *", at=NOW)), "schedule"),
        (task(Schedule()), "schedule"),
        (task(Schedule(at=datetime(2020, 1, 1, tzinfo=UTC))), "schedule.at"),
        (task(Schedule(delay_seconds=-1)), "schedule.delay_seconds"),
        (task(Schedule(every_seconds=0.5)), "schedule.every_seconds"),
        (task(call=HttpCall(url="ftp://example.org")), "call.url"),
        (task(payload=b'"' + b"x" * 262_144 + b'"'), "payload"),
        (task(time_limit_seconds=0), "time_limit_seconds"),
    ],
)
async def test_what_is_no_task_is_refused_with_the_field_and_changes_nothing(
    tasks: Tasks, home: UUID, definition: TaskDefinition, field: str
) -> None:
    stored, _ = await tasks.create(home, "stored", task())
    for operation, name in ((tasks.create, "new"), (tasks.put, "new"), (tasks.put, "stored")):
        with pytest.raises(InvalidInput) as refused:
            await operation(home, name, definition)
        assert refused.value.field == field
    assert await tasks.list(home) == [stored]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "é", "a" * 129, "a\n"])
async def test_what_is_no_name_is_refused(tasks: Tasks, home: UUID, name: str) -> None:
    for operation in (tasks.create, tasks.put):
        with pytest.raises(InvalidInput) as refused:
            await operation(home, name, task())
        assert refused.value.field == "name"


# Changing


async def test_a_new_schedule_takes_back_what_was_picked_under_the_old_one(
    tasks: Tasks, engine: Engine, home: UUID
) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    picked = sorted(await fire_times(tasks, home, "poll"))
    assert len(picked) == 6
    await engine.make_due("poll", picked[0])
    dispatches = await engine.dispatch()
    assert (await engine.start(dispatches[:1])) == ["run"]
    changed, is_new = await tasks.put(home, "poll", task(DAILY))
    assert not is_new
    assert changed.next_fire_at == preview(DAILY, 1, changed.modified_at)[0]
    assert await fire_times(tasks, home, "poll") == picked[:1], "what has started goes on"
    assert await engine.start(dispatches[1:]) == ["gone"] * 5, "nothing of what was handed over runs"
    assert await engine.end(dispatches[0])


async def test_another_payload_leaves_every_fire_time(tasks: Tasks, engine: Engine, home: UUID) -> None:
    made, _ = await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    picked = await fire_times(tasks, home, "poll")
    changed, _ = await tasks.put(home, "poll", task(EVERY_20_SECONDS, b"1"))
    assert (changed.next_fire_at, bytes(changed.definition.payload)) == (made.next_fire_at, b"1")
    assert await fire_times(tasks, home, "poll") == []
    await engine.pick()
    assert await fire_times(tasks, home, "poll") == picked


async def test_another_payload_forgets_no_fire_time_that_was_missed(tasks: Tasks, engine: Engine, home: UUID) -> None:
    made, _ = await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    assert made.next_fire_at is not None
    await engine.miss("poll", 40)
    changed, _ = await tasks.put(home, "poll", task(EVERY_20_SECONDS, b"1"))
    assert changed.next_fire_at == made.next_fire_at - timedelta(seconds=40)
    assert await tasks.incidents(home) == []


async def test_fire_times_that_a_change_gives_up_are_recorded(tasks: Tasks, engine: Engine, home: UUID) -> None:
    for name in ("changed", "paused", "cancelled"):
        await tasks.create(home, name, task(EVERY_20_SECONDS))
        await engine.miss(name, 40)
    missed = {one.name: one.next_fire_at for one in await tasks.list(home)}
    await tasks.put(home, "changed", task(DAILY))
    await tasks.pause(home, "paused")
    await tasks.cancel(home, "cancelled")
    incidents = {incident.task: incident for incident in await tasks.incidents(home)}
    assert {name: incident.fire_at for name, incident in incidents.items()} == missed
    assert {incident.kind for incident in incidents.values()} == {IncidentKind.SKIPPED}
    assert "the task was paused" in (incidents["paused"].detail or "")


async def test_the_same_definition_changes_nothing(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    before, picked = await tasks.read(home, "poll"), await fire_times(tasks, home, "poll")
    assert await tasks.put(home, "poll", task(EVERY_20_SECONDS)) == (before, False)
    assert await fire_times(tasks, home, "poll") == picked


async def test_a_task_that_ran_is_put_for_another_time(tasks: Tasks, engine: Engine, home: UUID) -> None:
    first, _ = await tasks.put(home, "mail", task(AT_ONCE))
    await engine.pick()
    await engine.run()
    at = first.created_at + LONG
    again, is_new = await tasks.put(home, "mail", once(at))
    assert (is_new, again.state, again.next_fire_at) == (False, TaskState.ACTIVE, at)
    assert again.last is not None
    assert again.last.outcome is Outcome.SUCCEEDED


async def test_a_time_that_was_cancelled_by_hand_can_be_given_again(tasks: Tasks, engine: Engine, home: UUID) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=60)
    await tasks.put(home, "mail", once(soon))
    await engine.pick()
    await tasks.cancel_occurrence(home, "mail", soon)
    await tasks.put(home, "mail", once(soon + LONG))
    await tasks.put(home, "mail", once(soon))
    await engine.pick()
    assert [one.outcome for one in await tasks.occurrences(home, "mail")] == [None]


async def test_a_change_of_the_call_changes_the_queue(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.put(home, "mail", task(MINUTELY))
    await tasks.put(home, "mail", task(MINUTELY, call=MessageCall(queue="mails")))
    await engine.pick()
    assert (await tasks.read(home, "mail")).definition.call == MessageCall(queue="mails")


async def test_what_waits_goes_on_when_runs_may_overlap(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.put(home, "mail", task(DAILY, overlap=Overlap.QUEUE))
    first, second = await tasks.run_now(home, "mail"), await tasks.run_now(home, "mail")
    dispatches = await engine.dispatch()
    assert await engine.start(dispatches) == ["run", "gone"]
    await tasks.put(home, "mail", task(DAILY, overlap=Overlap.ALLOW))
    assert [dispatch.fire_at for dispatch in await engine.run()] == [second.fire_at]
    assert dispatches[0].fire_at == first.fire_at
    assert await engine.end(dispatches[0])


async def test_what_runs_is_in_the_way_when_runs_may_no_more_overlap(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.put(home, "mail", task(DAILY, overlap=Overlap.ALLOW))
    for _ in range(2):
        await tasks.run_now(home, "mail")
    assert await engine.start(await engine.dispatch()) == ["run", "run"]
    await tasks.put(home, "mail", task(DAILY, overlap=Overlap.SKIP))
    third = await tasks.run_now(home, "mail")
    assert await engine.start(await engine.dispatch()) == ["gone"]
    assert (await tasks.occurrence(home, "mail", third.fire_at))[0].outcome is Outcome.SKIPPED


async def test_a_task_says_when_it_fires_next_whether_that_is_picked_or_not(
    tasks: Tasks, engine: Engine, home: UUID
) -> None:
    for name, schedule in (("poll", Schedule(every_seconds=20.0)), ("once", Schedule(delay_seconds=60.0))):
        made, _ = await tasks.create(home, name, task(schedule))
        assert made.fires_next_at == made.next_fire_at
        await engine.pick()
        picked = await tasks.read(home, name)
        assert picked.next_fire_at != made.next_fire_at
        assert picked.fires_next_at == made.fires_next_at
        first = (await tasks.occurrences(home, name))[-1]
        await tasks.cancel_occurrence(home, name, first.fire_at)
        left = [one.fire_at for one in await tasks.occurrences(home, name) if one.outcome is None]
        assert (await tasks.read(home, name)).fires_next_at == (min(left) if left else None)
        assert (await tasks.pause(home, name)).fires_next_at is None
