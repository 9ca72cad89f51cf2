"""All SQL of the broker: one statement per transition of a message.

Each statement adds its changes of the counts as tally entries: `pending`, `delayed`, `in_flight`, `deleted` per queue.

A queue is full at one moment and empty at the next, and the planner's statistics tell of neither. So the statements
leave it one way only, the index named beside each: messages are looked up by LATERAL and changed by
`id = ANY (ARRAY(…))` rather than joined, `LIMIT (SELECT …)` hides how many are wanted, and `(SELECT clock_timestamp())`
is one moment that an index can be searched for. `tests/broker/test_plans.py` checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from bellringer.broker.model import Message, MessageId, Queue, ReceiptHandle
from bellringer.kernel.database import Connection
from bellringer.kernel.ids import uuid7

FIND_QUEUE = "SELECT * FROM bellringer.queues WHERE environment_id = $1 AND name = $2"
LIST_QUEUES = "SELECT * FROM bellringer.queues WHERE $1::uuid[] IS NULL OR environment_id = ANY ($1) ORDER BY name"
ADD_QUEUE = """
INSERT INTO bellringer.queues (id, environment_id, name, visibility_timeout_seconds, retention_seconds)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (environment_id, name) DO NOTHING
"""
CONFIGURE_QUEUE = """
INSERT INTO bellringer.queues (id, environment_id, name, visibility_timeout_seconds, retention_seconds)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (environment_id, name) DO UPDATE SET
    visibility_timeout_seconds = excluded.visibility_timeout_seconds,
    retention_seconds = excluded.retention_seconds
RETURNING *
"""

# Ordered by position: identity values are drawn in the order of the rows, so ids follow the order of the call.
PUBLISH = """
WITH published AS (
    INSERT INTO bellringer.messages (queue_id, body, state, due_at)
    SELECT queue_id, body,
        CASE WHEN delay_seconds > 0 THEN 'delayed' ELSE 'pending' END::bellringer.message_state,
        CASE WHEN delay_seconds > 0 THEN clock_timestamp() + make_interval(secs => delay_seconds) END
    FROM unnest($1::uuid[], $2::bytea[], $3::float8[]) WITH ORDINALITY AS new (queue_id, body, delay_seconds, position)
    ORDER BY position
    RETURNING id, queue_id, state
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT queue_id, state::text, count(*) FROM published GROUP BY queue_id, state
)
SELECT id FROM published
"""

# The seed's claim. MATERIALIZED: without it the planner may run the LIMIT more than once and take too many rows.
# Index: messages_pending.
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM bellringer.messages
    WHERE queue_id = $1 AND state = 'pending'
    ORDER BY id
    LIMIT (SELECT $2::bigint)
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE bellringer.messages
    SET state = 'in_flight', picked_at = clock_timestamp(), due_at = clock_timestamp() + make_interval(
            secs => COALESCE($3::float8, (SELECT visibility_timeout_seconds FROM bellringer.queues WHERE id = $1))),
        receipt_handle = gen_random_uuid(), attempts = attempts + 1
    WHERE id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING id, body, receipt_handle, attempts, created_at
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT $1, change.name, change.sign * claimed.number
    FROM (SELECT count(*) AS number FROM claimed) AS claimed,
        (VALUES ('pending', -1), ('in_flight', 1)) AS change (name, sign)
    WHERE claimed.number > 0
)
SELECT * FROM claimed ORDER BY id
"""

# A handle whose message is deleted already answers as deleted: a repeated request is no error. Sorted, so that two
# calls with the same handles wait for each other in one order. Index: messages_receipt_handle.
DELETE = """
WITH held AS MATERIALIZED (
    SELECT message.id, message.state, wanted.queue_id, wanted.receipt_handle
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS wanted (queue_id, receipt_handle) ORDER BY receipt_handle
    ) AS wanted
    CROSS JOIN LATERAL (
        SELECT id, state FROM bellringer.messages
        WHERE receipt_handle = wanted.receipt_handle AND queue_id = wanted.queue_id
        FOR UPDATE
    ) AS message
), removed AS (
    UPDATE bellringer.messages
    SET state = 'deleted', deleted_at = clock_timestamp(), due_at = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM held WHERE state = 'in_flight'))
    RETURNING queue_id
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT removed.queue_id, change.name, change.sign * removed.number
    FROM (SELECT queue_id, count(*) AS number FROM removed GROUP BY queue_id) AS removed,
        (VALUES ('in_flight', -1), ('deleted', 1)) AS change (name, sign)
)
SELECT queue_id, receipt_handle, state = 'in_flight' AS was_held FROM held
"""

