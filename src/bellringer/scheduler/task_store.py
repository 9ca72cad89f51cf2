"""SQL of the tasks: making, changing, reading and listing them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.history_store import read_occurrence
from bellringer.scheduler.model import (
    Call,
    Misfire,
    MisfirePolicy,
    Overlap,
    Retry,
    Schedule,
    Task,
    TaskDefinition,
    TaskNumber,
    TaskState,
)

MOST_SCANNED = 5_000
"""How many names one page looks at, where whether a task is finished must be found out one by one."""

_AFTER_EVERY_NAME = "~"  # sorts after every character of a name

NOW = "SELECT clock_timestamp()"
FIND_NUMBER = "SELECT number FROM bellringer.tasks WHERE environment_id = $1 AND name = $2"
LOCK_TASK = "SELECT * FROM bellringer.tasks WHERE environment_id = $1 AND name = $2 FOR NO KEY UPDATE"
# Indexes: tasks_pkey, and occurrences_pkey for the newest occurrence, the next one, and those of a task with no fire
# time to come.
# OFFSET 0: one look per task, never a hash table of all occurrences.
READ_TASKS = """
SELECT task.*,
    last.fire_at AS last_fire_at, last.stage AS last_stage, last.due_at AS last_due_at,
    last.attempt AS last_attempt, last.picked_at AS last_picked_at, last.dispatched_at AS last_dispatched_at,
    last.started_at AS last_started_at, last.ended_at AS last_ended_at, last.outcome AS last_outcome,
    last.detail AS last_detail, last.missed_cause AS last_missed_cause, last.executor AS last_executor,
    last.is_manual AS last_is_manual, last.cancel_requested AS last_cancel_requested,
    CASE WHEN task.is_planned AND task.state = 'active' THEN COALESCE(picked.fire_at, task.next_fire_at) END
        AS fires_next_at,
    CASE WHEN task.state = 'active' AND task.next_fire_at IS NULL THEN NOT EXISTS (
        SELECT FROM bellringer.occurrences WHERE task = task.number AND ended_at IS NULL OFFSET 0
    ) ELSE false END AS is_finished
FROM bellringer.tasks AS task
LEFT JOIN LATERAL (
    SELECT * FROM bellringer.occurrences
    WHERE task = task.number AND fire_at <= (SELECT clock_timestamp()) ORDER BY fire_at DESC LIMIT 1
) AS last ON true
LEFT JOIN LATERAL (
    SELECT fire_at FROM bellringer.occurrences
    WHERE task = task.number AND fire_at > (SELECT clock_timestamp()) AND ended_at IS NULL ORDER BY fire_at LIMIT 1
) AS picked ON true
WHERE task.number = ANY ($1::bigint[])
ORDER BY task.name
"""
# Index: tasks_environment_id_name_key.
PAGE_OF_ALL = """
SELECT number, name FROM bellringer.tasks WHERE environment_id = $1 AND name > $2 AND name >= $3 AND name < $4
ORDER BY name LIMIT $5
"""
# Index: tasks_stopped.
PAGE_OF_STOPPED = """
SELECT number, name FROM bellringer.tasks
WHERE environment_id = $1 AND name > $2 AND name >= $3 AND name < $4 AND state <> 'active' AND state = $6
ORDER BY name LIMIT $5
"""
# Index: tasks_environment_id_name_key, and occurrences_pkey of those with no fire time to come.
PAGE_OF_ACTIVE = """
WITH scanned AS MATERIALIZED (
    SELECT number, name, state, next_fire_at FROM bellringer.tasks
    WHERE environment_id = $1 AND name > $2 AND name >= $3 AND name < $4
    ORDER BY name LIMIT $7
), chosen AS (
    SELECT number, name FROM scanned
    WHERE state = 'active' AND $6 = CASE WHEN next_fire_at IS NULL THEN NOT EXISTS (
        SELECT FROM bellringer.occurrences WHERE task = scanned.number AND ended_at IS NULL OFFSET 0
    ) ELSE false END
    ORDER BY name LIMIT $5
)
SELECT ARRAY(SELECT number FROM chosen ORDER BY name) AS numbers, (SELECT max(name) FROM chosen) AS last_chosen,
    count(*) AS scanned, max(name) AS last_scanned
