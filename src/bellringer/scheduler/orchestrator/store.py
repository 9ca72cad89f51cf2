"""SQL of the orchestrator: what is due in the look-ahead, how things stand, and the decisions.

A million tasks may be due. Each is counted, and of each second so many are looked at more closely, drawn by a hash of
their number: the same ones round after round, whatever the order in which they were made. Up to the budget that is all.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.orchestrator.forecast import Due
from bellringer.scheduler.orchestrator.scaling import Decision, PastRound

BUDGET = 20_000
"""How many tasks, and how many occurrences, are looked at more closely than counted."""

_SECOND_OF_TASK = "GREATEST(floor(extract(epoch FROM next_fire_at - $1))::integer, -1)"
_SECOND = "GREATEST(floor(extract(epoch FROM due_at - $1))::integer, -1)"
# What `Invocation.subject` says, and the number of a recurring task.
_SUBJECT = """CASE WHEN task.once_at IS NULL THEN 'task ' || task.number ELSE
    CASE task.call ->> 'type'
        WHEN 'http' THEN 'http ' || split_part(task.call ->> 'url', '?', 1)
        WHEN 'message' THEN 'message ' || (task.call ->> 'queue')
        WHEN 'notification' THEN 'notification ' || (task.call ->> 'event_type')
        ELSE 'function ' || (task.call ->> 'name')
    END
END"""
# A scalar subquery: looked up one by one by run_durations_pkey, however many the planner expects. In steps of 2 %,
# upwards, so that tasks that take about as long are one row.
_SECONDS = """(
    SELECT exp(ceil(50 * ln(GREATEST((
        SELECT percentile_disc(0.95) WITHIN GROUP (ORDER BY one) FROM unnest(known.seconds) AS one
    ), 0.001)::float8)) / 50)
    FROM bellringer.run_durations AS known WHERE known.subject = subject.subject
)"""

NOW = "SELECT clock_timestamp()"
# Index: tasks_due.
COUNT_TASKS = f"""
SELECT {_SECOND_OF_TASK} AS second, count(*) AS total
FROM bellringer.tasks
WHERE next_fire_at <= $1 + make_interval(secs => $2) AND is_planned
GROUP BY 1
"""
# Indexes: tasks_due, run_durations_pkey. $3 says of each second, from -1 on, how many tasks one of the sample stands for.
SAMPLE_TASKS = f"""
WITH drawn AS MATERIALIZED (
    SELECT {_SECOND_OF_TASK} AS second, cron, time_zone, every_seconds, overlap = 'allow' AS may_overlap,
        {_SUBJECT} AS subject, count(*) AS tasks
    FROM bellringer.tasks AS task
    WHERE next_fire_at <= $1 + make_interval(secs => $2) AND is_planned
        AND mod(hashint8(number), COALESCE(($3::integer[])[{_SECOND_OF_TASK} + 2], 1)) = 0
    GROUP BY 1, 2, 3, 4, 5, 6
), subject AS (
    SELECT DISTINCT subject FROM drawn
), known AS MATERIALIZED (
    SELECT subject, {_SECONDS} AS seconds FROM subject
)
SELECT drawn.second, drawn.cron, drawn.time_zone, drawn.every_seconds, drawn.may_overlap, known.seconds,
    sum(drawn.tasks)::bigint AS tasks
FROM drawn
JOIN known ON known.subject = drawn.subject
GROUP BY 1, 2, 3, 4, 5, 6
"""
# Index: occurrences_open.
COUNT_OCCURRENCES = f"""
SELECT {_SECOND} AS second, count(*) AS total, min(due_at) AS first_due_at
FROM bellringer.occurrences
WHERE stage IN (0, 1) AND due_at <= $1 + make_interval(secs => $2)
GROUP BY 1
"""
# Indexes: occurrences_open, tasks_pkey, run_durations_pkey.
SAMPLE_OCCURRENCES = f"""
WITH drawn AS MATERIALIZED (
    SELECT {_SECOND} AS second, occurrence.task AS number
    FROM bellringer.occurrences AS occurrence
    WHERE stage IN (0, 1) AND due_at <= $1 + make_interval(secs => $2)
        AND mod(hashint8(occurrence.task), COALESCE(($3::integer[])[{_SECOND} + 2], 1)) = 0
), named AS MATERIALIZED (
    SELECT second, (SELECT {_SUBJECT} FROM bellringer.tasks AS task WHERE task.number = drawn.number) AS subject,
        count(*) AS tasks
    FROM drawn
    GROUP BY 1, 2
), subject AS (
    SELECT DISTINCT subject FROM named
), known AS MATERIALIZED (
    SELECT subject, {_SECONDS} AS seconds FROM subject
)
SELECT named.second, known.seconds, sum(named.tasks)::bigint AS tasks
FROM named
JOIN known ON known.subject = named.subject
GROUP BY 1, 2
"""
# A row for each executor: few.
EXECUTORS = """
SELECT count(*)::integer AS seen, COALESCE(sum(running), 0)::integer AS running
FROM bellringer.executors
WHERE seen_at > $1 - interval '30 seconds'
"""
# Index: scaling_decisions_at.
PAST = """
SELECT extract(epoch FROM at)::float8 AS at, needed, current, CASE WHEN problem IS NULL THEN desired END AS desired
FROM bellringer.scaling_decisions
WHERE at > $1 - make_interval(secs => $2)
ORDER BY at
"""
RECORD = """
INSERT INTO bellringer.scaling_decisions
    (at, driver, runs_due, slots, waiting, executors_seen, current, needed, desired, reason, problem)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