# A message that is locked is being deleted or released: waiting for that, each for the other's rows, was a deadlock.
# Index: messages_receipt_handle.
EXTEND = """
WITH held AS MATERIALIZED (
    SELECT id FROM bellringer.messages
    WHERE queue_id = $1 AND receipt_handle = ANY ($2) AND deleted_at IS NULL
    FOR UPDATE SKIP LOCKED
)
UPDATE bellringer.messages
SET due_at = clock_timestamp() + make_interval(secs => $3)
WHERE id = ANY (ARRAY(SELECT id FROM held))
RETURNING receipt_handle
"""

# The receipt handle goes with the hold: the next claim draws another. Index: messages_receipt_handle.
RELEASE = """
WITH held AS MATERIALIZED (
    SELECT message.id, wanted.receipt_handle, wanted.delay_seconds
    FROM (
        SELECT * FROM unnest($2::uuid[], $3::float8[]) AS wanted (receipt_handle, delay_seconds) ORDER BY receipt_handle
    ) AS wanted
    CROSS JOIN LATERAL (
        SELECT id FROM bellringer.messages
        WHERE receipt_handle = wanted.receipt_handle AND queue_id = $1 AND deleted_at IS NULL
        FOR UPDATE
    ) AS message
), released AS (
    UPDATE bellringer.messages AS message
    SET state = CASE WHEN held.delay_seconds > 0 THEN 'delayed' ELSE 'pending' END::bellringer.message_state,
        due_at = CASE WHEN held.delay_seconds > 0
            THEN clock_timestamp() + make_interval(secs => held.delay_seconds) END,
        picked_at = NULL, receipt_handle = NULL
    FROM held
    WHERE message.id = held.id
    RETURNING held.receipt_handle, message.state
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT $1, state::text, count(*) FROM released GROUP BY state
    UNION ALL
    SELECT $1, 'in_flight', -count(*) FROM released HAVING count(*) > 0
)
SELECT receipt_handle FROM released
"""

# The seed's minute job, as one sweep: visibility timeouts that ran out and delays that are over. Index: messages_due.
SWEEP = """
WITH due AS MATERIALIZED (
    SELECT id, state FROM bellringer.messages
    WHERE state IN ('in_flight', 'delayed') AND due_at <= (SELECT clock_timestamp())
    ORDER BY due_at
    LIMIT (SELECT $1::bigint)
    FOR UPDATE SKIP LOCKED
), returned AS (
    UPDATE bellringer.messages AS message
    SET state = 'pending', picked_at = NULL, due_at = NULL, receipt_handle = NULL
    FROM due
    WHERE message.id = due.id
    RETURNING message.queue_id, due.state AS before
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT queue_id, before::text, -count(*) FROM returned GROUP BY queue_id, before
    UNION ALL
    SELECT queue_id, 'pending', count(*) FROM returned GROUP BY queue_id
)
SELECT queue_id, count(*) AS number FROM returned GROUP BY queue_id
"""

# In small batches: a long delete would hold its locks and its snapshot for as long. Index: messages_deleted.
PURGE = """
WITH old AS MATERIALIZED (
    SELECT message.id
    FROM bellringer.queues AS queue
    CROSS JOIN LATERAL (
        SELECT id FROM bellringer.messages
        WHERE queue_id = queue.id AND state = 'deleted'
            AND deleted_at < (SELECT clock_timestamp()) - make_interval(secs => queue.retention_seconds)
        ORDER BY deleted_at
        LIMIT (SELECT $1::bigint)
    ) AS message
    LIMIT $1
), gone AS (
    DELETE FROM bellringer.messages WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING queue_id
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT queue_id, 'deleted', -count(*) FROM gone GROUP BY queue_id
)
SELECT count(*) FROM gone
"""

# Reads one index entry per queue. Index: messages_pending.
QUEUES_WITH_PENDING = """
SELECT queue_id FROM unnest($1::uuid[]) AS waiting (queue_id)
WHERE EXISTS (
    SELECT FROM bellringer.messages AS message
    WHERE message.queue_id = waiting.queue_id AND message.state = 'pending'
)
"""

# Per queue: the first pending message, and as many entries of the index as are stuck (capped).
# Indexes: messages_pending, messages_picked.
AGES = """
SELECT queue_id,
    COALESCE(EXTRACT(epoch FROM clock_timestamp() - (
        SELECT created_at FROM bellringer.messages
        WHERE queue_id = asked.queue_id AND state = 'pending' ORDER BY id LIMIT 1
    )), 0)::float8 AS oldest_pending_age_seconds,
    (SELECT count(*) FROM (
        SELECT FROM bellringer.messages
        WHERE queue_id = asked.queue_id AND state = 'in_flight'
            AND picked_at < (SELECT clock_timestamp()) - make_interval(mins => 5)
        LIMIT (SELECT 10000)
    ) AS stuck) AS stuck
FROM unnest($1::uuid[]) AS asked (queue_id)
"""


