"""Rows of the scheduler as its engine leaves them, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping
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
_COUNT = "INSERT INTO bellringer.tally_entries (owner, name, change) VALUES ($1, $2, $3)"
_MOVE_BACK = "UPDATE bellringer.scheduler_samples SET at = at - make_interval(secs => $1)"
_REPORT = """
INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, cause, fire_times)
VALUES ($1, 1, 'report', $2, $3, $4)
"""


async def add_task(
    database: Database, environment_id: UUID, name: str, *, fires_in: float = 3600, modified_ago: float = 86_400
) -> int:
    """A task that was made yesterday and changed `modified_ago` seconds ago; return its number."""
    async with database.connection() as connection:
        number: int = await connection.fetchval(_ADD_TASK, environment_id, name, fires_in, modified_ago)
    return number


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
    database: Database, environment_id: UUID, kind: str, *, cause: str | None = None, fire_times: int = 1
) -> None:
    """An incident."""
    async with database.connection() as connection:
        await connection.execute(_REPORT, environment_id, kind, cause, fire_times)
