"""SQL of the orchestrator: what is due in the look-ahead, how things stand, and the decisions.

A million tasks may be due. Each is counted, and of each second so many are looked at more closely, drawn by a hash of
their number: the same ones round after round, whatever the order in which they were made. Up to the budget that is all.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import asyncpg
import msgspec

from bellringer.kernel.database import Connection
from bellringer.scheduler.orchestrator.forecast import Due
from bellringer.scheduler.orchestrator.scaling import Decision, PastRound

BUDGET = 20_000
"""How many tasks, and how many occurrences, are looked at more closely than counted."""

# Whole, so that the fire times of cron lie whole seconds ahead.
NOW = "SELECT date_trunc('second', clock_timestamp())"
# Indexes: tasks_due, occurrences_open.
COUNT = """
SELECT true AS is_task, bellringer.whole_seconds_until(next_fire_at, $1) AS second, count(*) AS total,
    0 AS dispatched, NULL::timestamptz AS first_due_at
FROM bellringer.tasks
WHERE next_fire_at <= $1 + make_interval(secs => $2) AND is_planned
GROUP BY 2
UNION ALL
SELECT false, bellringer.whole_seconds_until(due_at, $1), count(*), count(*) FILTER (WHERE stage = 1),
    min(due_at) FILTER (WHERE stage = 1)
FROM bellringer.occurrences
WHERE stage IN (0, 1) AND due_at <= $1 + make_interval(secs => $2)
GROUP BY 2
"""
# $3 and $4 say of each second, from -1 on, for how many tasks and occurrences one that is drawn stands. The p95 is a
# scalar subquery: looked up one by one, however many the planner expects; and in steps of 2 %, upwards, so that tasks
# that take about as long are one row. Indexes: tasks_due, occurrences_open, tasks_pkey, run_durations_pkey.
SAMPLE = """
WITH picked AS MATERIALIZED (
    SELECT bellringer.whole_seconds_until(due_at, $1) AS second, task AS number
    FROM bellringer.occurrences
    WHERE stage IN (0, 1) AND due_at <= $1 + make_interval(secs => $2)
        AND mod(hashint8(task), ($4::integer[])[bellringer.whole_seconds_until(due_at, $1) + 2]) = 0
), drawn AS MATERIALIZED (
    SELECT true AS is_task, bellringer.whole_seconds_until(next_fire_at, $1) AS second, cron, time_zone,
        every_seconds, overlap = 'allow' AS may_overlap, bellringer.run_subject(task) AS subject, count(*) AS tasks
    FROM bellringer.tasks AS task
    WHERE next_fire_at <= $1 + make_interval(secs => $2) AND is_planned
        AND mod(hashint8(number), ($3::integer[])[bellringer.whole_seconds_until(next_fire_at, $1) + 2]) = 0
    GROUP BY 2, 3, 4, 5, 6, 7
    UNION ALL
    SELECT false, second, NULL, 'UTC', NULL, true,
        (SELECT bellringer.run_subject(task) FROM bellringer.tasks AS task WHERE task.number = picked.number), count(*)
    FROM picked
    GROUP BY 2, 7
), known AS MATERIALIZED (
    SELECT subject, (
        SELECT exp(ceil(50 * ln(GREATEST((
            SELECT percentile_disc(0.95) WITHIN GROUP (ORDER BY one) FROM unnest(durations.seconds) AS one
        ), 0.001)::float8)) / 50)
        FROM bellringer.run_durations AS durations WHERE durations.subject = drawn.subject
    ) AS seconds
    FROM (SELECT DISTINCT subject FROM drawn) AS drawn
)
SELECT is_task, second, cron, time_zone, every_seconds, may_overlap, known.seconds, sum(tasks)::bigint AS tasks
FROM drawn
JOIN known USING (subject)
GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
# Of those that were handed to the broker: where pickers are late, more executors are no help.
# Index: occurrences_open, its first entry of the stage.
OLDEST_WAIT = """
SELECT GREATEST(extract(epoch FROM clock_timestamp() - min(due_at))::float8, 0)
FROM bellringer.occurrences
WHERE stage = 1
"""
# A row for each executor: few.
EXECUTORS = """
SELECT count(*)::integer AS seen, COALESCE(sum(running), 0)::integer AS running,
    COALESCE(array_agg(process) FILTER (WHERE running > 0 AND host = $2), '{}') AS busy
FROM bellringer.executors
WHERE seen_at > $1::timestamptz - interval '30 seconds'
"""
# Index: scaling_decisions_at.
PAST = """
SELECT extract(epoch FROM at)::float8 AS at, needed, current, CASE WHEN problem IS NULL THEN desired END AS desired
FROM bellringer.scaling_decisions
WHERE at > $1::timestamptz - make_interval(secs => $2)
ORDER BY at
"""
RECORD = """
INSERT INTO bellringer.scaling_decisions
    (at, driver, runs_due, slots, waiting, executors_seen, current, needed, desired, reason, problem)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
# Index: scaling_decisions_at.
FORGET = "DELETE FROM bellringer.scaling_decisions WHERE at < $1::timestamptz - make_interval(secs => $2)"
# Index: scaling_decisions_at.
LAST_DESIRED = """
SELECT desired FROM bellringer.scaling_decisions WHERE driver = $1 AND problem IS NULL ORDER BY at DESC LIMIT 1
"""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is to come: `dues` of the next seconds from `now`, by the database's clock; and how many of them wait for
    an executor, though they are due. `busy` are the processes of executors of this host that run something.
    """

    now: datetime
    dues: list[Due]
    due: int
    waiting: int
    oldest_wait_seconds: float
    executors: int
    running: int
    busy: frozenset[int]


