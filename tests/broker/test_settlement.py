"""What becomes of claimed messages: finished, held on, handed back, swept; each by its own attempt only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.queues import bodies_of, counts_of, make_due, message_with, send, sweep_all

from bellringer.broker import Broker, BrokerConfig, Message, Queue, ReceiptNotHeld
from bellringer.broker.loops import Sweeper
from bellringer.broker.model import ReceiptHandle
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput


async def claimed(broker: Broker, queue: Queue, number: int = 4) -> list[Message]:
    """Messages 0, 1, 2, ... held by one claim."""
    await send(broker, queue, *(str(index).encode() for index in range(number)))
    return await broker.claim(queue, number)


def handles_of(messages: Sequence[Message]) -> list[ReceiptHandle]:
    return [message.receipt_handle for message in messages]


async def numbers(broker: Broker, queue: Queue) -> tuple[int, int, int, int]:
    """Pending, delayed, in flight, deleted."""
    counts = await counts_of(broker, queue)
    return counts.pending, counts.delayed, counts.in_flight, counts.deleted


async def test_a_part_of_a_claim_is_finished_and_the_rest_is_held(
    broker: Broker, database: Database, queue: Queue
) -> None:
    messages = await claimed(broker, queue)
    assert await broker.acknowledge_each(queue, handles_of(messages[1:3])) == [True, True]
    assert await numbers(broker, queue) == (0, 0, 2, 2)
    await sweep_all(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"3"]


async def test_finishing_again_is_no_error_and_counts_once(broker: Broker, database: Database, queue: Queue) -> None:
    messages = await claimed(broker, queue)
    for part in (messages[:2], messages[:3], messages, messages):
        assert await broker.acknowledge_each(queue, handles_of([*part, *part])) == [True] * 2 * len(part)
    assert await numbers(broker, queue) == (0, 0, 0, 4)
    await sweep_all(database, broker)
    assert await broker.claim(queue, 10) == []


async def test_finishing_by_many_at_once_counts_once(broker: Broker, second_process: Broker, queue: Queue) -> None:
    messages = await claimed(broker, queue, 100)
    handles = handles_of(messages)
    parts = [handles[start : start + 40] for start in range(0, 100, 20)]
    answers = await asyncio.gather(
        *(process.acknowledge_each(queue, part) for process in (broker, second_process) for part in parts)
    )
    assert all(all(answer) for answer in answers)
    assert await numbers(broker, queue) == (0, 0, 0, 100)


async def test_one_message_of_a_claim_is_held_on_alone(broker: Broker, database: Database, queue: Queue) -> None:
    messages = await claimed(broker, queue)
    await make_due(database)
    assert await broker.extend(queue, [messages[1].receipt_handle], 600) == 1
    await Sweeper(database, broker).run_once()
    assert await numbers(broker, queue) == (3, 0, 1, 0)
    assert await broker.acknowledge_each(queue, handles_of(messages)) == [False, True, False, False]
    assert await numbers(broker, queue) == (3, 0, 0, 1)
    assert await broker.acknowledge_each(queue, handles_of(messages)) == [False, True, False, False]


async def test_a_whole_claim_is_held_on_with_one_row(broker: Broker, database: Database, queue: Queue) -> None:
    messages = await claimed(broker, queue)
    await make_due(database)
    assert await broker.extend(queue, handles_of(messages), 600) == 4
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM bellringer.tracked") == 0
    await Sweeper(database, broker).run_once()
    assert await numbers(broker, queue) == (0, 0, 4, 0)
    await broker.acknowledge(queue, messages[0].receipt_handle)
    await make_due(database)
    assert await broker.extend(queue, handles_of(messages), 600) == 3  # all that is left of it
    await Sweeper(database, broker).run_once()
    assert await broker.acknowledge_each(queue, handles_of(messages)) == [True] * 4
    assert await numbers(broker, queue) == (0, 0, 0, 4)


async def test_a_hold_that_was_extended_is_extended_handed_back_and_completed_as_any_other(
    broker: Broker, database: Database, queue: Queue
) -> None:
    messages = await claimed(broker, queue)
    for _ in range(2):
        assert await broker.extend(queue, handles_of(messages[:3]), 600) == 3
    await make_due(database)
    assert await broker.extend(queue, handles_of(messages[:2]), 600) == 2
    await Sweeper(database, broker).run_once()
    assert await numbers(broker, queue) == (2, 0, 2, 0)
    await broker.release(queue, [messages[0].receipt_handle], [0.0])
    async with database.transaction() as connection:
        await broker.complete(connection, queue, [messages[1]])
    again = await broker.claim(queue, 10)
    assert [(message.body, message.attempts) for message in again] == [(b"0", 2), (b"2", 2), (b"3", 2)]
    assert {message.first_claimed_at for message in again} == {messages[0].first_claimed_at}


async def test_messages_are_handed_back_each_after_its_own_delay(
    broker: Broker, database: Database, queue: Queue
) -> None:
    messages = await claimed(broker, queue)
    await broker.release(queue, handles_of(messages[:3]), [0.0, 60.0, 30.0])
    assert await numbers(broker, queue) == (1, 2, 1, 0)
    assert (await counts_of(broker, queue)).redelivered == 3
    assert bodies_of(await broker.claim(queue, 10)) == [b"0"]
    async with database.connection() as connection:
        rows = await connection.fetch(
            "SELECT due_at - clock_timestamp() AS pause FROM bellringer.tracked WHERE state = 'delayed' ORDER BY seq"
        )
    assert [row["pause"].total_seconds() for row in rows] == pytest.approx([60, 30], abs=10)
    await sweep_all(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"1", b"2", b"3"]


async def test_what_came_back_is_handed_out_before_what_is_new(broker: Broker, queue: Queue) -> None:
    messages = await claimed(broker, queue, 2)
    await send(broker, queue, b"new")
    await broker.release(queue, handles_of(messages), [0.0, 0.0])
    assert bodies_of(await broker.claim(queue, 1)) == [b"0"]
    assert bodies_of(await broker.claim(queue, 2)) == [b"1", b"new"]


async def test_a_visibility_of_zero_hands_back_and_any_other_holds_on(
    broker: Broker, database: Database, queue: Queue
) -> None:
    messages = await claimed(broker, queue)
    await make_due(database)
    changes = list(zip(handles_of(messages), [0, 600, 0.5, 0], strict=True))
    assert await broker.change_visibility(queue, changes) == [True] * 4
    await Sweeper(database, broker).run_once()
    assert await numbers(broker, queue) == (2, 0, 2, 0)
    assert await broker.change_visibility(queue, changes) == [False, True, True, False]


@pytest.mark.parametrize("seconds", [-1, 12 * 3600 + 1, float("nan")])
async def test_a_time_out_of_range_changes_no_hold(broker: Broker, queue: Queue, seconds: float) -> None:
    one, other = await claimed(broker, queue, 2)
    with pytest.raises(InvalidInput) as refused:
        await broker.change_visibility(queue, [(one.receipt_handle, 0), (other.receipt_handle, seconds)])
    assert refused.value.field == "visibility_timeout"
    with pytest.raises(InvalidInput):
        await broker.extend(queue, [one.receipt_handle], seconds)
    assert (await counts_of(broker, queue)).in_flight == 2


@pytest.mark.parametrize("how", ["swept", "released", "extended and swept", "extended and released"])
async def test_a_stale_handle_never_works(broker: Broker, database: Database, queue: Queue, how: str) -> None:
    stale: list[ReceiptHandle] = []
    (message,) = await claimed(broker, queue, 1)
    for attempt in (2, 3, 4):
        if "extended" in how:
            await broker.extend(queue, [message.receipt_handle], 600)
        if "released" in how:
            await broker.release(queue, [message.receipt_handle], [0.0])
        else:
            await sweep_all(database, broker)
        stale.append(message.receipt_handle)
        for is_claimed in (False, True):
            if is_claimed:
                (message,) = await broker.claim(queue, 1)
                assert message.attempts == attempt
            assert await broker.acknowledge_each(queue, stale) == [False] * len(stale)
            assert await broker.change_visibility(queue, [(handle, 600) for handle in stale]) == [False] * len(stale)
            await broker.release(queue, stale, [0.0] * len(stale))
            with pytest.raises(ReceiptNotHeld):
                async with database.transaction() as connection:
                    await broker.complete(connection, queue, [message_with(stale[-1])])
            assert await numbers(broker, queue) == ((0, 0, 1, 0) if is_claimed else (1, 0, 0, 0))
    assert await broker.acknowledge_each(queue, [*stale, message.receipt_handle]) == [False] * 3 + [True]
    assert await broker.acknowledge_each(queue, [*stale, message.receipt_handle]) == [False] * 3 + [True]


async def test_a_message_is_finished_or_returned_by_whoever_comes_first(
    broker: Broker, second_process: Broker, database: Database, queue: Queue
) -> None:
    for _ in range(10):
        messages = await claimed(broker, queue, 20)
        await make_due(database)
        answers, *_ = await asyncio.gather(
            broker.acknowledge_each(queue, handles_of(messages[::2])),
            Sweeper(database, second_process).run_once(),
            second_process.release(queue, handles_of(messages[1::2]), [0.0] * 10),
        )
        again = await broker.claim(queue, 100)
        assert len(again) + sum(answers) == 20
        assert all(await broker.acknowledge_each(queue, handles_of(again)))
    assert await numbers(broker, queue) == (0, 0, 0, 200)


async def test_a_sweep_ends_what_others_leave_to_it_while_one_message_is_being_completed(
    broker: Broker, database: Database, queue: Queue
) -> None:
    completing = await claimed(broker, queue, 1)
    await claimed(broker, queue, 2)
    await make_due(database)
    async with database.transaction() as connection:
        await broker.complete(connection, queue, completing)
        await Sweeper(database, broker).run_once()
        assert await numbers(broker, queue) == (2, 0, 1, 0)
    await Sweeper(database, broker).run_once()
    assert await numbers(broker, queue) == (2, 0, 0, 1)


async def test_a_completion_that_is_rolled_back_leaves_the_message_held(
    broker: Broker, database: Database, queue: Queue, fifo: Queue
) -> None:
    await send(broker, fifo, b"0", b"1", group="g")
    for held in (await claimed(broker, queue), await broker.claim(fifo, 2)):
        asked = queue if len(held) == 4 else fifo
        for number in (1, len(held)):
            async with database.connection() as connection:
                transaction = connection.transaction()
                await transaction.start()
                await broker.complete(connection, asked, held[:number])
                await transaction.rollback()
            assert await numbers(broker, asked) == (0, 0, len(held), 0)
        async with database.transaction() as connection:
            await broker.complete(connection, asked, held)
        assert await numbers(broker, asked) == (0, 0, 0, len(held))


async def test_attempts_that_nobody_saw_do_not_count(
    database: Database, environment_queues: tuple[Queue, Queue]
) -> None:
    """A claim that is cancelled after its commit gives back; what was tracked already keeps its attempts."""
    broker = Broker(database, BrokerConfig(ahead_seconds=0))
    for queue in environment_queues:
        fields = {"group": "g"} if queue.settings.fifo else {}
        await send(broker, queue, b"a", **fields)
        (seen,) = await broker.claim(queue, 1)
        await broker.release(queue, [seen.receipt_handle], [0.0])
        lane = await broker._lane(queue)  # noqa: SLF001 - the moment between commit and answer cannot be met else
        for _ in range(3):
            (unseen,) = await broker.claim(queue, 1)
            assert unseen.attempts == 2
            await lane.claimer._put_back([unseen])  # noqa: SLF001
        counts = await counts_of(broker, queue)
        assert (counts.pending, counts.redelivered, counts.dead_lettered) == (1, 1, 0)
    await broker.drain()


@pytest.fixture
async def environment_queues(queue: Queue, fifo: Queue) -> tuple[Queue, Queue]:
    return queue, fifo
