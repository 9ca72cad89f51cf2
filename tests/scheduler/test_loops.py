"""What goes on beside picking: incidents are announced, missing starts reported, what is old forgotten."""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from tests.support.scheduler import ALICE, Stage
from tests.support.scheduler_rows import report

from bellringer.broker import QueueSettings
from bellringer.edge.keys import Keys
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.events import EVENTS_QUEUE, EVENTS_SETTINGS, TaskEvent
from bellringer.scheduler.loops import Announcer, Collector, Replanner, Watcher
from bellringer.scheduler.model import Outcome

MONTH = 30 * 24 * 3600


@pytest.fixture
def announcer(stage: Stage) -> Announcer:
    return Announcer(stage.database, stage.broker)


@pytest.fixture
def watcher(stage: Stage) -> Watcher:
    return Watcher(stage.database, SchedulerConfig())


@pytest.fixture
def collector(stage: Stage) -> Collector:
    return Collector(stage.database, SchedulerConfig())


async def events(stage: Stage) -> list[TaskEvent]:
    queue = await stage.broker.queue(stage.environment_id, EVENTS_QUEUE)
    messages = await stage.broker.claim(queue, 1000, wait_seconds=0)
    return [msgspec.json.decode(message.body, type=TaskEvent) for message in messages]


# Announcer


async def test_an_incident_is_announced_with_all_that_is_known(stage: Stage, announcer: Announcer) -> None:
    dispatch = await stage.running(await stage.add_task("report"))
    await stage.end(dispatch, outcome=Outcome.FAILED, detail="no disk")
    await announcer.run_once()
    (event,) = await events(stage)
    (incident,) = await stage.incidents()
    assert (event.id, event.kind, event.task, event.at) == (incident["id"], "failed", "report", incident["at"])
    assert (event.fire_at, event.attempt, event.detail, event.cause) == (dispatch.fire_at, 1, "no disk", None)


async def test_every_incident_is_announced_once(stage: Stage) -> None:
    for _ in range(20):
        await report(stage.database, stage.environment_id, "failed")
    announcers = [Announcer(stage.database, stage.broker) for _ in range(4)]
    await asyncio.gather(*(announcer.run_once() for announcer in announcers))
    while await announcers[0].run_once():
        pass
    ids = [event.id for event in await events(stage)]
    assert sorted(ids) == [row["id"] for row in await stage.incidents()]


async def test_events_come_in_the_order_of_the_incidents(stage: Stage, announcer: Announcer) -> None:
    for kind in ("failed", "missed", "crashed"):
        await report(stage.database, stage.environment_id, kind)
    await announcer.run_once()
    assert [event.kind for event in await events(stage)] == ["failed", "missed", "crashed"]


