from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.support.accesses import accesses_of
from tests.support.plans import MODES, PlanMode
from tests.support.postgres import Cluster
from tests.support.scaling_decisions import scaling_decisions
from tests.support.scheduler_tasks import HOOK, insert_durations, insert_occurrences, insert_tasks

from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database
from bellringer.scheduler.model import (
    Call,
    FunctionCall,
    HttpCall,
    Invocation,
    MessageCall,
    NotificationCall,
    TaskNumber,
)
from bellringer.scheduler.orchestrator import store
from bellringer.scheduler.orchestrator.forecast import Due
from bellringer.scheduler.orchestrator.scaling import Decision

LOOK_AHEAD = 600
DECISION = Decision(slots=3.5, needed=2, desired=3, reason="3.5 slots are needed in 90 s")


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.connection() as opened:
        yield opened


async def standing(connection: Connection, budget: int = store.BUDGET) -> store.Standing:
    return await store.read_standing(connection, LOOK_AHEAD, 1.0, budget)


def near(due: Due, second: int) -> bool:
    """Whether it is due in that second, counted from when the test put it in; that may be some seconds ago."""
    return second - 10 <= due.second <= second


async def test_tasks_and_picked_occurrences_of_the_look_ahead_are_due(
    connection: Connection, environment: Environment
) -> None:
    await insert_tasks(connection, environment.id, "soon", in_seconds=300, copies=40)
    await insert_tasks(connection, environment.id, "later", in_seconds=700)
    picked = await insert_tasks(connection, environment.id, "picked", in_seconds=900, copies=3)
    await insert_occurrences(connection, picked, in_seconds=60)
    await insert_occurrences(connection, picked, in_seconds=90, stage=1)
    await insert_occurrences(connection, picked, in_seconds=30, stage=2)  # over

    found = await standing(connection)
    assert found.due == 46
    first, second, third = sorted(found.dues, key=lambda due: due.second)
    assert (first.tasks, second.tasks, third.tasks) == (3, 3, 40)
    assert near(first, 60)
    assert near(second, 90)
    assert near(third, 300)
    assert (found.waiting, found.oldest_wait_seconds) == (0, 0)
    assert await store.oldest_wait_seconds(connection) == 0


async def test_what_is_overdue_is_due_now_and_what_was_handed_out_waits_for_executors(
    connection: Connection, environment: Environment
) -> None:
    tasks = await insert_tasks(connection, environment.id, "task", in_seconds=900, copies=5)
    await insert_occurrences(connection, tasks[:3], in_seconds=-90)
    assert (await standing(connection)).waiting == 0
    assert await store.oldest_wait_seconds(connection) == 0
    await insert_occurrences(connection, tasks[3:], in_seconds=-40, stage=1)
    found = await standing(connection)
    assert found.waiting == 2
    assert 40 <= found.oldest_wait_seconds <= 60
    assert 40 <= await store.oldest_wait_seconds(connection) <= 60
    assert {due.second for due in found.dues} == {-1}
    assert sum(due.tasks for due in found.dues) == 5


async def test_a_task_that_no_picker_has_planned_is_not_counted(
    connection: Connection, environment: Environment
) -> None:
    await insert_tasks(connection, environment.id, "new", in_seconds=0, cron="* * * * *", is_planned=False)
    assert (await standing(connection)).dues == []


async def test_tasks_that_are_alike_are_one_row(connection: Connection, environment: Environment) -> None:
    await insert_tasks(
        connection, environment.id, "cron", in_seconds=300, copies=50, cron="*/5 * * * *", counted_from="minute"
    )
    await insert_tasks(
        connection, environment.id, "interval", in_seconds=300, copies=7, every_seconds=90, overlap="skip"
    )
    cron, interval = sorted((await standing(connection)).dues, key=lambda due: -due.tasks)
    assert (cron.cron, cron.time_zone, cron.tasks, cron.may_overlap) == ("*/5 * * * *", "UTC", 50, True)
    assert (interval.every_seconds, interval.tasks, interval.may_overlap) == (90, 7, False)


async def test_a_fire_time_on_the_minute_is_a_whole_number_of_seconds_away(
    connection: Connection, environment: Environment
) -> None:
    await insert_tasks(connection, environment.id, "cron", in_seconds=300, cron="* * * * *", counted_from="minute")
    found = await standing(connection)
    assert (found.now + timedelta(seconds=found.dues[0].second)).second == 0


async def test_a_recurring_task_takes_as_long_as_19_of_20_of_its_runs_did(
    connection: Connection, environment: Environment
) -> None:
    (number,) = await insert_tasks(connection, environment.id, "task", in_seconds=300, every_seconds=600)
    await insert_durations(connection, f"task {number}", [float(seconds) for seconds in range(1, 101)])
    (due,) = (await standing(connection)).dues
    assert 95 <= due.seconds <= 95 * 1.021  # in steps of 2 %


