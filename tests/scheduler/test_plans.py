"""The scheduler's statements, those inside its functions too, walk indexes and read no more rows than they need,
whatever the planner knows: its statistics may be missing, or tell of a moment when everything was otherwise.
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

from bellringer.scheduler import executor_store, occurrence_store, upkeep_store

ENVIRONMENT, EXECUTOR, DEAD = UUID(int=1), UUID(int=2), UUID(int=3)
TASKS, HISTORY, DUE = 100_000, 100_000, 200
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
SMALL = {"executors", "tally_entries", "environments", "queues"}
"""Tables of a page or two, which may be read whole."""

# Tasks by number: one in two allows no overlaps, one in ten is by the clock of a zone, the first few are due. Of the
# first an occurrence each is picked, of the next dispatched, and so on; all others have one that is over.
FILL = f"""
INSERT INTO bellringer.tasks (environment_id, name, queue, cron, time_zone, every_seconds, once_at, call, overlap,
    next_fire_at, running_fire_at, max_retries)
SELECT '{ENVIRONMENT}', 'task' || number, 1, CASE WHEN number % 10 = 1 THEN '0 0 * * *' END,
    CASE WHEN number % 10 = 1 THEN 'Asia/Tokyo' ELSE 'UTC' END,
    CASE WHEN number % 10 IN (2, 3, 4, 5, 6) THEN 60 END,
    CASE WHEN number % 10 IN (7, 8, 9, 0) THEN '{BEGIN}'::timestamptz + number * interval '1 s' END,
    '{{"type": "function", "name": "work"}}', CASE WHEN number % 2 = 1 THEN 'skip' ELSE 'allow' END,
    CASE WHEN number <= {DUE} THEN clock_timestamp()
        WHEN number % 10 <> 9 THEN clock_timestamp() + interval '1 day' END,
    CASE WHEN number BETWEEN {2 * DUE} + 1 AND {3 * DUE} AND number % 2 = 1 THEN
        '{BEGIN}'::timestamptz + number * interval '1 s' END,
    CASE WHEN number % 4 < 2 THEN 1 ELSE 0 END
FROM generate_series(1, {TASKS}) AS number;
INSERT INTO bellringer.occurrences
    (task, fire_at, stage, due_at, picked_at, dispatched_at, started_at, ended_at, outcome, executor)
SELECT number, '{BEGIN}'::timestamptz + number * interval '1 s',
    CASE number / {DUE} WHEN 0 THEN 0 WHEN 1 THEN 1 ELSE 2 END,
    CASE WHEN number < 2 * {DUE} THEN clock_timestamp() - interval '40 s' ELSE '{BEGIN}' END, '{BEGIN}', '{BEGIN}',
    CASE WHEN number >= 2 * {DUE} THEN '{BEGIN}'::timestamptz END,
    CASE WHEN number > 3 * {DUE} THEN '{BEGIN}'::timestamptz END,
    CASE WHEN number > 3 * {DUE} THEN 'succeeded' END,
    CASE WHEN number >= 2 * {DUE} THEN '{EXECUTOR}'::uuid END
