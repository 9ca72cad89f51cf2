"""Message calls: what they put on a queue, in the transaction that records the end of the run."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.support.queues import bodies_of, counts_of
from tests.support.scheduler_calls import invocation_of
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import Broker, QueueSettings
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import NotFound
from bellringer.scheduler.callers.message import MessageCaller, Publishing
from bellringer.scheduler.model import CallFailed, MessageCall


@pytest.fixture
def caller(broker: Broker) -> MessageCaller:
    return MessageCaller(broker)


async def called(
    caller: MessageCaller, environment: Environment, call: MessageCall, payload: object = None, attempt: int = 1
) -> Publishing:
    return await caller.call(invocation_of(call, payload, environment_id=environment.id, attempt=attempt))


async def apply(database: Database, effect: Publishing) -> None:
    async with database.transaction() as connection:
        await Publishing.apply(connection, [effect])
    effect.committed()


async def somebody_waits(broker: Broker) -> bool:
    return bool(broker.wakeups.queues())


async def test_the_message_comes_with_the_commit_and_not_before(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    queue = await broker.ensure_queue(environment.id, "reports")
    effect = await called(caller, environment, MessageCall(queue="reports"), {"day": 1})
    assert (await counts_of(broker, queue)).published == 0
    await apply(database, effect)
    assert bodies_of(await broker.claim(queue, 10)) == [b'{"day":1}']


async def test_nothing_is_published_by_a_transaction_that_fails(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    effect = await called(caller, environment, MessageCall(queue="reports"))
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await Publishing.apply(connection, [effect])
        await transaction.rollback()
    queue = await broker.queue(environment.id, "reports")
    assert await broker.claim(queue, 10) == []


async def test_a_claim_that_waits_gets_the_message_at_once(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    queue = await broker.ensure_queue(environment.id, "reports")
    effect = await called(caller, environment, MessageCall(queue="reports"), "due")
    claim = asyncio.create_task(broker.claim(queue, 1, wait_seconds=PATIENCE_SECONDS))
    await until(lambda: somebody_waits(broker))
    await apply(database, effect)  # nothing but its wake-up tells the claim: no watcher runs
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        assert bodies_of(await claim) == [b'"due"']


async def test_a_queue_that_is_missing_is_made_with_the_defaults(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    await apply(database, await called(caller, environment, MessageCall(queue="new")))
    queue = await broker.read_queue(environment.id, "new")
    assert queue.settings == broker.default_settings()
    assert bodies_of(await broker.claim(queue, 10)) == [b"null"]


async def test_messages_of_a_group_go_to_a_fifo_queue(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    fifo = await broker.create_queue(environment.id, "fifo", QueueSettings(fifo=True))
    await apply(database, await called(caller, environment, MessageCall(queue="fifo", group="ann"), 1))
    (message,) = await broker.claim(fifo, 10)
    assert (message.group, message.body) == ("ann", b"1")


async def test_the_same_payload_is_another_message_each_time_where_content_tells_duplicates(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    settings = QueueSettings(fifo=True, content_deduplication=True)
    fifo = await broker.create_queue(environment.id, "fifo", settings)
    call = MessageCall(queue="fifo", group="ann")
    for attempt in (1, 2, 2):
        await apply(database, await called(caller, environment, call, attempt=attempt))
    assert (await counts_of(broker, fifo)).published == 2


@pytest.mark.parametrize(
    ("settings", "call", "complaint"),
    [
        (QueueSettings(fifo=True), MessageCall(queue="orders"), "call.group: a message of a FIFO queue, and no other,"),
        (QueueSettings(), MessageCall(queue="orders", group="ann"), "call.group: a message of a FIFO queue, and no"),
        (QueueSettings(fifo=True), MessageCall(queue="orders", group="\x00"), "call.group: 1 to 128 characters"),
        (QueueSettings(max_body_bytes=3), MessageCall(queue="orders"), "payload: a message holds at most 3 bytes"),
        (QueueSettings(), MessageCall(queue="no queue"), "call.queue: a queue name is"),
    ],
)
async def test_what_a_queue_does_not_take_is_a_failure_that_names_the_field(
    caller: MessageCaller,
    broker: Broker,
    environment: Environment,
    settings: QueueSettings,
    call: MessageCall,
    complaint: str,
) -> None:
    await broker.create_queue(environment.id, "orders", settings)
    with pytest.raises(CallFailed) as failed:
        await called(caller, environment, call)
    assert str(failed.value).startswith(complaint)


async def test_a_queue_that_was_deleted_just_now_takes_nothing(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    effect = await called(caller, environment, MessageCall(queue="reports"))
    await broker.delete_queue(await broker.read_queue(environment.id, "reports"))
    with pytest.raises(NotFound, match="there is no queue reports"):
        await apply(database, effect)


async def test_the_queue_is_one_of_the_environment(
    caller: MessageCaller, database: Database, broker: Broker, environment: Environment
) -> None:
    await broker.ensure_queue(UUID(int=0), "reports")
    await apply(database, await called(caller, environment, MessageCall(queue="reports")))
    others = await broker.queue(UUID(int=0), "reports")
    assert await broker.claim(others, 10) == []
