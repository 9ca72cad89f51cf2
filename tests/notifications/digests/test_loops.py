"""The three steps of a digest, each with the messages on its two sides: what happens twice has its effect once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from tests.support.pipeline import Pipeline, check_exactly_once, emails_of, notification, opened_pipeline
from tests.support.queues import unfinished
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.broker import Broker, Message, Queue, ReceiptNotHeld
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.notifications.digests import loops
from bellringer.notifications.model import NewNotification, Submission


@pytest.fixture
async def pipeline(database: Database, keys: Keys) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys) as opened:
        yield opened


async def accept(pipeline: Pipeline, environment: Environment, *new: NewNotification) -> list[UUID]:
    return await pipeline.notifications.accept(environment.id, (Submission(notifications=new),))


async def take(pipeline: Pipeline, queue: Queue) -> list[Message]:
    """Claim what is in a queue, as a process does that then falls behind."""
    return await pipeline.broker.claim(queue, 100)


async def lose_holds(pipeline: Pipeline) -> None:
    """Let every visibility timeout be over: who holds a message holds it no longer."""
    await pipeline.end_pauses()


async def number_of(database: Database, table: str) -> int:
    async with database.connection() as connection:
        number: int = await connection.fetchval(f"SELECT count(*) FROM bellringer.{table}")
    return number


async def messages_in(pipeline: Pipeline, queue: Queue) -> list[str]:
    """The ids that wait in a queue."""
    return [body.decode() for body in (await unfinished(pipeline.database, queue)).values()]


async def test_what_was_accepted_joins_and_its_message_is_done(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    ids = await accept(pipeline, environment, notification("ann"), notification("bob"))
    assert await messages_in(pipeline, pipeline.accepted) == [str(found) for found in ids]
    assert await pipeline.joins.run_once() is True
    assert await messages_in(pipeline, pipeline.accepted) == []
    assert await number_of(database, "digest_items") == 2


async def test_a_joiner_that_lost_its_hold_leaves_no_trace(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann"))
    slow = await take(pipeline, pipeline.accepted)
    await lose_holds(pipeline)
    with pytest.raises(ReceiptNotHeld):
        await pipeline.joiner.handle(slow)
    assert await number_of(database, "digest_items") == 0
    assert await number_of(database, "digests") == 0
    assert await pipeline.joins.run_once() is True
    with pytest.raises(ReceiptNotHeld):
        await pipeline.joiner.handle(slow)
    assert await number_of(database, "digest_items") == 1


async def test_a_notification_that_is_announced_twice_joins_once(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    (notification_id,) = await accept(pipeline, environment, notification("ann"))
    await pipeline.joins.run_once()
    async with database.transaction() as connection:
        await pipeline.broker.publish(connection, pipeline.accepted, [str(notification_id).encode()] * 2)
    await pipeline.joins.run_once()
    assert await messages_in(pipeline, pipeline.accepted) == []
    assert await number_of(database, "digest_items") == 1
    assert await number_of(database, "digests") == 1


async def test_one_message_that_cannot_be_read_holds_up_no_notification(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    async with database.transaction() as connection:
        await pipeline.broker.publish(connection, pipeline.accepted, [b"no id"])
    await accept(pipeline, environment, notification("ann"), notification("bob"))
    await pipeline.joins.run_once()
    assert await number_of(database, "digest_items") == 2
    assert await messages_in(pipeline, pipeline.accepted) == ["no id"]


async def test_a_digest_that_closes_is_announced_in_the_same_commit(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann"))
    await pipeline.joins.run_once()
    assert await pipeline.closer.run_once() is False
    assert await messages_in(pipeline, pipeline.closed) == []
    await pipeline.end_windows()
    assert await pipeline.closer.run_once() is False
    async with database.connection() as connection:
        digest_id = await connection.fetchval("SELECT id FROM bellringer.digests WHERE closed_at IS NOT NULL")
    assert await messages_in(pipeline, pipeline.closed) == [str(digest_id)]
    await pipeline.closer.run_once()
    assert len(await messages_in(pipeline, pipeline.closed)) == 1


async def test_closers_of_several_processes_announce_each_digest_once(
    pipeline: Pipeline, database: Database, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_CLOSE_BATCH", 3)
    for seconds in range(20):
        await pipeline.notifications.put_workflow(environment.id, f"{seconds}", seconds)
    await accept(pipeline, environment, *(notification("ann", type=f"{seconds}") for seconds in range(20)))
    await pipeline.joins.run_once()
    await pipeline.end_windows()

    async def close() -> None:
        closer = loops.DigestCloser(database, Broker(database), pipeline.closed)
        while await closer.run_once():
            pass

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(close() for _ in range(3)))
        await close()
    announced = await messages_in(pipeline, pipeline.closed)
    assert len(announced) == len(set(announced)) == 20


async def test_a_digest_is_grouped_and_each_of_its_emails_is_announced(
    pipeline: Pipeline, database: Database, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_PUBLISH_BATCH", 3)
    await accept(pipeline, environment, *(notification(f"reader-{number}") for number in range(10)))
    await pipeline.group_all()
    async with database.connection() as connection:
        emails = {str(row["id"]) for row in await connection.fetch("SELECT id FROM bellringer.emails")}
    assert len(emails) == 10
    assert Counter(await messages_in(pipeline, pipeline.outbound)) == Counter(emails)
    assert await messages_in(pipeline, pipeline.closed) == []


async def test_a_grouper_that_lost_its_hold_leaves_no_trace(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann"))
    await pipeline.joins.run_once()
    await pipeline.end_windows()
    await pipeline.closer.run_once()
    slow = await take(pipeline, pipeline.closed)
    await lose_holds(pipeline)
    with pytest.raises(ReceiptNotHeld):
        await pipeline.grouper.handle(slow)
    assert await number_of(database, "emails") == 0
    await pipeline.groups.run_once()
    with pytest.raises(ReceiptNotHeld):
        await pipeline.grouper.handle(slow)
    assert await number_of(database, "emails") == 1
    assert len(await messages_in(pipeline, pipeline.outbound)) == 1


async def test_one_digest_that_fails_does_not_have_the_others_grouped_twice(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    ids = await accept(pipeline, environment, notification("ann", "bob"), notification("bob"))
    await pipeline.joins.run_once()
    await pipeline.end_windows()
    await pipeline.closer.run_once()
    async with database.transaction() as connection:
        await pipeline.broker.publish(connection, pipeline.closed, [b"no id"])
    await pipeline.groups.run_once()  # the first digest succeeds, the second message fails: each is handled alone
    async with database.connection() as connection:
        digest_id = await connection.fetchval("SELECT id FROM bellringer.digests")
        emails = await emails_of(connection, digest_id)
    ann, bob = "ann@acme.example", "bob@acme.example"
    check_exactly_once(emails, {(ann, ids[0]), (bob, ids[0]), (bob, ids[1])})
    assert len(await messages_in(pipeline, pipeline.outbound)) == len(emails) == 2
    assert await messages_in(pipeline, pipeline.closed) == ["no id"]


async def test_a_digest_that_is_announced_twice_becomes_emails_once(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann"))
    await pipeline.group_all()
    async with database.transaction() as connection:
        digest_id = await connection.fetchval("SELECT id FROM bellringer.digests")
        await pipeline.broker.publish(connection, pipeline.closed, [str(digest_id).encode()])
    await pipeline.groups.run_once()
    assert await messages_in(pipeline, pipeline.closed) == []
    assert await number_of(database, "emails") == 1
    assert len(await messages_in(pipeline, pipeline.outbound)) == 1


async def test_limits_of_an_email_are_those_of_the_settings(
    database: Database, keys: Keys, environment: Environment
) -> None:
    async with opened_pipeline(database, keys, recipients_per_email=2, events_per_email=3) as pipeline:
        ids = await accept(pipeline, environment, *(notification("ann", "bob", "cid") for _ in range(7)))
        await pipeline.group_all()
        async with database.connection() as connection:
            digest_id = await connection.fetchval("SELECT id FROM bellringer.digests")
            emails = await emails_of(connection, digest_id)
    check_exactly_once(emails, {(f"{name}@acme.example", found) for name in ("ann", "bob", "cid") for found in ids})
    assert Counter((len(email.addresses), len(email.events)) for email in emails) == Counter(
        {(2, 3): 2, (2, 1): 1, (1, 3): 2, (1, 1): 1}
    )
