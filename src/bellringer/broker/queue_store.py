"""SQL of the queues themselves: their settings, and how they stand."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg
import msgspec

from bellringer.broker.model import Queue, QueueSettings
from bellringer.kernel.database import Connection
from bellringer.kernel.ids import uuid7

FIND_QUEUE = "SELECT * FROM bellringer.queues WHERE environment_id = $1 AND name = $2"
FIND_QUEUE_BY_ID = "SELECT * FROM bellringer.queues WHERE id = $1"
LIST_QUEUES = "SELECT * FROM bellringer.queues WHERE $1::uuid[] IS NULL OR environment_id = ANY ($1) ORDER BY name"
LIST_SOURCES = """
SELECT * FROM bellringer.queues WHERE environment_id = $1 AND dead_letter_queue = $2 ORDER BY name
"""
ADD_QUEUE = """
INSERT INTO bellringer.queues (id, environment_id, name, visibility_timeout_seconds, retention_seconds, delay_seconds,
    wait_seconds, max_body_bytes, fifo, expires, content_deduplication, max_receives, dead_letter_queue, redrive_allow,
    tags)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (environment_id, name) DO NOTHING
"""
CHANGE_QUEUE = """
UPDATE bellringer.queues SET
    visibility_timeout_seconds = $2, retention_seconds = $3, delay_seconds = $4, wait_seconds = $5, max_body_bytes = $6,
    fifo = $7, expires = $8, content_deduplication = $9, max_receives = $10, dead_letter_queue = $11,
    redrive_allow = $12, tags = $13, modified_at = clock_timestamp()
WHERE id = $1
RETURNING *
"""
PAUSE_QUEUE = "UPDATE bellringer.queues SET paused = $2, modified_at = clock_timestamp() WHERE id = $1 RETURNING *"
# The rows of its messages are many: `remove_rows` takes them away bit by bit.
DELETE_QUEUE = """
WITH gone AS (
    DELETE FROM bellringer.queues WHERE id = $1 RETURNING number
), tallies AS (
    DELETE FROM bellringer.tallies WHERE owner = $1
), tally_entries AS (
    DELETE FROM bellringer.tally_entries WHERE owner = $1
)
INSERT INTO bellringer.deleted_queues SELECT number FROM gone
"""
DELETED_QUEUES = "SELECT number FROM bellringer.deleted_queues"
FORGET_DELETED_QUEUE = "DELETE FROM bellringer.deleted_queues WHERE number = $1"
REMOVE_ROWS = """
DELETE FROM bellringer.{table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM bellringer.{table} WHERE queue = $1 LIMIT $2))
"""
TABLES_BY_QUEUE = (
    "tracked",
    "inbox",
    "chunks",
    "claims",
    "claim_outcomes",
    "tracked_outcomes",
    "deduplications",
    "queue_samples",
)

# One snapshot for all of it, so the numbers agree. Lanes are counted by their ends, what left them unfinished
# by tallies, and the claims that are open one by one. Indexes: the primary keys of chunks and claims, claims_open.
COUNTS = """
SELECT queue.id, tail.next_seq - 1 AS published, tail.lane_after - head.lane_after AS lane_pending,
    head.lane_after AS lane_claimed, open_claims.unfinished,
    (
        SELECT COALESCE(jsonb_object_agg(name, value), '{}')
        FROM (
            SELECT name, sum(value) AS value
            FROM (
                SELECT name, value FROM bellringer.tallies WHERE owner = queue.id
                UNION ALL
                SELECT name, change FROM bellringer.tally_entries WHERE owner = queue.id
            ) AS entries
            GROUP BY name
        ) AS counted
    )::text AS tallies
