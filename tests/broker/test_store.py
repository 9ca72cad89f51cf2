"""The broker's statements, one by one, and how they stand up to one another at the same moment."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.support.waiting import PATIENCE_SECONDS, until_sessions_wait

from bellringer.broker import Broker, Message, Queue, QueueCounts, store
from bellringer.broker.model import ReceiptHandle
from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database

HOUR = 3600.0
NEVER_DRAWN = ReceiptHandle(UUID(int=1))


@pytest.fixture
async def queue(broker: Broker, environment: Environment) -> Queue:
    return await broker.ensure_queue(environment.id, "orders")


@pytest.fixture
async def other(broker: Broker, environment: Environment) -> Queue:
    return await broker.ensure_queue(environment.id, "others")


async def publish(connection: Connection, queue: Queue, *bodies: bytes, delay_seconds: float = 0.0) -> list[int]:
    delays = [delay_seconds] * len(bodies)
    return list(map(int, await store.publish(connection, [queue.id] * len(bodies), bodies, delays)))


async def claim(connection: Connection, queue: Queue, limit: int = 100) -> list[Message]:
    return await store.claim(connection, queue.id, limit, None)


def handles_of(messages: list[Message]) -> list[ReceiptHandle]:
    return [message.receipt_handle for message in messages]


def bodies_of(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


async def row_of(connection: Connection, message_id: int) -> dict[str, Any]:
    row = await connection.fetchrow("SELECT * FROM bellringer.messages WHERE id = $1", message_id)
    assert row is not None
    return dict(row)


async def let_pass(connection: Connection, seconds: float) -> None:
    """Move every time of every message into the past: for the messages, this much time has gone by."""
    await connection.execute(
        """
        UPDATE bellringer.messages SET created_at = created_at - $1::interval, picked_at = picked_at - $1,
            due_at = due_at - $1, deleted_at = deleted_at - $1
        """,
        timedelta(seconds=seconds),
    )


async def counts_of(broker: Broker, queue: Queue) -> QueueCounts:
    return (await broker.counts([queue]))[queue.id]


async def test_ids_follow_the_order_of_the_call_across_queues(database: Database, queue: Queue, other: Queue) -> None:
    queue_ids = [(queue, other)[number % 3 == 0].id for number in range(300)]
    bodies = [str(number).encode() for number in range(300)]
    async with database.connection() as connection:
        ids = await store.publish(connection, queue_ids, bodies, [0.0] * 300)
        stored = await connection.fetch("SELECT id, queue_id, body FROM bellringer.messages ORDER BY id")
    assert [row["id"] for row in stored] == ids
    assert [(row["queue_id"], row["body"]) for row in stored] == list(zip(queue_ids, bodies, strict=True))


async def test_nothing_is_published_by_an_empty_call(database: Database, broker: Broker, queue: Queue) -> None:
    async with database.connection() as connection:
        assert await store.publish(connection, [], [], []) == []
    assert (await counts_of(broker, queue)).pending == 0


async def test_a_claim_takes_the_lowest_ids_of_its_own_queue(database: Database, queue: Queue, other: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, other, b"not mine")
        await publish(connection, queue, b"a", b"b", b"c")
        assert bodies_of(await claim(connection, queue, 2)) == [b"a", b"b"]
        assert bodies_of(await claim(connection, queue, 2)) == [b"c"]
        assert await claim(connection, queue, 2) == []


async def test_a_claim_passes_over_what_another_is_just_claiming(database: Database, queue: Queue) -> None:
    async with database.connection() as connection, database.transaction() as first, database.connection() as second:
        await publish(connection, queue, b"a", b"b", b"c", b"d")
        assert bodies_of(await claim(first, queue, 2)) == [b"a", b"b"]
        assert bodies_of(await claim(second, queue, 10)) == [b"c", b"d"]


async def test_a_claim_that_is_rolled_back_leaves_the_message_as_it_was(
    database: Database, broker: Broker, queue: Queue
) -> None:
    async with database.connection() as connection:
        (message_id,) = await publish(connection, queue, b"a")
        before = await row_of(connection, message_id)
        transaction = connection.transaction()
        await transaction.start()
        assert len(await claim(connection, queue)) == 1
        await transaction.rollback()
        assert await row_of(connection, message_id) == before
    assert (await counts_of(broker, queue)).pending == 1


@pytest.mark.parametrize(("asked_seconds", "held_seconds"), [(1.5, 1.5), (30.0, 30.0), (None, 600.0)])
async def test_a_hold_lasts_as_long_as_asked_for_or_as_the_queue_says(
    database: Database, queue: Queue, asked_seconds: float | None, held_seconds: float
) -> None:
    async with database.connection() as connection:
        (message_id,) = await publish(connection, queue, b"a")
        await store.claim(connection, queue.id, 1, asked_seconds)
        row = await row_of(connection, message_id)
    held: timedelta = row["due_at"] - row["picked_at"]
    assert held.total_seconds() == pytest.approx(held_seconds, abs=0.01)


async def test_a_deleted_message_stays_to_be_looked_at(database: Database, broker: Broker, queue: Queue) -> None:
    async with database.connection() as connection:
        (message_id,) = await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {
            (queue.id, message.receipt_handle): True
        }
        row = await row_of(connection, message_id)
        assert (row["state"], row["body"], row["due_at"]) == ("deleted", b"a", None)
        assert row["deleted_at"] >= row["picked_at"]
    assert (await counts_of(broker, queue)).deleted == 1


async def test_deleting_again_is_told_from_deleting(database: Database, broker: Broker, queue: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        key = (queue.id, message.receipt_handle)
        assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {key: True}
        assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {key: False}
    assert (await counts_of(broker, queue)).deleted == 1


async def test_a_deletion_that_waits_for_the_same_deletion_has_deleted_too(database: Database, queue: Queue) -> None:
    async with database.connection() as connection, database.connection() as other:
        await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        key = (queue.id, message.receipt_handle)
        async with connection.transaction():
            assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {key: True}
            deleting = asyncio.create_task(store.delete(other, [queue.id], [message.receipt_handle]))
            await until_sessions_wait(connection)
        assert await deleting == {key: False}


async def test_calls_with_the_same_handles_in_another_order_never_block_one_another(
    database: Database, queue: Queue
) -> None:
    for _ in range(5):
        async with database.connection() as connection:
            await publish(connection, queue, *(b"x" for _ in range(300)))
            handles = handles_of(await claim(connection, queue, 300))

        async def delete(handles: list[ReceiptHandle]) -> int:
            async with database.connection() as connection:
                return sum((await store.delete(connection, [queue.id] * len(handles), handles)).values())

        async def release(handles: list[ReceiptHandle]) -> int:
            async with database.connection() as connection:
                return len(await store.release(connection, queue.id, handles, [0.0] * len(handles)))

        async with asyncio.timeout(PATIENCE_SECONDS):
            done = await asyncio.gather(delete(handles), delete(handles[::-1]), release(handles[1:] + handles[:1]))
        assert sum(done) == 300  # a deadlock would end one of them


async def test_a_handle_given_twice_deletes_and_counts_once(database: Database, broker: Broker, queue: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a", b"b")
        (handle, other_handle) = handles_of(await claim(connection, queue))
        deleted = await store.delete(connection, [queue.id] * 3, [handle, other_handle, handle])
        assert deleted == {(queue.id, handle): True, (queue.id, other_handle): True}
    counts = await counts_of(broker, queue)
    assert (counts.in_flight, counts.deleted) == (0, 2)


async def test_a_handle_opens_its_own_queue_only(
    database: Database, broker: Broker, queue: Queue, other: Queue
) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        handle = message.receipt_handle
        assert await store.delete(connection, [other.id], [handle]) == {}
        assert await store.extend(connection, other.id, [handle], HOUR) == set()
        assert await store.release(connection, other.id, [handle], [0.0]) == set()
        both = await store.delete(connection, [other.id, queue.id], [handle, handle])
        assert both == {(queue.id, handle): True}
    counts = await counts_of(broker, queue)
    assert (counts.in_flight, counts.deleted) == (0, 1)


async def test_a_handle_that_was_never_drawn_does_nothing(database: Database, broker: Broker, queue: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a")
        assert await store.delete(connection, [queue.id], [NEVER_DRAWN]) == {}
        assert await store.extend(connection, queue.id, [NEVER_DRAWN], HOUR) == set()
        assert await store.release(connection, queue.id, [NEVER_DRAWN], [0.0]) == set()
    assert (await counts_of(broker, queue)).pending == 1


async def test_a_handle_of_an_earlier_attempt_does_nothing(database: Database, queue: Queue) -> None:
    async with database.connection() as connection:
        (message_id,) = await publish(connection, queue, b"a")
        (first,) = await claim(connection, queue)
        await let_pass(connection, HOUR)
        assert await store.sweep(connection, 10) == {queue.id: 1}
        (second,) = await claim(connection, queue)
        held = await row_of(connection, message_id)
        assert (second.id, second.attempts) == (first.id, 2)

        assert await store.delete(connection, [queue.id], [first.receipt_handle]) == {}
        assert await store.extend(connection, queue.id, [first.receipt_handle], HOUR) == set()
        assert await store.release(connection, queue.id, [first.receipt_handle], [0.0]) == set()
        assert await row_of(connection, message_id) == held


async def test_a_handle_ends_with_the_hold_and_not_with_the_next_claim(database: Database, queue: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        await store.release(connection, queue.id, [message.receipt_handle], [0.0])
        assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {}
        (message,) = await claim(connection, queue)
        await let_pass(connection, HOUR)
        await store.sweep(connection, 10)
        assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {}


async def test_a_deletion_that_waits_for_the_sweep_deletes_nothing(database: Database, queue: Queue) -> None:
    async with database.connection() as connection, database.connection() as sweeper:
        (message_id,) = await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        await let_pass(connection, HOUR)
        async with sweeper.transaction():
            await store.sweep(sweeper, 10)
            deleting = asyncio.create_task(store.delete(connection, [queue.id], [message.receipt_handle]))
            await until_sessions_wait(sweeper)
        assert await deleting == {}
        assert (await row_of(connection, message_id))["state"] == "pending"


async def test_a_sweep_passes_over_what_is_just_being_deleted(database: Database, queue: Queue) -> None:
    async with database.connection() as connection, database.connection() as sweeper:
        await publish(connection, queue, b"a", b"b")
        first, _ = await claim(connection, queue)
        await let_pass(connection, HOUR)
        async with connection.transaction():
            await store.delete(connection, [queue.id], [first.receipt_handle])
            assert await store.sweep(sweeper, 10) == {queue.id: 1}


async def test_extending_does_not_wait_for_messages_that_are_just_being_completed(
    database: Database, queue: Queue
) -> None:
    async with database.connection() as connection, database.connection() as holder:
        await publish(connection, queue, b"a", b"b")
        messages = await claim(connection, queue)
        async with connection.transaction():
            await store.delete(connection, [queue.id], [messages[0].receipt_handle])
            async with asyncio.timeout(PATIENCE_SECONDS):
                extended = await store.extend(holder, queue.id, handles_of(messages), HOUR)
        assert extended == {messages[1].receipt_handle}


async def test_extending_and_completing_the_same_messages_never_block_one_another(
    database: Database, queue: Queue
) -> None:
    for _ in range(5):
        async with database.connection() as connection:
            await publish(connection, queue, *(b"x" for _ in range(300)))
            handles = handles_of(await claim(connection, queue, 300))

        async def extend(handles: list[ReceiptHandle] = handles) -> None:
            async with database.connection() as connection:
                for _ in range(3):
                    await store.extend(connection, queue.id, handles, HOUR)

        async def complete(handles: list[ReceiptHandle] = handles) -> None:
            async with database.transaction() as connection:
                deleted = await store.delete(connection, [queue.id] * len(handles), handles)
            assert len(deleted) == len(handles)

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(extend(), complete(), extend())  # a deadlock would end one of them


async def test_extending_moves_the_end_of_the_hold(database: Database, queue: Queue) -> None:
    async with database.connection() as connection:
        (message_id,) = await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        assert await store.extend(connection, queue.id, [message.receipt_handle], 2.5) == {message.receipt_handle}
        left = await connection.fetchval(
            "SELECT due_at - clock_timestamp() FROM bellringer.messages WHERE id = $1", message_id
        )
        assert timedelta(seconds=1) < left <= timedelta(seconds=2.5)


async def test_a_released_message_comes_back_at_once_or_after_its_delay(
    database: Database, broker: Broker, queue: Queue
) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"now", b"later")
        now, later = await claim(connection, queue)
        handles = [now.receipt_handle, later.receipt_handle]
        assert await store.release(connection, queue.id, handles, [0.0, 60.0]) == set(handles)
        counts = await counts_of(broker, queue)
        assert (counts.pending, counts.delayed, counts.in_flight) == (1, 1, 0)
        assert bodies_of(await claim(connection, queue)) == [b"now"]

        await let_pass(connection, 59)
        assert await store.sweep(connection, 10) == {}
        await let_pass(connection, 2)
        assert await store.sweep(connection, 10) == {queue.id: 1}
        (message,) = await claim(connection, queue)
        assert (message.body, message.attempts) == (b"later", 2)


async def test_a_message_that_comes_back_keeps_its_place(database: Database, queue: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a", b"b", b"c", b"d")
        first, second = await claim(connection, queue, 2)
        await store.release(connection, queue.id, [second.receipt_handle], [0.0])
        await let_pass(connection, HOUR)
        await store.sweep(connection, 10)
        assert first.body == b"a"
        assert bodies_of(await claim(connection, queue)) == [b"a", b"b", b"c", b"d"]


async def test_a_delayed_message_is_hidden_until_it_is_due_and_then_comes_by_its_id(
    database: Database, broker: Broker, queue: Queue
) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"delayed", delay_seconds=30.0)
        await publish(connection, queue, b"prompt")
        counts = await counts_of(broker, queue)
        assert (counts.pending, counts.delayed) == (1, 1)
        await let_pass(connection, 29)
        assert await store.sweep(connection, 10) == {}
        await let_pass(connection, 2)
        assert await store.sweep(connection, 10) == {queue.id: 1}
        messages = await claim(connection, queue)
        assert bodies_of(messages) == [b"delayed", b"prompt"]
        assert [message.attempts for message in messages] == [1, 1]


async def test_a_sweep_takes_the_longest_due_first_and_no_more_than_its_limit(
    database: Database, queue: Queue, other: Queue
) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"due second", delay_seconds=20.0)
        await publish(connection, other, b"due third", delay_seconds=30.0)
        await publish(connection, queue, b"due first", delay_seconds=10.0)
        await let_pass(connection, HOUR)
        assert await store.sweep(connection, 2) == {queue.id: 2}
        assert await store.sweep(connection, 2) == {other.id: 1}
        assert await store.sweep(connection, 2) == {}


async def test_a_purge_removes_what_is_past_the_retention_of_its_queue_in_batches(
    database: Database, broker: Broker, environment: Environment, queue: Queue
) -> None:
    brief = await broker.configure_queue(environment.id, "brief", visibility_timeout_seconds=60, retention_seconds=60)
    async with database.connection() as connection:
        for kept in (queue, brief):
            await publish(connection, kept, *(b"x" for _ in range(5)))
            await store.delete(connection, [kept.id] * 5, handles_of(await claim(connection, kept)))
            await publish(connection, kept, b"not deleted")
        assert await store.purge(connection, 10) == 0
        await let_pass(connection, 61)
        assert [await store.purge(connection, 3) for _ in range(3)] == [3, 2, 0]
        left = await connection.fetch("SELECT queue_id, count(*) FROM bellringer.messages GROUP BY queue_id")
        assert {row["queue_id"]: row["count"] for row in left} == {queue.id: 6, brief.id: 1}
    assert (await counts_of(broker, brief)).deleted == 0
    assert (await counts_of(broker, queue)).deleted == 5


async def test_a_handle_of_a_purged_message_does_nothing(database: Database, broker: Broker, queue: Queue) -> None:
    await broker.configure_queue(queue.environment_id, queue.name, visibility_timeout_seconds=60, retention_seconds=0)
    async with database.connection() as connection:
        await publish(connection, queue, b"a")
        (message,) = await claim(connection, queue)
        await store.delete(connection, [queue.id], [message.receipt_handle])
        assert await store.purge(connection, 10) == 1
        assert await store.delete(connection, [queue.id], [message.receipt_handle]) == {}


async def test_the_queues_in_which_a_message_waits_are_named(database: Database, queue: Queue, other: Queue) -> None:
    async with database.connection() as connection:
        await publish(connection, other, b"a")
        await publish(connection, queue, b"later", delay_seconds=60.0)
        assert await store.queues_with_pending(connection, [queue.id, other.id]) == {other.id}
        assert await store.queues_with_pending(connection, [queue.id]) == set()
        assert await store.queues_with_pending(connection, []) == set()


async def test_the_age_is_that_of_the_first_in_line_and_stuck_is_who_holds_too_long(
    database: Database, queue: Queue, other: Queue
) -> None:
    async with database.connection() as connection:
        await publish(connection, queue, b"a", b"b", b"c")
        await claim(connection, queue, 1)
        await let_pass(connection, 299)
        assert (await store.ages(connection, [queue.id]))[queue.id][1] == 0
        await let_pass(connection, 2)
        await claim(connection, queue, 1)
        ages = await store.ages(connection, [queue.id, other.id])
    age_seconds, stuck = ages[queue.id]
    assert age_seconds == pytest.approx(301, abs=PATIENCE_SECONDS)
    assert stuck == 1
    assert ages[other.id] == (0.0, 0)
