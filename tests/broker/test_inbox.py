"""Publishing inside any transaction: `SELECT bellringer.publish(...)`, and the way from the inbox to the queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.queues import bodies_of, counts_of, move_inbox, send, sweep_all

from bellringer.broker import Broker, Publication, Queue, QueueSettings, loops
from bellringer.broker.loops import InboxMover
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database

PUBLISH = "SELECT bellringer.publish('orders', $1::bytea)"


@pytest.fixture
async def client(database_arguments: dict[str, Any]) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Any client of the database."""
    connection = await asyncpg.connect(**database_arguments)
    yield connection
    await connection.close()


async def publish(connection: Connection, *bodies: bytes) -> None:
    for body in bodies:
        await connection.execute(PUBLISH, body)


async def waiting(database: Database) -> int:
    async with database.connection() as connection:
        number: int = await connection.fetchval("SELECT count(*) FROM bellringer.inbox")
    return number


async def test_what_is_published_with_sql_comes_with_the_commit_and_in_order(
    broker: Broker, database: Database, queue: Queue, client: asyncpg.Connection[asyncpg.Record]
) -> None:
    await client.execute("CREATE TEMPORARY TABLE own (id int)")
    async with client.transaction():
        await client.execute("INSERT INTO own VALUES (1)")
        await publish(client, b"0", b"1", b"\x00\xff", b"")
        await move_inbox(database, broker)
        assert await broker.claim(queue, 10) == []
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"1", b"\x00\xff", b""]
    assert await waiting(database) == 0


async def test_what_is_rolled_back_was_never_there(
    broker: Broker, database: Database, queue: Queue, client: asyncpg.Connection[asyncpg.Record]
) -> None:
    transaction = client.transaction()
    await transaction.start()
    await publish(client, b"a")
    await transaction.rollback()
    await move_inbox(database, broker)
    assert (await counts_of(broker, queue)).published == 0


@pytest.mark.parametrize(
    ("argument", "body"),
    [
        ("'plain'", b"plain"),
        ("'grüße'::text", "grüße".encode()),
        ("'\\x00ff'::bytea", b"\x00\xff"),
        ("""'{"b": 1,  "a": [null]}'::jsonb""", b'{"a": [null], "b": 1}'),
    ],
)
async def test_a_body_is_text_or_bytes_or_json(
    broker: Broker,
    database: Database,
    queue: Queue,
    client: asyncpg.Connection[asyncpg.Record],
    argument: str,
    body: bytes,
) -> None:
    await client.execute(f"SELECT bellringer.publish('orders', {argument})")
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [body]


async def test_all_that_a_message_can_have_is_said_with_sql_too(
    broker: Broker, database: Database, fifo: Queue, client: asyncpg.Connection[asyncpg.Record]
) -> None:
    await client.execute(
        """
        SELECT bellringer.publish('orders.fifo', 'late', message_group => 'g', delay_seconds => 60,
            deduplication_id => 'd', attributes => '{"a": {"null": null, "number": 1.5}}',
            environment => 'acme/production')
        """
    )
    await client.execute(
        "SELECT bellringer.publish('orders.fifo', 'again', message_group => 'g', deduplication_id => 'd')"
    )
    await move_inbox(database, broker)
    assert (await counts_of(broker, fifo)).delayed == 1
    assert await send(broker, fifo, b"again", group="g", deduplication_id="d") == [1]
    await sweep_all(database, broker)
    (message,) = await broker.claim(fifo, 10)
    assert (message.body, message.group, message.deduplication_id) == (b"late", "g", "d")
    assert message.attributes == {"a": {"null": None, "number": 1.5}}


async def test_what_is_not_said_the_queue_says(
    broker: Broker, database: Database, environment: Environment, client: asyncpg.Connection[asyncpg.Record]
) -> None:
    queue = await broker.create_queue(environment.id, "slow", QueueSettings(delay_seconds=60))
    await client.execute("SELECT bellringer.publish('slow', 'late'), bellringer.publish('slow', 'now', 0)")
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [b"now"]
    assert (await counts_of(broker, queue)).delayed == 1


@pytest.mark.parametrize(
    ("arguments", "sqlstate"),
    [
        ("'nowhere', 'a'", "42704"),
        ("NULL, 'a'", "42704"),
        ("'orders', NULL::text", "22004"),
        ("'orders', 'a', environment => 'acme/nowhere'", "22023"),
        ("'orders', repeat('x', 262145)", "54000"),
        ("'orders', 'a', delay_seconds => -1", "22023"),
        ("'orders', 'a', delay_seconds => 43201", "22023"),
        ("'orders', 'a', delay_seconds => 'NaN'", "22023"),
        ("'orders', 'a', message_group => 'g'", "22023"),
        ("'orders.fifo', 'a'", "22023"),
        ("'orders.fifo', 'a', message_group => ''", "22023"),
        ("'orders.fifo', 'a', message_group => repeat('g', 129)", "22023"),
        ("'orders', 'a', deduplication_id => ''", "22023"),
        ("'orders', 'a', deduplication_id => repeat('d', 129)", "22023"),
        ("'orders', 'a', attributes => '[1]'", "22023"),
        ("'orders', 'a', attributes => 'null'", "22023"),
    ],
)
@pytest.mark.usefixtures("queue", "fifo")
async def test_what_cannot_be_published_is_refused_with_its_sqlstate(
    database: Database, client: asyncpg.Connection[asyncpg.Record], arguments: str, sqlstate: str
) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await client.execute(f"SELECT bellringer.publish({arguments})")
    assert refused.value.sqlstate == sqlstate
    assert await waiting(database) == 0