@pytest.mark.parametrize(
    "call",
    [
        HttpCall(url="https://acme.example/hook?customer=7", method="PUT"),
        MessageCall(queue="orders"),
        NotificationCall(event_type="task.failed", recipients=["ann@acme.example"]),
        FunctionCall(name="reports.daily"),
    ],
)
async def test_a_one_time_task_takes_as_long_as_others_that_call_the_same(
    connection: Connection, environment: Environment, call: Call
) -> None:
    tasks = await insert_tasks(connection, environment.id, "task", in_seconds=300, copies=2, call=call)
    await insert_occurrences(connection, tasks, in_seconds=60)
    invocation = Invocation(
        environment_id=environment.id,
        number=TaskNumber(tasks[0]),
        task="task1",
        fire_at=datetime.now(UTC),
        attempt=1,
        call=call,
        payload=b"null",
        time_limit_seconds=1,
    )
    await insert_durations(connection, invocation.subject, [12.0] * 3)
    dues = (await standing(connection)).dues
    assert [due.tasks for due in dues] == [2, 2]
    assert all(12 <= due.seconds <= 12.25 for due in dues)


async def test_a_task_without_a_past_takes_what_the_settings_say(
    connection: Connection, environment: Environment
) -> None:
    await insert_tasks(connection, environment.id, "task", in_seconds=300)
    (due,) = (await store.read_standing(connection, LOOK_AHEAD, 2.5)).dues
    assert due.seconds == 2.5


async def test_a_sample_stands_for_all_and_every_second_counts_in_full(
    connection: Connection, environment: Environment
) -> None:
    quick = HttpCall(url="https://acme.example/quick")
    await insert_tasks(connection, environment.id, "quick", in_seconds=300, copies=4000, call=quick)
    await insert_tasks(connection, environment.id, "hook", in_seconds=300, copies=4000)
    await insert_tasks(connection, environment.id, "few", in_seconds=400, copies=3)
    picked = await insert_tasks(connection, environment.id, "picked", in_seconds=900, copies=2000)
    await insert_occurrences(connection, picked, in_seconds=60)
    await insert_durations(connection, "http https://acme.example/quick", [0.1])
    await insert_durations(connection, HOOK_SUBJECT, [3.0])

    found = await standing(connection, budget=500)
    assert found.due == 10_003
    assert sum(due.tasks for due in found.dues) == pytest.approx(10_003)
    assert sum(due.tasks for due in found.dues if near(due, 400)) == pytest.approx(3)
    work = sum(due.tasks * due.seconds for due in found.dues if near(due, 300))
    assert work == pytest.approx(4000 * 0.1 + 4000 * 3.0, rel=0.25)
    again = await standing(connection, budget=500)
    assert sorted(due.tasks for due in again.dues) == sorted(due.tasks for due in found.dues)


HOOK_SUBJECT = f"http {HOOK.url}"


async def test_tasks_that_come_and_go_while_it_looks_do_not_disturb_it(
    database: Database, connection: Connection, environment: Environment
) -> None:
    await insert_tasks(connection, environment.id, "task", in_seconds=300, copies=500)
    looking = asyncio.create_task(_look_again_and_again(connection))
    async with database.connection() as other:
        for second in range(40):
            await insert_tasks(other, environment.id, f"new-{second}-", in_seconds=100 + second)
            await other.execute("DELETE FROM bellringer.tasks WHERE name LIKE $1", f"new-{second}-%")
    assert set(await looking) <= {500, 501}


async def _look_again_and_again(connection: Connection) -> list[int]:
    found = []
    for _ in range(40):
        seen = await standing(connection)
        assert sum(due.tasks for due in seen.dues) == pytest.approx(seen.due)
        found.append(seen.due)
    return found


async def test_a_second_of_which_nothing_was_drawn_is_like_the_others(
    connection: Connection, environment: Environment
) -> None:
    for second in range(100, 120):
        await insert_tasks(connection, environment.id, f"at-{second}-", in_seconds=second, copies=2)
    await insert_durations(connection, HOOK_SUBJECT, [4.0])
    found = await standing(connection, budget=1)
    assert sum(due.tasks for due in found.dues) == pytest.approx(40)
    assert all(4 <= due.seconds <= 4.1 for due in found.dues)


async def test_executors_that_were_seen_lately_count(connection: Connection) -> None:
    await connection.execute(
        "INSERT INTO bellringer.executors (id, host, process, concurrency, running, seen_at) VALUES "
        "(gen_random_uuid(), $1, 1, 10, 4, clock_timestamp()), (gen_random_uuid(), $1, 2, 10, 0, clock_timestamp()), "
        "(gen_random_uuid(), 'b', 3, 10, 3, clock_timestamp()), "
        "(gen_random_uuid(), $1, 4, 10, 9, clock_timestamp() - interval '1 minute')",
        socket.gethostname(),
    )
    found = await standing(connection)
    assert (found.executors, found.running, found.busy) == (3, 7, {1})


