"""The broker's statements, those inside its functions too, walk indexes and read no more rows than they need, whatever
the planner knows: its statistics may be missing, or tell of a moment when everything was otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.accesses import accesses_of
from tests.support.plans import MODES, PlanMode
from tests.support.postgres import Cluster

from bellringer.broker import inspection, queue_store, store

ENVIRONMENT = UUID(int=1)
QUEUES = 200
FINISHED_CHUNKS, WAITING_CHUNKS, PER_CHUNK = 4000, 400, 10
OPEN_CLAIMS, OVER, TRACKED, READY = 40, 10, 20_000, 500
NUMBER, FIFO = 1, 2
BIG, FIFO_ID = UUID(int=1001), UUID(int=1002)
HEAD = FINISHED_CHUNKS * PER_CHUNK + 1
SMALL = {"queues", "tallies", "tally_entries", "moves", "receipt_secrets", "environments"}
"""Tables of a page or two, which may be read whole."""

FILL = f"""
INSERT INTO bellringer.queues (id, environment_id, name, visibility_timeout_seconds, retention_seconds, fifo)
SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(1000 + number), 12, '0'))::uuid, '{ENVIRONMENT}', 'queue' || number,
    600, 86400, number = {FIFO}
FROM generate_series(1, {QUEUES}) AS number;

-- Of every queue but the first a little; of the first a long past, claims under way and much that waits.
INSERT INTO bellringer.chunks (queue, messages, first_seq, lane_after, sent_at, tracked, ends, payload)
SELECT queue, {PER_CHUNK}, 1 + (place - 1) * {PER_CHUNK}, place * {PER_CHUNK}, clock_timestamp(), false,
    ARRAY(SELECT 2 * generate_series(1, {PER_CHUNK})), decode(repeat('0078', {PER_CHUNK}), 'hex')
FROM generate_series(1, {QUEUES}) AS queue,
    generate_series(1, CASE WHEN queue = {NUMBER} THEN {FINISHED_CHUNKS + WAITING_CHUNKS} ELSE 3 END) AS place
WHERE queue <> {FIFO};
INSERT INTO bellringer.claims (queue, messages, first_seq, next_seq, lane_after, claimed_at, expires_at, ended_at)
SELECT {NUMBER}, {PER_CHUNK}, 1 + (place - 1) * {PER_CHUNK}, 1 + place * {PER_CHUNK}, place * {PER_CHUNK},
    clock_timestamp(),
    clock_timestamp() + CASE WHEN place > {FINISHED_CHUNKS - OVER} THEN interval '-1 min' ELSE interval '1 hour' END,
    CASE WHEN place <= {FINISHED_CHUNKS - OPEN_CLAIMS} THEN clock_timestamp() END
FROM generate_series(1, {FINISHED_CHUNKS}) AS place;
INSERT INTO bellringer.claim_outcomes (queue, outcome, claim_seq, at, seqs)
SELECT {NUMBER}, 'finished', 1 + (place - 1) * {PER_CHUNK}, clock_timestamp(),
    int8multirange(int8range(1 + (place - 1) * {PER_CHUNK}, 2 + (place - 1) * {PER_CHUNK}))
FROM generate_series(1, {FINISHED_CHUNKS}) AS place;

-- Tracked: of the first queue delayed, ready and held ones; of the FIFO queue groups of thirty.
INSERT INTO bellringer.tracked (queue, attempts, seq, due_at, claimed_at, state)
SELECT {NUMBER}, 1, seq, CASE WHEN seq % ({TRACKED} / {READY}) > 0 THEN clock_timestamp()
        + CASE WHEN seq <= {OVER} THEN interval '-1 min' ELSE interval '1 hour' END END,
    CASE WHEN seq % 2 = 1 THEN clock_timestamp() END,
    CASE WHEN seq % ({TRACKED} / {READY}) = 0 THEN 'ready' WHEN seq % 2 = 1 THEN 'held'
        ELSE 'delayed' END::bellringer.tracked_state
