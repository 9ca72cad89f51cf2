"""SQL of the executors: who they are, how long runs took."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.functions import Function

BEAT = """
INSERT INTO bellringer.executors AS executor (id, host, process, concurrency, environment_id, running, held)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE SET running = excluded.running, held = excluded.held, seen_at = clock_timestamp()
"""
REMOVE = "DELETE FROM bellringer.executors WHERE id = $1"
FORGET_LOST = "DELETE FROM bellringer.executors WHERE seen_at < (SELECT clock_timestamp()) - make_interval(secs => $1)"
# Sorted, so that two executors lock the rows in one order.
ADD_DURATIONS = """
INSERT INTO bellringer.run_durations AS known (subject, seconds)
SELECT subject, array_agg(seconds ORDER BY place)
FROM unnest($1::text[], $2::real[]) WITH ORDINALITY AS new (subject, seconds, place)
GROUP BY subject ORDER BY subject
ON CONFLICT (subject) DO UPDATE SET
    seconds = (known.seconds || excluded.seconds)[
        GREATEST(1, cardinality(known.seconds) + cardinality(excluded.seconds) - $3 + 1) :
    ],
    modified_at = clock_timestamp()
"""
# Both by name, so that two executors that start lock the rows in one order.
SET_FUNCTIONS = """
INSERT INTO bellringer.functions AS known (environment_id, name, parameters, description)
SELECT $1, name, parameters, description
FROM unnest($2::text[], $3::jsonb[], $4::text[]) AS new (name, parameters, description)
ORDER BY name
ON CONFLICT (environment_id, name) DO UPDATE SET
    parameters = excluded.parameters, description = excluded.description, seen_at = clock_timestamp()
"""
REMOVE_FUNCTIONS = """
DELETE FROM bellringer.functions AS known USING (
    SELECT name FROM bellringer.functions WHERE environment_id = $1 AND name <> ALL ($2) ORDER BY name FOR UPDATE
) AS old
WHERE known.environment_id = $1 AND known.name = old.name
"""


async def beat(
    connection: Connection, executor: UUID, *, concurrency: int, environment_id: UUID | None, running: int, held: int
) -> None:
    """Show that an executor of this process lives, and what it has."""
    await connection.execute(
        BEAT, executor, socket.gethostname(), os.getpid(), concurrency, environment_id, running, held
    )


async def remove(connection: Connection, executor: UUID) -> None:
    """Forget an executor that has ended."""
    await connection.execute(REMOVE, executor)


async def forget_lost(connection: Connection, seconds: float) -> None:
    """Forget executors that were not seen for so long."""
    await connection.execute(FORGET_LOST, seconds)


async def set_functions(connection: Connection, environment_id: UUID, functions: Sequence[Function[..., Any]]) -> None:
    """Let an environment have these functions and no others."""
    names = [function.name for function in functions]
    parameters = [msgspec.json.encode(function.signature.describe()).decode() for function in functions]
    descriptions = [function.description for function in functions]
    await connection.execute(SET_FUNCTIONS, environment_id, names, parameters, descriptions)
    await connection.execute(REMOVE_FUNCTIONS, environment_id, names)


async def add_durations(connection: Connection, runs: Mapping[str, Sequence[float]], kept: int) -> None:
    """Add how long runs took, by subject; the newest so many are kept."""
    pairs = [(subject, seconds) for subject, new in runs.items() for seconds in new[-kept:]]
    await connection.execute(ADD_DURATIONS, [subject for subject, _ in pairs], [seconds for _, seconds in pairs], kept)
