"""SQL of the messages: the calls of the functions in `migrations/`, each one transition in one statement.

A statement runs to its end whether or not the process that sent it still lives, so a process that is stopped or
killed in the middle holds no lock. Ranges of seqs travel as text: `{[5,9),[12,13)}`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from bellringer.broker.frames import Chunks
from bellringer.kernel.database import Connection

APPEND = "SELECT bellringer.append($1, $2, $3, $4, $5, $6, $7)"
DRAIN_INBOX = "SELECT * FROM bellringer.drain_inbox($1, $2, $3)"
CLAIM = "SELECT * FROM bellringer.claim($1, $2, $3)"
RUNS = """
SELECT run.ends_before, run.ends, run.payload
FROM unnest($2::bigint[], $3::integer[]) WITH ORDINALITY AS wanted (first_seq, messages, place)
CROSS JOIN LATERAL bellringer.run_of($1, wanted.first_seq, wanted.messages) AS run
ORDER BY wanted.place
"""
FINISH = """
SELECT place, finished::text, repeated::text
FROM unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS wanted (claim_seq, seqs, place),
    bellringer.finish($1, wanted.claim_seq, wanted.seqs::int8multirange)
"""
FINISH_TRACKED = "SELECT seq, attempts, was_held FROM bellringer.finish_tracked($1, $2, $3)"
PUT_BACK = """
SELECT place, held::text
FROM unnest($2::bigint[], $3::text[], $4::float8[]) WITH ORDINALITY AS wanted (claim_seq, seqs, seconds, place),
    bellringer.put_back($1, wanted.claim_seq, wanted.seqs::int8multirange, wanted.seconds, $5, $6) AS held
"""
PUT_BACK_TRACKED = "SELECT seq, attempts FROM bellringer.put_back_tracked($1, $2, $3, $4, $5, $6)"
DUE_QUEUES = "SELECT number, id FROM bellringer.due_queues($1)"
SWEEP = "SELECT bellringer.sweep($1, $2, $3)"
PURGE = "SELECT bellringer.purge($1)"
COLLECT = "SELECT next_from, removed FROM bellringer.collect($1, $2, $3)"
# Index: deduplications_expiry.
FORGET_DEDUPLICATIONS = """
DELETE FROM bellringer.deduplications WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM bellringer.deduplications WHERE expires_at < (SELECT clock_timestamp())
    ORDER BY expires_at LIMIT $1
))
"""
ADD_SECRET = "INSERT INTO bellringer.receipt_secrets (secret) VALUES ($1) ON CONFLICT DO NOTHING"  # noqa: S105 - SQL
READ_SECRET = "SELECT secret FROM bellringer.receipt_secrets"  # noqa: S105 - SQL

_NUMBER = re.compile(r"\d+")


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run of messages of one chunk that were claimed together; the fields of `bellringer.claim`.

    The payload of a large one is still to be read.
    """

    claim_seq: int
    attempts: int
    first_seq: int
    messages: int
    sent_at: datetime
    first_claimed_at: datetime
    ends_before: int
    ends: list[int] | None
    payload: bytes | None


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """What one look into the inbox moved; transactions are numbered as PostgreSQL numbers them."""

    highest: int | None
    moved: int
    queue_ids: list[UUID]
    all_over_before: int
    next_transaction: int


async def append(connection: Connection, queue: int, chunks: Chunks) -> list[int]:
    """Append chunks to a queue; return the seq of the first message of each."""
    first_seqs: list[int] = await connection.fetchval(
        APPEND,
        [queue] * len(chunks.counts),
        chunks.counts,
        chunks.ends,
        chunks.payloads,
        chunks.delays,
        chunks.groups,
        chunks.deduplication_ids,
    )
    return first_seqs


async def drain_inbox(connection: Connection, after: int, limit: int, limit_bytes: int) -> Drained:
    """Move rows of the inbox with ids above `after` to their queues."""
    row = await connection.fetchrow(DRAIN_INBOX, after, limit, limit_bytes)
    assert row is not None  # noqa: S101 - the function always returns one row
    return Drained(**dict(row))


async def claim(connection: Connection, queue: int, limit: int, seconds: float) -> list[Claimed]:
    """Take up to `limit` messages for so many seconds, those that came back first."""
    return [Claimed(**dict(row)) for row in await connection.fetch(CLAIM, queue, limit, seconds)]


