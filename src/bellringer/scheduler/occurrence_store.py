"""SQL of the occurrences on their way: picked, dispatched, started, ended. Each statement is one transition.

The functions stand in `migrations/0002_pick_start_end.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import Instant, Misfire, MisfirePolicy, Outcome, Schedule, TaskNumber

# Index: tasks_due.
DUE_TASKS = """
SELECT number, once_at, cron, time_zone, every_seconds, starting_at, misfire, misfire_limit, misfire_window_seconds,
    is_planned, next_fire_at, created_at, clock_timestamp() AS now
FROM bellringer.tasks
WHERE next_fire_at <= (SELECT clock_timestamp()) + make_interval(secs => $1)
ORDER BY next_fire_at LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED
"""
PICK = "SELECT bellringer.pick($1, $2, $3, $4, $5, $6, $7)"
# Index: occurrences_open.
DISPATCH = """
WITH due AS MATERIALIZED (
    SELECT task, fire_at FROM bellringer.occurrences
    WHERE stage = 0 AND due_at <= (SELECT clock_timestamp()) + make_interval(secs => $1)
    ORDER BY stage, due_at LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bellringer.occurrences AS occurrence SET stage = 1, dispatched_at = clock_timestamp()
FROM due JOIN bellringer.tasks AS task ON task.number = due.task
WHERE occurrence.task = due.task AND occurrence.fire_at = due.fire_at
RETURNING task.queue, occurrence.task, occurrence.fire_at, occurrence.attempt, occurrence.dispatched_at,
    occurrence.due_at
"""
START = "SELECT * FROM bellringer.start_occurrences($1, $2, $3, $4, $5, $6, $7, $8, $9)"
END = "SELECT place, is_recorded FROM bellringer.end_attempts($1, $2, $3, $4, $5)"
# Index: occurrences_pkey.
CANCELLED = """
SELECT place
FROM unnest($1::bigint[], $2::timestamptz[], $3::integer[]) WITH ORDINALITY AS one (task, fire_at, attempt, place)
JOIN bellringer.occurrences AS occurrence ON occurrence.task = one.task AND occurrence.fire_at = one.fire_at
WHERE occurrence.cancel_requested OR occurrence.ended_at IS NOT NULL OR occurrence.attempt <> one.attempt
"""
NOW = "SELECT clock_timestamp()"


class DueTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose next fire time is near, as its picker has it locked."""

    number: TaskNumber
    schedule: Schedule
    misfire: MisfirePolicy
    is_planned: bool
    next_fire_at: datetime
    created_at: datetime
    now: datetime


class Picked(msgspec.Struct, kw_only=True):
    """What a picker planned, column by column, as `bellringer.pick` takes it."""

    numbers: list[TaskNumber] = []
    next_fire_ats: list[datetime | None] = []
    problems: list[str | None] = []
    run_tasks: list[TaskNumber] = []
    run_fire_ats: list[datetime] = []
    skip_tasks: list[TaskNumber] = []
    skip_fire_ats: list[datetime] = []


class Dispatch(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a message tells an executor: which attempt at which occurrence. The time of its dispatch tells it from an
    earlier message about one that was taken back and picked again.
    """

    task: TaskNumber
    fire_at: Instant
    attempt: int
    dispatched_at: Instant
    due_at: Instant


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is to start: since when its executor has it, and since when it could have run."""

    dispatch: Dispatch
    held_seconds: float
    ready_seconds: float


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a dispatch: run it; wait so long and ask again; nothing, as it is over or runs elsewhere.

    Or it is `here`: recorded as started by who asks. With the definition, if it is to be run or is here.
    """

    verdict: Literal["run", "wait", "here", "elsewhere", "gone"]
    wait_seconds: float | None = None
    environment_id: UUID | None = None
    name: str = ""
    call: str = ""
    payload: str = ""
    time_limit_seconds: float = 0.0
    is_recurring: bool = False


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

    dispatch: Dispatch
    outcome: Outcome
    detail: str | None


_GONE = Started(verdict="gone")


async def due_tasks(connection: Connection, ahead_seconds: float, limit: int) -> list[DueTask]:
    """Lock tasks whose next fire time is at most so far ahead, the earliest first."""
    rows = await connection.fetch(DUE_TASKS, ahead_seconds, limit)
    return [
        DueTask(
            number=row["number"],
            schedule=Schedule(
                at=row["once_at"],
                cron=row["cron"],
                time_zone=row["time_zone"],
                every_seconds=row["every_seconds"],
                starting_at=row["starting_at"],
            ),
            misfire=MisfirePolicy(
                policy=Misfire(row["misfire"]), limit=row["misfire_limit"], window_seconds=row["misfire_window_seconds"]
            ),
            is_planned=row["is_planned"],
            next_fire_at=row["next_fire_at"],
            created_at=row["created_at"],
            now=row["now"],
        )
        for row in rows
    ]


async def pick(connection: Connection, picked: Picked) -> None:
    """Record what was planned for tasks that the caller's transaction has locked."""
    await connection.execute(PICK, *msgspec.structs.astuple(picked))


async def dispatch(connection: Connection, ahead_seconds: float, limit: int) -> list[tuple[int, Dispatch]]:
    """Mark occurrences as handed to the broker, those due first; with the number of the queue of each."""
    return [
        (
            row["queue"],
            Dispatch(
                task=row["task"],
                fire_at=row["fire_at"],
                attempt=row["attempt"],
                dispatched_at=row["dispatched_at"],
                due_at=row["due_at"],
            ),
        )
        for row in await connection.fetch(DISPATCH, ahead_seconds, limit)
    ]


async def start(
    connection: Connection,
    executor: UUID,
    requests: Sequence[StartRequest],
    *,
    promise_seconds: float,
    lost_seconds: float,
) -> list[Started]:
    """Start what may start; say of each what is to be done. An executor not seen for `lost_seconds` is dead."""
    rows = await connection.fetch(
        START,
        executor,
        [request.dispatch.task for request in requests],
        [request.dispatch.fire_at for request in requests],
        [request.dispatch.attempt for request in requests],
        [request.dispatch.dispatched_at for request in requests],
        [request.held_seconds for request in requests],
        [request.ready_seconds for request in requests],
        promise_seconds,
        lost_seconds,
    )
    answers = [_GONE] * len(requests)
    for row in rows:
        answers[row["place"] - 1] = Started(
            verdict=row["verdict"],
            wait_seconds=row["wait_seconds"],
            environment_id=row["environment_id"],
            name=row["name"] or "",
            call=row["call"] or "",
            payload=row["payload"] or "",
            time_limit_seconds=row["time_limit_seconds"] or 0.0,
            is_recurring=bool(row["is_recurring"]),
        )
    return answers


async def end(connection: Connection, ends: Sequence[AttemptEnd]) -> list[bool | None]:
    """Record how attempts ended; say of each whether that was news, or None: its task is locked, so ask again."""
    rows = await connection.fetch(
        END,
        [end.dispatch.task for end in ends],
        [end.dispatch.fire_at for end in ends],
        [end.dispatch.attempt for end in ends],
        [end.outcome for end in ends],
        [end.detail for end in ends],
    )
    recorded = {row["place"]: True if row["is_recorded"] else None for row in rows}
    return [recorded.get(place, False) for place in range(1, len(ends) + 1)]


async def cancelled(connection: Connection, dispatches: Sequence[Dispatch]) -> list[Dispatch]:
    """Those of the attempts that somebody asked to cancel, or that were given up for dead."""
    rows = await connection.fetch(
        CANCELLED,
        [dispatch.task for dispatch in dispatches],
        [dispatch.fire_at for dispatch in dispatches],
        [dispatch.attempt for dispatch in dispatches],
    )
    return [dispatches[row["place"] - 1] for row in rows]


async def database_now(connection: Connection) -> datetime:
    """The time of the database."""
    now: datetime = await connection.fetchval(NOW)
    return now
