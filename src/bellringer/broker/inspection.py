"""Looks at messages that claim nothing: what waits in a queue, and what happened to one message."""

from __future__ import annotations

from collections.abc import Iterable

import asyncpg

from bellringer.broker.frames import decode_frame
from bellringer.broker.model import HistoryEntry, MessageHistory, MessageId, MessageState, StoredMessage
from bellringer.kernel.database import Connection

# Indexes: the primary keys of chunks, claims and tracked.
PEEK = """
SELECT waiting.seq, waiting.attempts, waiting.state, stored.sent_at, stored.frame
FROM (
    (
        SELECT seq, 0 AS attempts, 'pending' AS state
        FROM bellringer.head_of($1) AS head
        CROSS JOIN LATERAL (
            SELECT first_seq, messages FROM bellringer.chunks
            WHERE queue = $1 AND NOT tracked AND first_seq + messages > head.next_seq AND first_seq >= COALESCE((
                SELECT first_seq FROM bellringer.chunks
                WHERE queue = $1 AND first_seq <= head.next_seq ORDER BY first_seq DESC LIMIT 1
            ), 0)
            ORDER BY first_seq
            LIMIT $2
        ) AS chunk
        CROSS JOIN LATERAL generate_series(
            GREATEST(chunk.first_seq, head.next_seq), chunk.first_seq + chunk.messages - 1
        ) AS seq
        ORDER BY seq
        LIMIT $2
    )
    UNION ALL
    (
        SELECT seq, attempts, CASE WHEN state = 'delayed' THEN 'delayed' ELSE 'pending' END
        FROM bellringer.tracked
        WHERE queue = $1 AND state <> 'held'
        ORDER BY seq
        LIMIT $2
    )
    ORDER BY seq
    LIMIT $2
) AS waiting
CROSS JOIN LATERAL bellringer.frame_of($1, waiting.seq) AS stored
ORDER BY waiting.seq
"""

# Index: chunks_pkey.
FRAME = "SELECT sent_at, frame FROM bellringer.frame_of($1, $2)"
# Index: tracked_pkey.
TRACKED = "SELECT state::text, attempts, claimed_at FROM bellringer.tracked WHERE queue = $1 AND seq = $2"
# Indexes: claims_pkey, claim_outcomes_claim. A message that is tracked from its start is in no claim of a range.
IN_CLAIM = """
SELECT claim.claimed_at, claim.ended_at, claim.expires_at = claim.claimed_at AS is_removal, past.at, past.outcome::text
FROM (
    SELECT * FROM bellringer.claims WHERE queue = $1 AND first_seq <= $2 ORDER BY first_seq DESC LIMIT 1
) AS claim
LEFT JOIN bellringer.claim_outcomes AS past
    ON past.queue = $1 AND past.claim_seq = claim.first_seq AND past.seqs @> $2::bigint
WHERE $2 < claim.next_seq AND NOT EXISTS (
    SELECT FROM bellringer.chunks WHERE queue = $1 AND first_seq = $2 AND tracked
)
ORDER BY past.at
"""
# Index: tracked_outcomes_seq.
ATTEMPTS = """
SELECT attempts, claimed_at, at, outcome::text FROM bellringer.tracked_outcomes
WHERE queue = $1 AND seq = $2 ORDER BY at
"""

_STATE_OF_OUTCOME = {
    "finished": MessageState.FINISHED,
    "dead_lettered": MessageState.DEAD_LETTERED,
    "expired": MessageState.EXPIRED,
    "purged": MessageState.PURGED,
}
_STATE_OF_TRACKED = {
    "queued": MessageState.PENDING,
    "ready": MessageState.PENDING,
    "delayed": MessageState.DELAYED,
    "held": MessageState.IN_FLIGHT,
}


async def peek(connection: Connection, queue: int, limit: int) -> list[StoredMessage]:
    """The first messages of a queue that nobody holds, by id."""
    return [
        _stored(MessageId(row["seq"]), row, MessageState(row["state"]), row["attempts"])
        for row in await connection.fetch(PEEK, queue, limit)
    ]


async def history(connection: Connection, queue: int, message_id: MessageId) -> MessageHistory | None:
    """What happened to a message, oldest first; None when there is none with this id, or no more."""
    stored = await connection.fetchrow(FRAME, queue, message_id)
    if stored is None or stored["frame"] is None:
        return None
    in_claim = await connection.fetch(IN_CLAIM, queue, message_id)
    attempts = await connection.fetch(ATTEMPTS, queue, message_id)
    tracked = await connection.fetchrow(TRACKED, queue, message_id)
    entries = [HistoryEntry(at=stored["sent_at"], event="published", attempt=None)]
    entries += _entries_in_claim(in_claim)
    entries += _entries_of_attempts(attempts)
    if tracked is not None and tracked["state"] == "held" and "extended" not in [entry.event for entry in entries[-1:]]:
        entries.append(HistoryEntry(at=tracked["claimed_at"], event="claimed", attempt=tracked["attempts"]))
    entries.sort(key=lambda entry: entry.at)
    if tracked is not None:
        state = _STATE_OF_TRACKED[tracked["state"]]
    else:
        events = [_STATE_OF_OUTCOME[entry.event] for entry in entries if entry.event in _STATE_OF_OUTCOME]
        state = events[-1] if events else (MessageState.IN_FLIGHT if in_claim else MessageState.PENDING)
    attempt = max((entry.attempt for entry in entries if entry.attempt is not None), default=0)
    return MessageHistory(message=_stored(message_id, stored, state, attempt), entries=entries)


def _entries_in_claim(rows: list[asyncpg.Record]) -> Iterable[HistoryEntry]:
    if not rows:
        return
    claimed_at, ended_at = rows[0]["claimed_at"], rows[0]["ended_at"]
    outcomes = [(row["at"], row["outcome"]) for row in rows if row["outcome"] is not None]
    if not outcomes and ended_at is not None:
        outcomes = [(ended_at, "finished")]
    # A claim hands out nothing that has expired, and one that was made to remove messages hands out nothing at all.
    attempt = None if rows[0]["is_removal"] or rows[0]["outcome"] == "expired" else 1
    if attempt is not None:
        yield HistoryEntry(at=claimed_at, event="claimed", attempt=attempt)
    for at, outcome in outcomes:
        yield HistoryEntry(at=at, event=outcome, attempt=attempt)


def _entries_of_attempts(rows: list[asyncpg.Record]) -> Iterable[HistoryEntry]:
    for row in rows:
        if row["claimed_at"] is not None and row["attempts"] > 1:
            yield HistoryEntry(at=row["claimed_at"], event="claimed", attempt=row["attempts"])
        yield HistoryEntry(at=row["at"], event=row["outcome"], attempt=row["attempts"] or None)


def _stored(message_id: MessageId, row: asyncpg.Record, state: MessageState, attempts: int) -> StoredMessage:
    header, body = decode_frame(row["frame"])
    return StoredMessage(
        id=message_id,
        body=body,
        state=state,
        attempts=attempts,
        created_at=row["sent_at"],
        group=header.group,
        deduplication_id=header.deduplication_id,
        attributes=header.attributes,
        origin=header.origin,
    )
