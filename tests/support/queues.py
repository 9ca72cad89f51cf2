"""Queues in tests: messages in and out, and time that passes at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bellringer.broker import Broker, Message, Publication, Queue, QueueCounts
from bellringer.broker.frames import decode_frame
from bellringer.broker.loops import InboxMover, Sweeper
from bellringer.broker.model import MessageId, ReceiptHandle
from bellringer.kernel.database import Database

_MAKE_DUE = """
WITH claims AS (
    UPDATE bellringer.claims SET expires_at = now() - interval '1 s' WHERE ended_at IS NULL AND expires_at > now()
)
UPDATE bellringer.tracked SET due_at = now() - interval '1 s' WHERE due_at > now()
"""
_UNFINISHED = """
WITH lane AS (
    SELECT chunk.first_seq, chunk.messages FROM bellringer.chunks AS chunk WHERE queue = $1 AND NOT tracked
), unfinished AS (
    SELECT seq FROM lane, generate_series(first_seq, first_seq + messages - 1) AS seq
    WHERE seq >= (SELECT next_seq FROM bellringer.head_of($1)) OR EXISTS (
        SELECT FROM bellringer.claims AS claim
        WHERE queue = $1 AND ended_at IS NULL AND first_seq <= seq AND seq < next_seq AND NOT EXISTS (
            SELECT FROM bellringer.claim_outcomes WHERE queue = $1 AND claim_seq = claim.first_seq AND seqs @> seq
        )
    )
    UNION ALL
    SELECT seq FROM bellringer.tracked WHERE queue = $1
)
SELECT seq, frame FROM unfinished, bellringer.frame_of($1, seq) ORDER BY seq
"""
_AGE = "UPDATE bellringer.chunks SET sent_at = sent_at - make_interval(secs => $2) WHERE queue = $1"


async def send(broker: Broker, queue: Queue, *bodies: bytes, **fields: Any) -> list[MessageId]:  # noqa: ANN401 - of each
    """Publish one message per body; `fields` are those of `Publication`, the same for all."""
    return await broker.send(queue, [Publication(body=body, **fields) for body in bodies])


def bodies_of(messages: Sequence[Message]) -> list[bytes]:
    """What messages say."""
    return [message.body for message in messages]


def message_with(handle: ReceiptHandle) -> Message:
    """A message of which nothing matters but its receipt handle."""
    return Message(
        id=MessageId(1),
        body=b"",
        receipt_handle=handle,
        attempts=1,
        created_at=datetime.now(UTC),
        first_claimed_at=datetime.now(UTC),
        group=None,
        deduplication_id=None,
        attributes={},
        origin=None,
    )


async def counts_of(broker: Broker, queue: Queue) -> QueueCounts:
    """How one queue stands."""
    return (await broker.counts([queue]))[queue.id]


async def unfinished(database: Database, queue: Queue) -> dict[MessageId, bytes]:
    """The bodies of a queue's messages that wait, are delayed or held, as its rows tell it."""
    async with database.connection() as connection:
        rows = await connection.fetch(_UNFINISHED, queue.number)
    return {MessageId(row["seq"]): decode_frame(row["frame"])[1] for row in rows}


async def make_due(database: Database) -> None:
    """Let every hold and every delay be over: the next sweep ends them."""
    async with database.connection() as connection:
        await connection.execute(_MAKE_DUE)


async def sweep_all(database: Database, broker: Broker) -> None:
    """Let every hold and every delay be over, and return those messages to their queues."""
    await make_due(database)
    sweeper = Sweeper(database, broker)
    while await sweeper.run_once():
        pass


async def move_inbox(database: Database, broker: Broker) -> None:
    """Bring to their queues what was published inside transactions, dead letters too."""
    mover = InboxMover(database, broker)
    while await mover.run_once():
        pass


async def make_older(database: Database, queue: Queue, seconds: float) -> None:
    """Let messages that are in a queue have been published so much earlier."""
    async with database.connection() as connection:
        await connection.execute(_AGE, queue.number, seconds)
