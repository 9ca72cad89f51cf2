from __future__ import annotations

import asyncio

import pytest

from bellringer.broker import Broker, BrokerConfig, Publication, Queue, loops
from bellringer.broker.loops import Purger, Sweeper
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database


@pytest.fixture
async def brief(broker: Broker, environment: Environment) -> Queue:
    """A queue that keeps no deleted message."""
    return await broker.configure_queue(environment.id, "brief", visibility_timeout_seconds=60, retention_seconds=0)


async def send(broker: Broker, queue: Queue, number: int, *, delay_seconds: float = 0.0) -> None:
    await broker.send(queue, [Publication(body=b"x", delay_seconds=delay_seconds)] * number)


async def make_due(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.messages SET due_at = now() - interval '1 s' WHERE due_at > now()")


async def delete_all(broker: Broker, queue: Queue) -> None:
    messages = await broker.claim(queue, 1000)
    await asyncio.gather(*(broker.acknowledge(queue, message.receipt_handle) for message in messages))


async def test_a_sweep_returns_holds_and_delays_that_are_over(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, 2)
    await broker.claim(queue, 1)
    await send(broker, queue, 3, delay_seconds=60)
    sweeper = Sweeper(database, broker)
    assert await sweeper.run_once() is False
    counts = (await broker.counts([queue]))[queue.id]
    assert (counts.pending, counts.in_flight, counts.delayed) == (1, 1, 3)
    await make_due(database)
    assert await sweeper.run_once() is False
    counts = (await broker.counts([queue]))[queue.id]
    assert (counts.pending, counts.in_flight, counts.delayed) == (5, 0, 0)


async def test_a_sweep_says_when_there_may_be_more(
    broker: Broker, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_SWEEP_BATCH", 3)
    await send(broker, queue, 7, delay_seconds=60)
    await make_due(database)
    sweeper = Sweeper(database, broker)
    assert [await sweeper.run_once() for _ in range(4)] == [True, True, False, False]
    assert (await broker.counts([queue]))[queue.id].pending == 7


async def test_sweepers_of_several_processes_return_each_message_once(
    broker: Broker, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_SWEEP_BATCH", 10)
    await send(broker, queue, 200)
    await broker.claim(queue, 200)
    await make_due(database)

    async def sweep() -> None:
        sweeper = Sweeper(database, Broker(database))
        while await sweeper.run_once():
            pass

    await asyncio.gather(*(sweep() for _ in range(4)))
    await sweep()
    counts = (await broker.counts([queue]))[queue.id]
    assert (counts.pending, counts.in_flight) == (200, 0)
    assert len(await broker.claim(queue, 1000)) == 200


async def test_a_purge_removes_what_is_past_its_retention_batch_by_batch(
    broker: Broker, database: Database, brief: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_PURGE_BATCH", 4)
    await send(broker, brief, 10)
    await delete_all(broker, brief)
    await send(broker, brief, 1)
    purger = Purger(database, broker)
    assert [await purger.run_once() for _ in range(4)] == [True, True, False, False]
    counts = (await broker.counts([brief]))[brief.id]
    assert (counts.pending, counts.deleted) == (1, 0)


async def test_one_process_purges_and_another_takes_over_when_it_is_gone(
    broker: Broker, database: Database, brief: Queue
) -> None:
    first, second = Purger(database, broker), Purger(database, Broker(database, BrokerConfig()))
    await first.run_once()
    await send(broker, brief, 5)
    await delete_all(broker, brief)
    await second.run_once()
    assert (await broker.counts([brief]))[brief.id].deleted == 5
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.leases SET expires_at = now() - interval '1 s'")
    await second.run_once()
    assert (await broker.counts([brief]))[brief.id].deleted == 0
    await send(broker, brief, 5)
    await delete_all(broker, brief)
    await first.run_once()
    assert (await broker.counts([brief]))[brief.id].deleted == 5