FROM generate_series(1, {TRACKED}) AS seq;
INSERT INTO bellringer.chunks (queue, messages, first_seq, lane_after, sent_at, tracked, payload)
SELECT {FIFO}, 1, seq, 0, clock_timestamp(), true, '\\x0078' FROM generate_series(1, {TRACKED}) AS seq;
INSERT INTO bellringer.tracked (queue, attempts, seq, state, group_key)
SELECT {FIFO}, 0, seq, CASE WHEN seq <= {TRACKED} / 30 THEN 'ready' ELSE 'queued' END::bellringer.tracked_state,
    'g' || seq % ({TRACKED} / 30)
FROM generate_series(1, {TRACKED}) AS seq;
INSERT INTO bellringer.tracked_outcomes (queue, attempts, seq, claimed_at, at, outcome)
SELECT {NUMBER}, 1, seq, clock_timestamp(), clock_timestamp(), 'finished' FROM generate_series(1, 20000) AS seq;
INSERT INTO bellringer.deduplications (queue, deduplication_id, seq, expires_at)
SELECT {NUMBER}, 'd' || number, number, clock_timestamp() + interval '1 min' FROM generate_series(1, 5000) AS number;
INSERT INTO bellringer.inbox (queue, payload) SELECT {NUMBER}, '\\x0078' FROM generate_series(1, 5000) AS number;
"""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with arguments, the indexes that it must use, and how many rows it may read in all."""

    statement: str
    arguments: tuple[object, ...]
    indexes: set[str]
    rows: int


def range_of(start: int, end: int) -> str:
    return f"{{[{start},{end})}}"


LAST_CLAIM = HEAD - PER_CHUNK
CASES = {
    "append": Case(
        statement=store.APPEND,
        arguments=([NUMBER] * 2, [1, 1], [], [b"\x00x"] * 2, [0.0, 0.0], [None, None], ["d7", "new"]),
        indexes={"chunks_pkey", "deduplications_pkey"},
        rows=20,
    ),
    "append to a group": Case(
        statement=store.APPEND,
        arguments=([FIFO], [1], [], [b"\x00x"], [0.0], ["g1"], [None]),
        indexes={"chunks_pkey", "tracked_busy_group"},
        rows=50,
    ),
    "claim one that came back": Case(
        statement=store.CLAIM, arguments=(NUMBER, 1, 30.0), indexes={"tracked_ready", "chunks_pkey"}, rows=20
    ),
    "claim past those that came back": Case(
        statement=store.CLAIM,
        arguments=(NUMBER, READY + 20, 30.0),
        indexes={"tracked_ready", "claims_pkey", "chunks_pkey"},
        rows=4 * READY,
    ),
    "claim in a queue with nothing tracked": Case(
        statement=store.CLAIM, arguments=(77, 10, 30.0), indexes={"claims_pkey", "chunks_pkey"}, rows=20
    ),
    "claim of groups": Case(
        statement=store.CLAIM,
        arguments=(FIFO, 10, 30.0),
        indexes={"tracked_ready", "tracked_group"},
        rows=200,
    ),
    "finish": Case(
        statement=store.FINISH,
        arguments=(NUMBER, [LAST_CLAIM], [range_of(LAST_CLAIM + 2, HEAD)]),
        indexes={"claims_pkey", "claim_outcomes_claim"},
        rows=30,
    ),
    "finish tracked": Case(
        statement=store.FINISH_TRACKED,
        arguments=([NUMBER] * 3, [1, 3, 5], [1, 1, 1]),
        indexes={"tracked_pkey", "tracked_outcomes_seq"},
        rows=50,
    ),
    "put back": Case(
        statement=store.PUT_BACK,
        arguments=(NUMBER, [LAST_CLAIM], [range_of(LAST_CLAIM + 2, HEAD)], [0.0], False, False),
        indexes={"claims_pkey", "claim_outcomes_claim"},
        rows=60,
    ),
    "put back tracked": Case(
        statement=store.PUT_BACK_TRACKED,
        arguments=(NUMBER, [1, 3, 5], [1, 1, 1], 0.0, False, False),
        indexes={"tracked_pkey"},
        rows=60,
    ),
    "due queues": Case(
        statement=store.DUE_QUEUES, arguments=(), indexes={"claims_open", "tracked_due"}, rows=3 * QUEUES
    ),
    "sweep": Case(
        statement=store.SWEEP,
        arguments=(NUMBER, 1000),
        indexes={"claims_open", "tracked_due", "claim_outcomes_claim", "chunks_pkey", "tracked_pkey"},
        rows=60 * OVER,
    ),
    "drain the inbox": Case(
        statement=store.DRAIN_INBOX, arguments=(0, 100, 10**6), indexes={"inbox_pkey", "chunks_pkey"}, rows=600
    ),
    "collect, where nothing is old": Case(
        statement=store.COLLECT, arguments=(NUMBER, 0, 1000), indexes={"chunks_pkey"}, rows=5
    ),
    "counts": Case(
        statement=queue_store.COUNTS,
        arguments=([BIG, FIFO_ID],),
        indexes={"chunks_pkey", "claims_pkey", "claims_open", "claim_outcomes_claim"},
        rows=4 * OPEN_CLAIMS + 20,
    ),
    "ages": Case(
        statement=queue_store.AGES,
        arguments=([BIG, FIFO_ID],),
        indexes={"chunks_pkey", "claims_pkey", "claims_open", "tracked_ready"},
        rows=2 * (TRACKED + FINISHED_CHUNKS),  # what is held or delayed one by one, and the claims
    ),
    "queues with pending": Case(
        statement=queue_store.QUEUES_WITH_PENDING,
        arguments=([BIG, FIFO_ID],),
        indexes={"chunks_pkey", "claims_pkey"},
        rows=20,
    ),
    "forget deduplications": Case(
        statement=store.FORGET_DEDUPLICATIONS, arguments=(100,), indexes={"deduplications_expiry"}, rows=5
    ),
    "peek": Case(
        statement=inspection.PEEK,
        arguments=(77, 10),
        indexes={"chunks_pkey", "claims_pkey", "tracked_pkey"},
        rows=60,
    ),
    "history": Case(
        statement=inspection.IN_CLAIM,
        arguments=(NUMBER, 20_000),
        indexes={"claims_pkey", "claim_outcomes_claim"},
        rows=10,
    ),
}


