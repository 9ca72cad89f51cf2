"""SQL of the scheduler's background work: incidents to announce, starts that are missing, and what is old."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.events import TaskEvent
from bellringer.scheduler.model import IncidentKind, Schedule, TaskNumber

# Index: incidents_unannounced.
TAKE_INCIDENTS = """
UPDATE bellringer.incidents SET is_announced = true
WHERE id = ANY (ARRAY(
    SELECT id FROM bellringer.incidents WHERE NOT is_announced ORDER BY id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING environment_id, id, kind, task_name, at, fire_at, last_fire_at, fire_times, attempt, cause, detail
"""
# Index: occurrences_open. What became late before the time that is looked at was reported then, or is when it starts.
REPORT_MISSED = """
WITH late AS MATERIALIZED (
    SELECT task, fire_at, stage FROM bellringer.occurrences
    WHERE stage IN (0, 1) AND due_at < (SELECT clock_timestamp()) - make_interval(secs => $1)
        AND due_at > (SELECT clock_timestamp()) - make_interval(secs => $2) AND missed_cause IS NULL
    LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
), cause AS (
    SELECT late.*, CASE
        WHEN stage = 0 THEN 'picker late'
        WHEN EXISTS (
            SELECT FROM bellringer.executors
            WHERE running >= concurrency AND seen_at > clock_timestamp() - make_interval(secs => $1)
        ) THEN 'executor busy'
        ELSE 'queue full'
    END AS cause
    FROM late
), missed AS (
    UPDATE bellringer.occurrences AS occurrence SET missed_cause = cause.cause
    FROM cause JOIN bellringer.tasks AS task ON task.number = cause.task
    WHERE occurrence.task = cause.task AND occurrence.fire_at = cause.fire_at
    RETURNING task.environment_id, task.number, task.name, occurrence.fire_at, occurrence.attempt,
        occurrence.missed_cause, occurrence.due_at
), reported AS (
    INSERT INTO bellringer.incidents (environment_id, task, task_name, kind, fire_at, attempt, cause, detail)
    SELECT environment_id, number, name, 'missed', fire_at, attempt, missed_cause,
        format('not started %s s after it was due', round(EXTRACT(epoch FROM clock_timestamp() - due_at)))
    FROM missed
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT environment_id, 'tasks.missed', count(*) FROM missed GROUP BY environment_id
)
SELECT count(*) FROM missed
"""
# Index: occurrences_fire_at.
FORGET_OCCURRENCES = """
WITH gone AS (
    DELETE FROM bellringer.occurrences WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM bellringer.occurrences
        WHERE fire_at AT TIME ZONE 'UTC' < (SELECT clock_timestamp() AT TIME ZONE 'UTC') - make_interval(secs => $1)
            AND ended_at IS NOT NULL
        ORDER BY fire_at AT TIME ZONE 'UTC' LIMIT $2
    )) AND ended_at IS NOT NULL
    RETURNING task, fire_at
), attempts AS (
    DELETE FROM bellringer.past_attempts AS attempt USING gone
    WHERE attempt.task = gone.task AND attempt.fire_at = gone.fire_at
)
SELECT count(*) FROM gone
"""
# Index: tasks_once_at.
LOCK_OLD_TASKS = """
SELECT number FROM bellringer.tasks AS task
WHERE once_at < (SELECT clock_timestamp()) - make_interval(secs => $1) AND next_fire_at IS NULL
    AND NOT EXISTS (SELECT FROM bellringer.occurrences WHERE occurrences.task = task.number)
