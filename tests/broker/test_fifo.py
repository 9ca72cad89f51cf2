"""FIFO queues: strict order within a group, whatever publishers and consumers do."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest
from tests.support.queues import bodies_of, counts_of, make_due, send, sweep_all
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import Broker, Publication, Queue
from bellringer.broker.loops import Sweeper
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput


async def test_a_message_needs_a_group(broker: Broker, fifo: Queue) -> None:
    for group in (None, "", "g" * 129, "\x00"):
        with pytest.raises(InvalidInput) as refused:
            await send(broker, fifo, b"a", group=group)
        assert refused.value.field == "group"
    assert (await counts_of(broker, fifo)).published == 0
    await send(broker, fifo, b"a", group="ü" * 128)
    assert [message.group for message in await broker.claim(fifo, 1)] == ["ü" * 128]


async def test_one_batch_of_a_group_is_in_flight_at_a_time(broker: Broker, second_process: Broker, fifo: Queue) -> None:
    await send(broker, fifo, b"0", b"1", b"2", b"3", group="g")
    first, second = await broker.claim(fifo, 2)
    assert bodies_of([first, second]) == [b"0", b"1"]
    assert await second_process.claim(fifo, 10) == []
    await broker.acknowledge(fifo, second.receipt_handle)
    assert await second_process.claim(fifo, 10) == []
    await broker.acknowledge(fifo, first.receipt_handle)
    assert bodies_of(await second_process.claim(fifo, 10)) == [b"2", b"3"]


async def test_callers_that_ask_together_share_no_group(broker: Broker, fifo: Queue) -> None:
    await send(broker, fifo, b"0", b"1", b"2", group="g")
    claims = await asyncio.gather(*(broker.claim(fifo, 1) for _ in range(3)))
    assert list(map(bodies_of, claims)) == [[b"0"], [], []]


async def test_groups_do_not_wait_for_each_other(broker: Broker, fifo: Queue) -> None:
    for number in range(3):
        for group in "abc":
            await send(broker, fifo, f"{group}{number}".encode(), group=group)
    (held,) = await broker.claim(fifo, 1)
    assert held.body == b"a0"
    others = bodies_of(await broker.claim(fifo, 10))
    assert others == [b"b0", b"c0", b"b1", b"c1", b"b2", b"c2"]


async def test_a_claim_takes_of_every_group_before_it_takes_more_of_one(broker: Broker, fifo: Queue) -> None:
    await send(broker, fifo, *(f"a{number}".encode() for number in range(10)), group="a")
    await send(broker, fifo, b"b0", group="b")
    assert bodies_of(await broker.claim(fifo, 2)) == [b"a0", b"b0"]


async def test_a_delayed_message_holds_up_its_group_and_no_other(
    broker: Broker, database: Database, fifo: Queue
) -> None:
    await broker.send(
        fifo,
        [
            Publication(body=b"a0", group="a"),
            Publication(body=b"a1", group="a", delay_seconds=60),
            Publication(body=b"a2", group="a"),
            Publication(body=b"b0", group="b", delay_seconds=60),
            Publication(body=b"b1", group="b"),
        ],
    )
    (head,) = await broker.claim(fifo, 10)
    assert head.body == b"a0"
    await broker.acknowledge(fifo, head.receipt_handle)
    assert await broker.claim(fifo, 10) == []
    counts = await counts_of(broker, fifo)
    assert (counts.pending, counts.delayed) == (2, 2)
    await sweep_all(database, broker)
    assert bodies_of(await broker.claim(fifo, 10)) == [b"a1", b"a2", b"b0", b"b1"]


async def test_what_comes_back_comes_before_the_rest_of_its_group(
    broker: Broker, database: Database, fifo: Queue
) -> None:
    await send(broker, fifo, b"0", b"1", b"2", group="g")
    failed, other = await broker.claim(fifo, 2)
    await broker.release(fifo, [failed.receipt_handle], [0.0])
    assert await broker.claim(fifo, 1) == []  # of the group, one is still held
    await broker.release(fifo, [other.receipt_handle], [60.0])
    assert bodies_of(await broker.claim(fifo, 10)) == [b"0"]
    await sweep_all(database, broker)
    messages = await broker.claim(fifo, 10)
    assert [(message.body, message.attempts) for message in messages] == [(b"0", 3), (b"1", 2), (b"2", 1)]


async def test_the_hold_of_a_group_is_extended_and_swept(broker: Broker, database: Database, fifo: Queue) -> None:
    await send(broker, fifo, b"0", b"1", group="g")
    (message,) = await broker.claim(fifo, 1)
    await make_due(database)
    assert await broker.extend(fifo, [message.receipt_handle], 600) == 1
    await Sweeper(database, broker).run_once()
    assert await broker.claim(fifo, 1) == []
    await sweep_all(database, broker)
    assert [(again.body, again.attempts) for again in await broker.claim(fifo, 1)] == [(b"0", 2)]


async def test_finishing_wakes_who_waits_for_the_next_of_the_group(broker: Broker, fifo: Queue) -> None:
    await send(broker, fifo, b"0", b"1", group="g")
    (message,) = await broker.claim(fifo, 1)
    waiting = asyncio.create_task(broker.claim(fifo, 1, wait_seconds=20))

    async def somebody_waits() -> bool:
        return bool(broker.wakeups.queues())

    await until(somebody_waits)
    await broker.acknowledge(fifo, message.receipt_handle)
    assert bodies_of(await asyncio.wait_for(waiting, PATIENCE_SECONDS / 2)) == [b"1"]


async def test_order_within_each_group_is_kept_under_many_publishers_and_consumers_and_through_returns(
    broker: Broker, second_process: Broker, database: Database, fifo: Queue
) -> None:
    numbers, groups = 25, "abcd"
    finished: defaultdict[str, list[int]] = defaultdict(list)
    chance = random.Random(1)

    async def publish(process: Broker, group: str) -> None:
        for number in range(numbers):
            await send(process, fifo, str(number).encode(), group=group)

    async def consume(process: Broker) -> None:
        while sum(map(len, finished.values())) < numbers * len(groups):
            messages = await process.claim(fifo, chance.randint(1, 5))
            in_time = True
            for message in messages:
                # A consumer that fails over one hands back all that come after it in the group.
                in_time = in_time and chance.random() < 0.8
                if in_time:
                    finished[str(message.group)].append(int(message.body))
                    await process.acknowledge(fifo, message.receipt_handle)
                else:
                    await process.release(fifo, [message.receipt_handle], [chance.choice([0.0, 0.001])])
            await Sweeper(database, process).run_once()

    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        await asyncio.gather(
            *(publish((broker, second_process)[place % 2], group) for place, group in enumerate(groups)),
            *(consume((broker, second_process)[place % 2]) for place in range(6)),
        )
    assert finished == {group: list(range(numbers)) for group in groups}
    counts = await counts_of(broker, fifo)
    assert (counts.pending, counts.delayed, counts.in_flight, counts.deleted) == (0, 0, 0, numbers * len(groups))
