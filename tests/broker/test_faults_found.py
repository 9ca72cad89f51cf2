"""Faults that a review of the engine found, each as a statement of what holds now."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.support.plans import MODES, PlanMode, scans_of

from bellringer.broker import Broker, Publication, Queue, QueueSettings, inspection, queue_store, store
from bellringer.broker.loops import Collector, InboxMover
from bellringer.broker.model import MoveState
from bellringer.broker.moves import Mover, Moves
from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database

_BRIEF = QueueSettings(retention_seconds=60)


async def age(database: Database) -> None:
    """Let every message be past its retention."""
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.chunks SET sent_at = sent_at - interval '1 day'")


async def test_a_message_that_is_held_on_past_its_retention_can_be_acknowledged(
    broker: Broker, database: Database, environment: Environment
) -> None:
    queue = await broker.create_queue(environment.id, "brief", _BRIEF)
    await broker.send(queue, [Publication(body=b"x")] * 3)
    slow, quick = await broker.claim(queue, 2)
    await broker.extend(queue, [slow.receipt_handle], 3600)
    await broker.acknowledge(queue, quick.receipt_handle)
    last = (await broker.claim(queue, 1))[0]
    await broker.acknowledge(queue, last.receipt_handle)
    await age(database)
    collector = Collector(database, broker)
    await collector.run_once()
    assert await broker.acknowledge_each(queue, [slow.receipt_handle]) == [True]
    await collector.run_once()
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM bellringer.chunks") == 0
        assert await connection.fetchval("SELECT count(*) FROM bellringer.claim_outcomes") == 0


@pytest.mark.parametrize(
    "attributes", ['{"n": 1e5000}', '{"n": [{"m": -1e309}]}', '{"n": ' + "[" * 2000 + "]" * 2000 + "}"]
)
async def test_attributes_that_no_claim_could_read_are_refused_when_they_are_published(
    broker: Broker, database: Database, environment: Environment, attributes: str
) -> None:
    await broker.ensure_queue(environment.id, "orders")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="100 levels"):
        async with database.connection() as connection:
            await connection.execute("SELECT bellringer.publish('orders', 'x', attributes => $1)", attributes)


async def test_attributes_that_can_just_be_read_are_taken(
    broker: Broker, database: Database, environment: Environment
) -> None:
    queue = await broker.ensure_queue(environment.id, "orders")
    published = '{"least": 1e-5000, "most": 1e308, "deep": ' + "[" * 99 + "]" * 99 + "}"
    async with database.connection() as connection:
        await connection.execute("SELECT bellringer.publish('orders', 'x', attributes => $1)", published)
    await InboxMover(database, broker).run_once()
    (message,) = await broker.claim(queue, 10)
    assert (message.attributes["least"], float(message.attributes["most"])) == (0.0, 1e308)


async def test_a_move_to_a_queue_that_does_not_take_the_messages_fails_and_holds_up_no_other(
    broker: Broker, database: Database, environment: Environment
) -> None:
    strict = await broker.create_queue(environment.id, "strict", QueueSettings(max_body_bytes=1))
    sources = [await broker.ensure_queue(environment.id, name) for name in ("first", "second")]
    other = await broker.ensure_queue(environment.id, "other")
    for source in sources:
        await broker.send(source, [Publication(body=b"large")])
    moves = Moves(database, broker)
    failing = await moves.start(sources[0], strict)
    carried = await moves.start(sources[1], other)
    await Mover(database, broker).run_once()
    failed = await moves.find(failing.id)
    assert (failed.state, failed.moved, failed.failure) == (MoveState.FAILED, 0, "a message holds at most 1 bytes")
    assert (await moves.find(carried.id)).moved == 1
    assert [message.body for message in await broker.claim(sources[0], 1)] == [b"large"]


async def test_a_sweep_returns_no_more_messages_at_a_time_than_it_was_told_and_a_claim(
    second_process: Broker, database: Database, queue: Queue
) -> None:
    await second_process.send(queue, [Publication(body=b"x")] * 50)
    for _ in range(5):
        await second_process.claim(queue, 10, visibility_timeout_seconds=0)
    async with database.connection() as connection:
        assert [await store.sweep(connection, queue.number, 15, 60.0) for _ in range(4)] == [20, 20, 10, 0]


@pytest.mark.parametrize("mode", MODES)
async def test_how_a_fifo_queue_stands_is_told_without_a_look_at_each_of_its_messages(
    broker: Broker, database: Database, fifo: Queue, mode: PlanMode
) -> None:
    await broker.send(fifo, [Publication(body=b"x", group="g")] * 500)
    async with database.connection() as connection:
        ages = await scans_of(connection, queue_store.AGES, [[fifo.id]], mode)
        peek = await scans_of(connection, inspection.PEEK, [fifo.number, 1], mode)
    assert sum(scan.rows for scan in ages + peek if scan.table == "chunks") < 20


async def wait_for_waiting(connection: Connection, number: int = 1) -> None:
    """Return when so many sessions wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while await connection.fetchval(waiting) < number:
            await connection.execute("SELECT pg_stat_clear_snapshot()")