ORDER BY once_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
# Looks again, now that nobody can make an occurrence any more.
FORGET_TASKS = """
WITH gone AS (
    DELETE FROM bellringer.tasks AS task
    WHERE number = ANY ($1) AND NOT EXISTS (SELECT FROM bellringer.occurrences WHERE occurrences.task = task.number)
    RETURNING number
)
SELECT count(*) FROM gone
"""
# Index: incidents_pkey.
FORGET_INCIDENTS = """
WITH gone AS (
    DELETE FROM bellringer.incidents WHERE id = ANY (ARRAY(SELECT id FROM bellringer.incidents ORDER BY id LIMIT $2))
        AND at < (SELECT clock_timestamp()) - make_interval(secs => $1)
    RETURNING id
)
SELECT count(*) FROM gone
"""
# Index: run_durations_modified_at. Asked twice: a row may have been written anew meanwhile.
FORGET_DURATIONS = """
WITH gone AS (
    DELETE FROM bellringer.run_durations WHERE subject = ANY (ARRAY(
        SELECT subject FROM bellringer.run_durations
        WHERE modified_at < (SELECT clock_timestamp()) - make_interval(secs => $1)
        ORDER BY modified_at LIMIT $2 FOR UPDATE SKIP LOCKED
    )) AND modified_at < (SELECT clock_timestamp()) - make_interval(secs => $1)
    RETURNING subject
)
SELECT count(*) FROM gone
"""
# Index: tasks_pkey.
ZONED_TASKS = """
SELECT number, cron, time_zone, next_fire_at, clock_timestamp() AS now FROM bellringer.tasks
WHERE number BETWEEN $1 AND $2 AND cron IS NOT NULL AND time_zone <> 'UTC' AND is_planned AND next_fire_at IS NOT NULL
"""
HIGHEST_NUMBER = "SELECT COALESCE(max(number), 0) FROM bellringer.tasks"
MOVE_FIRE_TIMES = """
UPDATE bellringer.tasks AS task SET next_fire_at = moved.new
FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[]) AS moved (number, old, new)
WHERE task.number = moved.number AND task.next_fire_at = moved.old AND task.is_planned
"""


class ZonedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is due by the clock of a zone, and when that is next."""

    number: TaskNumber
    schedule: Schedule
    next_fire_at: datetime
    now: datetime


async def take_incidents(connection: Connection, limit: int) -> list[tuple[UUID, TaskEvent]]:
    """Mark incidents as announced; return them as events with the environment of each, in their order."""
    rows = await connection.fetch(TAKE_INCIDENTS, limit)
    return [
        (
            row["environment_id"],
            TaskEvent(
                id=row["id"],
                kind=IncidentKind(row["kind"]),
                task=row["task_name"],
                at=row["at"],
                fire_at=row["fire_at"],
                last_fire_at=row["last_fire_at"],
                fire_times=row["fire_times"],
                attempt=row["attempt"],
                cause=row["cause"],
                detail=row["detail"],
            ),
        )
        for row in sorted(rows, key=lambda row: row["id"])
    ]


async def report_missed(connection: Connection, promise_seconds: float, look_back_seconds: float, limit: int) -> int:
    """Report what became due between so long ago and so long ago, and has not started; return how many."""
    missed: int = await connection.fetchval(REPORT_MISSED, promise_seconds, look_back_seconds, limit)
    return missed


async def forget_occurrences(connection: Connection, seconds: float, limit: int) -> int:
    """Remove occurrences that ended and whose fire time is so long ago; return how many."""
    forgotten: int = await connection.fetchval(FORGET_OCCURRENCES, seconds, limit)
    return forgotten


async def forget_tasks(connection: Connection, seconds: float, limit: int) -> int:
    """Remove one-time tasks so long after their time, once they have no history left; return how many."""
    async with connection.transaction():
        numbers = [row["number"] for row in await connection.fetch(LOCK_OLD_TASKS, seconds, limit)]
        forgotten: int = await connection.fetchval(FORGET_TASKS, numbers)
    return forgotten


async def forget_incidents(connection: Connection, seconds: float, limit: int) -> int:
    """Remove incidents of so long ago; return how many."""
    forgotten: int = await connection.fetchval(FORGET_INCIDENTS, seconds, limit)
    return forgotten


async def forget_durations(connection: Connection, seconds: float, limit: int) -> int:
    """Remove the durations of what did not run for so long; return how many."""
    forgotten: int = await connection.fetchval(FORGET_DURATIONS, seconds, limit)
    return forgotten


async def zoned_tasks(connection: Connection, first: int, numbers: int) -> tuple[int, list[ZonedTask]]:
    """Tasks by the clocks of zones, of so many numbers from the first on; and the highest number there is."""
    rows = await connection.fetch(ZONED_TASKS, first, first + numbers - 1)
    tasks = [
        ZonedTask(
            number=row["number"],
            schedule=Schedule(cron=row["cron"], time_zone=row["time_zone"]),
            next_fire_at=row["next_fire_at"],
            now=row["now"],
        )
        for row in rows
    ]
    return await connection.fetchval(HIGHEST_NUMBER), tasks


async def move_fire_times(connection: Connection, moved: Sequence[tuple[ZonedTask, datetime]]) -> None:
    """Set the next fire times of tasks, unless they have moved on meanwhile."""
    if moved:
        await connection.execute(
            MOVE_FIRE_TIMES,
            [task.number for task, _ in moved],
            [task.next_fire_at for task, _ in moved],
            [moment for _, moment in moved],
        )