async def test_rounds_are_kept_and_forgotten_in_their_order(connection: Connection) -> None:
    found = await standing(connection)
    await store.record(connection, found, "dry-run", 1, DECISION, None)
    await store.record(connection, found, "webhook", None, DECISION, "POST …: 500")
    ok, failed = await store.read_past(connection, found.now + timedelta(seconds=1), 60)
    assert (ok.at, ok.needed, ok.current, ok.desired) == (found.now.timestamp(), 2, 1, 3)
    assert (failed.current, failed.desired) == (None, None)
    assert await store.last_desired(connection, "dry-run") == 3
    assert await store.last_desired(connection, "webhook") is None

    *_, newest = await scaling_decisions(connection)
    assert (newest.driver, newest.problem, newest.reason) == ("webhook", "POST …: 500", DECISION.reason)
    await store.forget(connection, found.now + timedelta(seconds=100), 60)
    assert await scaling_decisions(connection) == []


FILL = f"""
INSERT INTO bellringer.tasks (environment_id, name, queue, every_seconds, call, overlap, next_fire_at)
SELECT '{UUID(int=1)}', 'task' || number, 1, 3600, '{{"type": "http", "url": "https://acme.example"}}', 'skip',
    '2026-11-20 09:00Z'::timestamptz + make_interval(secs => number)
FROM generate_series(1, 20000) AS number;
INSERT INTO bellringer.occurrences
    (task, fire_at, stage, due_at, picked_at, started_at, ended_at, outcome)
SELECT number, due_at, 2, due_at, due_at, due_at, due_at, 'succeeded'
FROM generate_series(1, 20000) AS number, (SELECT '2026-11-20 08:00Z'::timestamptz) AS moment (due_at);
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
SELECT number, due_at, number % 2, due_at, due_at
FROM generate_series(1, 10000) AS number,
    LATERAL (SELECT '2026-11-20 09:00Z'::timestamptz + make_interval(secs => number)) AS moment (due_at);
INSERT INTO bellringer.run_durations SELECT 'task ' || number, '{{1, 2, 3}}' FROM generate_series(1, 20000) AS number;
INSERT INTO bellringer.scaling_decisions
    (at, driver, runs_due, slots, waiting, executors_seen, needed, desired, reason)
SELECT '2026-11-20 09:00Z'::timestamptz - make_interval(mins => number), 'dry-run', 0, 0, 0, 0, 1, 1, ''
FROM generate_series(1, 10000) AS number;
"""
MOMENT = datetime(2026, 11, 20, 9, tzinfo=UTC)
ONE_OF_EACH = [1] * (LOOK_AHEAD + 2)
CASES: dict[str, tuple[str, tuple[object, ...], set[str], int]] = {
    "count": (store.COUNT, (MOMENT, 600.0), {"tasks_due", "occurrences_open"}, 1210),
    "sample": (
        store.SAMPLE,
        (MOMENT, 600.0, ONE_OF_EACH, ONE_OF_EACH),
        {"tasks_due", "occurrences_open", "tasks_pkey", "run_durations_pkey"},
        3000,
    ),
    "oldest wait": (store.OLDEST_WAIT, (), {"occurrences_open"}, 2),
    "past": (store.PAST, (MOMENT, 480.0), {"scaling_decisions_at"}, 10),
    "forget": (store.FORGET, (MOMENT, 9999 * 60.0), {"scaling_decisions_at"}, 3),
    "last desired": (store.LAST_DESIRED, ("dry-run",), {"scaling_decisions_at"}, 2),
}


@pytest.fixture(scope="module", params=["no statistics", "statistics"])
async def crowded(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection to a database with many tasks, of which few are due."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE orchestrator_plans")
    opened = await asyncpg.connect(
        **cluster.arguments("orchestrator_plans"),
        server_settings={"enable_seqscan": "off", "jit": "off", "TimeZone": "UTC"},
    )
    await opened.execute("ALTER TABLE bellringer.tasks SET (autovacuum_enabled = off)")
    await opened.execute("SET session_replication_role = replica")
    await opened.execute(FILL)
    if request.param == "statistics":
        await opened.execute("VACUUM ANALYZE")
    yield opened
    await opened.close()
    await admin.execute("DROP DATABASE orchestrator_plans WITH (FORCE)")
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_walks_its_indexes_and_reads_only_what_is_due(
    crowded: asyncpg.Connection[Any], name: str, mode: PlanMode
) -> None:
    statement, arguments, indexes, rows = CASES[name]
    accesses = await accesses_of(crowded, statement, arguments, mode)
    assert [access for access in accesses if not access.is_index and access.rows] == [], "reads whole tables"
    assert indexes <= {access.name for access in accesses}
    assert sum(access.rows for access in accesses if access.is_index) <= rows
