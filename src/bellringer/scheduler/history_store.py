"""SQL to read what happened: occurrences, their attempts, incidents; and who executes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import (
    Incident,
    IncidentKind,
    MissCause,
    Occurrence,
    OccurrenceState,
    Outcome,
    PastAttempt,
    TaskNumber,
)
from bellringer.scheduler.parameters import Parameter

_PARAMETERS = msgspec.json.Decoder(list[Parameter])

# Index: occurrences_pkey. From a place in its order, so that none is sorted, however few the planner expects.
LIST_OCCURRENCES = """
SELECT * FROM (
    SELECT * FROM bellringer.occurrences WHERE (task, fire_at) < ($1, $2) ORDER BY task DESC, fire_at DESC LIMIT $3
) AS newest
WHERE task = $1
ORDER BY fire_at DESC
"""
FIND_OCCURRENCE = "SELECT * FROM bellringer.occurrences WHERE task = $1 AND fire_at = $2"
# Index: past_attempts_pkey.
PAST_ATTEMPTS = "SELECT * FROM bellringer.past_attempts WHERE task = $1 AND fire_at = $2 ORDER BY attempt"
RETRY = "SELECT bellringer.retry_occurrence($1, $2)"
CANCEL = "SELECT bellringer.cancel_occurrence($1, $2)"
# Index: incidents_environment.
LIST_INCIDENTS = """
SELECT * FROM (
    SELECT * FROM bellringer.incidents WHERE (environment_id, id) < ($1, $2)
    ORDER BY environment_id DESC, id DESC LIMIT $3
) AS newest
WHERE environment_id = $1
ORDER BY id DESC
"""
# Index: incidents_kind.
LIST_INCIDENTS_OF_KINDS = """
SELECT incident.* FROM unnest($4::text[]) AS wanted (kind) CROSS JOIN LATERAL (
    SELECT * FROM bellringer.incidents
    WHERE environment_id BETWEEN $1 AND $1 AND kind BETWEEN wanted.kind AND wanted.kind AND id < $2
    ORDER BY environment_id DESC, kind DESC, id DESC LIMIT $3
) AS incident
ORDER BY incident.id DESC LIMIT $3
"""
# Index: incidents_unresolved.
LIST_UNRESOLVED_INCIDENTS = """
SELECT * FROM bellringer.incidents
WHERE environment_id BETWEEN $1 AND $1 AND id < $2
    AND resolved_at IS NULL AND kind IN ('failed', 'timed_out', 'crashed')
    AND (cardinality($4::text[]) = 0 OR kind = ANY ($4))
ORDER BY environment_id DESC, id DESC LIMIT $3
"""
LIST_EXECUTORS = "SELECT * FROM bellringer.executors ORDER BY host, process, id"
LIST_FUNCTIONS = "SELECT * FROM bellringer.functions WHERE environment_id = $1 ORDER BY name"

_LARGEST_ID = 2**63 - 1
_STAGES = {0: OccurrenceState.PICKED, 1: OccurrenceState.DISPATCHED, 3: OccurrenceState.WAITING}


class ExecutorView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that executes: how many occurrences it runs, and how many it holds until they are due.

    It has the functions of `environment_id`, or none.
    """

    id: UUID
    host: str
    process: int
    concurrency: int
    environment_id: UUID | None
    running: int
    held: int
    started_at: datetime
    seen_at: datetime


class FunctionView(msgspec.Struct, frozen=True, kw_only=True):
    """A function that executors of the environment have, as the newest of them said."""

    name: str
    parameters: list[Parameter]
    description: str
    seen_at: datetime


async def list_occurrences(
    connection: Connection, number: TaskNumber, name: str, *, before: datetime, limit: int
) -> list[Occurrence]:
    """The occurrences of a task before a moment, the newest first."""
    rows = await connection.fetch(LIST_OCCURRENCES, number, before, limit)
    return [read_occurrence(row, name) for row in rows]


async def find_occurrence(
    connection: Connection, number: TaskNumber, name: str, fire_at: datetime
) -> Occurrence | None:
    """The occurrence of that fire time."""
    row = await connection.fetchrow(FIND_OCCURRENCE, number, fire_at)
    return None if row is None else read_occurrence(row, name)


