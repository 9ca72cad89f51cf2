"""Rows of the scheduler as its engine leaves them, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from bellringer.kernel.database import Database

_ADD_TASK = """
INSERT INTO bellringer.tasks (environment_id, name, queue, cron, call, overlap, next_fire_at, created_at, modified_at)
VALUES ($1, $2, 1, '* * * * *', '{"type": "function", "name": "work"}', 'skip',
    clock_timestamp() + make_interval(secs => $3), clock_timestamp() - interval '1 day',
    clock_timestamp() - make_interval(secs => $4))
RETURNING number
"""
_ADD_OCCURRENCE = """
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
SELECT $1, due_at, $2, due_at, clock_timestamp()
FROM (SELECT clock_timestamp() + make_interval(secs => $3)) AS due (due_at)
"""
_ADD_RUN = """
INSERT INTO bellringer.occurrences (
    task, fire_at, stage, due_at, attempt, picked_at, dispatched_at, started_at, ended_at, outcome, detail, missed_cause
)
VALUES ($1, $2, 2, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
_ADD_PAST_ATTEMPT = """
INSERT INTO bellringer.past_attempts
    (task, fire_at, attempt, due_at, dispatched_at, started_at, ended_at, outcome, detail)
SELECT $1, fire_at, $3, fire_at, fire_at, fire_at, fire_at + interval '1 s', $4, $5
FROM (SELECT $2::timestamptz) AS given (fire_at)
"""
_COUNT = "INSERT INTO bellringer.tally_entries (owner, name, change) VALUES ($1, $2, $3)"
_MOVE_BACK = "UPDATE bellringer.scheduler_samples SET at = at - make_interval(secs => $1)"
_REPORT = """
INSERT INTO bellringer.incidents
    (environment_id, task, task_name, kind, cause, fire_times, detail, fire_at, last_fire_at, attempt)
VALUES ($1, $2, 'report', $3, $4, $5, $6, $7, $7, 1)
"""


async def add_task(
    database: Database, environment_id: UUID, name: str, *, fires_in: float = 3600, modified_ago: float = 86_400
) -> int:
    """A task that was made yesterday and changed `modified_ago` seconds ago; return its number."""
    async with database.connection() as connection:
        number: int = await connection.fetchval(_ADD_TASK, environment_id, name, fires_in, modified_ago)
    return number


async def add_run(
    database: Database,
    task: int,
    fire_at: datetime,
    *,
    lag: float | None = 0.0,
    ran: float | None = 1.0,
    outcome: str | None = "succeeded",
    cause: str | None = None,
    detail: str | None = None,
    attempt: int = 1,
) -> None:
    """An occurrence that was picked two minutes ahead and dispatched five seconds ahead, started `lag` seconds after
    it was due, and ran for so long; without a lag it did not start, without a length it runs."""
    started_at = None if lag is None else fire_at + timedelta(seconds=lag)
    ended_at = None if outcome is None else (started_at or fire_at) + timedelta(seconds=ran or 0)
    picked_at, dispatched_at = fire_at - timedelta(seconds=120), fire_at - timedelta(seconds=5)
    async with database.connection() as connection:
        await connection.execute(
            _ADD_RUN, task, fire_at, attempt, picked_at, dispatched_at, started_at, ended_at, outcome, detail, cause
        )


async def add_past_attempt(
    database: Database, task: int, fire_at: datetime, attempt: int, *, outcome: str, detail: str | None = None
) -> None:
    """An attempt that began when it was due and ran for a second."""
    async with database.connection() as connection:
        await connection.execute(_ADD_PAST_ATTEMPT, task, fire_at, attempt, outcome, detail)


async def add_occurrence(database: Database, task: int, *, stage: int, due_in: float) -> None:
    """An occurrence of a task."""
    async with database.connection() as connection:
        await connection.execute(_ADD_OCCURRENCE, task, stage, due_in)


async def count(database: Database, environment_id: UUID, changes: Mapping[str, int]) -> None:
    """Add to the totals of an environment."""
    async with database.connection() as connection:
        await connection.executemany(_COUNT, [(environment_id, name, change) for name, change in changes.items()])


async def move_samples_back(database: Database, seconds: float) -> None:
    """Let every sample be that much older."""
    async with database.connection() as connection:
        await connection.execute(_MOVE_BACK, seconds)


async def report(
    database: Database,
    environment_id: UUID,
    kind: str,
    *,
    task: int = 1,
    cause: str | None = None,
    fire_times: int = 1,
    detail: str | None = None,
    fire_at: datetime | None = None,
) -> None:
    """An incident of a task `report`."""
    async with database.connection() as connection:
        await connection.execute(_REPORT, environment_id, task, kind, cause, fire_times, detail, fire_at)
