"""What people ask of tasks walks indexes and reads no more than a page needs, however many tasks there are, and
whatever the planner knows of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.support.accesses import Case, check_accesses
from tests.support.plans import MODES, PlanMode
from tests.support.postgres import Cluster

from bellringer.scheduler import calendar, history_store, task_store

HOME, OTHER = UUID(int=1), UUID(int=2)
TASKS, STOPPED, FIRES, BUSY = 20_000, 30, 5_000, 1
NOW = datetime.now(UTC).replace(second=0, microsecond=0)
AHEAD = NOW + timedelta(days=2)
"""When tasks fire next, but for few."""
INCIDENTS = 10_000
SMALL = {"environments", "queues", "executors", "functions", "run_durations"}
"""Tables of a page or two, which may be read whole."""

FILL = f"""
INSERT INTO bellringer.environments (id, organisation, name) VALUES ('{HOME}', 'acme', 'a'), ('{OTHER}', 'acme', 'b');
-- Every second is of another environment. Of ours: some are stopped, most are finished, the others fire in two days.
INSERT INTO bellringer.tasks (environment_id, name, queue, once_at, call, overlap, state, next_fire_at)
SELECT CASE WHEN number % 2 = 0 THEN '{OTHER}'::uuid ELSE '{HOME}' END, 'task' || lpad(number::text, 6, '0'), 1,
    '{AHEAD}', '{{"type": "function", "name": "f"}}', 'allow',
    CASE WHEN number % ({TASKS} / {STOPPED}) = 1 THEN 'paused' ELSE 'active' END,
    CASE WHEN number % ({TASKS} / {STOPPED}) <> 1 AND number % 3 = 0 THEN timestamptz '{AHEAD}' END
FROM generate_series(1, {TASKS}) AS number;
INSERT INTO bellringer.tasks (environment_id, name, queue, cron, call, overlap, next_fire_at)
SELECT '{HOME}', 'soon' || number, 1, '* * * * *', '{{"type": "function", "name": "f"}}', 'skip',
    '{NOW + timedelta(hours=1)}'
FROM generate_series(1, 20) AS number;
-- One task has a long history, with a few to come; every other one occurrence that is over.
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at, started_at, ended_at, outcome)
SELECT {BUSY}, moment, 2, moment, moment, moment, moment, 'failed'
FROM generate_series(1, {FIRES}) AS number, LATERAL (SELECT '{NOW}'::timestamptz - number * interval '1 min' AS moment)
    AS at;
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
SELECT {BUSY}, moment, 0, moment, moment
FROM generate_series(1, 5) AS number,
    LATERAL (SELECT '{NOW}'::timestamptz + number * interval '10 min' AS moment) AS at;
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at, started_at, ended_at, outcome)
SELECT number, '{NOW}', 2, '{NOW}', '{NOW}', '{NOW}', '{NOW}', 'succeeded' FROM generate_series(2, {TASKS}) AS number;
INSERT INTO bellringer.past_attempts (task, fire_at, attempt, due_at, outcome)
SELECT {BUSY}, '{NOW}'::timestamptz - number * interval '1 min', 1, '{NOW}', 'failed'
FROM generate_series(1, {FIRES}) AS number WHERE number > 2;
INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, fire_at, resolved_at)
SELECT CASE WHEN number % 2 = 0 THEN '{OTHER}'::uuid ELSE '{HOME}' END, number, 'x',
    CASE WHEN number % 1000 = 1 THEN 'failed' ELSE 'missed' END, '{NOW}',
    CASE WHEN number > 5000 THEN '{NOW}' END::timestamptz