async def read_runs(connection: Connection, queue: int, runs: Sequence[Claimed]) -> list[Claimed]:
    """The runs with the payloads that were left out; those of a queue that was deleted meanwhile are dropped."""
    missing = [run for run in runs if run.payload is None]
    if not missing:
        return list(runs)
    rows = await connection.fetch(RUNS, queue, [run.first_seq for run in missing], [run.messages for run in missing])
    read = {
        run.first_seq: msgspec.structs.replace(run, **dict(row))
        for run, row in zip(missing, rows, strict=True)
        if row["payload"] is not None
    }
    whole = [read.get(run.first_seq, run) for run in runs]
    return [run for run in whole if run.payload is not None]


async def finish(
    connection: Connection, queue: int, claims: Sequence[tuple[int, str]]
) -> list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """Finish seqs of claims, in the order of the claims.

    Return for each the ranges (from, to) that were finished now, and those that had been finished before.
    """
    rows = await connection.fetch(FINISH, queue, [claim for claim, _ in claims], [seqs for _, seqs in claims])
    return [(ranges(row["finished"]), ranges(row["repeated"])) for row in sorted(rows, key=lambda row: row["place"])]


async def finish_tracked(
    connection: Connection, queue: int, attempts: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], bool]:
    """Finish tracked messages by (seq, attempts); return those that are finished, and whether it was just now."""
    rows = await connection.fetch(
        FINISH_TRACKED, [queue] * len(attempts), [seq for seq, _ in attempts], [attempt for _, attempt in attempts]
    )
    return {(row["seq"], row["attempts"]): row["was_held"] for row in rows}


async def put_back(
    connection: Connection, queue: int, claims: Sequence[tuple[int, str, float]], *, keep: bool, unseen: bool
) -> list[list[tuple[int, int]]]:
    """Return seqs of claims after so many seconds, or hold them on for as long; return what was held of each."""
    rows = await connection.fetch(
        PUT_BACK,
        queue,
        [claim for claim, _, _ in claims],
        [seqs for _, seqs, _ in claims],
        [seconds for _, _, seconds in claims],
        keep,
        unseen,
    )
    return [ranges(row["held"]) for row in sorted(rows, key=lambda row: row["place"])]


async def put_back_tracked(
    connection: Connection,
    queue: int,
    attempts: Sequence[tuple[int, int]],
    seconds: float,
    *,
    keep: bool,
    unseen: bool,
) -> set[tuple[int, int]]:
    """The same for tracked messages by (seq, attempts); return those under which one was held."""
    rows = await connection.fetch(
        PUT_BACK_TRACKED,
        queue,
        [seq for seq, _ in attempts],
        [attempt for _, attempt in attempts],
        seconds,
        keep,
        unseen,
    )
    return {(row["seq"], row["attempts"]) for row in rows}


async def due_queues(connection: Connection, seconds: float) -> list[tuple[int, UUID]]:
    """Number and id of the queues in which a hold or a delay was over within the last so many seconds."""
    return [(row["number"], row["id"]) for row in await connection.fetch(DUE_QUEUES, seconds)]


async def sweep(connection: Connection, queue: int, limit: int, seconds: float) -> int:
    """End what was over in a queue within the last so many seconds; return how many claims and messages that were."""
    swept: int = await connection.fetchval(SWEEP, queue, limit, seconds)
    return swept


async def purge(connection: Connection, queue: int) -> int:
    """Remove every message of a queue; return how many."""
    purged: int = await connection.fetchval(PURGE, queue)
    return purged


async def collect(connection: Connection, queue: int, start: int, limit: int) -> tuple[int | None, int]:
    """Remove chunks past the retention of their queue from a seq on; return where to go on, and how many went."""
    row = await connection.fetchrow(COLLECT, queue, start, limit)
    assert row is not None  # noqa: S101 - the function always returns one row
    return row["next_from"], row["removed"]


async def forget_deduplications(connection: Connection, limit: int) -> int:
    """Remove deduplication ids whose window is over; return how many."""
    return int((await connection.execute(FORGET_DEDUPLICATIONS, limit)).rpartition(" ")[2])


async def secret(connection: Connection) -> bytes:
    """The secret of the receipt handles, the same for all processes."""
    await connection.execute(ADD_SECRET, secrets.token_bytes(32))
    found: bytes = await connection.fetchval(READ_SECRET)
    return found


def ranges(multirange: str) -> list[tuple[int, int]]:
    """The parts of a multirange of PostgreSQL, each from its first number to before its second."""
    numbers = [int(number) for number in _NUMBER.findall(multirange)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def multirange(seqs: Sequence[int]) -> str:
    """Ascending numbers, at least one, as a multirange of PostgreSQL."""
    parts: list[str] = []
    start = end = seqs[0]
    for seq in seqs:
        if seq != end:
            parts.append(f"[{start},{end})")
            start = seq
        end = seq + 1
    parts.append(f"[{start},{end})")
    return "{" + ",".join(parts) + "}"
