"""Deduplication: an id that was used within five minutes publishes nothing, and answers with the first message's id."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queues import bodies_of, counts_of, move_inbox, send

from bellringer.broker import Broker, Publication, Queue, QueueSettings
from bellringer.broker.loops import Collector
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database


async def end_windows(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE bellringer.deduplications SET expires_at = expires_at - interval '5 min' WHERE expires_at > now()"
        )


async def ids_kept(database: Database) -> list[str]:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT deduplication_id FROM bellringer.deduplications ORDER BY 1")
    return [row["deduplication_id"] for row in rows]


def publication(body: bytes, key: str | None) -> Publication:
    return Publication(body=body, deduplication_id=key)


async def test_an_id_publishes_once_within_its_window(broker: Broker, database: Database, queue: Queue) -> None:
    (first,) = await send(broker, queue, b"first", deduplication_id="d")
    assert await send(broker, queue, b"again", deduplication_id="d") == [first]
    assert await send(broker, queue, b"other", deduplication_id="D") == [first + 1]
    assert bodies_of(await broker.claim(queue, 10)) == [b"first", b"other"]
    await end_windows(database)
    assert await send(broker, queue, b"later", deduplication_id="d") == [first + 2]
    assert await send(broker, queue, b"again", deduplication_id="d") == [first + 2]
    assert (await counts_of(broker, queue)).published == 3


async def test_a_window_lasts_five_minutes_from_the_first(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, b"a", deduplication_id="d")
    await send(broker, queue, b"a", deduplication_id="d")
    async with database.connection() as connection:
        window = await connection.fetchval(
            "SELECT expires_at - sent_at FROM bellringer.deduplications JOIN bellringer.chunks USING (queue)"
        )
    assert window.total_seconds() == pytest.approx(300, abs=0.1)


async def test_the_window_outlives_the_message(broker: Broker, queue: Queue) -> None:
    (first,) = await send(broker, queue, b"a", deduplication_id="finished")
    (message,) = await broker.claim(queue, 1)
    await broker.acknowledge(queue, message.receipt_handle)
    assert await send(broker, queue, b"b", deduplication_id="finished") == [first]
    assert await broker.claim(queue, 10) == []


async def test_what_was_purged_may_be_published_again(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a", deduplication_id="d")
    await broker.purge_queue(queue)
    assert await send(broker, queue, b"b", deduplication_id="d") == [2]
    assert bodies_of(await broker.claim(queue, 10)) == [b"b"]


async def test_within_one_batch_the_first_counts(broker: Broker, queue: Queue) -> None:
    batch = [publication(b"0", "d"), publication(b"1", None), publication(b"2", "d"), publication(b"3", None)]
    assert await broker.send(queue, batch) == [1, 2, 1, 3]
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"1", b"3"]


async def test_of_many_who_send_the_same_at_once_one_publishes(
    broker: Broker, second_process: Broker, database: Database, queue: Queue
) -> None:
    async def with_sql() -> list[int]:
        async with database.connection() as connection:
            await connection.execute("SELECT bellringer.publish('orders', 'x', deduplication_id => 'd')")
        await move_inbox(database, broker)
        return [1]

    answers = await asyncio.gather(
        *(send(process, queue, b"x", deduplication_id="d") for process in (broker, second_process) for _ in range(20)),
        *(with_sql() for _ in range(5)),
    )
    assert {tuple(answer) for answer in answers} == {(1,)}
    assert (await counts_of(broker, queue)).published == 1


async def test_queues_have_their_own_windows(broker: Broker, environment: Environment, queue: Queue) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    for found in (queue, other):
        await send(broker, found, b"a", deduplication_id="d")
        assert (await counts_of(broker, found)).published == 1


async def test_a_fifo_queue_may_take_the_body_for_the_id(
    broker: Broker, database: Database, environment: Environment
) -> None:
    by_content = QueueSettings(fifo=True, content_deduplication=True)
    queue = await broker.create_queue(environment.id, "content.fifo", by_content)
    assert await send(broker, queue, b"a", b"a", b"b", group="g") == [1, 1, 2]
    assert await send(broker, queue, b"a", group="another") == [1]
    assert await send(broker, queue, b"a", group="g", deduplication_id="own") == [3]
    async with database.connection() as connection:
        await connection.execute("SELECT bellringer.publish('content.fifo', 'b', message_group => 'g')")
    await move_inbox(database, broker)
    assert (await counts_of(broker, queue)).published == 3


async def test_a_rolled_back_publication_takes_no_id(broker: Broker, database: Database, queue: Queue) -> None:
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await broker.publish(connection, queue, [publication(b"a", "d")])
        await transaction.rollback()
    assert await send(broker, queue, b"b", deduplication_id="d") == [1]
    assert bodies_of(await broker.claim(queue, 10)) == [b"b"]


async def test_ids_are_forgotten_when_their_window_is_over(broker: Broker, database: Database, queue: Queue) -> None:
    await send(broker, queue, b"a", deduplication_id="old")
    await end_windows(database)
    await send(broker, queue, b"a", deduplication_id="new")
    await Collector(database, broker).run_once()
    assert await ids_kept(database) == ["new"]