async def test_a_claim_that_waits_while_its_queue_is_deleted_gets_nothing(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await broker.send(queue, [Publication(body=b"x")])
    async with database.transaction() as other:
        await other.execute("SELECT bellringer.lock_claims($1)", queue.number)
        claim = asyncio.create_task(broker.claim(queue, 1))
        await wait_for_waiting(other)
        async with database.connection() as connection:
            await queue_store.delete_queue(connection, queue.id)
    assert await claim == []


async def test_a_deduplication_id_that_is_taken_anew_is_not_forgotten_with_its_last_use(
    broker: Broker, database: Database, queue: Queue
) -> None:
    message = Publication(body=b"x", deduplication_id="d")
    await broker.send(queue, [message])
    async with database.connection() as collector:
        await collector.execute("UPDATE bellringer.deduplications SET expires_at = now() - interval '1 s'")
        async with database.transaction() as publisher:
            await broker.publish(publisher, queue, [message])
            forgetting = asyncio.create_task(store.forget_deduplications(collector, 1000))
            await wait_for_waiting(publisher)
        assert await forgetting == 0
    assert await broker.send(queue, [message]) == [2]


async def test_no_plan_that_is_made_for_small_tables_reads_all_of_them(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await broker.send(queue, [Publication(body=b"x")] * 10)
    for _ in range(2):
        messages = await broker.claim(queue, 4)
        await broker.release(queue, [messages[0].receipt_handle], [0.0])
        await broker.acknowledge_each(queue, [message.receipt_handle for message in messages[1:]])
    async with database.connection() as connection:
        await connection.execute("VACUUM ANALYZE")
    async with database.transaction() as connection:
        await broker.publish(connection, queue, [b"y"])
        for run in await store.claim(connection, queue.number, 4, 30.0):
            if run.claim_seq:
                await store.finish(
                    connection, queue.number, [(run.claim_seq, f"{{[{run.first_seq},{run.first_seq + 1})}}")]
                )
        read_whole = await connection.fetch(
            """
            SELECT relname FROM pg_stat_xact_user_tables
            WHERE seq_scan > 0 AND relname IN ('chunks', 'claims', 'claim_outcomes', 'tracked', 'tracked_outcomes')
            """
        )
    assert [row["relname"] for row in read_whole] == []


async def test_a_message_whose_transaction_outlives_its_queue_leaves_nothing_behind(
    broker: Broker, database: Database, queue: Queue
) -> None:
    async def remove() -> None:
        async with database.connection() as connection:
            while await queue_store.remove_rows(connection, queue.number, 1000):
                pass

    async with database.transaction() as publisher:
        await broker.publish(publisher, queue, [b"x"])
        await broker.delete_queue(queue)
        removing = asyncio.create_task(remove())
        await wait_for_waiting(publisher)
    await removing
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM bellringer.chunks") == 0


async def test_a_move_out_of_a_queue_that_is_paused_goes_on_when_it_is_resumed(
    broker: Broker, database: Database, environment: Environment, queue: Queue
) -> None:
    other = await broker.ensure_queue(environment.id, "other")
    await broker.send(queue, [Publication(body=b"x")] * 3)
    await broker.pause_queue(queue)
    moves, mover = Moves(database, broker), Mover(database, broker)
    move = await moves.start(queue, other)
    await mover.run_once()
    assert (await moves.find(move.id)).state is MoveState.RUNNING
    await broker.resume_queue(queue)
    await mover.run_once()
    assert (await moves.find(move.id)).moved == 3


async def test_a_full_inbox_of_a_fifo_queue_comes_in_its_order(broker: Broker, database: Database, fifo: Queue) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "SELECT bellringer.publish('orders.fifo', i::text, message_group => 'g') FROM generate_series(1, 1002) AS i"
        )
    await InboxMover(database, broker).run_once()
    assert [message.body for message in await broker.claim(fifo, 3)] == [b"1", b"2", b"3"]
