"""Claims ahead of their callers: faster for all, and nobody's loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.queues import bodies_of, counts_of, make_due, send
from tests.support.waiting import until

from bellringer.broker import Broker, BrokerConfig, Message, Queue, claimer
from bellringer.broker.loops import Sweeper
from bellringer.kernel.database import Database


@pytest.fixture
async def eager(database: Database) -> AsyncIterator[Broker]:
    """A broker that takes what it hands out for a good pace however slow the machine is."""
    broker = Broker(database, BrokerConfig(ahead_seconds=1.0))
    yield broker
    await broker.drain()


async def claim_singly(broker: Broker, queue: Queue, number: int) -> list[Message]:
    return [message for _ in range(number) for message in await broker.claim(queue, 1)]


async def claims_made(database: Database) -> int:
    async with database.connection() as connection:
        number: int = await connection.fetchval("SELECT count(*) FROM bellringer.claims")
    return number


def is_held_ahead(broker: Broker, queue: Queue) -> bool:
    return bool(broker._lanes[queue.number].claimer._ahead)  # noqa: SLF001 - nobody outside is to know


async def test_who_asks_for_one_at_a_time_shares_claims_and_gets_all_in_order(
    eager: Broker, database: Database, queue: Queue
) -> None:
    bodies = [str(number).encode() for number in range(100)]
    await send(eager, queue, *bodies)
    messages = await claim_singly(eager, queue, 100)
    assert bodies_of(messages) == bodies
    assert {message.attempts for message in messages} == {1}
    assert await claims_made(database) < 40
    assert await eager.acknowledge_each(queue, [message.receipt_handle for message in messages]) == [True] * 100
    counts = await counts_of(eager, queue)
    assert (counts.pending, counts.in_flight, counts.deleted, counts.redelivered) == (0, 0, 100, 0)


async def test_what_is_handed_out_from_ahead_is_held_for_its_full_time(
    eager: Broker, database: Database, queue: Queue
) -> None:
    await send(eager, queue, *(b"x" for _ in range(60)))
    await claim_singly(eager, queue, 30)
    assert is_held_ahead(eager, queue)
    async with database.connection() as connection:
        before = await connection.fetchval("SELECT clock_timestamp()")
        await eager.claim(queue, 1)
        expires_at = await connection.fetchval(
            "SELECT expires_at FROM bellringer.claims ORDER BY first_seq DESC LIMIT 1"
        )
    assert (expires_at - before).total_seconds() >= queue.visibility_timeout_seconds


async def test_what_nobody_asked_for_in_time_goes_back_uncounted_and_is_never_handed_out(
    eager: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "_LONGEST_AHEAD_SECONDS", 0.2)
    await send(eager, queue, *(b"x" for _ in range(60)))
    taken = await claim_singly(eager, queue, 30)
    assert is_held_ahead(eager, queue)

    async def all_is_back() -> bool:
        counts = await counts_of(eager, queue)
        return counts.pending == 30

    await until(all_is_back)
    counts = await counts_of(eager, queue)
    assert (counts.in_flight, counts.redelivered) == (30, 0)
    rest = await claim_singly(eager, queue, 30)
    assert {message.attempts for message in rest} == {1}
    assert sorted(message.id for message in [*taken, *rest]) == list(range(1, 61))


async def test_a_message_ahead_whose_time_is_over_is_not_handed_out(
    eager: Broker, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(eager, queue, *(b"x" for _ in range(60)))
    taken = await claim_singly(eager, queue, 30)
    assert is_held_ahead(eager, queue)
    own = eager._lanes[queue.number].claimer  # noqa: SLF001 - as if a second had passed in which the loop did not run
    own._ahead = type(own._ahead)((message, 0.0) for message, _ in own._ahead)  # noqa: SLF001
    monkeypatch.setattr(own, "_watch_ahead", lambda: None)
    await make_due(database)
    await Sweeper(database, eager).run_once()  # everything is another's to claim
    again = await eager.claim(queue, 60)
    assert [message.id for message in again] == list(range(1, 61))
    assert {message.attempts for message in again[:30]} == {2}
    assert len({message.receipt_handle for message in [*taken, *again]}) == 90
    assert await eager.acknowledge_each(queue, [message.receipt_handle for message in again]) == [True] * 60


async def test_another_visibility_timeout_gets_none_of_what_is_held_ahead_for_the_first(
    eager: Broker, database: Database, queue: Queue
) -> None:
    await send(eager, queue, *(b"x" for _ in range(60)))
    await claim_singly(eager, queue, 30)
    assert is_held_ahead(eager, queue)
    seconds = queue.visibility_timeout_seconds + 1000
    found = await until(lambda: eager.claim(queue, 60, visibility_timeout_seconds=seconds))
    async with database.connection() as connection:
        ends = await connection.fetch(
            "SELECT expires_at - claimed_at AS held FROM bellringer.claims ORDER BY first_seq DESC LIMIT 1"
        )
    assert found
    assert ends[0]["held"].total_seconds() >= seconds


async def test_draining_pausing_and_purging_give_back_what_is_ahead(
    eager: Broker, second_process: Broker, queue: Queue
) -> None:
    await send(eager, queue, *(b"x" for _ in range(60)))
    await claim_singly(eager, queue, 30)
    assert is_held_ahead(eager, queue)
    await eager.pause_queue(queue)
    counts = await counts_of(eager, queue)
    assert (counts.pending, counts.in_flight) == (30, 30)
    await eager.resume_queue(queue)
    await claim_singly(eager, queue, 1)
    await eager.drain()
    counts = await counts_of(eager, queue)
    assert (counts.pending, counts.in_flight) == (29, 31)
    assert {message.attempts for message in await second_process.claim(queue, 60)} == {1}


async def test_a_fifo_queue_is_claimed_for_those_alone_who_ask(eager: Broker, fifo: Queue) -> None:
    for number in range(30):
        await send(eager, fifo, str(number).encode(), group=str(number))
    await claim_singly(eager, fifo, 20)
    assert (await counts_of(eager, fifo)).in_flight == 20


async def test_callers_that_go_away_while_others_stay_take_nothing_from_them(eager: Broker, queue: Queue) -> None:
    for _ in range(10):
        await send(eager, queue, *(b"x" for _ in range(20)))
        callers = [asyncio.create_task(eager.claim(queue, 1)) for _ in range(20)]
        for place, caller in enumerate(callers):
            if place % 2:
                await asyncio.sleep(0)
                caller.cancel()
        await asyncio.wait(callers)
        taken = [message for caller in callers if not caller.cancelled() for message in caller.result()]
        while len(taken) < 20:
            taken += await until(lambda: eager.claim(queue, 20))
        assert {message.attempts for message in taken} == {1}
        assert len({message.id for message in taken}) == 20
        await eager.acknowledge_each(queue, [message.receipt_handle for message in taken])
    counts = await counts_of(eager, queue)
    assert (counts.deleted, counts.redelivered) == (200, 0)