async def read_standing(
    connection: Connection, look_ahead_seconds: int, default_seconds: float, budget: int = BUDGET
) -> Standing:
    """How things stand now; a run of which nothing is known is taken to last `default_seconds`."""
    # One snapshot, so that what is drawn was counted.
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        now: datetime = await connection.fetchval(NOW)
        span = (now, float(look_ahead_seconds))
        counted = await connection.fetch(COUNT, *span)
        totals = {
            is_task: {row["second"]: row["total"] for row in counted if row["is_task"] == is_task}
            for is_task in (True, False)
        }
        strides = [_strides(totals[is_task], look_ahead_seconds, budget) for is_task in (True, False)]
        drawn = await connection.fetch(SAMPLE, *span, *strides)
        ((executors, running, busy),) = await connection.fetch(EXECUTORS, now, socket.gethostname())
    first_due_at = min((row["first_due_at"] for row in counted if row["first_due_at"] is not None), default=now)
    return Standing(
        now=now,
        dues=[
            due
            for is_task, seconds in totals.items()
            for due in _dues([row for row in drawn if row["is_task"] == is_task], seconds, default_seconds)
        ],
        due=sum(row["total"] for row in counted),
        waiting=sum(row["dispatched"] for row in counted if row["second"] == -1),
        oldest_wait_seconds=max(0.0, (now - first_due_at).total_seconds()),
        executors=executors,
        running=running,
        busy=frozenset(busy),
    )


def _strides(totals: Mapping[int, int], look_ahead_seconds: int, budget: int) -> list[int]:
    """For how many one is drawn, for each second from -1 on: each that has any gets the same share of the budget."""
    share = max(1, budget // max(1, len(totals)))
    return [max(1, -(-totals.get(second, 0) // share)) for second in range(-1, look_ahead_seconds + 1)]


def _dues(rows: Sequence[asyncpg.Record], totals: Mapping[int, int], default_seconds: float) -> Iterator[Due]:
    """The sample, made to stand for all. A second of which nothing was drawn is like all the others."""
    sampled: Counter[int] = Counter()
    for row in rows:
        sampled[row["second"]] += row["tasks"]
    work = 0.0
    for row in rows:
        seconds = default_seconds if row["seconds"] is None else row["seconds"]
        work += row["tasks"] * seconds
        yield Due(
            second=row["second"],
            tasks=row["tasks"] * totals[row["second"]] / sampled[row["second"]],
            seconds=seconds,
            cron=row["cron"],
            time_zone=row["time_zone"],
            every_seconds=row["every_seconds"],
            may_overlap=row["may_overlap"],
        )
    mean = work / sampled.total() if sampled else default_seconds
    for second in totals.keys() - sampled.keys():
        yield Due(second=second, tasks=totals[second], seconds=mean)


async def oldest_wait_seconds(connection: Connection) -> float:
    """For how long a run has waited for an executor, the one that has waited longest; 0 if none waits."""
    seconds: float | None = await connection.fetchval(OLDEST_WAIT)
    return seconds or 0.0


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