FROM generate_series(1, {HISTORY}) AS number;
-- What waits for its moment for long.
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
SELECT number, clock_timestamp() + interval '1 hour', 0, clock_timestamp() + interval '1 hour', clock_timestamp()
FROM generate_series(1, 20000) AS number;
INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, is_announced, at)
SELECT '{ENVIRONMENT}', number, 'task' || number, 'failed', number <= 49900, '{BEGIN}'
FROM generate_series(1, 50000) AS number;
INSERT INTO bellringer.past_attempts (task, fire_at, attempt, due_at, outcome)
SELECT number, '{BEGIN}'::timestamptz + number * interval '1 s', 1, '{BEGIN}', 'failed'
FROM generate_series(1, {HISTORY}, 10) AS number;
INSERT INTO bellringer.run_durations (subject, seconds)
SELECT 'task ' || number, '{{1,2,3}}' FROM generate_series(1, 20000) AS number;
INSERT INTO bellringer.executors (id, host, process, concurrency)
VALUES ('{EXECUTOR}', 'host', 1, 1), ('{DEAD}', 'host', 2, 1);
"""


def fire_times(first: int, number: int) -> list[datetime]:
    return [BEGIN + timedelta(seconds=one) for one in range(first, first + number)]


def start(first: int) -> tuple[object, ...]:
    numbers = list(range(first, first + DUE))
    zeros = [0.0] * DUE
    return (EXECUTOR, numbers, fire_times(first, DUE), [1] * DUE, [BEGIN] * DUE, zeros, zeros, 30.0, 20.0)


def end(first: int, outcome: str) -> tuple[object, ...]:
    return (list(range(first, first + DUE)), fire_times(first, DUE), [1] * DUE, [outcome] * DUE, [None] * DUE)


PICKED = (
    list(range(1, 11)),
    [None] * 10,
    [None] * 10,
    list(range(1, 11)),
    fire_times(5, 10),
    [1, 2],
    fire_times(900, 2),
)
SECONDS_TO_NOW = (datetime.now(UTC) - BEGIN).total_seconds()
ALL_HISTORY, NO_HISTORY = SECONDS_TO_NOW - 40_000, SECONDS_TO_NOW + 3600
START_INDEXES = {"tasks_pkey", "occurrences_pkey"}

CASES = {
    "due tasks": Case(
        statement=occurrence_store.DUE_TASKS, arguments=(120.0, 1000), indexes={"tasks_due"}, rows=3 * DUE
    ),
    "pick": Case(statement=occurrence_store.PICK, arguments=PICKED, indexes={"tasks_pkey"}, rows=150),
    "dispatch": Case(
        statement=occurrence_store.DISPATCH,
        arguments=(5.0, 1000),
        indexes={"occurrences_open", "occurrences_pkey", "tasks_pkey"},
        rows=6 * DUE,
    ),
    "dispatch a few of many": Case(
        statement=occurrence_store.DISPATCH,
        arguments=(7200.0, 100),
        indexes={"occurrences_open", "occurrences_pkey", "tasks_pkey"},
        rows=6 * DUE,
    ),
    "start": Case(statement=occurrence_store.START, arguments=start(DUE), indexes=START_INDEXES, rows=20 * DUE),
    "start what runs": Case(
        statement=occurrence_store.START, arguments=start(2 * DUE), indexes=START_INDEXES, rows=12 * DUE
    ),
    "start what is over": Case(
        statement=occurrence_store.START, arguments=start(50_000), indexes=START_INDEXES, rows=12 * DUE
    ),
    "end": Case(
        statement=occurrence_store.END, arguments=end(2 * DUE, "succeeded"), indexes=START_INDEXES, rows=20 * DUE
    ),
    "end, and try again": Case(
        statement=occurrence_store.END, arguments=end(2 * DUE, "failed"), indexes=START_INDEXES, rows=20 * DUE
    ),
    "cancelled": Case(
        statement=occurrence_store.CANCELLED,
        arguments=end(2 * DUE, "")[:3],
        indexes={"occurrences_pkey"},
        rows=2 * DUE,
    ),
    "take incidents": Case(
        statement=upkeep_store.TAKE_INCIDENTS, arguments=(50,), indexes={"incidents_unannounced"}, rows=400
    ),
    "report what is missing": Case(
        statement=upkeep_store.REPORT_MISSED,
        arguments=(30.0, 90.0, 500),
        indexes={"occurrences_open", "occurrences_pkey", "tasks_pkey"},
        rows=15 * DUE,
    ),
    "forget occurrences": Case(
        statement=upkeep_store.FORGET_OCCURRENCES,
        arguments=(ALL_HISTORY, 500),
        indexes={"occurrences_fire_at", "past_attempts_pkey"},
        rows=3000,
    ),
    "forget occurrences where none is old": Case(
        statement=upkeep_store.FORGET_OCCURRENCES, arguments=(NO_HISTORY, 500), indexes={"occurrences_fire_at"}, rows=20
    ),
    "old tasks": Case(
        statement=upkeep_store.LOCK_OLD_TASKS, arguments=(ALL_HISTORY, 100), indexes={"tasks_once_at"}, rows=200_000
    ),
    "old tasks where none is old": Case(
        statement=upkeep_store.LOCK_OLD_TASKS, arguments=(NO_HISTORY, 100), indexes={"tasks_once_at"}, rows=20
    ),
    "forget tasks": Case(
        statement=upkeep_store.FORGET_TASKS,
        arguments=(list(range(50_000, 50_100)),),
        indexes={"tasks_pkey", "occurrences_pkey"},
        rows=400,
    ),
    "forget incidents": Case(
        statement=upkeep_store.FORGET_INCIDENTS, arguments=(0.0, 100), indexes={"incidents_pkey"}, rows=500
    ),
    "tasks of zones": Case(
        statement=upkeep_store.ZONED_TASKS, arguments=(1000, 1999), indexes={"tasks_pkey"}, rows=1100
    ),
    "move fire times": Case(
        statement=upkeep_store.MOVE_FIRE_TIMES,
        arguments=(list(range(1, 101)), fire_times(1, 100), fire_times(2, 100)),
        indexes=set(),
        rows=300,
    ),
    "add durations": Case(
        statement=executor_store.ADD_DURATIONS,
        arguments=([f"task {number}" for number in range(100)], [1.0] * 100, 200),
        indexes={"run_durations_pkey"},
        rows=300,
    ),
}


@pytest.fixture(scope="module", params=["no statistics", "of empty tables", "of today"])
async def connection(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection, set as the product sets it, to a database with many tasks, and with the statistics named."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE scheduler_plans")
    settings = {"enable_seqscan": "off", "jit": "off", "TimeZone": "UTC"}
    opened = await asyncpg.connect(**cluster.arguments("scheduler_plans"), server_settings=settings)
    for row in await opened.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'bellringer'"):
        await opened.execute(f"ALTER TABLE bellringer.{row['tablename']} SET (autovacuum_enabled = off)")
    await opened.execute(
        f"INSERT INTO bellringer.environments (id, organisation, name) VALUES ('{ENVIRONMENT}', 'acme', 'production')"
    )
    if request.param == "of empty tables":
        await opened.execute("ANALYZE")
    await opened.execute(FILL)
    if request.param == "of today":
        await opened.execute("VACUUM ANALYZE")
    yield opened
    await opened.close()
    await admin.execute("DROP DATABASE scheduler_plans WITH (FORCE)")
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_walks_its_indexes_and_reads_only_what_it_needs(
    connection: asyncpg.Connection[Any], name: str, mode: PlanMode
) -> None:
    await check_accesses(connection, CASES[name], mode, small=SMALL)
