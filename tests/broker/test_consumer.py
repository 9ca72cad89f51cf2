from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
import structlog
from tests.support.queues import counts_of, send, sweep_all
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import Broker, Consumer, ConsumerConfig, Message, Queue
from bellringer.broker.loops import Sweeper
from bellringer.broker.model import ReceiptHandle
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.database import Database
from bellringer.kernel.errors import Unavailable

RETRY = Backoff(first_seconds=60, cap_seconds=600)


@pytest.fixture
async def effects(database: Database) -> AsyncIterator[Effects]:
    made = Effects(database)
    await made.create()
    yield made
    await made.drop()


class Effects:
    """A table of what handlers did."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self) -> None:
        await self._execute("CREATE TABLE effects (body bytea)")

    async def drop(self) -> None:
        await self._execute("DROP TABLE effects")

    async def counted(self) -> Counter[bytes]:
        async with self._database.connection() as connection:
            return Counter(row["body"] for row in await connection.fetch("SELECT body FROM effects"))

    async def _execute(self, statement: str) -> None:
        async with self._database.connection() as connection:
            await connection.execute(statement)


class Handler:
    """Writes an effect per message and completes it, as handlers do; fails where it is told to."""

    def __init__(self, database: Database, broker: Broker, queue: Queue) -> None:
        self._database, self._broker, self._queue = database, broker, queue
        self.calls: list[list[bytes]] = []
        self.fails_before_commit: set[bytes] = set()
        self.fails_after_commit: set[bytes] = set()
        self.error: Exception = RuntimeError("on purpose")
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def __call__(self, messages: Sequence[Message]) -> None:
        bodies = [message.body for message in messages]
        self.calls.append(bodies)
        async with self._database.transaction() as connection:
            await connection.executemany("INSERT INTO effects VALUES ($1)", [(body,) for body in bodies])
            self.begun.set()
            await self.goes_on.wait()
            if self.fails_before_commit.intersection(bodies):
                raise self.error
            await self._broker.complete(connection, self._queue, messages)
        if self.fails_after_commit.intersection(bodies):
            raise self.error


@pytest.fixture
def handler(database: Database, broker: Broker, queue: Queue, effects: Effects) -> Handler:  # noqa: ARG001 - its table
    return Handler(database, broker, queue)


def consumer_of(broker: Broker, queue: Queue, handler: Handler, *, hold_seconds: float = 60.0) -> Consumer:
    config = ConsumerConfig(batch_items=10, visibility_timeout_seconds=hold_seconds, retry=RETRY)
    return Consumer(broker, queue, handler, config)


async def test_a_batch_is_handled_in_order_and_completed(
    broker: Broker, queue: Queue, handler: Handler, effects: Effects
) -> None:
    await send(broker, queue, b"a", b"b", b"c")
    assert await consumer_of(broker, queue, handler).run_once() is True
    assert handler.calls == [[b"a", b"b", b"c"]]
    assert await effects.counted() == Counter([b"a", b"b", b"c"])
    assert (await counts_of(broker, queue)).deleted == 3


async def test_no_more_is_taken_than_a_batch(broker: Broker, queue: Queue, handler: Handler) -> None:
    await send(broker, queue, *(f"{number}".encode() for number in range(25)))
    consumer = consumer_of(broker, queue, handler)
    assert [await consumer.run_once() for _ in range(3)] == [True] * 3
    assert list(map(len, handler.calls)) == [10, 10, 5]


async def test_a_queue_that_stays_empty_is_no_work(broker: Broker, queue: Queue, handler: Handler) -> None:
    broker.wakeups.close()  # nobody waits
    assert await consumer_of(broker, queue, handler).run_once() is False
    assert handler.calls == []


async def test_one_bad_message_of_a_batch_holds_up_no_other(
    broker: Broker, database: Database, queue: Queue, handler: Handler, effects: Effects
) -> None:
    handler.fails_before_commit.add(b"bad")
    await send(broker, queue, b"a", b"bad", b"c")
    assert await consumer_of(broker, queue, handler).run_once() is True
    assert handler.calls == [[b"a", b"bad", b"c"], [b"a"], [b"bad"], [b"c"]]
    assert await effects.counted() == Counter([b"a", b"c"])
    counts = await counts_of(broker, queue)
    assert (counts.deleted, counts.delayed, counts.in_flight) == (2, 1, 0)

    handler.fails_before_commit.clear()
    await sweep_all(database, broker)
    await consumer_of(broker, queue, handler).run_once()
    assert await effects.counted() == Counter([b"a", b"bad", b"c"])


async def test_what_fails_comes_back_after_a_pause_that_grows(
    broker: Broker, database: Database, queue: Queue, handler: Handler
) -> None:
    handler.fails_before_commit.add(b"bad")
    await send(broker, queue, b"bad")
    for attempt in (1, 2, 3, 4, 5):
        await consumer_of(broker, queue, handler).run_once()
        async with database.connection() as connection:
            row = await connection.fetchrow(
                "SELECT attempts, EXTRACT(epoch FROM due_at - clock_timestamp())::float8 AS pause "
                "FROM bellringer.tracked"
            )
        assert row is not None
        assert row["attempts"] == attempt
        ceiling = RETRY.ceiling_seconds(attempt)
        assert ceiling / 2 - PATIENCE_SECONDS < row["pause"] <= ceiling
        await sweep_all(database, broker)


async def test_work_that_was_committed_is_not_done_again_when_its_handler_fails_afterwards(
    broker: Broker, queue: Queue, handler: Handler, effects: Effects
) -> None:
    handler.fails_after_commit.add(b"b")
    await send(broker, queue, b"a", b"b")
    await consumer_of(broker, queue, handler).run_once()
    assert await effects.counted() == Counter([b"a", b"b"])
    assert (await counts_of(broker, queue)).deleted == 2


async def test_an_attempt_that_lost_its_hold_leaves_no_effect(
    broker: Broker, database: Database, queue: Queue, handler: Handler, effects: Effects
) -> None:
    handler.goes_on.clear()
    await send(broker, queue, b"a", b"b")
    slow = asyncio.create_task(consumer_of(broker, queue, handler).run_once())
    await asyncio.wait_for(handler.begun.wait(), PATIENCE_SECONDS)
    await sweep_all(database, broker)

    fast = Handler(database, broker, queue)
    await consumer_of(broker, queue, fast).run_once()
    assert fast.calls == [[b"a", b"b"]]
    handler.goes_on.set()
    assert await slow is True
    assert handler.calls == [[b"a", b"b"]]
    assert await effects.counted() == Counter([b"a", b"b"])
    assert (await counts_of(broker, queue)).deleted == 2


async def test_an_outage_is_no_messages_fault_and_is_told_to_the_loop(
    broker: Broker, database: Database, queue: Queue, handler: Handler
) -> None:
    handler.error = Unavailable()
    handler.fails_before_commit.add(b"a")
    await send(broker, queue, b"a", b"b")
    with pytest.raises(Unavailable):
        await consumer_of(broker, queue, handler).run_once()
    assert len(handler.calls) == 1
    assert (await counts_of(broker, queue)).in_flight == 2
    await sweep_all(database, broker)
    assert (await counts_of(broker, queue)).pending == 2


async def hold_ends_later_than(database: Database, seconds: float) -> bool:
    """Whether the message in flight has been held, or is to be, for longer than that."""
    async with database.connection() as connection:
        found: bool = await connection.fetchval(
            "SELECT expires_at > claimed_at + make_interval(secs => $1) FROM bellringer.claims WHERE ended_at IS NULL",
            seconds,
        )
    return found


async def test_the_hold_is_extended_while_a_slow_handler_works(
    broker: Broker, database: Database, queue: Queue, handler: Handler, effects: Effects
) -> None:
    handler.goes_on.clear()
    await send(broker, queue, b"a")
    working = asyncio.create_task(consumer_of(broker, queue, handler, hold_seconds=1.0).run_once())
    await until(lambda: hold_ends_later_than(database, 2.0))  # it was held for longer than two whole timeouts
    await Sweeper(database, broker).run_once()
    assert await broker.claim(queue, 1) == []
    handler.goes_on.set()
    assert await working is True
    assert await effects.counted() == Counter([b"a"])


class Stumbling(Broker):
    """A broker whose first extensions of a hold fail."""

    failures = 2

    async def extend(self, queue: Queue, receipt_handles: Sequence[ReceiptHandle], seconds: float) -> int:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("on purpose")
        return await super().extend(queue, receipt_handles, seconds)


async def test_the_hold_is_extended_the_next_time_when_it_could_not_be_once(
    database: Database, queue: Queue, handler: Handler
) -> None:
    broker = Stumbling(database)
    handler.goes_on.clear()
    await send(broker, queue, b"a")
    with structlog.testing.capture_logs() as logs:
        working = asyncio.create_task(consumer_of(broker, queue, handler, hold_seconds=1.0).run_once())
        await until(lambda: hold_ends_later_than(database, 1.9))
        handler.goes_on.set()
        assert await working is True
    assert [entry["event"] for entry in logs] == ["could not extend the hold"] * 2
    await broker.drain()


async def test_a_consumer_takes_what_comes_while_it_waits(broker: Broker, queue: Queue, handler: Handler) -> None:
    stopping = asyncio.Event()
    running = asyncio.create_task(consumer_of(broker, queue, handler).run(stopping))
    for number in range(5):
        await send(broker, queue, f"{number}".encode())

    async def all_are_done() -> bool:
        return (await counts_of(broker, queue)).deleted == 5

    await until(all_are_done)
    stopping.set()
    broker.wakeups.close()
    await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert [body for bodies in handler.calls for body in bodies] == [b"0", b"1", b"2", b"3", b"4"]