async def test_of_several_environments_one_must_be_named(
    broker: Broker, database: Database, keys: Keys, queue: Queue, client: asyncpg.Connection[asyncpg.Record]
) -> None:
    elsewhere = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    theirs = await broker.ensure_queue(elsewhere.id, "orders")
    with pytest.raises(asyncpg.PostgresError, match="several environments") as refused:
        await publish(client, b"a")
    assert refused.value.sqlstate == "22023"
    await client.execute("SELECT bellringer.publish('orders', 'ours', environment => 'acme/production')")
    await client.execute("SELECT bellringer.publish('orders', 'theirs', environment => 'acme/staging')")
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [b"ours"]
    assert bodies_of(await broker.claim(theirs, 10)) == [b"theirs"]


async def test_a_low_id_that_is_committed_late_is_moved_all_the_same_however_many_there_are(
    broker: Broker,
    database: Database,
    queue: Queue,
    client: asyncpg.Connection[asyncpg.Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "_INBOX_BATCH", 2)
    mover = InboxMover(database, broker)
    async with client.transaction():
        await publish(client, b"0", b"1", b"2", b"3", b"4")
        async with database.connection() as connection:
            await publish(connection, b"early")
        for _ in range(3):
            await mover.run_once()
        assert bodies_of(await broker.claim(queue, 10)) == [b"early"]
    while await mover.run_once():
        pass
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_mover_passes_by_what_is_settled_and_meets_what_is_new(
    broker: Broker, database: Database, queue: Queue
) -> None:
    mover = InboxMover(database, broker)
    looked_from: list[int] = []
    for number in range(4):
        async with database.connection() as connection:
            await publish(connection, str(number).encode())
        assert await mover.run_once() is True
        assert await mover.run_once() is False
        looked_from.append(mover._settled)  # noqa: SLF001 - what it need not look at is nobody else's to know
    assert looked_from == sorted(set(looked_from))
    assert looked_from[-1] > 0
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"1", b"2", b"3"]


async def test_large_batches_are_moved_in_parts_and_messages_keep_their_kind(
    broker: Broker, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_INBOX_BATCH_BYTES", 1000)
    async with database.transaction() as connection:
        for number in range(600):
            key = f"d{number}" if number % 50 == 0 else None
            await connection.execute(
                "SELECT bellringer.publish('orders', $1::text, deduplication_id => $2)", str(number), key
            )
        await publish(connection, b"x" * 5000)
    mover = InboxMover(database, broker)
    rounds = 0
    while await mover.run_once():
        rounds += 1
    assert rounds > 2
    messages = await broker.claim(queue, 1000)
    assert bodies_of(messages) == [str(number).encode() for number in range(600)] + [b"x" * 5000]
    assert [message.deduplication_id for message in messages[:51:50]] == ["d0", "d50"]


async def test_movers_of_several_processes_keep_the_order_and_move_each_once(
    broker: Broker, second_process: Broker, database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_INBOX_BATCH", 7)

    async def produce(name: str) -> None:
        for number in range(30):
            async with database.connection() as connection:
                await publish(connection, f"{name} {number}".encode())

    producing = asyncio.gather(*(produce(name) for name in "abc"))

    async def move(process: Broker) -> None:
        mover = InboxMover(database, process)
        while await mover.run_once() or not producing.done():
            pass

    await asyncio.gather(producing, move(broker), move(second_process))
    await move_inbox(database, broker)
    arrived = [body.decode().split() for body in bodies_of(await broker.claim(queue, 1000))]
    for name in "abc":
        assert [int(number) for producer, number in arrived if producer == name] == list(range(30))


async def test_what_was_published_to_a_queue_that_is_gone_holds_up_no_other(
    broker: Broker, database: Database, environment: Environment, queue: Queue
) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    async with database.connection() as connection:
        await publish(connection, b"lost")
        await connection.execute("SELECT bellringer.publish('others', 'kept')")
    await broker.delete_queue(queue)
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(other, 10)) == [b"kept"]
    assert await waiting(database) == 0


async def test_a_round_wakes_the_claims_that_wait(broker: Broker, database: Database, queue: Queue) -> None:
    mover = InboxMover(database, broker)
    with broker.wakeups.waiter(queue.id) as woken:
        async with database.connection() as connection:
            await publish(connection, b"a")
        assert not woken.is_set()
        await mover.run_once()
        assert woken.is_set()


async def test_what_code_publishes_in_a_transaction_is_numbered_with_its_commit(
    broker: Broker, database: Database, queue: Queue
) -> None:
    async with database.transaction() as connection:
        ids = await broker.publish(connection, queue, [b"0", Publication(body=b"1", delay_seconds=60), b"2"])
        assert ids == [1, 2, 3]
        later = asyncio.create_task(send(broker, queue, b"later"))
        assert (await counts_of(broker, queue)).published == 0
    assert await later == [4]
    assert bodies_of(await broker.claim(queue, 10)) == [b"0", b"2", b"later"]
