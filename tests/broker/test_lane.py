"""What the queues of one process share, and what they do not."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queues import bodies_of, move_inbox, send

from bellringer.broker import Broker, BrokerConfig, Publication, Queue
from bellringer.edge.model import Environment
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, Overloaded, TooLarge


async def test_a_queue_that_is_full_leaves_room_for_the_others(database: Database, environment: Environment) -> None:
    broker = Broker(database, BrokerConfig(batcher=BatcherConfig(max_waiting_items=10, max_batch_items=1)))
    busy = await broker.ensure_queue(environment.id, "busy")
    quiet = await broker.ensure_queue(environment.id, "quiet")
    async with database.transaction() as connection:
        # Holds the order of the busy queue, so what is sent to it waits.
        await broker.publish(connection, busy, [b"first"])
        flood = [asyncio.create_task(send(broker, busy, b"x")) for _ in range(20)]
        await send(broker, quiet, b"a")
        assert bodies_of(await broker.claim(quiet, 1)) == [b"a"]
    answers = await asyncio.gather(*flood, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert 0 < len(refused) < 20
    assert [answer for answer in answers if isinstance(answer, BaseException)] == refused
    await broker.drain()


async def test_attributes_that_are_no_json_fail_alone(broker: Broker, queue: Queue) -> None:
    wrong = Publication(body=b"wrong", attributes={"set": {1, 2}.__iter__()})
    lone_surrogate = Publication(body=b"wrong", attributes={"text": "\ud800"})
    answers = await asyncio.gather(
        send(broker, queue, b"a"),
        broker.send(queue, [wrong]),
        broker.send(queue, [lone_surrogate]),
        send(broker, queue, b"b"),
        return_exceptions=True,
    )
    for answer in answers[1:3]:
        assert isinstance(answer, InvalidInput)
        assert answer.field == "attributes"
    assert bodies_of(await broker.claim(queue, 10)) == [b"a", b"b"]


async def test_attributes_have_a_limit_of_their_own(broker: Broker, queue: Queue) -> None:
    with pytest.raises(TooLarge) as refused:
        await broker.send(queue, [Publication(body=b"a", attributes={"text": "x" * (512 * 1024)})])
    assert refused.value.field == "attributes"
    assert await broker.claim(queue, 1) == []


async def test_sql_and_direct_publishes_of_a_group_keep_the_order_of_their_commits(
    broker: Broker, database: Database, fifo: Queue
) -> None:
    async with database.connection() as connection:
        await connection.execute("SELECT bellringer.publish('orders.fifo', 'first', message_group => 'g')")
    await send(broker, fifo, b"second", group="g")
    async with database.connection() as connection:
        await connection.execute("SELECT bellringer.publish('orders.fifo', 'third', message_group => 'g')")
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(fifo, 10)) == [b"first", b"second", b"third"]


async def test_a_message_cannot_be_handed_back_for_longer_than_a_hold_lasts(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    for seconds in (-1.0, 43_201.0, float("nan")):
        with pytest.raises(InvalidInput) as refused:
            await broker.release(queue, [message.receipt_handle], [seconds])
        assert refused.value.field == "delay_seconds"