@pytest.fixture(scope="module", params=["no statistics", "of empty tables", "of a past without exceptions", "of today"])
async def connection(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection to a database with many messages, and with the statistics named."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE plans")
    opened = await asyncpg.connect(**cluster.arguments("plans"))
    tables = await opened.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'bellringer'")
    for row in tables:
        await opened.execute(f"ALTER TABLE bellringer.{row['tablename']} SET (autovacuum_enabled = off)")
    match request.param:
        case "of empty tables":
            await opened.execute("ANALYZE")
            await opened.execute(FILL)
        case "of a past without exceptions":
            await opened.execute(FILL)
            async with opened.transaction():
                await opened.execute("UPDATE bellringer.claims SET ended_at = clock_timestamp()")
                await opened.execute("UPDATE bellringer.tracked SET state = 'queued'")
            await opened.execute("VACUUM ANALYZE")
            names = ", ".join(f"bellringer.{row['tablename']}" for row in tables if row["tablename"] != "migrations")
            await opened.execute(f"TRUNCATE {names} RESTART IDENTITY")
            await opened.execute(FILL)
        case "of today":
            await opened.execute(FILL)
            await opened.execute("VACUUM ANALYZE")
        case _:
            await opened.execute(FILL)
    yield opened
    await opened.close()
    await admin.execute("DROP DATABASE plans WITH (FORCE)")
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_walks_its_indexes_and_reads_only_what_it_needs(
    connection: asyncpg.Connection[Any], name: str, mode: PlanMode
) -> None:
    case = CASES[name]
    accesses = await accesses_of(connection, case.statement, case.arguments, mode)
    whole = [access for access in accesses if not access.is_index and access.rows and access.table not in SMALL]
    assert whole == [], "reads whole tables"
    found = [access for access in accesses if access.is_index and access.table not in SMALL]
    assert case.indexes <= {access.name for access in found}
    assert sum(access.rows for access in found) <= case.rows, f"reads too much: {found}"
