"""What leaves a queue unfinished: purged by hand, past its retention, or with its queue."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.queues import bodies_of, counts_of, make_older, message_with, move_inbox, send, sweep_all, unfinished
from tests.support.waiting import until_sessions_wait

from bellringer.broker import Broker, Publication, Queue, QueueSettings, ReceiptNotHeld, loops
from bellringer.broker.loops import Collector, InboxMover
from bellringer.broker.queue_store import TABLES_BY_QUEUE
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import NotFound
from bellringer.kernel.tally import TallyFolder

WEEK = 7 * 24 * 3600


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
async def either(request: pytest.FixtureRequest, broker: Broker, environment: Environment) -> Queue:
    """A queue of each kind, in which messages expire."""
    return await broker.create_queue(environment.id, "either", QueueSettings(fifo=request.param, expires=True))


async def let_expire(broker: Broker, queue: Queue) -> Queue:
    """Let the messages of a queue expire from now on."""
    settings = msgspec.structs.replace(queue.settings, expires=True)
    return await broker.configure_queue(queue.environment_id, queue.name, settings)


async def publish(broker: Broker, queue: Queue, *bodies: bytes, delay_seconds: float = 0.0) -> None:
    """Each in a group of its own, if the queue has groups."""
    for body in bodies:
        group = body.decode() if queue.settings.fifo else None
        await broker.send(queue, [Publication(body=body, group=group, delay_seconds=delay_seconds)])


async def rows_of(database: Database, queue: Queue) -> dict[str, int]:
    """How many rows each table has of a queue, where there are any."""
    async with database.connection() as connection:
        counted = {
            table: await connection.fetchval(f"SELECT count(*) FROM bellringer.{table} WHERE queue = $1", queue.number)
            for table in TABLES_BY_QUEUE
        }
        for table in ("tallies", "tally_entries"):
            counted[table] = await connection.fetchval(
                f"SELECT count(*) FROM bellringer.{table} WHERE owner = $1", queue.id
            )
    return {table: number for table, number in counted.items() if number}


async def test_a_purge_removes_what_waits_what_is_delayed_and_what_is_held(
    broker: Broker, database: Database, either: Queue
) -> None:
    await publish(broker, either, b"finished", b"held", b"returned", b"extended")
    messages = await broker.claim(either, 10)
    await broker.acknowledge(either, messages[0].receipt_handle)
    await broker.release(either, [messages[2].receipt_handle], [0.0])
    await broker.extend(either, [messages[3].receipt_handle], 60)
    await publish(broker, either, b"delayed", delay_seconds=60)
    await publish(broker, either, b"pending")
    group = "'g'" if either.settings.fifo else "NULL"
    async with database.connection() as connection:
        await connection.execute(f"SELECT bellringer.publish('either', 'in the inbox', message_group => {group})")

    assert await broker.purge_queue(either) == 5
    await move_inbox(database, broker)
    counts = await counts_of(broker, either)
    assert (counts.pending, counts.delayed, counts.in_flight) == (0, 0, 0)
    assert (counts.published, counts.deleted, counts.purged) == (6, 1, 5)
    assert await broker.claim(either, 10) == []
    assert await broker.purge_queue(either) == 0

    handles = [message.receipt_handle for message in messages]
    assert await broker.acknowledge_each(either, handles) == [True, True, False, True]
    assert await broker.extend(either, handles, 60) == 0
    await broker.release(either, handles, [0.0] * 4)
    with pytest.raises(ReceiptNotHeld):
        async with database.transaction() as connection:
            await broker.complete(connection, either, [message_with(handles[1])])
    await sweep_all(database, broker)
    assert await counts_of(broker, either) == counts

    await publish(broker, either, b"new")
    assert bodies_of(await broker.claim(either, 10)) == [b"new"]


async def test_a_purge_leaves_to_a_transaction_what_it_is_just_completing(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await publish(broker, queue, b"completed", b"pending")
    held = await broker.claim(queue, 1)
    async with database.transaction() as connection:
        await broker.complete(connection, queue, held)
        assert await broker.purge_queue(queue) == 1
    counts = await counts_of(broker, queue)
    assert (counts.in_flight, counts.deleted, counts.purged) == (0, 1, 1)


async def test_a_purge_and_a_round_of_the_inbox_do_not_stop_each_other(
    broker: Broker, database: Database, queue: Queue
) -> None:
    async with database.connection() as observer:
        await observer.execute("SELECT bellringer.publish('orders', 'a')")
        async with database.transaction() as connection:
            await connection.execute("SELECT bellringer.lock_order($1)", queue.number)
            purging = asyncio.create_task(broker.purge_queue(queue))
            await until_sessions_wait(observer)
            moving = asyncio.create_task(InboxMover(database, broker).run_once())
            await asyncio.wait([moving], timeout=0.2)  # if it took the row, it waits for the order now
    await asyncio.gather(moving, purging)
    assert (await counts_of(broker, queue)).pending == 0


async def test_what_nobody_finished_in_its_retention_expires_and_the_queue_counts_on(
    broker: Broker, database: Database, either: Queue
) -> None:
    await publish(broker, either, b"finished", b"returned")
    done, returned = await broker.claim(either, 2)
    await broker.acknowledge(either, done.receipt_handle)
    await broker.release(either, [returned.receipt_handle], [0.0])
    await publish(broker, either, b"delayed", delay_seconds=60)
    await publish(broker, either, b"pending")
    await make_older(database, either, WEEK + 1)
    collector = Collector(database, broker)
    await collector.run_once()
    counts = await counts_of(broker, either)
    assert (counts.pending, counts.delayed, counts.in_flight) == (0, 0, 0)
    assert (counts.published, counts.deleted, counts.expired) == (4, 1, 3)
    left = await rows_of(database, either)
    assert not left.keys() & {"chunks", "tracked", "tracked_outcomes"}
    assert left["claims"] == 1  # it tells where the next one begins
    for round_ in range(2):
        await publish(broker, either, b"new")
        (message,) = await broker.claim(either, 10)
        assert (message.id, message.body) == (5 + round_, b"new")
        await broker.acknowledge(either, message.receipt_handle)
        await make_older(database, either, WEEK + 1)
        await collector.run_once()
        assert not (await rows_of(database, either)).keys() & {"chunks", "tracked", "tracked_outcomes"}
    counts = await counts_of(broker, either)
    assert (counts.published, counts.deleted, counts.expired) == (6, 3, 3)


async def test_what_is_held_stays_until_it_is_finished_and_holds_up_nothing_else(
    broker: Broker, database: Database, either: Queue
) -> None:
    await publish(broker, either, b"before", b"held", b"after")
    before, held = await broker.claim(either, 2)
    await broker.acknowledge(either, before.receipt_handle)
    await broker.extend(either, [held.receipt_handle], 600)
    await make_older(database, either, WEEK + 1)
    collector = Collector(database, broker)
    for _ in range(2):
        await collector.run_once()
        counts = await counts_of(broker, either)
        assert (counts.in_flight, counts.pending, counts.expired) == (1, 0, 1)
    await broker.acknowledge(either, held.receipt_handle)
    await collector.run_once()
    counts = await counts_of(broker, either)
    assert (counts.in_flight, counts.pending, counts.deleted, counts.expired) == (0, 0, 2, 1)


async def test_what_is_younger_than_its_retention_stays(broker: Broker, database: Database, either: Queue) -> None:
    await publish(broker, either, b"old")
    await make_older(database, either, WEEK + 1)
    await publish(broker, either, b"young")
    await make_older(database, either, WEEK - 60)
    await Collector(database, broker).run_once()
    assert bodies_of(await broker.claim(either, 10)) == [b"young"]
    counts = await counts_of(broker, either)
    assert (counts.published, counts.in_flight, counts.expired) == (2, 1, 1)


async def test_a_claim_hands_out_nothing_that_is_past_its_retention(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await let_expire(broker, queue)
    await send(broker, queue, b"old", b"older")
    await make_older(database, queue, WEEK + 1)
    await send(broker, queue, b"young")
    (message,) = await broker.claim(queue, 10)
    assert message.body == b"young"
    assert (await counts_of(broker, queue)).expired == 2
    await broker.acknowledge(queue, message.receipt_handle)
    counts = await counts_of(broker, queue)
    assert (counts.published, counts.deleted, counts.expired, counts.in_flight) == (3, 1, 2, 0)


async def test_the_group_goes_on_when_its_first_message_expires(
    broker: Broker, database: Database, fifo: Queue
) -> None:
    await let_expire(broker, fifo)
    await send(broker, fifo, b"old", group="g", delay_seconds=60)
    await make_older(database, fifo, WEEK + 1)
    await send(broker, fifo, b"young", group="g")
    assert await broker.claim(fifo, 10) == []
    await Collector(database, broker).run_once()
    assert bodies_of(await broker.claim(fifo, 10)) == [b"young"]


async def test_collecting_goes_on_batch_by_batch_to_the_end(
    broker: Broker, database: Database, either: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_COLLECT_BATCH", 4)
    await publish(broker, either, *(str(number).encode() for number in range(10)))
    held = await broker.claim(either, 3)
    await broker.acknowledge_each(either, [held[0].receipt_handle, held[2].receipt_handle])
    await make_older(database, either, WEEK + 1)
    await Collector(database, broker).run_once()
    counts = await counts_of(broker, either)
    assert (counts.pending, counts.in_flight, counts.deleted, counts.expired) == (0, 1, 2, 7)
    assert list((await unfinished(database, either)).values()) == [b"1"]
    assert (await rows_of(database, either))["chunks"] <= 3  # those of the claim that is open


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
async def test_what_is_not_finished_stays_unless_messages_of_the_queue_expire(
    broker: Broker, database: Database, environment: Environment, *, fifo: bool
) -> None:
    queue = await broker.create_queue(environment.id, "patient", QueueSettings(fifo=fifo))
    await publish(broker, queue, b"finished", b"returned")
    done, returned = await broker.claim(queue, 2)
    await broker.acknowledge(queue, done.receipt_handle)
    await broker.release(queue, [returned.receipt_handle], [0.0])
    await publish(broker, queue, b"delayed", delay_seconds=60)
    await publish(broker, queue, b"pending")
    await make_older(database, queue, 10 * WEEK)
    await Collector(database, broker).run_once()
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.delayed, counts.deleted, counts.expired) == (2, 1, 1, 0)
    with pytest.raises(NotFound):
        await broker.history(queue, done.id)
    assert bodies_of(await broker.claim(queue, 10)) == [b"returned", b"pending"]


async def test_one_process_collects_and_another_takes_over_when_it_is_gone(
    broker: Broker, second_process: Broker, database: Database, queue: Queue
) -> None:
    first, second = Collector(database, broker), Collector(database, second_process)
    await let_expire(broker, queue)
    await first.run_once()
    await send(broker, queue, b"a")
    await make_older(database, queue, WEEK + 1)
    await second.run_once()
    assert (await counts_of(broker, queue)).pending == 1
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.leases SET expires_at = now() - interval '1 s'")
    await second.run_once()
    assert (await counts_of(broker, queue)).pending == 0
    await send(broker, queue, b"b")
    await make_older(database, queue, WEEK + 1)
    await first.run_once()
    assert (await counts_of(broker, queue)).pending == 1


async def test_a_deleted_queue_leaves_nothing_behind(
    broker: Broker, database: Database, either: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_COLLECT_BATCH", 3)
    await publish(broker, either, *(str(number).encode() for number in range(8)))
    messages = await broker.claim(either, 6)
    await broker.acknowledge_each(either, [message.receipt_handle for message in messages[:2]])
    await broker.release(either, [message.receipt_handle for message in messages[2:4]], [0.0, 60.0])
    group = "g" if either.settings.fifo else None
    await send(broker, either, b"x", deduplication_id="d", group=group)
    await TallyFolder(database).run_once()
    async with database.connection() as connection:
        await connection.execute("SELECT bellringer.publish('either', 'x', message_group => $1)", group)
    await broker.delete_queue(either)
    collector = Collector(database, broker)
    rounds = 0
    while await collector.run_once():
        rounds += 1
    assert rounds > 1
    assert await rows_of(database, either) == {}
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM bellringer.deleted_queues") == 0
