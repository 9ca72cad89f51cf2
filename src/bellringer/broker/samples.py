"""How queues stood over time: a row whenever something changed, looked at every ten seconds."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from bellringer.broker import queue_store
from bellringer.broker.model import QueueSample
from bellringer.kernel.database import Connection, Database
from bellringer.kernel.lease import Lease
from bellringer.kernel.service import Loop

KEPT_SECONDS = 24 * 3600

# Index: queue_samples_pkey. A number holds until the next row.
WRITE = """
INSERT INTO bellringer.queue_samples (queue, at, pending, in_flight, delayed, published, finished)
SELECT queue.number, clock_timestamp(), new.pending, new.in_flight, new.delayed, new.published, new.finished
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    AS new (queue_id, pending, in_flight, delayed, published, finished)
JOIN bellringer.queues AS queue ON queue.id = new.queue_id
LEFT JOIN LATERAL (
    SELECT * FROM bellringer.queue_samples WHERE queue = queue.number ORDER BY at DESC LIMIT 1
) AS last ON true
WHERE (last.pending, last.in_flight, last.delayed, last.published, last.finished)
    IS DISTINCT FROM (new.pending, new.in_flight, new.delayed, new.published, new.finished)
"""
# The newest of the old ones still holds at the beginning of the time that is kept.
FORGET = """
DELETE FROM bellringer.queue_samples AS sample
USING bellringer.queues AS queue
WHERE sample.queue = queue.number AND sample.at < (
    SELECT max(at) FROM bellringer.queue_samples
    WHERE queue = queue.number AND at < (SELECT clock_timestamp()) - make_interval(secs => $1)
)
"""
# The time is asked once, or every row of the queue would be read. Index: queue_samples_pkey.
READ = """
(
    SELECT at, pending, in_flight, delayed, published, finished FROM bellringer.queue_samples
    WHERE queue = $1 AND at <= (SELECT clock_timestamp()) - make_interval(secs => $2) ORDER BY at DESC LIMIT 1
)
UNION ALL
(
    SELECT at, pending, in_flight, delayed, published, finished FROM bellringer.queue_samples
    WHERE queue = $1 AND at > (SELECT clock_timestamp()) - make_interval(secs => $2) ORDER BY at
)
ORDER BY at
"""
# Without an older row, a queue that is younger than a minute had nothing then.
PUBLISHED_PER_MINUTE = """
SELECT queue.id, (tail.next_seq - 1) - COALESCE(
    (
        SELECT published FROM bellringer.queue_samples
        WHERE queue = queue.number AND at <= (SELECT clock_timestamp()) - interval '1 minute' ORDER BY at DESC LIMIT 1
    ),
    CASE WHEN queue.created_at > clock_timestamp() - interval '2 minutes' THEN 0 ELSE (
        SELECT published FROM bellringer.queue_samples WHERE queue = queue.number ORDER BY at LIMIT 1
    ) END,
    tail.next_seq - 1
) AS published
FROM unnest($1::uuid[]) AS asked (id)
JOIN bellringer.queues AS queue ON queue.id = asked.id
CROSS JOIN LATERAL bellringer.tail_of(queue.number) AS tail
"""


class Sampler(Loop):
    """Writes down how the queues stand, in one process at a time."""

    def __init__(self, database: Database, *, interval_seconds: float = 10.0) -> None:
        super().__init__("queue sampler", interval_seconds=interval_seconds)
        self._database = database
        self._lease = Lease(database, "queue sampler", ttl_seconds=2 * interval_seconds)

    async def run_once(self) -> bool:
        """Look once."""
        if await self._lease.hold() is None:
            return False
        async with self._database.connection() as connection:
            queues = await queue_store.list_queues(connection, None)
            standings = await queue_store.counts(connection, [queue.id for queue in queues])
            await write(connection, standings)
            await connection.execute(FORGET, KEPT_SECONDS)
        return False


async def write(connection: Connection, standings: dict[UUID, queue_store.Standing]) -> None:
    """Write a row for every queue that stands otherwise than its last row says."""
    await connection.execute(
        WRITE,
        list(standings),
        [standing.pending for standing in standings.values()],
        [standing.in_flight for standing in standings.values()],
        [standing.delayed for standing in standings.values()],
        [standing.published for standing in standings.values()],
        [standing.deleted for standing in standings.values()],
    )


async def read(connection: Connection, queue: int, seconds: float) -> list[QueueSample]:
    """The samples of the last so many seconds, and the one that held at their beginning."""
    return [QueueSample(**dict(row)) for row in await connection.fetch(READ, queue, seconds)]


async def published_per_minute(connection: Connection, queue_ids: Sequence[UUID]) -> dict[UUID, float]:
    """How many messages each queue got in the last minute (give or take the pace of the sampler)."""
    return {row["id"]: float(row["published"]) for row in await connection.fetch(PUBLISHED_PER_MINUTE, queue_ids)}