async def test_an_incident_that_could_not_be_announced_is_announced_later(
    stage: Stage, announcer: Announcer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise MemoryError

    await report(stage.database, stage.environment_id, "failed")
    with monkeypatch.context() as patched:
        patched.setattr(stage.broker, "publish", fail)
        with pytest.raises(MemoryError):
            await announcer.run_once()
    await announcer.run_once()
    assert len(await events(stage)) == 1


async def test_where_nothing_happened_nothing_is_made(stage: Stage, announcer: Announcer) -> None:
    assert not await announcer.run_once()
    assert await stage.broker.list_queues([stage.environment_id]) == []


async def test_a_queue_that_takes_no_events_keeps_them_from_nobody_else(
    stage: Stage, announcer: Announcer, keys: Keys
) -> None:
    other = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    settings = msgspec.structs.replace(EVENTS_SETTINGS, max_body_bytes=10)
    await stage.broker.create_queue(other.id, EVENTS_QUEUE, settings)
    for environment_id in (other.id, stage.environment_id):
        await report(stage.database, environment_id, "failed")
    await announcer.run_once()
    assert len(await events(stage)) == 1
    assert [row["is_announced"] for row in await stage.incidents()] == [True, True]


async def test_events_go_to_the_queue_as_somebody_set_it(stage: Stage, announcer: Announcer) -> None:
    await stage.broker.create_queue(stage.environment_id, EVENTS_QUEUE, QueueSettings(retention_seconds=60))
    await report(stage.database, stage.environment_id, "failed")
    await announcer.run_once()
    assert len(await events(stage)) == 1


# Watcher


@pytest.mark.parametrize(
    ("stage_number", "running", "cause"), [(0, 0, "picker late"), (1, 0, "queue full"), (1, 10, "executor busy")]
)
async def test_what_has_not_started_within_the_promise_is_reported(
    stage: Stage, watcher: Watcher, stage_number: int, running: int, cause: str
) -> None:
    dispatch = await stage.due(await stage.add_task("report"), ago=40)
    await stage.beat(ALICE)
    await stage.fetch("UPDATE bellringer.executors SET running = $1", running)
    await stage.fetch("UPDATE bellringer.occurrences SET stage = $1", stage_number)
    await watcher.run_once()
    (incident,) = await stage.incidents()
    assert (incident["kind"], incident["cause"], incident["fire_at"]) == ("missed", cause, dispatch.fire_at)
    assert incident["detail"].startswith("not started 40")
    assert (await stage.occurrence(dispatch))["missed_cause"] == cause
    assert (await stage.counts())["missed"] == 1


async def test_a_missing_start_is_reported_once(stage: Stage, watcher: Watcher) -> None:
    dispatch = await stage.due(await stage.add_task(), ago=40)
    await watcher.run_once()
    await watcher.run_once()
    await stage.start(dispatch)
    assert await stage.kinds() == ["missed"]


async def test_watchers_report_a_missing_start_once(stage: Stage) -> None:
    await stage.pick(await stage.add_task(), *[await stage.now() - timedelta(seconds=40 + one) for one in range(20)])
    await asyncio.gather(*(Watcher(stage.database, SchedulerConfig()).run_once() for _ in range(4)))
    await Watcher(stage.database, SchedulerConfig()).run_once()
    assert await stage.kinds() == ["missed"] * 20


@pytest.mark.parametrize("ago", [20, 600])
async def test_what_is_in_time_or_late_for_long_is_not_reported(stage: Stage, watcher: Watcher, ago: float) -> None:
    await stage.due(await stage.add_task(), ago=ago)
    await watcher.run_once()
    assert await stage.incidents() == []


async def test_what_runs_is_over_or_waits_for_another_is_not_reported(stage: Stage, watcher: Watcher) -> None:
    task = await stage.add_task(overlap="queue")
    await stage.fetch("SELECT")
    await stage.running(task, ago=29)
    waiting = await stage.due(task, ago=25)
    await stage.verdicts(waiting)
    await stage.end(await stage.running(await stage.add_task("over"), ago=29))
    await stage.fetch("UPDATE bellringer.occurrences SET due_at = due_at - interval '15 s'")
    await watcher.run_once()
    assert await stage.incidents() == []


# Collector


async def history(stage: Stage, task: Any, *, days: int, is_over: bool = True) -> None:  # noqa: ANN401
    dispatch = await stage.running(task, ago=days * 24 * 3600)
    if is_over:
        await stage.end(dispatch, outcome=Outcome.FAILED)
    await stage.fetch("UPDATE bellringer.incidents SET at = fire_at")


async def test_what_is_past_its_retention_is_forgotten(stage: Stage, collector: Collector) -> None:
    task = await stage.add_task()
    for days in (31, 29):
        await history(stage, task, days=days)
    await collector.run_once()
    assert len(await stage.occurrences(task)) == 1
    assert {row["fire_at"] for row in await stage.incidents()} == {(await stage.occurrences(task))[0]["fire_at"]}


async def test_attempts_go_with_their_occurrence(stage: Stage, collector: Collector) -> None:
    task = await stage.add_task()
    await history(stage, task, days=31)
    await history(stage, task, days=29)
    await stage.fetch(
        "INSERT INTO bellringer.past_attempts (task, fire_at, attempt, due_at, outcome)"
        " SELECT task, fire_at, 0, due_at, 'failed' FROM bellringer.occurrences"
    )
    await collector.run_once()
    assert len(await stage.fetch("SELECT FROM bellringer.past_attempts")) == 1


async def test_what_is_not_over_is_not_forgotten(stage: Stage, collector: Collector) -> None:
    task = await stage.add_task()
    await history(stage, task, days=31, is_over=False)
    await collector.run_once()
    assert len(await stage.occurrences(task)) == 1


async def test_a_one_time_task_goes_with_the_last_of_its_history(stage: Stage, collector: Collector) -> None:
    now = await stage.now()
    old = await stage.add_task("old", once_at=now - timedelta(days=31))
    await history(stage, old, days=31)
    run_again = await stage.add_task("run again", once_at=now - timedelta(days=31))
    await history(stage, run_again, days=1)
    await stage.add_task("new", once_at=now - timedelta(days=29))
    await stage.add_task("recurring")
    await stage.add_task("to come", once_at=now - timedelta(days=31), next_fire_at=now)
    await collector.run_once()
    rows = await stage.fetch("SELECT name FROM bellringer.tasks ORDER BY number")
    assert [row["name"] for row in rows] == ["run again", "new", "recurring", "to come"]


async def test_a_task_that_somebody_just_runs_by_hand_is_not_forgotten(stage: Stage, collector: Collector) -> None:
    task = await stage.add_task("old", once_at=await stage.now() - timedelta(days=31))
    async with stage.database.transaction() as connection:
        await connection.execute("SELECT bellringer.run_task($1)", task)
        await collector.run_once()
    assert (await stage.task(task))["name"] == "old"


async def test_executors_long_gone_are_forgotten(stage: Stage, collector: Collector) -> None:
    await stage.beat(ALICE)
    await collector.run_once()
    assert len(await stage.fetch("SELECT FROM bellringer.executors")) == 1
    await stage.lose(ALICE)
    await collector.run_once()
    assert await stage.fetch("SELECT FROM bellringer.executors") == []


async def test_one_process_at_a_time_collects(stage: Stage, collector: Collector) -> None:
    await collector.run_once()
    await history(stage, await stage.add_task(), days=31)
    await Collector(stage.database, SchedulerConfig()).run_once()
    assert len(await stage.fetch("SELECT FROM bellringer.occurrences")) == 1
    await collector.run_once()
    assert await stage.fetch("SELECT FROM bellringer.occurrences") == []


async def test_durations_of_what_ran_long_ago_are_forgotten(stage: Stage, collector: Collector) -> None:
    await stage.fetch(
        "INSERT INTO bellringer.run_durations (subject, seconds, modified_at)"
        " VALUES ('http old', '{1}', clock_timestamp() - make_interval(secs => $1)), ('http new', '{1}', DEFAULT)",
        MONTH + 60,
    )
    await collector.run_once()
    assert [row["subject"] for row in await stage.fetch("SELECT subject FROM bellringer.run_durations")] == ["http new"]


async def test_fire_times_move_with_the_rules_of_their_zone(stage: Stage) -> None:
    now = await stage.now()
    by_old_rules = (now + timedelta(days=3)).replace(hour=12, minute=30, second=0, microsecond=0)
    moved = await stage.add_task("moved", cron="0 2 * * *", time_zone="Europe/Berlin", next_fire_at=by_old_rules)
    near = await stage.add_task(
        "near", cron="0 2 * * *", time_zone="Europe/Berlin", next_fire_at=now + timedelta(seconds=100)
    )
    utc = await stage.add_task("utc", cron="0 2 * * *", next_fire_at=by_old_rules)
    await Replanner(stage.database, SchedulerConfig()).run_once()
    next_fire_at = (await stage.task(moved))["next_fire_at"]
    assert now < next_fire_at < now + timedelta(days=1, hours=2)
    assert next_fire_at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") == "02:00"
    assert (await stage.task(near))["next_fire_at"] == now + timedelta(seconds=100)  # a picker may be about to take it
    assert (await stage.task(utc))["next_fire_at"] == by_old_rules


async def test_fire_times_that_are_right_stay(stage: Stage) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    tomorrow = (await stage.now()).astimezone(berlin) + timedelta(days=2)
    first = tomorrow.replace(month=1, day=1, hour=3, minute=15, second=0, microsecond=0)
    right = first.replace(year=first.year + 1).astimezone(UTC)
    task = await stage.add_task(cron="15 3 1 1 *", time_zone="Europe/Berlin", next_fire_at=right)
    await Replanner(stage.database, SchedulerConfig()).run_once()
    assert (await stage.task(task))["next_fire_at"] == right


async def test_one_process_at_a_time_looks_at_the_zones(stage: Stage) -> None:
    await Replanner(stage.database, SchedulerConfig()).run_once()
    by_old_rules = await stage.now() + timedelta(days=3)
    task = await stage.add_task(cron="0 2 * * *", time_zone="Europe/Berlin", next_fire_at=by_old_rules)
    await Replanner(stage.database, SchedulerConfig()).run_once()
    assert (await stage.task(task))["next_fire_at"] == by_old_rules
