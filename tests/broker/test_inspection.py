"""Looks at messages without a claim: what waits, what happened to one, how a queue stood over time."""

from __future__ import annotations

import pytest
from tests.support.queues import counts_of, move_inbox, send, sweep_all

from bellringer.broker import Broker, Queue, QueueSettings
from bellringer.broker.model import MessageId, MessageState
from bellringer.broker.samples import Sampler
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, NotFound


async def events_of(broker: Broker, queue: Queue, message_id: int) -> list[tuple[str, int | None]]:
    entries = (await broker.history(queue, MessageId(message_id))).entries
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    return [(entry.event, entry.attempt) for entry in entries]


async def test_a_look_shows_what_waits_and_takes_nothing(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"held", b"returned")
    messages = await broker.claim(queue, 2)
    await broker.release(queue, [messages[1].receipt_handle], [0.0])
    await send(broker, queue, b"delayed", delay_seconds=60)
    await send(broker, queue, *(f"{number}".encode() for number in range(600)))
    before = await counts_of(broker, queue)
    told = await broker.peek(queue, 4)
    assert [(one.id, one.body, one.state, one.attempts) for one in told] == [
        (2, b"returned", MessageState.PENDING, 1),
        (3, b"delayed", MessageState.DELAYED, 0),
        (4, b"0", MessageState.PENDING, 0),
        (5, b"1", MessageState.PENDING, 0),
    ]
    assert [one.id for one in await broker.peek(queue, 1000)] == list(range(2, 604))
    assert (await counts_of(broker, queue)).pending == before.pending
    for limit in (0, 1001):
        with pytest.raises(InvalidInput):
            await broker.peek(queue, limit)


async def test_a_history_tells_every_attempt(
    broker: Broker, database: Database, environment: Environment, queue: Queue
) -> None:
    await broker.create_queue(environment.id, "letters", QueueSettings())
    settings = QueueSettings(max_receives=3, dead_letter_queue="letters")
    queue = await broker.configure_queue(environment.id, queue.name, settings)
    await send(broker, queue, b"a", b"b")
    assert await events_of(broker, queue, 1) == [("published", None)]
    first, second = await broker.claim(queue, 2)
    assert await events_of(broker, queue, 1) == [("published", None), ("claimed", 1)]
    await broker.acknowledge(queue, second.receipt_handle)
    assert await events_of(broker, queue, 2) == [("published", None), ("claimed", 1), ("finished", 1)]
    await broker.release(queue, [first.receipt_handle], [0.0])
    (again,) = await broker.claim(queue, 1)
    await sweep_all(database, broker)
    (last,) = await broker.claim(queue, 1)
    await broker.release(queue, [last.receipt_handle], [0.0])
    await move_inbox(database, broker)
    assert await events_of(broker, queue, 1) == [
        ("published", None),
        ("claimed", 1),
        ("returned", 1),
        ("claimed", 2),
        ("returned", 2),
        ("claimed", 3),
        ("dead_lettered", 3),
    ]
    assert again.id == last.id == 1
    assert (await broker.history(queue, MessageId(1))).message.state == MessageState.DEAD_LETTERED


async def test_a_history_tells_what_was_purged_held_or_not(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"held", b"waits")
    await broker.claim(queue, 1)
    await broker.purge_queue(queue)
    assert await events_of(broker, queue, 1) == [("published", None), ("claimed", 1), ("purged", 1)]
    assert await events_of(broker, queue, 2) == [("published", None), ("purged", None)]


@pytest.mark.parametrize("message_id", [-1, 0, 3, 2**63, 10**30])
async def test_there_is_no_history_of_what_never_was(broker: Broker, queue: Queue, message_id: int) -> None:
    await send(broker, queue, b"a", b"b")
    with pytest.raises(NotFound):
        await broker.history(queue, MessageId(message_id))


async def test_a_sample_is_written_when_something_changed(broker: Broker, database: Database, queue: Queue) -> None:
    sampler = Sampler(database)
    await sampler.run_once()
    await send(broker, queue, b"a", b"b", b"c")
    for _ in range(3):
        await sampler.run_once()
    (message, _) = await broker.claim(queue, 2)
    await broker.acknowledge(queue, message.receipt_handle)
    await sampler.run_once()
    told = await broker.samples(queue, 60)
    assert [(one.pending, one.in_flight, one.published, one.finished) for one in told[-2:]] == [
        (3, 0, 3, 0),
        (1, 1, 3, 1),
    ]
    assert len(told) <= 3


async def test_the_publications_of_the_last_minute_are_counted(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await send(broker, queue, b"a", b"b")
    assert (await counts_of(broker, queue)).published_per_minute == 2
    await Sampler(database).run_once()
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.queue_samples SET at = at - interval '61 s'")
        await connection.execute("UPDATE bellringer.queues SET created_at = created_at - interval '1 hour'")
    await send(broker, queue, b"c")
    assert (await counts_of(broker, queue)).published_per_minute == 1
