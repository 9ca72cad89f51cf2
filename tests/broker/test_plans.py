"""The broker's statements walk the index named beside them, and no more rows than they need, whatever the planner
knows: its statistics may be missing, or tell of a moment when every message was in another state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.plans import MODES, PlanMode, scans_of
from tests.support.postgres import Cluster

from bellringer.broker import store

DELETED, PENDING, HELD = 20_000, 3_000, 500
DUE = 100  # of those in flight and of those delayed, each
BATCH = 50
QUEUE, OTHER = UUID(int=1), UUID(int=2)
HANDLES = [UUID(int=1000 + number) for number in range(BATCH)]

FILL = """
INSERT INTO bellringer.messages (queue_id, state, body, picked_at, due_at, deleted_at, receipt_handle)
SELECT queue_id, state::bellringer.message_state, 'x', CASE WHEN state IN ('in_flight', 'deleted') THEN at END,
    CASE WHEN state IN ('in_flight', 'delayed') THEN at END, CASE WHEN state = 'deleted' THEN at END,
    CASE WHEN state IN ('in_flight', 'deleted') THEN gen_random_uuid() END
FROM (
    SELECT $1::uuid AS queue_id, $2::text AS state, now() + make_interval(secs => $4 + number) AS at
    FROM generate_series(1, $3::integer) AS number
) AS new
"""
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with arguments, the index named beside it, and how many messages it may touch."""

    statement: str
    arguments: tuple[object, ...]
    index: str
    rows: int


CASES = {
    "claim": Case(statement=store.CLAIM, arguments=(QUEUE, BATCH, 30.0), index="messages_pending", rows=2 * BATCH),
    "claim one": Case(statement=store.CLAIM, arguments=(QUEUE, 1, None), index="messages_pending", rows=2),
    "delete": Case(
        statement=store.DELETE, arguments=([QUEUE] * BATCH, HANDLES), index="messages_receipt_handle", rows=2 * BATCH
    ),
    "extend": Case(
        statement=store.EXTEND, arguments=(QUEUE, HANDLES, 30.0), index="messages_receipt_handle", rows=2 * BATCH
    ),
    "release": Case(
        statement=store.RELEASE,
        arguments=(QUEUE, HANDLES, [1.0] * BATCH),
        index="messages_receipt_handle",
        rows=2 * BATCH,
    ),
    "sweep": Case(statement=store.SWEEP, arguments=(1000,), index="messages_due", rows=4 * DUE),
    "purge": Case(statement=store.PURGE, arguments=(1000,), index="messages_deleted", rows=2 * DUE),
    "queues with pending": Case(
        statement=store.QUEUES_WITH_PENDING, arguments=([QUEUE, OTHER],), index="messages_pending", rows=2
    ),
    "ages, the first in line": Case(
        statement=store.AGES, arguments=([QUEUE, OTHER],), index="messages_pending", rows=DUE + 2
    ),
    "ages, the stuck": Case(statement=store.AGES, arguments=([QUEUE, OTHER],), index="messages_picked", rows=DUE + 2),
}


async def add(connection: asyncpg.Connection[asyncpg.Record], state: str, number: int, from_seconds: float) -> None:
    await connection.execute(FILL, QUEUE, state, number, from_seconds)


@pytest.fixture(
    scope="module",
    params=["no statistics", "of an empty table", "of pending messages", "of deleted messages", "of what is there"],
)
async def connection(
    request: pytest.FixtureRequest, cluster: Cluster
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to a database with many messages, and with the statistics named."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE plans")
    opened = await asyncpg.connect(**cluster.arguments("plans"), server_settings={"jit": "off"})
    await opened.execute("ALTER TABLE bellringer.messages SET (autovacuum_enabled = off)")
    if request.param == "of an empty table":
        await opened.execute("ANALYZE")
    await opened.executemany(
        "INSERT INTO bellringer.queues VALUES ($1, $1, $2, 30, 3600)", [(QUEUE, "a"), (OTHER, "b")]
    )
    if request.param == "of deleted messages":
        await add(opened, "deleted", DELETED, -HOUR + 60)
        await opened.execute("VACUUM ANALYZE")
    else:
        await add(opened, "pending", DELETED, 0)
        if request.param == "of pending messages":
            await opened.execute("VACUUM ANALYZE")
        await opened.execute(
            "UPDATE bellringer.messages SET state = 'deleted', picked_at = now(), receipt_handle = gen_random_uuid(), "
            "deleted_at = now() - interval '59 min' + id * interval '1 ms'"
        )
    await add(opened, "deleted", DUE, -DAY)
    await add(opened, "pending", PENDING, 0)
    await add(opened, "delayed", DUE, -HOUR)
    await add(opened, "delayed", HELD, HOUR)
    await add(opened, "in_flight", DUE, -HOUR)
    await add(opened, "in_flight", HELD, HOUR)
    await opened.execute(
        """
        UPDATE bellringer.messages AS message SET receipt_handle = handle
        FROM (SELECT id, row_number() OVER (ORDER BY id) AS number FROM bellringer.messages WHERE state = 'in_flight')
            AS held
        JOIN unnest($1::uuid[]) WITH ORDINALITY AS drawn (handle, number) USING (number)
        WHERE message.id = held.id
        """,
        HANDLES,
    )
    if request.param == "of what is there":
        await opened.execute("ANALYZE")
    yield opened
    await opened.close()
    await admin.execute("DROP DATABASE plans WITH (FORCE)")
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_walks_its_index_and_reads_only_what_it_needs(
    connection: asyncpg.Connection[asyncpg.Record], name: str, mode: PlanMode
) -> None:
    case = CASES[name]
    scans = await scans_of(connection, case.statement, case.arguments, mode)
    messages = [scan for scan in scans if scan.table == "messages"]
    assert None not in {scan.index for scan in messages}, f"reads the whole table: {messages}"
    assert case.index in {scan.index for scan in messages}
    assert sum(scan.rows for scan in messages) <= case.rows, f"reads too much: {messages}"