async def find_queue(connection: Connection, environment_id: UUID, name: str) -> Queue | None:
    """The queue of that name."""
    row = await connection.fetchrow(FIND_QUEUE, environment_id, name)
    return None if row is None else _queue(row)


async def list_queues(connection: Connection, environment_ids: Sequence[UUID] | None) -> list[Queue]:
    """The queues of those environments, or of all, by name."""
    return [_queue(row) for row in await connection.fetch(LIST_QUEUES, environment_ids)]


async def add_queue(
    connection: Connection, environment_id: UUID, name: str, visibility_timeout_seconds: int, retention_seconds: int
) -> None:
    """Make a queue; one that exists stays as it is."""
    await connection.execute(ADD_QUEUE, uuid7(), environment_id, name, visibility_timeout_seconds, retention_seconds)


async def configure_queue(
    connection: Connection, environment_id: UUID, name: str, visibility_timeout_seconds: int, retention_seconds: int
) -> Queue:
    """Make a queue or change its settings."""
    row = await connection.fetchrow(
        CONFIGURE_QUEUE, uuid7(), environment_id, name, visibility_timeout_seconds, retention_seconds
    )
    assert row is not None  # noqa: S101 - insert and update both return the row
    return _queue(row)


async def publish(
    connection: Connection, queue_ids: Sequence[UUID], bodies: Sequence[bytes], delays_seconds: Sequence[float]
) -> list[MessageId]:
    """Add messages, one per position of the three sequences, and return their ids in that order."""
    rows = await connection.fetch(PUBLISH, queue_ids, bodies, delays_seconds)
    return [MessageId(row["id"]) for row in rows]


async def claim(
    connection: Connection, queue_id: UUID, limit: int, visibility_timeout_seconds: float | None
) -> list[Message]:
    """Take up to `limit` pending messages, the oldest first, out of the sight of others."""
    rows = await connection.fetch(CLAIM, queue_id, limit, visibility_timeout_seconds)
    return [Message(**dict(row)) for row in rows]


async def delete(
    connection: Connection, queue_ids: Sequence[UUID], receipt_handles: Sequence[ReceiptHandle]
) -> dict[tuple[UUID, ReceiptHandle], bool]:
    """Delete messages by (queue, receipt handle); return those that are deleted, and whether it was just now."""
    rows = await connection.fetch(DELETE, queue_ids, receipt_handles)
    return {(row["queue_id"], row["receipt_handle"]): row["was_held"] for row in rows}


async def extend(
    connection: Connection, queue_id: UUID, receipt_handles: Sequence[ReceiptHandle], seconds: float
) -> set[ReceiptHandle]:
    """Let the visibility timeout end `seconds` from now; return the handles that are still held."""
    rows = await connection.fetch(EXTEND, queue_id, receipt_handles, seconds)
    return {row["receipt_handle"] for row in rows}


async def release(
    connection: Connection, queue_id: UUID, receipt_handles: Sequence[ReceiptHandle], delays_seconds: Sequence[float]
) -> set[ReceiptHandle]:
    """Hand messages back, to be claimed after a delay; return the handles that were held."""
    rows = await connection.fetch(RELEASE, queue_id, receipt_handles, delays_seconds)
    return {row["receipt_handle"] for row in rows}


async def sweep(connection: Connection, limit: int) -> dict[UUID, int]:
    """Return due messages to their queues; say how many to which."""
    return {row["queue_id"]: row["number"] for row in await connection.fetch(SWEEP, limit)}


async def purge(connection: Connection, limit: int) -> int:
    """Remove the rows of messages deleted longer ago than their queue's retention; return how many."""
    removed: int = await connection.fetchval(PURGE, limit)
    return removed


async def queues_with_pending(connection: Connection, queue_ids: Sequence[UUID]) -> set[UUID]:
    """Those of the queues in which a message waits."""
    return {row["queue_id"] for row in await connection.fetch(QUEUES_WITH_PENDING, queue_ids)}


async def ages(connection: Connection, queue_ids: Sequence[UUID]) -> dict[UUID, tuple[float, int]]:
    """Per queue: the age of its oldest pending message in seconds, and how many are stuck (counted to 10,000)."""
    rows = await connection.fetch(AGES, queue_ids)
    return {row["queue_id"]: (row["oldest_pending_age_seconds"], row["stuck"]) for row in rows}


def _queue(row: asyncpg.Record) -> Queue:
    return Queue(
        id=row["id"],
        environment_id=row["environment_id"],
        name=row["name"],
        visibility_timeout_seconds=row["visibility_timeout_seconds"],
        retention_seconds=row["retention_seconds"],
    )
