"""What is read of notifications: pages, summaries and the timeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from tests.support.pipeline import Pipeline, add, notification, opened_pipeline
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database
from bellringer.notifications import store
from bellringer.notifications.channels import store as channels_store
from bellringer.notifications.channels.model import Outcome
from bellringer.notifications.model import Submission, TimelineEntry
from bellringer.notifications.store import NewKey

ANN, BOB, CID = "ann@acme.example", "bob@acme.example", "cid@acme.example"


@pytest.fixture
async def pipeline(database: Database, keys: Keys) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys, recipients_per_email=2, events_per_email=2) as opened:
        yield opened


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.connection() as opened:
        yield opened


async def timeline(connection: Connection, environment: Environment, notification_id: UUID) -> list[TimelineEntry]:
    found = await store.find(connection, environment.id, notification_id)
    assert found is not None
    return await store.timeline(connection, found)


async def test_a_notification_is_read_as_it_was_stored(connection: Connection, environment: Environment) -> None:
    new = notification("bob", "ann", subject="nightly-import")
    await add(connection, environment.id, new)
    found = await store.find(connection, environment.id, new.id)
    assert found is not None
    assert (found.type, found.source, found.subject) == ("task.failed", None, "nightly-import")
    assert found.recipients == [ANN, BOB]
    assert found.data is not None
    assert bytes(found.data) == b'{"error": "timeout"}'
    assert found.occurred_at <= found.accepted_at
    assert found.occurred_at.tzinfo is not None


async def test_a_summary_names_two_recipients_and_counts_them_all(
    connection: Connection, environment: Environment
) -> None:
    await add(connection, environment.id, notification("ann"), notification("cid", "bob", "ann"))
    many, one = await store.list_summaries(connection, environment.id, None, 10)
    assert (many.first_recipients, many.recipient_count) == ([ANN, BOB], 3)
    assert (one.first_recipients, one.recipient_count) == ([ANN], 1)
    assert (one.closes_at, one.closed_at) == (None, None)


async def test_the_timeline_grows_step_by_step(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    new = notification("ann", "bob")
    (notification_id,) = await pipeline.notifications.accept(environment.id, (Submission(notifications=(new,)),))
    assert [entry.step for entry in await timeline(connection, environment, notification_id)] == ["accepted"]

    await pipeline.joins.run_once()
    _, joined = await timeline(connection, environment, notification_id)
    (summary,) = await store.list_summaries(connection, environment.id, None, 10)
    assert (joined.step, joined.closes_at) == ("in_digest", summary.closes_at)
    assert joined.closes_at is not None
    assert (await store.overview(connection, environment.id, {}.fromkeys(TALLIES, 0))).open_digests == 1

    await pipeline.end_windows()
    await pipeline.closer.run_once()
    *_, closed = await timeline(connection, environment, notification_id)
    assert (closed.step, closed.digest_id) == ("digest_closed", joined.digest_id)

    await pipeline.groups.run_once()
    entries = await timeline(connection, environment, notification_id)
    assert [(entry.step, entry.recipient) for entry in entries[3:]] == [("pending", ANN), ("pending", BOB)]
    email_id = entries[3].email_id
    assert email_id is not None

    outcomes = [
        Outcome(address=ANN, state="sent", reply="250 taken"),
        Outcome(address=BOB, state="failed", reply="550 nobody"),
    ]
    await channels_store.record(connection, [(email_id, outcome) for outcome in outcomes])
    entries = await timeline(connection, environment, notification_id)
    assert {(entry.recipient, entry.step, entry.detail) for entry in entries[3:]} == {
        (ANN, "sent", "250 taken"),
        (BOB, "failed", "550 nobody"),
    }
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


TALLIES = ("events", "notifications", "digests", "emails", "sent", "failed")


async def test_the_timeline_names_the_one_email_that_tells_each_recipient_of_the_event(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    """Five events to three readers, in chunks of two readers and parts of two events."""
    new = tuple(notification("ann", "bob", "cid") for _ in range(5))
    other = notification("cid")
    ids = await pipeline.notifications.accept(environment.id, (Submission(notifications=(*new, other)),))
    await pipeline.group_all()
    for notification_id in ids[:5]:
        entries = (await timeline(connection, environment, notification_id))[3:]
        assert sorted(str(entry.recipient) for entry in entries) == [ANN, BOB, CID]
        for entry in entries:
            assert entry.email_id is not None
            email = await channels_store.load_email(connection, entry.email_id)
            assert email is not None
            assert entry.recipient in email.pending
            assert notification_id in {event.notification_id for event in email.events}
    (entry,) = (await timeline(connection, environment, ids[5]))[3:]
    assert entry.recipient == CID


async def test_processes_that_take_the_same_keys_in_opposite_orders_do_not_block_one_another(
    database: Database, environment: Environment
) -> None:
    for number in range(5):
        keys = [
            NewKey(environment_id=environment.id, key=f"{number} {key}", fingerprint=None, notification_ids=[])
            for key in range(1000)
        ]

        async def take(mine: list[NewKey]) -> int:
            async with database.transaction() as connection:
                return len(await store.take_keys(connection, mine))

        async with asyncio.timeout(PATIENCE_SECONDS):
            taken = await asyncio.gather(take(keys), take(keys[::-1]))
        assert sorted(taken) == [0, 1000]  # a deadlock would end one of them


async def test_an_environment_finds_only_its_own(connection: Connection, environment: Environment, keys: Keys) -> None:
    elsewhere = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    ours = await add(connection, environment.id, notification("ann"))
    theirs = await add(connection, elsewhere.id, notification("ann"))
    assert await store.find(connection, elsewhere.id, ours[0]) is None
    assert [found.id for found in await store.list_notifications(connection, elsewhere.id, None, 10)] == theirs
    assert await store.list_notifications(connection, elsewhere.id, ours[0], 10) == []