FROM scanned
"""
ADD_TASK = """
INSERT INTO bellringer.tasks (environment_id, name, next_fire_at, created_at, modified_at,
    queue, once_at, delay_seconds, cron, time_zone, every_seconds, starting_at, call, payload, misfire,
    misfire_limit, misfire_window_seconds, overlap, time_limit_seconds, max_retries, retry_first_seconds,
    retry_cap_seconds, rerun_after_crash)
VALUES ($1, $2, $3, $4, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
ON CONFLICT (environment_id, name) DO NOTHING
RETURNING number
"""
CHANGE_TASK = """
UPDATE bellringer.tasks SET modified_at = $2,
    queue = $3, once_at = $4, delay_seconds = $5, cron = $6, time_zone = $7, every_seconds = $8, starting_at = $9,
    call = $10, payload = $11, misfire = $12, misfire_limit = $13, misfire_window_seconds = $14, overlap = $15,
    time_limit_seconds = $16, max_retries = $17, retry_first_seconds = $18, retry_cap_seconds = $19,
    rerun_after_crash = $20
WHERE number = $1
"""
PLAN_TASK = """
UPDATE bellringer.tasks SET state = $2, problem = NULL, is_planned = $3, next_fire_at = $4, modified_at = $5
WHERE number = $1
"""
UNPICK = "SELECT bellringer.unpick($1, $2, $3)"
GIVE_UP_MISSED = "SELECT bellringer.give_up_missed(task, $2, $3) FROM bellringer.tasks AS task WHERE number = $1"
ADOPT_OVERLAP = "SELECT bellringer.adopt_overlap($1)"
STOP_TASK = "SELECT number, state FROM bellringer.stop_task($1, $2, $3)"
RUN_TASK = "SELECT verdict, moment FROM bellringer.run_task($1)"
# Indexes: occurrences_pkey, past_attempts_pkey, incidents_task.
DELETE_HISTORY = """
DELETE FROM bellringer.{table}
WHERE ctid = ANY (ARRAY(
    SELECT place FROM (
        SELECT ctid AS place, task FROM bellringer.{table} WHERE task >= $1 ORDER BY task LIMIT $2
    ) AS next WHERE task = $1
))
"""
DELETE_DURATIONS = "DELETE FROM bellringer.run_durations WHERE subject = 'task ' || $1::bigint"
DELETE_TASK = "DELETE FROM bellringer.tasks WHERE number = $1"
LOCK_NUMBER = "SELECT FROM bellringer.tasks WHERE number = $1 FOR UPDATE"
TABLES_BY_TASK = ("occurrences", "past_attempts", "incidents")

_CALL: msgspec.json.Decoder[Call] = msgspec.json.Decoder(Call)


class LockedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it was given, under its lock: a delay is still one, and `at` is what it became.

    Where `is_planned` is false, `next_fire_at` is the moment from which a picker is to plan.
    """

    number: TaskNumber
    definition: TaskDefinition
    state: TaskState
    at: datetime | None
    is_planned: bool
    next_fire_at: datetime | None
    created_at: datetime


class NamesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a page, and the name after which the next one begins, if there may be one."""

    numbers: list[TaskNumber]
    next: str | None


async def now(connection: Connection) -> datetime:
    """The time of the database."""
    moment: datetime = await connection.fetchval(NOW)
    return moment


async def find_number(connection: Connection, environment_id: UUID, name: str) -> TaskNumber | None:
    """The number of the task of that name."""
    number = await connection.fetchval(FIND_NUMBER, environment_id, name)
    return None if number is None else TaskNumber(number)


async def lock_task(connection: Connection, environment_id: UUID, name: str) -> LockedTask | None:
    """The task of that name, which changes for nobody else until the transaction ends."""
    row = await connection.fetchrow(LOCK_TASK, environment_id, name)
    if row is None:
        return None
    return LockedTask(
        number=TaskNumber(row["number"]),
        definition=_definition(row, at=row["once_at"] if row["delay_seconds"] is None else None),
        state=TaskState(row["state"]),
        at=row["once_at"],
        is_planned=row["is_planned"],
        next_fire_at=row["next_fire_at"],
        created_at=row["created_at"],
    )


async def read_tasks(connection: Connection, numbers: Sequence[TaskNumber]) -> list[Task]:
    """Those of the tasks that exist, by name."""
    return [_task(row) for row in await connection.fetch(READ_TASKS, numbers)]


async def page(
    connection: Connection, environment_id: UUID, *, state: TaskState | None, prefix: str, after: str, limit: int
) -> NamesPage:
    """The next tasks by name, after the one named and with that prefix."""
    arguments = (environment_id, after, prefix, prefix + _AFTER_EVERY_NAME, limit)
    if state in {TaskState.ACTIVE, TaskState.FINISHED}:
        (row,) = await connection.fetch(PAGE_OF_ACTIVE, *arguments, state is TaskState.FINISHED, MOST_SCANNED)
        is_full = len(row["numbers"]) == limit
        more = row["last_scanned"] if row["scanned"] == MOST_SCANNED else None
        return NamesPage(numbers=row["numbers"], next=row["last_chosen"] if is_full else more)
    if state is None:
        rows = await connection.fetch(PAGE_OF_ALL, *arguments)
    else:
        rows = await connection.fetch(PAGE_OF_STOPPED, *arguments, state)
    return NamesPage(
        numbers=[TaskNumber(row["number"]) for row in rows], next=rows[-1]["name"] if len(rows) == limit else None
    )


async def add_task(
    connection: Connection,
    environment_id: UUID,
    name: str,
    definition: TaskDefinition,
    *,
    queue: int,
    at: datetime | None,
    next_fire_at: datetime | None,
    created_at: datetime,
) -> TaskNumber | None:
    """Make a task, `at` being its time if it has only one; None when there is one of that name."""
    number = await connection.fetchval(
        ADD_TASK, environment_id, name, next_fire_at, created_at, *_columns(definition, queue, at)
    )
    return None if number is None else TaskNumber(number)


async def change_task(
    connection: Connection,
    number: TaskNumber,
    definition: TaskDefinition,
    *,
    queue: int,
    at: datetime | None,
    modified_at: datetime,
) -> None:
    """Replace what a task does, and when. Its plan stays."""
    await connection.execute(CHANGE_TASK, number, modified_at, *_columns(definition, queue, at))


async def plan_task(
    connection: Connection,
    number: TaskNumber,
    state: TaskState,
    next_fire_at: datetime | None,
    *,
    modified_at: datetime,
    is_planned: bool = True,
) -> None:
    """Set the state of a task, active or paused, and its next fire time."""
    await connection.execute(PLAN_TASK, number, state, is_planned, next_fire_at, modified_at)


async def unpick(
    connection: Connection, number: TaskNumber, moment: datetime, *, is_other_schedule: bool
) -> datetime | None:
    """Remove the occurrences after a moment that have not started; return the first of their fire times."""
    first: datetime | None = await connection.fetchval(UNPICK, number, moment, is_other_schedule)
    return first


async def give_up_missed(connection: Connection, number: TaskNumber, moment: datetime, why: str) -> None:
    """Record that the fire times up to a moment that were not picked will not be."""
    await connection.execute(GIVE_UP_MISSED, number, moment, why)


async def adopt_overlap(connection: Connection, number: TaskNumber) -> None:
    """Let what runs and waits of a task follow its new policy for overlaps."""
    await connection.execute(ADOPT_OVERLAP, number)


async def stop_task(
    connection: Connection, environment_id: UUID, name: str, state: TaskState
) -> tuple[TaskNumber, TaskState] | None:
    """Pause or cancel a task; return its number, and the state that it has then: another if it could not be paused."""
    row = await connection.fetchrow(STOP_TASK, environment_id, name, state)
    return None if row is None else (TaskNumber(row["number"]), TaskState(row["state"]))


async def run_task(connection: Connection, number: TaskNumber) -> tuple[str, datetime] | None:
    """Make an occurrence by hand; return `done` and its fire time, or the state of a task that cannot run."""
    row = await connection.fetchrow(RUN_TASK, number)
    return None if row is None else (row["verdict"], row["moment"])


async def delete_history(connection: Connection, number: TaskNumber, limit: int) -> bool:
    """Delete some of what happened to a task; return whether there may be more."""
    for table in TABLES_BY_TASK:
        if await connection.execute(DELETE_HISTORY.format(table=table), number, limit) != "DELETE 0":
            return True
    return False


async def delete_task(connection: Connection, number: TaskNumber, limit: int) -> None:
    """Delete a task with what is left of its history, in the caller's transaction."""
    await connection.execute(LOCK_NUMBER, number)
    while await delete_history(connection, number, limit):
        pass
    await connection.execute(DELETE_DURATIONS, number)
    await connection.execute(DELETE_TASK, number)


def _columns(definition: TaskDefinition, queue: int, at: datetime | None) -> tuple[object, ...]:
    schedule = definition.schedule
    return (
        queue,
        at,
        schedule.delay_seconds,
        schedule.cron,
        schedule.time_zone,
        schedule.every_seconds,
        schedule.starting_at,
        msgspec.json.encode(definition.call).decode(),
        bytes(definition.payload).decode(),
        definition.misfire.policy,
        definition.misfire.limit,
        definition.misfire.window_seconds,
        definition.overlap,
        definition.time_limit_seconds,
        definition.retry.max_retries,
        definition.retry.first_seconds,
        definition.retry.cap_seconds,
        definition.rerun_after_crash,
    )


def _definition(row: asyncpg.Record, *, at: datetime | None) -> TaskDefinition:
    return TaskDefinition(
        schedule=Schedule(
            at=at,
            delay_seconds=None if at is not None else row["delay_seconds"],
            cron=row["cron"],
            time_zone="UTC" if row["cron"] is None else row["time_zone"],
            every_seconds=row["every_seconds"],
            starting_at=row["starting_at"],
        ),
        call=_CALL.decode(row["call"]),
        payload=msgspec.Raw(row["payload"].encode()),
        misfire=MisfirePolicy(
            policy=Misfire(row["misfire"]), limit=row["misfire_limit"], window_seconds=row["misfire_window_seconds"]
        ),
        overlap=Overlap(row["overlap"]),
        time_limit_seconds=row["time_limit_seconds"],
        retry=Retry(
            max_retries=row["max_retries"],
            first_seconds=row["retry_first_seconds"],
            cap_seconds=row["retry_cap_seconds"],
        ),
        rerun_after_crash=row["rerun_after_crash"],
    )


def _task(row: asyncpg.Record) -> Task:
    last = None if row["last_fire_at"] is None else read_occurrence(row, row["name"], "last_")
    return Task(
        number=TaskNumber(row["number"]),
        environment_id=row["environment_id"],
        name=row["name"],
        definition=_definition(row, at=row["once_at"]),
        state=TaskState.FINISHED if row["is_finished"] else TaskState(row["state"]),
        problem=row["problem"],
        # Until a picker has planned it, this is no fire time.
        next_fire_at=row["next_fire_at"] if row["is_planned"] else None,
        fires_next_at=row["fires_next_at"],
        last=last,
        created_at=row["created_at"],
        modified_at=row["modified_at"],
    )
