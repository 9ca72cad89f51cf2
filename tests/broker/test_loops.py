"""The rounds of the sweeper and of the mover of messages; those of the inbox and the collector are tested with them."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queues import counts_of, make_due, send

from bellringer.broker import Broker, Queue, loops
from bellringer.broker.loops import Sweeper
from bellringer.kernel.database import Database


async def test_a_sweep_returns_holds_and_delays_that_are_over(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, b"a", b"b")
    await broker.claim(queue, 1)
    await send(broker, queue, b"c", b"d", b"e", delay_seconds=60)
    sweeper = Sweeper(database, broker)
    assert await sweeper.run_once() is False
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.in_flight, counts.delayed) == (1, 1, 3)
    await make_due(database)
    assert await sweeper.run_once() is False
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.in_flight, counts.delayed, counts.redelivered) == (5, 0, 0, 1)


async def test_a_sweep_says_when_there_may_be_more(
    broker: Broker, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_SWEEP_BATCH", 3)
    await send(broker, queue, *(b"x" for _ in range(7)), delay_seconds=60)
    await make_due(database)
    sweeper = Sweeper(database, broker)
    assert [await sweeper.run_once() for _ in range(4)] == [True, True, False, False]
    assert (await counts_of(broker, queue)).pending == 7


@pytest.mark.parametrize("how", ["holds", "returned holds", "delays", "groups"])
async def test_sweepers_of_several_processes_return_each_message_once(
    broker: Broker, database: Database, queue: Queue, fifo: Queue, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(loops, "_SWEEP_BATCH", 10)
    swept = fifo if how == "groups" else queue
    for number in range(100):
        group = str(number) if how == "groups" else None
        await send(broker, swept, b"x", group=group, delay_seconds=60 if how == "delays" else 0)
    if how != "delays":
        for _ in range(10):
            messages = await broker.claim(swept, 10)
            if how == "returned holds":
                await broker.extend(swept, [message.receipt_handle for message in messages[:9]], 60)
    await make_due(database)

    async def sweep() -> None:
        sweeper = Sweeper(database, Broker(database))
        while await sweeper.run_once():
            pass

    await asyncio.gather(*(sweep() for _ in range(4)))
    await sweep()
    counts = await counts_of(broker, swept)
    assert (counts.pending, counts.in_flight, counts.delayed) == (100, 0, 0)
    assert counts.redelivered == (0 if how == "delays" else 100)
