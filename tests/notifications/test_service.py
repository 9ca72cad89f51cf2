"""Events are accepted once and for all, whoever sends them how often; over the real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pipeline import notification
from tests.support.waiting import PATIENCE_SECONDS, until_sessions_wait

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, Queue
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound, Overloaded
from bellringer.notifications.intake import read_events
from bellringer.notifications.model import EARLIEST, LATEST, Submission
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications, NotificationsConfig

NOBODYS = UUID(int=1)


@pytest.fixture
async def accepted(broker: Broker) -> Queue:
    return await broker.ensure_queue(SYSTEM_ENVIRONMENT, ACCEPTED_QUEUE)


@pytest.fixture
async def notifications(database: Database, broker: Broker, accepted: Queue) -> AsyncIterator[Notifications]:
    opened = Notifications(database, broker, accepted, batcher=BatcherConfig())
    yield opened
    await opened.drain()


@pytest.fixture
async def second_process(database_arguments: dict[str, Any], accepted: Queue) -> AsyncIterator[Notifications]:
    database = await Database.open(DatabaseConfig(pool_size=4), database_arguments)
    broker = Broker(database)
    opened = Notifications(database, broker, accepted, batcher=BatcherConfig())
    yield opened
    await opened.drain()
    await broker.drain()
    await database.close()


@pytest.fixture
async def elsewhere(keys: Keys) -> Environment:
    return (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment


def submission(*subjects: str, key: str | None = None, body: str | None = None) -> tuple[Submission, ...]:
    """One request: events with these subjects, and the key it came with. `body` stands for what it said."""
    fingerprint = None if key is None else (body or " ".join(subjects)).encode()
    new = tuple(notification("ann", subject=subject) for subject in subjects)
    return (Submission(notifications=new, idempotency_key=key, fingerprint=fingerprint),)


async def queued(broker: Broker, accepted: Queue) -> list[UUID]:
    """The notifications that are on their way to a digest, in their order."""
    return [UUID(message.body.decode()) for message in await broker.claim(accepted, 1000)]


async def stored(database: Database) -> set[UUID]:
    async with database.connection() as connection:
        return {row["id"] for row in await connection.fetch("SELECT id FROM bellringer.notifications")}


async def test_what_is_accepted_is_stored_and_on_its_way_in_the_order_given(
    notifications: Notifications, broker: Broker, accepted: Queue, environment: Environment
) -> None:
    ids = await notifications.accept(environment.id, submission("a", "b", "c"))
    assert [found.subject for found in await notifications.list_notifications(environment.id)] == ["c", "b", "a"]
    assert await queued(broker, accepted) == ids
    overview = await notifications.overview(environment.id)
    assert (overview.events, overview.notifications, overview.open_digests) == (3, 3, 0)


async def test_many_callers_share_writes_and_each_gets_its_own_ids(
    notifications: Notifications, broker: Broker, accepted: Queue, environment: Environment
) -> None:
    requests = [submission(f"{number} a", f"{number} b") for number in range(100)]
    answers = await asyncio.gather(*(notifications.accept(environment.id, request) for request in requests))
    assert answers == [[new.id for new in request[0].notifications] for request in requests]
    assert sorted(await queued(broker, accepted)) == sorted(found for ids in answers for found in ids)


async def test_a_repeated_key_answers_with_the_same_ids_and_queues_nothing(
    notifications: Notifications, broker: Broker, accepted: Queue, database: Database, environment: Environment
) -> None:
    ids = await notifications.accept(environment.id, submission("a", "b", key="k"))
    for _ in range(2):
        assert await notifications.accept(environment.id, submission("a", "b", key="k")) == ids
    assert await stored(database) == set(ids)
    assert await queued(broker, accepted) == ids
    assert (await notifications.overview(environment.id)).events == 2


async def test_a_repeated_key_with_another_body_is_refused(
    notifications: Notifications, database: Database, environment: Environment
) -> None:
    ids = await notifications.accept(environment.id, submission("a", key="k"))
    with pytest.raises(Conflict, match="k"):
        await notifications.accept(environment.id, submission("b", key="k"))
    assert await stored(database) == set(ids)


async def test_the_same_key_of_another_environment_is_another_key(
    notifications: Notifications, environment: Environment, elsewhere: Environment
) -> None:
    ours = await notifications.accept(environment.id, submission("a", key="k"))
    theirs = await notifications.accept(elsewhere.id, submission("b", key="k"))
    both = await asyncio.gather(
        notifications.accept(environment.id, submission("a", key="k")),
        notifications.accept(elsewhere.id, submission("b", key="k")),
    )
    assert list(both) == [ours, theirs]


async def test_requests_with_one_key_at_the_same_moment_store_once_in_one_process_and_in_two(
    notifications: Notifications, second_process: Notifications, database: Database, environment: Environment
) -> None:
    for number in range(5):
        before = await stored(database)
        answers = await asyncio.gather(
            *(
                process.accept(environment.id, submission("a", "b", key=f"k{number}"))
                for process in (notifications, second_process)
                for _ in range(10)
            )
        )
        assert len({tuple(ids) for ids in answers}) == 1
        assert await stored(database) - before == set(answers[0])


async def test_of_different_bodies_with_one_key_at_the_same_moment_one_wins(
    notifications: Notifications, second_process: Notifications, database: Database, environment: Environment
) -> None:
    answers = await asyncio.gather(
        *(
            process.accept(environment.id, submission(f"{number}", key="k"))
            for process in (notifications, second_process)
            for number in range(5)
        ),
        return_exceptions=True,
    )
    ids = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert all(isinstance(answer, Conflict) for answer in answers if isinstance(answer, BaseException))
    assert len({tuple(answer) for answer in ids}) == 1
    assert await stored(database) == set(ids[0])


async def test_processes_that_take_the_same_keys_in_opposite_orders_do_not_block_one_another(
    notifications: Notifications, second_process: Notifications, environment: Environment
) -> None:
    keys = [f"k{number}" for number in range(50)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        forwards, backwards = await asyncio.gather(
            asyncio.gather(*(notifications.accept(environment.id, submission(key, key=key)) for key in keys)),
            asyncio.gather(
                *(second_process.accept(environment.id, submission(key, key=key)) for key in reversed(keys))
            ),
        )
    assert forwards == list(reversed(backwards))


async def test_a_key_that_another_process_takes_and_gives_up_is_free(
    notifications: Notifications, database: Database, environment: Environment
) -> None:
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO bellringer.idempotency_keys (environment_id, key, notification_ids) VALUES ($1, 'k', '{}')",
            environment.id,
        )
        request = submission("a", key="k")
        accepting = asyncio.create_task(notifications.accept(environment.id, request))
        await until_sessions_wait(connection)
        await transaction.rollback()
    assert await accepting == [request[0].notifications[0].id]


async def test_an_event_given_twice_in_a_batch_is_stored_once(
    notifications: Notifications, broker: Broker, accepted: Queue, environment: Environment
) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "recipients": "ann@acme.example"}
    other = {**event, "id": "2"}
    headers = {"content-type": "application/cloudevents-batch+json"}
    request = read_events(headers, msgspec.json.encode([event, other, {**event, "subject": "changed"}])).submissions
    first, second, third = await notifications.accept(environment.id, request)
    assert first == third != second
    again = read_events(headers, msgspec.json.encode([other, event])).submissions
    assert await notifications.accept(environment.id, again) == [second, first]
    assert await queued(broker, accepted) == [first, second]


async def test_a_request_that_is_refused_stores_none_of_its_events(
    notifications: Notifications, database: Database, environment: Environment
) -> None:
    taken = await notifications.accept(environment.id, submission("a", key="taken"))
    request = (*submission("b"), *submission("c", key="free"), *submission("d", key="taken"))
    with pytest.raises(Conflict):
        await notifications.accept(environment.id, request)
    assert await stored(database) == set(taken)


async def test_what_postgresql_cannot_store_is_refused_alone(
    notifications: Notifications, broker: Broker, accepted: Queue, environment: Environment
) -> None:
    bad = notification("ann")
    bad = msgspec.structs.replace(bad, data="not json")
    request = (Submission(notifications=(bad,), idempotency_key="k", fingerprint=b"x"),)
    *good, refused = await asyncio.gather(
        *(notifications.accept(environment.id, submission(f"{number}")) for number in range(9)),
        notifications.accept(environment.id, request),
        return_exceptions=True,
    )
    assert isinstance(refused, InvalidInput)
    assert refused.field == "body"
    assert sorted(await queued(broker, accepted)) == sorted(
        found for ids in good if not isinstance(ids, BaseException) for found in ids
    )
    assert len(good) == 9
    fixed = submission("a", key="k")
    assert await notifications.accept(environment.id, fixed) == [fixed[0].notifications[0].id]


@pytest.mark.parametrize("moment", [EARLIEST, LATEST - timedelta(microseconds=1)])
async def test_the_earliest_and_the_latest_moment_are_read_as_they_were_stored(
    notifications: Notifications, environment: Environment, moment: datetime
) -> None:
    new = msgspec.structs.replace(notification("ann"), occurred_at=moment)
    await notifications.accept(environment.id, (Submission(notifications=(new,)),))
    (found,) = await notifications.list_notifications(environment.id)
    assert found.occurred_at == moment


Scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
Json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
@settings(max_examples=100)
@given(data=Json, name=st.text(min_size=1, max_size=20).filter(str.isprintable))
async def test_any_event_that_is_understood_can_be_stored_and_read(
    notifications: Notifications, environment: Environment, data: object, name: str
) -> None:
    body = msgspec.json.encode({"type": name, "subject": name, "recipients": ["ann@acme.example"], "data": data})
    (notification_id,) = await notifications.accept(environment.id, read_events({}, body).submissions)
    found, timeline = await notifications.get(environment.id, notification_id)
    assert (found.type, found.subject) == (name, name)
    assert found.data is not None
    assert msgspec.json.decode(found.data) == msgspec.json.decode(msgspec.json.encode(data))
    assert [entry.step for entry in timeline] == ["accepted"]


async def test_nothing_is_accepted_once_draining_has_begun_and_what_was_is_stored(
    notifications: Notifications, database: Database, environment: Environment
) -> None:
    accepting = [asyncio.create_task(notifications.accept(environment.id, submission("a"))) for _ in range(20)]
    await asyncio.sleep(0)
    await notifications.drain()
    ids = await asyncio.gather(*accepting)
    assert await stored(database) == {found for answer in ids for found in answer}
    with pytest.raises(Overloaded):
        await notifications.accept(environment.id, submission("late"))


async def test_one_environment_sees_nothing_of_another(
    notifications: Notifications, environment: Environment, elsewhere: Environment
) -> None:
    (notification_id,) = await notifications.accept(environment.id, submission("a"))
    await notifications.put_workflow(environment.id, "task.failed", 60)
    assert await notifications.list_notifications(elsewhere.id) == []
    assert await notifications.list_summaries(elsewhere.id) == []
    with pytest.raises(NotFound):
        await notifications.get(elsewhere.id, notification_id)
    assert await notifications.list_workflows(elsewhere.id) == []
    with pytest.raises(NotFound):
        await notifications.delete_workflow(elsewhere.id, "task.failed")
    assert (await notifications.overview(elsewhere.id)).events == 0


async def test_pages_go_from_the_newest_to_the_oldest_without_gap_or_repetition(
    notifications: Notifications, environment: Environment, elsewhere: Environment
) -> None:
    ids = await notifications.accept(environment.id, submission(*(f"{number}" for number in range(25))))
    await notifications.accept(elsewhere.id, submission("theirs"))
    pages: list[list[UUID]] = []
    before: UUID | None = None
    while page := await notifications.list_notifications(environment.id, before=before, limit=10):
        summaries = await notifications.list_summaries(environment.id, before=before, limit=10)
        assert [brief.id for brief in summaries] == [found.id for found in page]
        pages.append([found.id for found in page])
        before = page[-1].id
    assert list(map(len, pages)) == [10, 10, 5]
    assert [found for page in pages for found in page] == list(reversed(ids))


@pytest.mark.parametrize("limit", [0, -1, 201])
async def test_a_page_has_a_limit(notifications: Notifications, environment: Environment, limit: int) -> None:
    for look in (notifications.list_notifications, notifications.list_summaries):
        with pytest.raises(InvalidInput) as refused:
            await look(environment.id, limit=limit)
        assert refused.value.field == "limit"


async def test_what_does_not_exist_is_not_found(notifications: Notifications, environment: Environment) -> None:
    with pytest.raises(NotFound):
        await notifications.get(environment.id, NOBODYS)
    with pytest.raises(NotFound):
        await notifications.delete_workflow(environment.id, "task.failed")


async def test_a_workflow_is_set_changed_and_removed(notifications: Notifications, environment: Environment) -> None:
    await notifications.put_workflow(environment.id, "b", 60)
    await notifications.put_workflow(environment.id, "a", 0)
    await notifications.put_workflow(environment.id, "b", 7 * 24 * 3600)
    workflows = await notifications.list_workflows(environment.id)
    assert [(workflow.type, workflow.digest_window_seconds) for workflow in workflows] == [("a", 0), ("b", 604_800)]
    await notifications.delete_workflow(environment.id, "a")
    assert [workflow.type for workflow in await notifications.list_workflows(environment.id)] == ["b"]


@pytest.mark.parametrize(
    ("type_", "window_seconds", "field"),
    [
        ("", 60, "type"),
        ("a\n", 60, "type"),
        ("a", -1, "digest_window_seconds"),
        ("a", 604_801, "digest_window_seconds"),
    ],
)
async def test_a_workflow_that_is_not_allowed_names_its_field(
    notifications: Notifications, environment: Environment, type_: str, window_seconds: int, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await notifications.put_workflow(environment.id, type_, window_seconds)
    assert refused.value.field == field
    assert await notifications.list_workflows(environment.id) == []


def test_the_sender_of_emails_must_be_an_address() -> None:
    NotificationsConfig(email_from="noreply@acme.example")
    for email_from in ("", "Bellringer", "a@b\nBcc: c@d"):
        with pytest.raises(ValueError, match="email_from"):
            NotificationsConfig(email_from=email_from)