FROM generate_series(1, {INCIDENTS}) AS number;
"""


PAGE = (HOME, "task010000", "task", "task~", 50)
MINUTE = timedelta(minutes=1)
CASES = {
    "find a number": Case(
        statement=task_store.FIND_NUMBER,
        arguments=(HOME, "task010001"),
        indexes={"tasks_environment_id_name_key"},
        rows=1,
    ),
    "read tasks": Case(
        statement=task_store.READ_TASKS,
        arguments=(list(range(1, 101)),),
        indexes={"tasks_pkey", "occurrences_pkey"},
        rows=500,
    ),
    "read the task with a long history": Case(
        statement=task_store.READ_TASKS, arguments=([BUSY],), indexes={"tasks_pkey", "occurrences_pkey"}, rows=10
    ),
    "page of all": Case(
        statement=task_store.PAGE_OF_ALL, arguments=PAGE, indexes={"tasks_environment_id_name_key"}, rows=51
    ),
    "page with a prefix that few have": Case(
        statement=task_store.PAGE_OF_ALL,
        arguments=(HOME, "", "soon", "soon~", 50),
        indexes={"tasks_environment_id_name_key"},
        rows=21,
    ),
    "page of stopped": Case(
        statement=task_store.PAGE_OF_STOPPED,
        arguments=(HOME, "", "", "~", 50, "paused"),
        indexes={"tasks_stopped"},
        rows=STOPPED + 2,
    ),
    "page of active": Case(
        statement=task_store.PAGE_OF_ACTIVE,
        arguments=(*PAGE, False, 1000),
        indexes={"tasks_environment_id_name_key", "occurrences_pkey"},
        rows=2200,
    ),
    "page of finished": Case(
        statement=task_store.PAGE_OF_ACTIVE,
        arguments=(*PAGE, True, 1000),
        indexes={"tasks_environment_id_name_key", "occurrences_pkey"},
        rows=2200,
    ),
    "list occurrences": Case(
        statement=history_store.LIST_OCCURRENCES,
        arguments=(BUSY, NOW, 50),
        indexes={"occurrences_pkey"},
        rows=51,
    ),
    "find an occurrence": Case(
        statement=history_store.FIND_OCCURRENCE,
        arguments=(BUSY, NOW - MINUTE),
        indexes={"occurrences_pkey"},
        rows=1,
    ),
    "past attempts": Case(
        statement=history_store.PAST_ATTEMPTS,
        arguments=(BUSY, NOW - 10 * MINUTE),
        indexes={"past_attempts_pkey"},
        rows=1,
    ),
    "retry": Case(
        statement=history_store.RETRY,
        arguments=(BUSY, NOW - MINUTE),
        indexes={"tasks_pkey", "occurrences_pkey", "incidents_task"},
        rows=10,
    ),
    "cancel an occurrence": Case(
        statement=history_store.CANCEL,
        arguments=(BUSY, NOW + 10 * MINUTE),
        indexes={"tasks_pkey", "occurrences_pkey"},
        rows=10,
    ),
    "run a task": Case(statement=task_store.RUN_TASK, arguments=(BUSY,), indexes={"tasks_pkey"}, rows=5),
    "take back what was picked": Case(
        statement=task_store.UNPICK, arguments=(BUSY, NOW, True), indexes={"occurrences_pkey"}, rows=10
    ),
    "pause": Case(
        statement=task_store.STOP_TASK,
        arguments=(HOME, "task000003", "paused"),
        indexes={"tasks_environment_id_name_key", "occurrences_pkey"},
        rows=20,
    ),
    "delete some of a history": Case(
        statement=task_store.DELETE_HISTORY.format(table="occurrences"),
        arguments=(BUSY, 100),
        indexes={"occurrences_pkey"},
        rows=110,
    ),
    "incidents": Case(
        statement=history_store.LIST_INCIDENTS,
        arguments=(HOME, INCIDENTS // 2, 50),
        indexes={"incidents_environment"},
        rows=51,
    ),
    "incidents of rare kinds": Case(
        statement=history_store.LIST_INCIDENTS_OF_KINDS,
        arguments=(HOME, INCIDENTS, 50, ["crashed", "failed"]),
        indexes={"incidents_kind"},
        rows=20,
    ),
    "unresolved incidents": Case(
        statement=history_store.LIST_UNRESOLVED_INCIDENTS,
        arguments=(HOME, INCIDENTS, 50, []),
        indexes={"incidents_unresolved"},
        rows=10,
    ),
    "calendar of a day": Case(
        statement=calendar.COMING,
        arguments=(HOME, NOW, NOW + timedelta(days=1), 10, 1000),
        indexes={"tasks_due"},
        rows=25,
    ),
    "occurrences that wait": Case(
        statement=calendar.WAITING,
        arguments=(HOME, NOW, NOW + timedelta(days=1), 10),
        indexes={"occurrences_open"},
        rows=30,
    ),
}


@pytest.fixture(scope="module", params=["no statistics", "of empty tables", "of today"])
async def connection(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection to a database with many tasks, and with the statistics named."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE task_plans")
    opened = await asyncpg.connect(**cluster.arguments("task_plans"))
    await opened.execute("SET TimeZone = 'UTC'")
    for row in await opened.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'bellringer'"):
        await opened.execute(f"ALTER TABLE bellringer.{row['tablename']} SET (autovacuum_enabled = off)")
    if request.param == "of empty tables":
        await opened.execute("ANALYZE")
    await opened.execute(FILL)
    if request.param == "of today":
        await opened.execute("VACUUM ANALYZE")
    await opened.execute("SET enable_seqscan = off")  # as the pool has it
    yield opened
    await opened.close()
    await admin.execute("DROP DATABASE task_plans WITH (FORCE)")
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_walks_its_indexes_and_reads_only_what_it_needs(
    connection: asyncpg.Connection[Any], name: str, mode: PlanMode
) -> None:
    await check_accesses(connection, CASES[name], mode, small=SMALL)
