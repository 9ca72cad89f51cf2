"""The broker as its callers know it, one process or several."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.support.queues import bodies_of, counts_of, make_due, send, sweep_all
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import Broker, Publication, Queue, ReceiptInvalid, ReceiptNotHeld
from bellringer.broker.loops import Sweeper
from bellringer.broker.model import LARGEST_BATCH, LARGEST_BODY_BYTES
from bellringer.broker.wakeups import PendingWatcher
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database, DatabaseConfig
from bellringer.kernel.errors import InvalidInput, NotFound, Overloaded, TooLarge

LONGEST_WAIT_SECONDS = 20.0


async def until_somebody_waits(broker: Broker, number: int = 1) -> None:
    """Return when that many claims have looked in vain and wait."""
    waiting = broker.wakeups._waiting  # noqa: SLF001 - nothing public tells one waiting claim from two

    async def in_line() -> bool:
        return sum(map(len, waiting.values())) == number

    await until(in_line)
    await asyncio.sleep(0.05)  # in line comes before the look at the table: let the look be over


async def test_messages_come_in_the_order_of_their_publication(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"first", b"second")
    await send(broker, queue, b"third")
    assert bodies_of(await broker.claim(queue, 10)) == [b"first", b"second", b"third"]


async def test_each_of_many_producers_finds_its_messages_in_order(broker: Broker, queue: Queue) -> None:
    async def produce(name: str) -> None:
        for number in range(20):
            await send(broker, queue, f"{name} {number}".encode())

    await asyncio.gather(*(produce(name) for name in "abcdefgh"))
    claimed = [body.decode().split() for body in bodies_of(await broker.claim(queue, 1000))]
    for name in "abcdefgh":
        assert [int(number) for producer, number in claimed if producer == name] == list(range(20))


async def test_a_batch_stays_together_and_its_ids_are_in_its_order(broker: Broker, queue: Queue) -> None:
    batches = [[f"{name}{number}".encode() for number in range(5)] for name in "abcdef"]
    ids = await asyncio.gather(*(broker.send(queue, [Publication(body=body) for body in batch]) for batch in batches))
    by_id = {message.id: message.body for message in await broker.claim(queue, 1000)}
    assert [[by_id[message_id] for message_id in batch] for batch in ids] == batches
    assert all(list(batch) == list(range(batch[0], batch[0] + 5)) for batch in ids)


async def test_a_body_is_any_bytes(broker: Broker, queue: Queue) -> None:
    bodies = [b"", b"\x00\xff", "grüße".encode(), b"x" * LARGEST_BODY_BYTES]
    await send(broker, queue, *bodies)
    assert bodies_of(await broker.claim(queue, 10)) == bodies


async def test_a_claimed_message_is_nobody_elses(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"only")
    assert len(await broker.claim(queue, 10)) == 1
    assert await broker.claim(queue, 10) == []


async def test_many_consumers_of_two_processes_get_each_message_exactly_once(
    broker: Broker, second_process: Broker, queue: Queue
) -> None:
    bodies = [f"{number}".encode() for number in range(600)]
    await send(broker, queue, *bodies)
    handled: list[bytes] = []

    async def consume(process: Broker, limit: int) -> None:
        while messages := await process.claim(queue, limit):
            assert [message.id for message in messages] == sorted(message.id for message in messages)
            assert {message.attempts for message in messages} == {1}
            handled.extend(bodies_of(messages))
            await asyncio.gather(*(process.acknowledge(queue, message.receipt_handle) for message in messages))

    await asyncio.gather(*(consume((broker, second_process)[limit % 2], limit) for limit in range(1, 13)))
    assert Counter(handled) == Counter(bodies)
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.in_flight, counts.deleted) == (0, 0, 600)


async def test_attempts_are_counted_when_a_message_is_claimed(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, b"kills its consumer")
    for attempt in (1, 2, 3):
        (message,) = await broker.claim(queue, 1)
        assert message.attempts == attempt
        await sweep_all(database, broker)


async def test_an_old_handle_cannot_acknowledge_extend_or_release(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await send(broker, queue, b"slow")
    (old,) = await broker.claim(queue, 1)
    await sweep_all(database, broker)
    (new,) = await broker.claim(queue, 1)

    with pytest.raises(ReceiptNotHeld):
        await broker.acknowledge(queue, old.receipt_handle)
    assert await broker.extend(queue, [old.receipt_handle], 60) == 0
    await broker.release(queue, [old.receipt_handle], [0.0])
    assert await broker.claim(queue, 1) == []
    await broker.acknowledge(queue, new.receipt_handle)


async def test_a_handle_of_another_queue_is_refused_even_when_its_own_is_acknowledged_with_it(
    broker: Broker, environment: Environment, queue: Queue
) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    mistaken, right = await asyncio.gather(
        broker.acknowledge(other, message.receipt_handle),
        broker.acknowledge(queue, message.receipt_handle),
        return_exceptions=True,
    )
    assert isinstance(mistaken, ReceiptInvalid)
    assert right is None


async def test_queues_of_the_same_name_in_two_environments_are_two_queues(
    broker: Broker, keys: Keys, queue: Queue
) -> None:
    elsewhere = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    with pytest.raises(NotFound):
        await broker.queue(elsewhere.id, queue.name)
    theirs = await broker.ensure_queue(elsewhere.id, queue.name)
    await send(broker, queue, b"ours")
    (message,) = await broker.claim(queue, 1)
    assert await broker.claim(theirs, 1) == []
    with pytest.raises(ReceiptInvalid):
        await broker.acknowledge(theirs, message.receipt_handle)
    with pytest.raises(ReceiptInvalid):
        await broker.extend(theirs, [message.receipt_handle], 60)
    assert [found.id for found in await broker.list_queues([elsewhere.id])] == [theirs.id]
    assert {found.id for found in await broker.list_queues()} == {queue.id, theirs.id}


async def test_acknowledging_again_is_no_error(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    for _ in range(2):
        await asyncio.gather(*(broker.acknowledge(queue, message.receipt_handle) for _ in range(3)))
    assert (await counts_of(broker, queue)).deleted == 1


async def test_what_is_published_in_a_transaction_that_rolls_back_was_never_there(
    broker: Broker, database: Database, queue: Queue
) -> None:
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await broker.publish(connection, queue, [b"a", b"b"])
        await transaction.rollback()
        assert await connection.fetchval("SELECT count(*) FROM bellringer.chunks") == 0
    assert await broker.claim(queue, 10) == []
    assert (await counts_of(broker, queue)).pending == 0


async def test_what_is_published_in_a_transaction_comes_with_its_commit(
    broker: Broker, database: Database, queue: Queue
) -> None:
    async with database.transaction() as connection:
        await broker.publish(connection, queue, [b"a", b"b"])
        assert await broker.claim(queue, 10) == []
        assert (await counts_of(broker, queue)).pending == 0
    assert (await counts_of(broker, queue)).pending == 2
    assert bodies_of(await broker.claim(queue, 10)) == [b"a", b"b"]


async def test_completing_belongs_to_the_callers_transaction(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, b"a")
    messages = await broker.claim(queue, 1)
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await broker.complete(connection, queue, messages)
        await transaction.rollback()
    assert (await counts_of(broker, queue)).in_flight == 1
    async with database.transaction() as connection:
        await broker.complete(connection, queue, messages)
    assert (await counts_of(broker, queue)).deleted == 1


async def test_completing_twice_is_refused_though_deleting_twice_is_not(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await send(broker, queue, b"a")
    messages = await broker.claim(queue, 1)
    async with database.transaction() as connection:
        await broker.complete(connection, queue, messages)
    async with database.transaction() as connection:
        with pytest.raises(ReceiptNotHeld):
            await broker.complete(connection, queue, messages)
    await broker.acknowledge(queue, messages[0].receipt_handle)


async def test_completing_needs_every_message_to_be_held(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, b"kept", b"lost")
    messages = await broker.claim(queue, 2)
    await broker.release(queue, [messages[1].receipt_handle], [0.0])
    with pytest.raises(ReceiptNotHeld):
        async with database.transaction() as connection:
            await broker.complete(connection, queue, messages)
    counts = await counts_of(broker, queue)
    assert (counts.in_flight, counts.deleted) == (1, 0)


async def test_a_completed_message_cannot_be_taken_away_before_the_commit(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await send(broker, queue, b"a")
    messages = await broker.claim(queue, 1)
    await make_due(database)
    async with database.transaction() as connection:
        await broker.complete(connection, queue, messages)
        await Sweeper(database, broker).run_once()
        assert await broker.claim(queue, 1) == []
    assert (await counts_of(broker, queue)).deleted == 1


@pytest.mark.parametrize(
    ("publications", "field"),
    [
        ([], "body"),
        ([Publication(body=b"")] * (LARGEST_BATCH + 1), "body"),
        ([Publication(body=b"x" * (LARGEST_BODY_BYTES + 1))], "msg"),
        ([Publication(body=b""), Publication(body=b"x" * (LARGEST_BODY_BYTES + 1))], "[1].msg"),
        ([Publication(body=b"", delay_seconds=-1)], "delay_seconds"),
        ([Publication(body=b"", delay_seconds=12 * 3600 + 1)], "delay_seconds"),
        ([Publication(body=b""), Publication(body=b"", delay_seconds=float("nan"))], "[1].delay_seconds"),
    ],
    ids=["none", "too many", "too large", "one too large", "before now", "too late", "no number"],
)
async def test_a_batch_that_is_not_allowed_names_its_field_and_stores_nothing(
    broker: Broker, queue: Queue, publications: list[Publication], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await broker.send(queue, publications)
    assert refused.value.field == field
    assert isinstance(refused.value, TooLarge) == field.endswith("msg")
    assert (await counts_of(broker, queue)).pending == 0


async def test_what_is_just_allowed_is_stored(broker: Broker, queue: Queue) -> None:
    await broker.send(queue, [Publication(body=b"", delay_seconds=12 * 3600)])
    await send(broker, queue, *(b"x" for _ in range(LARGEST_BATCH)))
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.delayed) == (LARGEST_BATCH, 1)
    assert len(await broker.claim(queue, LARGEST_BATCH, visibility_timeout_seconds=12 * 3600)) == LARGEST_BATCH


@pytest.mark.parametrize(
    ("limit", "wait_seconds", "visibility_timeout_seconds", "field"),
    [
        (0, 0.0, None, "n"),
        (1001, 0.0, None, "n"),
        (1, -0.1, None, "wait"),
        (1, 20.1, None, "wait"),
        (1, float("nan"), None, "wait"),
        (1, 0.0, -0.1, "visibility_timeout"),
        (1, 0.0, 12 * 3600 + 1, "visibility_timeout"),
        (1, 0.0, float("nan"), "visibility_timeout"),
    ],
)
async def test_a_claim_that_is_not_allowed_names_its_field(
    broker: Broker, queue: Queue, limit: int, wait_seconds: float, visibility_timeout_seconds: float | None, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await broker.claim(
            queue, limit, wait_seconds=wait_seconds, visibility_timeout_seconds=visibility_timeout_seconds
        )
    assert refused.value.field == field


async def test_a_claim_that_waits_is_woken_by_a_message_of_its_own_process(broker: Broker, queue: Queue) -> None:
    waiting = asyncio.create_task(broker.claim(queue, 10, wait_seconds=LONGEST_WAIT_SECONDS))
    await until_somebody_waits(broker)
    await send(broker, queue, b"a")  # nobody looks at the table here: only a wake brings the claim to look again
    assert bodies_of(await asyncio.wait_for(waiting, LONGEST_WAIT_SECONDS / 4)) == [b"a"]


async def test_a_claim_that_waits_is_woken_by_a_message_that_is_released(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    waiting = asyncio.create_task(broker.claim(queue, 10, wait_seconds=LONGEST_WAIT_SECONDS))
    await until_somebody_waits(broker)
    await broker.release(queue, [message.receipt_handle], [0.0])
    assert bodies_of(await asyncio.wait_for(waiting, LONGEST_WAIT_SECONDS / 4)) == [b"a"]


async def test_a_claim_that_waits_is_woken_by_a_message_whose_time_has_come(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await send(broker, queue, b"a", delay_seconds=60)
    waiting = asyncio.create_task(broker.claim(queue, 10, wait_seconds=LONGEST_WAIT_SECONDS))
    await until_somebody_waits(broker)
    await sweep_all(database, broker)
    assert bodies_of(await asyncio.wait_for(waiting, LONGEST_WAIT_SECONDS / 4)) == [b"a"]


async def test_every_claim_that_waits_gets_a_message_when_there_are_enough(broker: Broker, queue: Queue) -> None:
    waiting = [asyncio.create_task(broker.claim(queue, 1, wait_seconds=LONGEST_WAIT_SECONDS)) for _ in range(20)]
    await until_somebody_waits(broker, 20)
    await send(broker, queue, *(f"{number}".encode() for number in range(20)))
    claims = await asyncio.wait_for(asyncio.gather(*waiting), LONGEST_WAIT_SECONDS / 2)
    assert sorted(int(message.body) for (message,) in claims) == list(range(20))


async def test_one_wake_is_enough_when_there_are_messages_for_all_who_wait(
    broker: Broker, second_process: Broker, database: Database, queue: Queue
) -> None:
    waiting = [asyncio.create_task(broker.claim(queue, 1, wait_seconds=LONGEST_WAIT_SECONDS)) for _ in range(5)]
    await until_somebody_waits(broker, 5)
    await send(second_process, queue, *(b"x" for _ in range(5)))
    await PendingWatcher(database, broker.wakeups).run_once()  # it wakes the first, who wakes the next, and so on
    claims = await asyncio.wait_for(asyncio.gather(*waiting), LONGEST_WAIT_SECONDS / 4)
    assert list(map(len, claims)) == [1] * 5


class HeldUp(Database):
    """A database whose answer to one claim is held up on its way."""

    gate: asyncio.Event | None = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with super().connection() as connection:
            yield connection
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate.wait()


async def test_a_wake_that_comes_to_a_claim_which_has_its_messages_goes_to_the_next(
    database_arguments: dict[str, Any], queue: Queue
) -> None:
    database = cast("HeldUp", await HeldUp.open(DatabaseConfig(pool_size=4), database_arguments))
    broker = Broker(database)
    await send(broker, queue, b"first")
    gate = database.gate = asyncio.Event()
    early = asyncio.create_task(broker.claim(queue, 10))
    await until_somebody_waits(broker, 1)
    late = asyncio.create_task(broker.claim(queue, 10, wait_seconds=LONGEST_WAIT_SECONDS))
    await until_somebody_waits(broker, 2)
    await send(broker, queue, b"second")  # wakes the one that has stood in line for longer
    gate.set()
    assert bodies_of(await early) == [b"first"]
    assert bodies_of(await asyncio.wait_for(late, LONGEST_WAIT_SECONDS / 4)) == [b"second"]
    await broker.drain()
    await database.close()


async def test_a_claim_that_waits_sees_what_another_process_publishes_within_half_a_second(
    broker: Broker, second_process: Broker, database: Database, queue: Queue
) -> None:
    stopping = asyncio.Event()
    watching = asyncio.create_task(PendingWatcher(database, broker.wakeups).run(stopping))
    taken_seconds = []
    for _ in range(5):
        waiting = asyncio.create_task(broker.claim(queue, 1, wait_seconds=LONGEST_WAIT_SECONDS))
        await until_somebody_waits(broker)
        begun_at = time.monotonic()
        await send(second_process, queue, b"a")
        assert len(await asyncio.wait_for(waiting, LONGEST_WAIT_SECONDS / 2)) == 1
        taken_seconds.append(time.monotonic() - begun_at)
    stopping.set()
    await watching
    assert statistics.median(taken_seconds) < 0.5


async def test_a_wait_ends_with_nothing_when_nothing_comes(broker: Broker, queue: Queue) -> None:
    begun_at = time.monotonic()
    assert await broker.claim(queue, 1, wait_seconds=0.2) == []
    assert time.monotonic() - begun_at > 0.15  # the loop's clock ticks in milliseconds
    assert broker.wakeups.queues() == []


async def test_draining_ends_every_wait_at_once_and_refuses_what_comes_later(broker: Broker, queue: Queue) -> None:
    waiting = [asyncio.create_task(broker.claim(queue, 1, wait_seconds=LONGEST_WAIT_SECONDS)) for _ in range(3)]
    await until_somebody_waits(broker, 3)
    await broker.drain()
    assert await asyncio.wait_for(asyncio.gather(*waiting), LONGEST_WAIT_SECONDS / 4) == [[], [], []]
    async with asyncio.timeout(LONGEST_WAIT_SECONDS / 4):
        assert await broker.claim(queue, 1, wait_seconds=LONGEST_WAIT_SECONDS) == []
    with pytest.raises(Overloaded):
        await send(broker, queue, b"too late")


async def test_what_was_submitted_is_written_before_draining_ends(broker: Broker, queue: Queue) -> None:
    sending = [asyncio.create_task(send(broker, queue, b"a")) for _ in range(50)]
    await asyncio.sleep(0)
    await broker.drain()
    await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_SECONDS)
    assert (await counts_of(broker, queue)).pending == 50


async def test_a_claim_that_is_cancelled_holds_nothing(broker: Broker, queue: Queue) -> None:
    for round_ in range(20):  # the cancellation meets the claim before, in and after its commit
        await broker.send(queue, [Publication(body=b"order")])
        claiming = asyncio.create_task(broker.claim(queue, 10))
        for _ in range(round_):
            await asyncio.sleep(0)
        claiming.cancel()
        await asyncio.wait([claiming])
        held = [] if claiming.cancelled() else claiming.result()
        (message,) = held or await until(lambda: broker.claim(queue, 10))
        assert message.attempts == 1
        await broker.acknowledge(queue, message.receipt_handle)
    assert await broker.claim(queue, 10) == []