FROM unnest($1::uuid[]) AS asked (id)
JOIN bellringer.queues AS queue ON queue.id = asked.id
CROSS JOIN LATERAL bellringer.head_of(queue.number) AS head
CROSS JOIN LATERAL bellringer.tail_of(queue.number) AS tail
CROSS JOIN LATERAL (
    SELECT COALESCE(sum(claim.messages - (
        SELECT COALESCE(sum(bellringer.size(seqs)), 0) FROM bellringer.claim_outcomes
        WHERE queue = claim.queue AND claim_seq = claim.first_seq
    )), 0)::bigint AS unfinished
    FROM bellringer.claims AS claim
    WHERE claim.queue = queue.number AND claim.ended_at IS NULL
) AS open_claims
"""

# A look at the ends of each index. Indexes: chunks_pkey, tracked_ready, claims_open, tracked_due.
AGES = """
SELECT queue.id,
    COALESCE(EXTRACT(epoch FROM clock_timestamp() - LEAST(
        (
            SELECT sent_at FROM bellringer.chunks AS chunk
            WHERE chunk.queue = queue.number AND NOT queue.fifo AND NOT chunk.tracked AND chunk.first_seq >= COALESCE((
                SELECT first_seq FROM bellringer.chunks
                WHERE queue = queue.number AND first_seq <= head.next_seq ORDER BY first_seq DESC LIMIT 1
            ), 0) AND chunk.first_seq + chunk.messages > head.next_seq
            ORDER BY chunk.first_seq LIMIT 1
        ),
        (
            SELECT (bellringer.frame_of(queue, seq)).sent_at FROM bellringer.tracked
            WHERE queue = queue.number AND state = 'ready' ORDER BY seq LIMIT 1
        )
    )), 0)::float8 AS oldest_pending_age_seconds,
    LEAST(10000, (
        SELECT COALESCE(sum(claim.messages - (
            SELECT COALESCE(sum(bellringer.size(seqs)), 0) FROM bellringer.claim_outcomes
            WHERE queue = claim.queue AND claim_seq = claim.first_seq
        )), 0)
        FROM (
            SELECT * FROM bellringer.claims
            WHERE queue = queue.number AND ended_at IS NULL
                AND claimed_at < (SELECT clock_timestamp()) - make_interval(mins => 5)
            LIMIT 1000
        ) AS claim
    ) + (
        SELECT count(*) FROM (
            SELECT FROM bellringer.tracked
            WHERE queue = queue.number AND state = 'held'
                AND claimed_at < (SELECT clock_timestamp()) - make_interval(mins => 5)
            LIMIT 10000
        ) AS stuck
    ))::bigint AS stuck,
    COALESCE((
        SELECT EXTRACT(epoch FROM avg(ended_at - claimed_at)) FROM (
            SELECT ended_at, claimed_at FROM bellringer.claims
            WHERE queue = queue.number AND ended_at IS NOT NULL AND messages > 0 ORDER BY first_seq DESC LIMIT 100
        ) AS latest
    ), 0)::float8 AS seconds_to_deletion
