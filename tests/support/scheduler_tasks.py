"""Tasks and occurrences as rows, for tests of what reads them by the thousand."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import Call, HttpCall

HOOK = HttpCall(url="https://acme.example/hook")

_INSERT_TASK = """
INSERT INTO bellringer.tasks
    (environment_id, name, queue, once_at, cron, every_seconds, overlap, call, is_planned, next_fire_at)
SELECT $1, $2 || copy, 1, CASE WHEN $3::text IS NULL AND $4::float8 IS NULL THEN base.moment END, $3, $4, $5,
    convert_from($6, 'UTF8')::jsonb, $7, base.moment
FROM (SELECT date_trunc($8, clock_timestamp()) + make_interval(secs => $9) AS moment) AS base,
    generate_series(1, $10) AS copy
RETURNING number
"""
_INSERT_OCCURRENCES = """
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at, started_at, ended_at, outcome)
SELECT number, due_at, $2::integer, due_at, clock_timestamp(), CASE WHEN $2 = 2 THEN due_at END,
    CASE WHEN $2 = 2 THEN due_at END, CASE WHEN $2 = 2 THEN 'succeeded' END
FROM unnest($1::bigint[]) AS number,
    (SELECT date_trunc('second', clock_timestamp()) + make_interval(secs => $3) AS due_at) AS moment
"""


async def insert_tasks(
    connection: Connection,
    environment_id: UUID,
    name: str,
    *,
    in_seconds: float,
    copies: int = 1,
    cron: str | None = None,
    every_seconds: float | None = None,
    overlap: str = "allow",
    call: Call = HOOK,
    is_planned: bool = True,
    counted_from: str = "second",
) -> list[int]:
    """Tasks whose next fire time lies so many seconds after the beginning of this second, or minute; their numbers."""
    arguments: list[Any] = [environment_id, name, cron, every_seconds, overlap, msgspec.json.encode(call), is_planned]
    rows = await connection.fetch(_INSERT_TASK, *arguments, counted_from, float(in_seconds), copies)
    return [row["number"] for row in rows]


async def insert_occurrences(connection: Connection, tasks: list[int], *, in_seconds: float, stage: int = 0) -> None:
    """An occurrence of each task, due so many seconds after the beginning of this second; of stage 2: ended."""
    await connection.execute(_INSERT_OCCURRENCES, tasks, stage, float(in_seconds))


async def insert_durations(connection: Connection, subject: str, seconds: list[float]) -> None:
    """How long the runs of a subject took."""
    await connection.execute("INSERT INTO bellringer.run_durations VALUES ($1, $2)", subject, seconds)
