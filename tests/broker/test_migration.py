"""A database of the first form, in which every message was a row, becomes one of today and loses none that waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest
from tests.support.postgres import Cluster
from tests.support.queues import bodies_of, counts_of, move_inbox, send, sweep_all

from bellringer.assembly import SUBSYSTEMS
from bellringer.broker import Broker
from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.migrations import apply, migrate, migrations_of

ENVIRONMENT = UUID(int=1)
QUEUE, EMPTY = UUID(int=2), UUID(int=3)
FIRST_FORM = [
    migration
    for subsystem in SUBSYSTEMS
    for migration in migrations_of(subsystem)
    if subsystem != "broker" or migration.number == 1
]
FILL = """
INSERT INTO bellringer.queues (id, environment_id, name, visibility_timeout_seconds, retention_seconds)
VALUES ($2, $1, 'orders', 30, 0), ($3, $1, 'empty', 600, 86400 * 30)
"""
ADD = """
INSERT INTO bellringer.messages (queue_id, body, state, due_at, picked_at, deleted_at, receipt_handle, attempts)
SELECT $1, $2, $3::bellringer.message_state, clock_timestamp() + make_interval(secs => $4),
    CASE WHEN $3 IN ('in_flight', 'deleted') THEN clock_timestamp() END,
    CASE WHEN $3 = 'deleted' THEN clock_timestamp() END,
    CASE WHEN $3 IN ('in_flight', 'deleted') THEN gen_random_uuid() END, $5
"""


@pytest.fixture
async def old(cluster: Cluster) -> AsyncIterator[Database]:
    """A database whose broker is at its first migration."""
    operator = await asyncpg.connect(**cluster.arguments("postgres"))
    await operator.execute("CREATE DATABASE first_form TEMPLATE template0")
    database = await Database.open(DatabaseConfig(pool_size=4), cluster.arguments("first_form"))
    await apply(database, FIRST_FORM)
    yield database
    await database.close()
    await operator.execute("DROP DATABASE first_form WITH (FORCE)")
    await operator.close()


async def fill(database: Database, *messages: tuple[bytes, str, float | None, int]) -> None:
    async with database.transaction() as connection:
        await connection.execute(FILL, ENVIRONMENT, QUEUE, EMPTY)
        for body, state, due_seconds, attempts in messages:
            await connection.execute(ADD, QUEUE, body, state, due_seconds, attempts)
        await connection.executemany(
            "INSERT INTO bellringer.tallies (owner, name, value) VALUES ($1, 'pending', 3)", [(QUEUE,), (EMPTY,)]
        )
        await connection.execute(
            "INSERT INTO bellringer.tally_entries (owner, name, change) VALUES ($1, 'deleted', 1)", QUEUE
        )


async def test_what_waited_was_delayed_or_held_is_handed_out_in_its_order(old: Database) -> None:
    await fill(
        old,
        (b"0 pending", "pending", None, 0),
        (b"1 held", "in_flight", 600, 1),
        (b"2 delayed", "delayed", 600, 0),
        (b"3 deleted", "deleted", None, 1),
        (b"4 returned", "pending", None, 2),
        (b"", "pending", None, 0),
        (b"\x00\xff" * 100_000, "pending", None, 0),
        (b"6 hold is over", "in_flight", -1, 3),
    )
    await migrate(old, SUBSYSTEMS)
    broker = Broker(old)
    await move_inbox(old, broker)
    queue = await broker.queue(ENVIRONMENT, "orders")
    counts = await counts_of(broker, queue)
    assert (counts.published, counts.pending, counts.delayed, counts.in_flight, counts.deleted) == (7, 5, 2, 0, 0)
    messages = await broker.claim(queue, 100)
    assert bodies_of(messages) == [b"0 pending", b"4 returned", b"", b"\x00\xff" * 100_000, b"6 hold is over"]
    await broker.acknowledge_each(queue, [message.receipt_handle for message in messages])
    await sweep_all(old, broker)
    assert bodies_of(await broker.claim(queue, 100)) == [b"1 held", b"2 delayed"]
    await broker.drain()


async def test_a_delay_goes_on_for_as_long_as_it_had_left(old: Database) -> None:
    await fill(old, (b"late", "delayed", 600, 0))
    await migrate(old, SUBSYSTEMS)
    await move_inbox(old, broker := Broker(old))
    async with old.connection() as connection:
        left = await connection.fetchval("SELECT due_at - clock_timestamp() FROM bellringer.tracked")
    assert left.total_seconds() == pytest.approx(600, abs=20)
    await broker.drain()


async def test_queues_keep_their_settings_and_count_anew(old: Database) -> None:
    await fill(old, (b"a", "pending", None, 0))
    assert await migrate(old, SUBSYSTEMS) > 0
    broker = Broker(old)
    empty, orders = await broker.list_queues([ENVIRONMENT])
    assert (empty.name, empty.id, empty.visibility_timeout_seconds, empty.retention_seconds) == (
        ("empty", EMPTY, 600, 30 * 86_400)
    )
    # Retention was for what is deleted: what waits must not expire by a number that was meant for something else.
    assert (orders.name, orders.id, orders.visibility_timeout_seconds, orders.retention_seconds) == (
        ("orders", QUEUE, 30, 7 * 86_400)
    )
    assert (await counts_of(broker, empty)).pending == 0
    await send(broker, empty, b"new")
    assert bodies_of(await broker.claim(empty, 10)) == [b"new"]
    await broker.drain()