FROM unnest($1::uuid[]) AS asked (id)
JOIN bellringer.queues AS queue ON queue.id = asked.id
CROSS JOIN LATERAL bellringer.head_of(queue.number) AS head
"""

# Index: tracked_ready, and the primary keys of chunks and claims.
QUEUES_WITH_PENDING = """
SELECT queue.id
FROM unnest($1::uuid[]) AS waiting (id)
JOIN bellringer.queues AS queue ON queue.id = waiting.id
CROSS JOIN LATERAL bellringer.head_of(queue.number) AS head
CROSS JOIN LATERAL bellringer.tail_of(queue.number) AS tail
WHERE NOT queue.paused AND (
    tail.lane_after > head.lane_after
    -- OFFSET 0: one look per queue, never a hash table of all that is ready.
    OR EXISTS (SELECT FROM bellringer.tracked WHERE queue = queue.number AND state = 'ready' OFFSET 0)
)
"""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one queue, as far as they agree in one snapshot."""

    published: int
    pending: int
    delayed: int
    in_flight: int
    deleted: int
    redelivered: int
    dead_lettered: int
    expired: int
    purged: int


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one queue, and what is stuck in it."""

    oldest_pending_age_seconds: float
    stuck: int
    seconds_to_deletion: float


async def find_queue(connection: Connection, environment_id: UUID, name: str) -> Queue | None:
    """The queue of that name."""
    row = await connection.fetchrow(FIND_QUEUE, environment_id, name)
    return None if row is None else _queue(row)


async def find_queue_by_id(connection: Connection, queue_id: UUID) -> Queue | None:
    """The queue with that id."""
    row = await connection.fetchrow(FIND_QUEUE_BY_ID, queue_id)
    return None if row is None else _queue(row)


async def list_queues(connection: Connection, environment_ids: Sequence[UUID] | None) -> list[Queue]:
    """The queues of those environments, or of all, by name."""
    return [_queue(row) for row in await connection.fetch(LIST_QUEUES, environment_ids)]


async def list_sources(connection: Connection, environment_id: UUID, name: str) -> list[Queue]:
    """The queues whose dead letters go to the queue of that name."""
    return [_queue(row) for row in await connection.fetch(LIST_SOURCES, environment_id, name)]


async def add_queue(connection: Connection, environment_id: UUID, name: str, settings: QueueSettings) -> None:
    """Make a queue; one that exists stays as it is."""
    await connection.execute(ADD_QUEUE, uuid7(), environment_id, name, *_columns(settings))


async def change_queue(connection: Connection, queue_id: UUID, settings: QueueSettings) -> Queue | None:
    """Replace the settings of a queue; None when it is gone."""
    row = await connection.fetchrow(CHANGE_QUEUE, queue_id, *_columns(settings))
    return None if row is None else _queue(row)


async def pause_queue(connection: Connection, queue_id: UUID, *, paused: bool) -> Queue | None:
    """Stop or resume the claims of a queue; None when it is gone."""
    row = await connection.fetchrow(PAUSE_QUEUE, queue_id, paused)
    return None if row is None else _queue(row)


async def delete_queue(connection: Connection, queue_id: UUID) -> None:
    """Delete a queue; its rows are removed later, by `remove_rows`."""
    await connection.execute(DELETE_QUEUE, queue_id)


async def deleted_queues(connection: Connection) -> list[int]:
    """The numbers of deleted queues that may have rows left."""
    return [row["number"] for row in await connection.fetch(DELETED_QUEUES)]


async def remove_rows(connection: Connection, number: int, limit: int) -> bool:
    """Remove some rows of a deleted queue; return whether there may be more."""
    for table in TABLES_BY_QUEUE:
        status = await connection.execute(REMOVE_ROWS.format(table=table), number, limit)
        if status != "DELETE 0":
            return True
    await connection.execute(FORGET_DELETED_QUEUE, number)
    return False


async def counts(connection: Connection, queue_ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """How queues stand; those that are gone are left out."""
    return {row["id"]: _standing(row) for row in await connection.fetch(COUNTS, queue_ids)}


async def ages(connection: Connection, queue_ids: Sequence[UUID]) -> dict[UUID, Ages]:
    """The times of queues."""
    return {
        row["id"]: Ages(
            oldest_pending_age_seconds=row["oldest_pending_age_seconds"],
            stuck=row["stuck"],
            seconds_to_deletion=row["seconds_to_deletion"],
        )
        for row in await connection.fetch(AGES, queue_ids)
    }


async def queues_with_pending(connection: Connection, queue_ids: Sequence[UUID]) -> set[UUID]:
    """Those of the queues in which a message waits."""
    return {row["id"] for row in await connection.fetch(QUEUES_WITH_PENDING, queue_ids)}


def _columns(settings: QueueSettings) -> tuple[object, ...]:
    redrive_allow = None if settings.redrive_allow is None else msgspec.json.encode(settings.redrive_allow).decode()
    return (
        settings.visibility_timeout_seconds,
        settings.retention_seconds,
        settings.delay_seconds,
        settings.wait_seconds,
        settings.max_body_bytes,
        settings.fifo,
        settings.expires,
        settings.content_deduplication,
        settings.max_receives,
        settings.dead_letter_queue,
        redrive_allow,
        msgspec.json.encode(settings.tags).decode(),
    )


def _queue(row: asyncpg.Record) -> Queue:
    return Queue(
        id=row["id"],
        number=row["number"],
        environment_id=row["environment_id"],
        name=row["name"],
        settings=QueueSettings(
            visibility_timeout_seconds=row["visibility_timeout_seconds"],
            retention_seconds=row["retention_seconds"],
            delay_seconds=row["delay_seconds"],
            wait_seconds=row["wait_seconds"],
            max_body_bytes=row["max_body_bytes"],
            fifo=row["fifo"],
            expires=row["expires"],
            content_deduplication=row["content_deduplication"],
            max_receives=row["max_receives"],
            dead_letter_queue=row["dead_letter_queue"],
            redrive_allow=None if row["redrive_allow"] is None else msgspec.json.decode(row["redrive_allow"]),
            tags=msgspec.json.decode(row["tags"]),
        ),
        paused=row["paused"],
        created_at=row["created_at"],
        modified_at=row["modified_at"],
    )


def _standing(row: asyncpg.Record) -> Standing:
    tallies = msgspec.json.decode(row["tallies"], type=dict[str, int])
    return Standing(
        published=row["published"],
        pending=row["lane_pending"] + tallies.get("pending", 0),
        delayed=tallies.get("delayed", 0),
        in_flight=row["unfinished"] + tallies.get("held", 0),
        deleted=row["lane_claimed"] - row["unfinished"] - tallies.get("left", 0) + tallies.get("deleted", 0),
        redelivered=tallies.get("redelivered", 0),
        dead_lettered=tallies.get("dead_lettered", 0),
        expired=tallies.get("expired", 0),
        purged=tallies.get("purged", 0),
    )