# Index: scaling_decisions_at.
FORGET = "DELETE FROM bellringer.scaling_decisions WHERE at < $1 - make_interval(secs => $2)"
# Index: scaling_decisions_at.
NEWEST = "SELECT * FROM bellringer.scaling_decisions ORDER BY at DESC LIMIT $1"
LAST_DESIRED = """
SELECT desired FROM bellringer.scaling_decisions WHERE driver = $1 AND problem IS NULL ORDER BY at DESC LIMIT 1
"""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is to come, and what waits: `dues` of the next seconds from `now`, by the database's clock."""

    now: datetime
    dues: list[Due]
    due: int
    waiting: int
    oldest_wait_seconds: float
    executors: int
    running: int


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A round of the orchestrator as it was recorded."""

    at: datetime
    driver: str
    runs_due: int
    slots: float
    waiting: int
    executors_seen: int
    current: int | None
    needed: int
    desired: int
    reason: str
    problem: str | None


async def read_standing(
    connection: Connection, look_ahead_seconds: int, default_seconds: float, budget: int = BUDGET
) -> Standing:
    """How things stand now; a run of which nothing is known is taken to last `default_seconds`."""
    now: datetime = await connection.fetchval(NOW)
    span = (now, float(look_ahead_seconds))
    tasks = {row["second"]: row["total"] for row in await connection.fetch(COUNT_TASKS, *span)}
    drawn = await connection.fetch(SAMPLE_TASKS, *span, _strides(tasks, look_ahead_seconds, budget))
    counted = await connection.fetch(COUNT_OCCURRENCES, *span)
    occurrences = {row["second"]: row["total"] for row in counted}
    picked = await connection.fetch(SAMPLE_OCCURRENCES, *span, _strides(occurrences, look_ahead_seconds, budget))
    executors = await connection.fetchrow(EXECUTORS, now)
    assert executors is not None
    first_due_at = min((row["first_due_at"] for row in counted), default=now)
    return Standing(
        now=now,
        dues=[*_dues(drawn, tasks, default_seconds), *_dues(picked, occurrences, default_seconds)],
        due=sum(tasks.values()) + sum(occurrences.values()),
        waiting=occurrences.get(-1, 0),
        oldest_wait_seconds=max(0.0, (now - first_due_at).total_seconds()),
        executors=executors["seen"],
        running=executors["running"],
    )


def _strides(totals: Mapping[int, int], look_ahead_seconds: int, budget: int) -> list[int]:
    """Of how many tasks one is drawn, for each second from -1 on: a share of the budget for each that has any."""
    share = max(1, budget // max(1, len(totals)))
    return [-(-max(1, totals.get(second, 0)) // share) for second in range(-1, look_ahead_seconds + 1)]


def _dues(rows: list[Any], totals: Mapping[int, int], default_seconds: float) -> list[Due]:
    """The sample, made to stand for all. A second of which nothing was drawn gets what the whole sample is like."""
    sampled: dict[int, int] = {}
    for row in rows:
        sampled[row["second"]] = sampled.get(row["second"], 0) + row["tasks"]
    found = [
        Due(
            **{**row, "seconds": default_seconds if row["seconds"] is None else row["seconds"]}
            | {"tasks": row["tasks"] * totals.get(row["second"], row["tasks"]) / sampled[row["second"]]}
        )
        for row in map(dict, rows)
    ]
    missing = {second: total for second, total in totals.items() if second not in sampled}
    if missing:
        everything = sum(due.tasks for due in found)
        mean = sum(due.tasks * due.seconds for due in found) / everything if everything else default_seconds
        found += [Due(second=second, tasks=total, seconds=mean) for second, total in missing.items()]
    return found


async def read_past(connection: Connection, now: datetime, seconds: float) -> list[PastRound]:
    """The rounds of the last so many seconds, the oldest first."""
    return [PastRound(**dict(row)) for row in await connection.fetch(PAST, now, seconds)]


async def record(
    connection: Connection,
    standing: Standing,
    driver: str,
    current: int | None,
    decision: Decision,
    problem: str | None,
) -> None:
    """Write a round down."""
    await connection.execute(
        RECORD,
        standing.now,
        driver,
        standing.due,
        decision.slots,
        standing.waiting,
        standing.executors,
        current,
        decision.needed,
        decision.desired,
        decision.reason,
        problem,
    )


async def last_desired(connection: Connection, driver: str) -> int | None:
    """What this driver was asked for last."""
    desired: int | None = await connection.fetchval(LAST_DESIRED, driver)
    return desired


async def forget(connection: Connection, now: datetime, kept_seconds: float) -> None:
    """Remove old rounds."""
    await connection.execute(FORGET, now, kept_seconds)


async def newest(connection: Connection, limit: int) -> list[ScalingDecision]:
    """The newest rounds, the newest first."""
    rows = await connection.fetch(NEWEST, limit)
    return [ScalingDecision(**{name: row[name] for name in ScalingDecision.__struct_fields__}) for row in rows]