async def past_attempts(connection: Connection, number: TaskNumber, fire_at: datetime) -> list[PastAttempt]:
    """The attempts before the newest one, the oldest first."""
    return [
        PastAttempt(
            attempt=row["attempt"],
            due_at=row["due_at"],
            dispatched_at=row["dispatched_at"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            outcome=Outcome(row["outcome"]),
            detail=row["detail"],
            executor=row["executor"],
        )
        for row in await connection.fetch(PAST_ATTEMPTS, number, fire_at)
    ]


async def retry(connection: Connection, number: TaskNumber, fire_at: datetime) -> str | None:
    """Try an occurrence again: `done`, or why not (see the SQL function); None when there is none."""
    verdict: str | None = await connection.fetchval(RETRY, number, fire_at)
    return verdict


async def cancel(connection: Connection, number: TaskNumber, fire_at: datetime) -> str | None:
    """Cancel an occurrence: `done`, or how it has ended; None when there is none."""
    verdict: str | None = await connection.fetchval(CANCEL, number, fire_at)
    return verdict


async def list_incidents(
    connection: Connection,
    environment_id: UUID,
    *,
    kinds: Collection[IncidentKind],
    unresolved: bool,
    before: int | None,
    limit: int,
) -> list[Incident]:
    """Incidents, the newest first; `unresolved` are failures that nobody tried again."""
    arguments = (environment_id, _LARGEST_ID if before is None else max(0, min(before, _LARGEST_ID)), limit)
    if unresolved:
        rows = await connection.fetch(LIST_UNRESOLVED_INCIDENTS, *arguments, sorted(set(kinds)))
    elif kinds:
        rows = await connection.fetch(LIST_INCIDENTS_OF_KINDS, *arguments, sorted(set(kinds)))
    else:
        rows = await connection.fetch(LIST_INCIDENTS, *arguments)
    return [_incident(row) for row in rows]


async def list_executors(connection: Connection) -> list[ExecutorView]:
    """The processes that execute."""
    rows = await connection.fetch(LIST_EXECUTORS)
    return [ExecutorView(**{field: row[field] for field in ExecutorView.__struct_fields__}) for row in rows]


async def list_functions(connection: Connection, environment_id: UUID) -> list[FunctionView]:
    """The functions of an environment, by name."""
    return [
        FunctionView(
            name=row["name"],
            parameters=_PARAMETERS.decode(row["parameters"]),
            description=row["description"],
            seen_at=row["seen_at"],
        )
        for row in await connection.fetch(LIST_FUNCTIONS, environment_id)
    ]


def read_occurrence(row: asyncpg.Record, task: str, prefix: str = "") -> Occurrence:
    """An occurrence from a row, whose columns have that prefix."""
    outcome, cause = row[f"{prefix}outcome"], row[f"{prefix}missed_cause"]
    over = OccurrenceState.STARTED if outcome is None else OccurrenceState.ENDED
    return Occurrence(
        task=task,
        fire_at=row[f"{prefix}fire_at"],
        state=_STAGES.get(row[f"{prefix}stage"], over),
        due_at=row[f"{prefix}due_at"],
        attempt=row[f"{prefix}attempt"],
        picked_at=row[f"{prefix}picked_at"],
        dispatched_at=row[f"{prefix}dispatched_at"],
        started_at=row[f"{prefix}started_at"],
        ended_at=row[f"{prefix}ended_at"],
        outcome=None if outcome is None else Outcome(outcome),
        detail=row[f"{prefix}detail"],
        missed_cause=None if cause is None else MissCause(cause),
        executor=row[f"{prefix}executor"],
        is_manual=row[f"{prefix}is_manual"],
        cancel_requested=row[f"{prefix}cancel_requested"],
    )


def _incident(row: asyncpg.Record) -> Incident:
    return Incident(
        id=row["id"],
        task=row["task_name"],
        kind=IncidentKind(row["kind"]),
        fire_at=row["fire_at"],
        last_fire_at=row["last_fire_at"],
        fire_times=row["fire_times"],
        attempt=row["attempt"],
        cause=row["cause"],
        detail=row["detail"],
        at=row["at"],
        resolved_at=row["resolved_at"],
    )
