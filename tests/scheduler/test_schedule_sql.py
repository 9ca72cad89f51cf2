"""Tasks are scheduled in SQL, in the transaction of whoever does: there with his rows, or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.scheduler_definitions import AT_ONCE, DAILY, EVERY_20_SECONDS, task
from tests.support.scheduler_engine import Engine
from tests.support.waiting import until_sessions_wait

from bellringer.edge.keys import Keys
from bellringer.kernel.database import Connection, Database
from bellringer.scheduler.model import (
    Call,
    FunctionCall,
    HttpCall,
    IncidentKind,
    MessageCall,
    Misfire,
    MisfirePolicy,
    NotificationCall,
    Outcome,
    Overlap,
    Retry,
    Schedule,
    TaskState,
)
from bellringer.scheduler.service import Tasks, preview

HOOK = {"type": "http", "url": "https://example.org/hook"}
TYPES = {
    "call": "jsonb",
    "payload": "jsonb",
    "options": "jsonb",
    "at": "timestamptz",
    "starting_at": "timestamptz",
    "delay_seconds": "float8",
    "every_seconds": "float8",
}


async def schedule(connection: Connection, name: str | None, call: object = HOOK, **named: Any) -> str:  # noqa: ANN401
    """Call `bellringer.schedule` with parameters by name."""
    given = {"name": name, "call": call, **named}
    texts = [
        msgspec.json.encode(value).decode() if TYPES.get(parameter) == "jsonb" else value
        for parameter, value in given.items()
    ]
    places = [
        f"{parameter} => ${place}::{TYPES.get(parameter, 'text')}" for place, parameter in enumerate(given, start=1)
    ]
    scheduled: str = await connection.fetchval(f"SELECT bellringer.schedule({', '.join(places)})", *texts)
    return scheduled


async def test_a_task_is_there_with_the_transaction_or_not_at_all(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    async with database.connection() as connection:
        for commits in (False, True):
            transaction = connection.transaction()
            await transaction.start()
            assert await schedule(connection, "reminder", delay_seconds=60.0, payload={"order": 1}) == "reminder"
            await engine.pick()
            assert await tasks.list(home) == []
            await (transaction.commit() if commits else transaction.rollback())
    await engine.pick()
    made = await tasks.read(home, "reminder")
    assert (made.state, bytes(made.definition.payload)) == (TaskState.ACTIVE, b'{"order": 1}')
    (occurrence,) = await tasks.occurrences(home, "reminder")
    assert occurrence.fire_at == made.definition.schedule.at


async def test_a_picker_finds_the_first_fire_time(tasks: Tasks, engine: Engine, home: UUID, database: Database) -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC)
    async with database.connection() as connection:
        await schedule(connection, "daily", cron="0 2 * * *", time_zone="Europe/Berlin")
        await schedule(connection, "alias", cron="@daily")
        await schedule(connection, "interval", every_seconds=600.0)
        await schedule(connection, "anchored", every_seconds=86400.0, starting_at=anchor)
        assert [one.next_fire_at for one in await tasks.list(home)] == [None] * 4, "nothing is known yet"
        await engine.pick()
    found = {one.name: one for one in await tasks.list(home)}
    for name in ("daily", "alias", "anchored"):
        one = found[name]
        assert one.next_fire_at == preview(one.definition.schedule, 1, one.modified_at)[0]
    assert found["interval"].next_fire_at == found["interval"].created_at + timedelta(seconds=600)
    assert {one.definition.overlap for one in found.values()} == {Overlap.SKIP}


async def test_now_and_no_delay_are_due_at_once(tasks: Tasks, engine: Engine, home: UUID, database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(
            """SELECT bellringer.schedule('now', '{"type": "message", "queue": "q"}', at => now())"""
        )
        await schedule(connection, "at-once", delay_seconds=0.0)
    await engine.pick()
    assert len(await engine.run()) == 2
    assert {one.state for one in await tasks.list(home)} == {TaskState.FINISHED}


@pytest.mark.parametrize(
    ("call", "read"),
    [
        (HOOK, HttpCall(url="https://example.org/hook")),
        (
            {**HOOK, "method": "PUT", "headers": {"X-A": "b"}},
            HttpCall(url="https://example.org/hook", method="PUT", headers={"X-A": "b"}),
        ),
        ({"type": "message", "queue": "q"}, MessageCall(queue="q")),
        ({"type": "message", "queue": "q.fifo", "group": "g"}, MessageCall(queue="q.fifo", group="g")),
        (
            {"type": "notification", "event_type": "task.due", "recipients": ["a@example.org"], "subject": None},
            NotificationCall(event_type="task.due", recipients=["a@example.org"]),
        ),
        ({"type": "function", "name": "report"}, FunctionCall(name="report")),
    ],
)
async def test_every_kind_of_call_is_stored_as_the_api_stores_it(
    tasks: Tasks, engine: Engine, home: UUID, database: Database, call: dict[str, Any], read: Call
) -> None:
    async with database.connection() as connection:
        await schedule(connection, "it", call, cron="0 2 * * *", time_zone="Europe/Berlin")
        await engine.pick()
        made = await tasks.read(home, "it")
        assert made.definition.call == read
        assert await tasks.put(home, "it", task(DAILY, call=read)) == (made, False)
        await tasks.put(home, "it", task(DAILY, b'{"a": 1}', call=read))
        await schedule(connection, "it", call, payload={}, cron="0 2 * * *", time_zone="Europe/Berlin")
    assert (await tasks.read(home, "it")).next_fire_at == made.next_fire_at


async def test_options_are_those_of_the_api(tasks: Tasks, home: UUID, database: Database) -> None:
    options = {
        "misfire": {"policy": "window", "limit": 3, "window_seconds": 60},
        "overlap": "replace",
        "time_limit_seconds": 1.5,
        "retry": {"max_retries": 2, "first_seconds": 1, "cap_seconds": 5},
        "rerun_after_crash": True,
    }
    async with database.connection() as connection:
        await schedule(connection, "it", cron="@hourly", options=options)
    definition = (await tasks.read(home, "it")).definition
    assert definition == task(
        Schedule(cron="@hourly"),
        call=HttpCall(url="https://example.org/hook"),
        misfire=MisfirePolicy(policy=Misfire.WINDOW, limit=3, window_seconds=60),
        overlap=Overlap.REPLACE,
        time_limit_seconds=1.5,
        retry=Retry(max_retries=2, first_seconds=1, cap_seconds=5),
        rerun_after_crash=True,
        payload=definition.payload,
    )


async def test_a_name_is_changed_and_the_same_again_changes_nothing(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    async with database.connection() as connection:
        await schedule(connection, "poll", every_seconds=20.0)
        await engine.pick()
        picked, before = await tasks.occurrences(home, "poll"), await tasks.read(home, "poll")
        assert len(picked) == 6
        await schedule(connection, "poll", every_seconds=20.0)
        assert (await tasks.occurrences(home, "poll"), await tasks.read(home, "poll")) == (picked, before)

        await schedule(connection, "poll", every_seconds=20.0, payload=[1])
        assert await tasks.occurrences(home, "poll") == []
        assert (await tasks.read(home, "poll")).next_fire_at == picked[-1].fire_at
        await engine.pick()
        assert [one.fire_at for one in await tasks.occurrences(home, "poll")] == [one.fire_at for one in picked]

        await schedule(connection, "poll", every_seconds=30.0)
        assert await tasks.occurrences(home, "poll") == []
        await engine.pick()
    assert len(await tasks.occurrences(home, "poll")) == 4


async def test_a_delay_is_the_same_while_it_passes_and_after(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    async with database.connection() as connection:
        for _ in range(2):
            await schedule(connection, "mail", delay_seconds=0.0)
            await engine.pick()
            await engine.run()
        assert len(await tasks.occurrences(home, "mail")) == 1
        await schedule(connection, "mail", delay_seconds=0.001)
        await engine.pick()
    assert len(await tasks.occurrences(home, "mail")) == 2


async def test_the_same_time_is_no_error_once_it_has_passed(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    async with database.connection() as connection:
        await schedule(connection, "mail", at=soon)
        await engine.pick()
        await connection.execute("SELECT pg_sleep_until($1)", soon)
        await schedule(connection, "mail", at=soon)
        with pytest.raises(asyncpg.InvalidParameterValueError, match="at: it lies in the past"):
            await schedule(connection, "other", at=soon)
    assert len(await tasks.list(home)) == 1


async def test_a_paused_task_stays_so_and_a_cancelled_one_is_active_again(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    await tasks.put(home, "poll", task(EVERY_20_SECONDS))
    await tasks.pause(home, "poll")
    async with database.connection() as connection:
        await schedule(connection, "poll", every_seconds=30.0)
        changed = await tasks.read(home, "poll")
        assert (changed.state, changed.next_fire_at) == (TaskState.PAUSED, None)
        await engine.pick()
        assert await tasks.occurrences(home, "poll") == []
        assert await connection.fetchval("SELECT bellringer.unschedule('poll')") is True
        assert (await tasks.read(home, "poll")).state is TaskState.CANCELLED
        assert await connection.fetchval("SELECT bellringer.unschedule('nobody')") is False
        await schedule(connection, "poll", every_seconds=30.0)
        await engine.pick()
    assert (await tasks.read(home, "poll")).state is TaskState.ACTIVE
    assert len(await tasks.occurrences(home, "poll")) == 4


async def test_unscheduling_takes_back_what_was_picked(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    async with database.connection() as connection:
        await schedule(connection, "poll", every_seconds=20.0)
        await engine.pick()
        dispatches = await engine.dispatch()
        async with connection.transaction():
            await connection.execute("SELECT bellringer.unschedule('poll')")
    assert await tasks.occurrences(home, "poll") == []
    assert set(await engine.start(dispatches)) == {"gone"}


async def test_a_name_is_made_where_none_is_given(tasks: Tasks, home: UUID, database: Database) -> None:
    async with database.connection() as connection:
        names = {await schedule(connection, None, delay_seconds=60.0) for _ in range(2)}
    assert {one.name for one in await tasks.list(home)} == names
    assert len(names) == 2


@pytest.mark.parametrize(
    ("named", "parameter"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": ""}, "name"),
        ({"cron": None}, "at, delay_seconds, cron, every_seconds"),
        ({"delay_seconds": 1.0}, "at, delay_seconds, cron, every_seconds"),
        ({"cron": "* * * *"}, "cron"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"cron": None, "delay_seconds": 1.0, "time_zone": "Europe/Berlin"}, "time_zone"),
        ({"starting_at": datetime(2026, 1, 1, tzinfo=UTC)}, "starting_at"),
        ({"cron": None, "delay_seconds": -1.0}, "delay_seconds"),
        ({"cron": None, "delay_seconds": float("nan")}, "delay_seconds"),
        ({"cron": None, "every_seconds": 0.5}, "every_seconds"),
        ({"cron": None, "every_seconds": 1.00005}, "every_seconds"),
        ({"cron": None, "every_seconds": 60.0, "starting_at": datetime(1999, 1, 1, tzinfo=UTC)}, "starting_at"),
        ({"cron": None, "at": datetime(2020, 1, 1, tzinfo=UTC)}, "at"),
        ({"payload": "x" * 262_144}, "payload"),
        ({"call": None}, "call"),
        ({"call": []}, "call"),
        ({"call": {}}, "call.type"),
        ({"call": {"type": "mail"}}, "call.type"),
        ({"call": {"type": "http"}}, "call.url"),
        ({"call": {"type": "http", "url": 1}}, "call.url"),
        ({"call": {**HOOK, "body": 1}}, "call.body"),
        ({"call": {**HOOK, "headers": {"a": 1}}}, "call.headers"),
        ({"call": {"type": "notification", "event_type": "x", "recipients": [1]}}, "call.recipients"),
        ({"call": {"type": "notification", "event_type": "x", "recipients": [["a"]]}}, "call.recipients"),
        ({"call": {"type": "function", "name": "f"}, "payload": [1]}, "payload"),
        ({"options": []}, "options"),
        ({"options": {"speed": 1}}, "options.speed"),
        ({"options": {"overlap": "no"}}, "options.overlap"),
        ({"options": {"misfire": {"policy": "no"}}}, "options.misfire.policy"),
        ({"options": {"misfire": {"limit": 1001}}}, "options.misfire.limit"),
        ({"options": {"misfire": {"limit": 1.5}}}, "options.misfire.limit"),
        ({"options": {"retry": {"max_retries": 101}}}, "options.retry.max_retries"),
        ({"options": {"retry": {"first_seconds": 0}}}, "options.retry.first_seconds"),
        ({"options": {"retry": {"cap_seconds": 1}}}, "options.retry.cap_seconds"),
        ({"options": {"retry": 1}}, "options.retry"),
        ({"options": {"time_limit_seconds": 0}}, "options.time_limit_seconds"),
        ({"options": {"time_limit_seconds": "1"}}, "options.time_limit_seconds"),
        ({"environment": "acme/nowhere"}, "environment"),
    ],
)
async def test_what_is_no_task_is_refused_with_the_parameter(
    tasks: Tasks, home: UUID, database: Database, named: dict[str, Any], parameter: str
) -> None:
    async with database.connection() as connection:
        with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
            await schedule(connection, **{"name": "it", "call": HOOK, "cron": "@daily", **named})
    assert str(refused.value).startswith(f"{parameter}: ")
    assert refused.value.sqlstate == "22023"
    assert await tasks.list(home) == []


async def test_what_sql_cannot_tell_is_refused_by_a_picker(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    wrong = {
        "never": {"cron": "0 0 31 2 *"},
        "syntax": {"cron": "a b c d e"},
        "zone": {"cron": "@daily", "time_zone": "Mars/Base"},
        "url": {"call": {"type": "http", "url": "ftp://example.org"}, "delay_seconds": 600.0},
    }
    async with database.connection() as connection:
        for name, named in wrong.items():
            await schedule(connection, name, **named)
        await schedule(connection, "right", cron="@daily")
        await engine.pick()
        found = {one.name: one for one in await tasks.list(home)}
        assert {name for name, one in found.items() if one.state is TaskState.REFUSED} == set(wrong)
        assert (found["url"].problem or "").startswith("call.url: ")
        assert {incident.kind for incident in await tasks.incidents(home)} == {IncidentKind.REFUSED}
        await schedule(connection, "never", cron="0 0 29 2 *")
        await engine.pick()
    mended = await tasks.read(home, "never")
    assert (mended.state, mended.problem) == (TaskState.ACTIVE, None)


async def test_the_environment_is_named_where_there_are_several(
    tasks: Tasks, home: UUID, database: Database, keys: Keys
) -> None:
    other = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    async with database.connection() as connection:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="environment: there are several"):
            await schedule(connection, "it", cron="@daily")
        await schedule(connection, "it", cron="@daily", environment="acme/staging")
        assert [one.name for one in await tasks.list(other.id)] == ["it"]
        assert await connection.fetchval("SELECT bellringer.unschedule('it', 'acme/production')") is False
        assert await connection.fetchval("SELECT bellringer.unschedule('it', 'acme/staging')") is True
    assert await tasks.list(home) == []


async def test_two_transactions_that_schedule_one_name_make_one_task(
    tasks: Tasks, home: UUID, database: Database
) -> None:
    async with database.connection() as second:
        async with database.transaction() as first:
            await schedule(first, "it", cron="@daily")
            waiting = asyncio.create_task(schedule(second, "it", cron="@hourly"))
            await until_sessions_wait(first)
        await waiting
    (made,) = await tasks.list(home)
    assert made.definition.schedule.cron == "@hourly"


async def test_a_task_that_ran_is_retried_with_what_was_scheduled_since(
    tasks: Tasks, engine: Engine, home: UUID, database: Database
) -> None:
    await tasks.put(home, "mail", task(AT_ONCE))
    await engine.pick()
    (ran,) = await engine.run(Outcome.FAILED)
    async with database.connection() as connection:
        await schedule(connection, "mail", delay_seconds=0.0, payload={"mended": True})
    await engine.pick()
    assert await engine.run() == []
    await tasks.retry(home, "mail", ran.fire_at)
    assert [dispatch.attempt for dispatch in await engine.run()] == [2]
