from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest
from tests.support.pipeline import Pipeline, notification, opened_pipeline

from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Connection, Database
from bellringer.kernel.tally import Tallies
from bellringer.notifications.channels import store
from bellringer.notifications.channels.model import Outcome
from bellringer.notifications.model import NewNotification, Submission

ANN, BOB, CID = "ann@acme.example", "bob@acme.example", "cid@acme.example"
UNKNOWN = UUID(int=1)


@pytest.fixture
async def pipeline(database: Database, keys: Keys) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys) as opened:
        yield opened


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.connection() as opened:
        yield opened


async def email_with(pipeline: Pipeline, environment: Environment, *new: NewNotification) -> UUID:
    """Take events to their one email."""
    await pipeline.notifications.accept(environment.id, (Submission(notifications=new),))
    await pipeline.group_all()
    async with pipeline.database.connection() as connection:
        email_id: UUID = await connection.fetchval("SELECT id FROM bellringer.emails")
    return email_id


async def states_of(connection: Connection, email_id: UUID) -> dict[str, tuple[str, str | None]]:
    rows = await connection.fetch(
        "SELECT address, state::text, reply FROM bellringer.deliveries WHERE email_id = $1", email_id
    )
    return {row["address"]: (row["state"], row["reply"]) for row in rows}


def outcome(address: str, state: str, reply: str = "said") -> Outcome:
    return msgspec.convert({"address": address, "state": state, "reply": reply}, Outcome)


async def test_an_email_is_loaded_with_its_events_and_who_waits(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    new = [notification("ann", "bob", subject=f"{number}") for number in range(3)]
    email_id = await email_with(pipeline, environment, *new)
    email = await store.load_email(connection, email_id)
    assert email is not None
    assert (email.id, email.environment_id, email.part, email.parts) == (email_id, environment.id, 1, 1)
    assert (email.pending, email.refusals) == ((ANN, BOB), 0)
    assert [event.notification_id for event in email.events] == [event.id for event in new]
    assert [event.subject for event in email.events] == ["0", "1", "2"]
    assert email.events[0].data == {"error": "timeout"}
    assert 0 <= email.age_seconds < 60


async def test_an_email_that_is_gone_is_none(connection: Connection) -> None:
    assert await store.load_email(connection, UNKNOWN) is None


async def test_events_come_in_the_order_in_which_they_happened(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    email_id = await email_with(pipeline, environment, *(notification("ann", subject=f"{n}") for n in range(3)))
    await connection.execute(
        "UPDATE bellringer.notifications SET occurred_at = now() - subject::integer * interval '1 h'"
    )
    email = await store.load_email(connection, email_id)
    assert email is not None
    assert [event.subject for event in email.events] == ["2", "1", "0"]


async def test_a_large_email_is_loaded_with_the_data_of_its_first_events_only(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    email_id = await email_with(pipeline, environment, *(notification("ann") for _ in range(205)))
    email = await store.load_email(connection, email_id)
    assert email is not None
    with_data = [event.data is not None for event in email.events]
    assert with_data == [True] * store.MOST_EVENTS_WITH_DATA + [False] * 5


async def test_data_that_is_very_large_is_left_out(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    sizes = (store.LARGEST_DATA_SHOWN_BYTES, store.LARGEST_DATA_SHOWN_BYTES + 1)
    new = [msgspec.structs.replace(notification("ann"), data=f'"{"x" * (size - 2)}"') for size in sizes]
    email = await store.load_email(connection, await email_with(pipeline, environment, *new))
    assert email is not None
    assert [event.data is not None for event in email.events] == [True, False]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ('{"recipients": ["ann@acme.example", "bob@acme.example"], "error": "timeout"}', {"error": "timeout"}),
        ('{"list": ["kept"]}', {"list": ["kept"]}),
        ('["a", 1]', ["a", 1]),
        ("null", None),
        (None, None),
        pytest.param('"\\ud800"', None, id="a lone surrogate"),
        pytest.param("1e999", None, id="beyond a float"),
    ],
)
async def test_an_email_shows_the_data_of_an_event_and_never_whom_it_names_as_recipients(
    pipeline: Pipeline, connection: Connection, environment: Environment, data: str | None, shown: object
) -> None:
    new = msgspec.structs.replace(notification("ann", "bob"), data=data)
    email = await store.load_email(connection, await email_with(pipeline, environment, new))
    assert email is not None
    assert email.pending == (ANN, BOB)
    assert [event.data for event in email.events] == [shown]


async def test_data_that_is_nested_deeply_does_not_keep_an_email_from_being_loaded(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    new = msgspec.structs.replace(notification("ann"), data="[" * 5000 + "]" * 5000)
    email = await store.load_email(connection, await email_with(pipeline, environment, new))
    assert email is not None
    assert [event.data for event in email.events] == [None]


async def test_outcomes_are_stored_and_counted_once(
    pipeline: Pipeline, connection: Connection, database: Database, environment: Environment
) -> None:
    email_id = await email_with(pipeline, environment, notification("ann", "bob", "cid"))
    outcomes = [outcome(ANN, "sent"), outcome(BOB, "failed"), outcome(CID, "pending", "451 later")]
    await store.record(connection, [(email_id, each) for each in outcomes])
    assert await states_of(connection, email_id) == {
        ANN: ("sent", "said"),
        BOB: ("failed", "said"),
        CID: ("pending", "451 later"),
    }
    counts = (await Tallies(database).read([environment.id]))[environment.id]
    assert (counts["sent"], counts["failed"]) == (1, 1)
    assert "pending" not in counts
    email = await store.load_email(connection, email_id)
    assert email is not None
    assert (email.pending, email.refusals) == ((CID,), 1)


@pytest.mark.parametrize("later", ["sent", "failed", "pending"])
@pytest.mark.parametrize("first", ["sent", "failed"])
async def test_a_recipient_who_was_told_or_given_up_stays_so_whatever_a_slower_attempt_says(
    pipeline: Pipeline, connection: Connection, database: Database, environment: Environment, first: str, later: str
) -> None:
    email_id = await email_with(pipeline, environment, notification("ann"))
    await store.record(connection, [(email_id, outcome(ANN, first, "first"))])
    await store.record(connection, [(email_id, outcome(ANN, later, "later"))])
    assert await states_of(connection, email_id) == {ANN: (first, "first")}
    counts = (await Tallies(database).read([environment.id]))[environment.id]
    assert Counter(sent=counts["sent"], failed=counts["failed"]).total() == 1


async def test_an_outcome_of_an_email_that_is_gone_is_forgotten(connection: Connection) -> None:
    await store.record(connection, [(UNKNOWN, outcome(ANN, "sent"))])
    assert await connection.fetchval("SELECT count(*) FROM bellringer.tally_entries") == 0


async def test_mail_is_captured_for_the_environment_of_its_email(
    pipeline: Pipeline, connection: Connection, environment: Environment, keys: Keys
) -> None:
    elsewhere = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    email_id = await email_with(pipeline, environment, notification("ann"))
    assert await store.capture(connection, email_id, "from@acme.example", [ANN], "subject", b"message") is True
    assert await store.capture(connection, UNKNOWN, "from@acme.example", [ANN], "subject", b"message") is False
    (mail,) = await store.list_captured(connection, environment.id, None, 10)
    assert (mail.sender, mail.recipients, mail.subject) == ("from@acme.example", [ANN], "subject")
    assert await store.find_captured(connection, environment.id, mail.id) == (mail, b"message")
    assert await store.find_captured(connection, elsewhere.id, mail.id) is None
    assert await store.list_captured(connection, elsewhere.id, None, 10) == []


async def test_captured_mail_comes_in_pages_newest_first_and_goes_oldest_first(
    pipeline: Pipeline, connection: Connection, environment: Environment
) -> None:
    email_id = await email_with(pipeline, environment, notification("ann"))
    for number in range(5):
        await store.capture(connection, email_id, "a@acme.example", [], f"{number}", b"")
    first = await store.list_captured(connection, environment.id, None, 3)
    second = await store.list_captured(connection, environment.id, first[-1].id, 3)
    assert [mail.subject for mail in first + second] == ["4", "3", "2", "1", "0"]

    assert await store.expire_captured(connection, 60, 10) == 0
    await connection.execute("UPDATE bellringer.captured_mail SET received_at = received_at - interval '1 h'")
    assert await store.expire_captured(connection, 60, 3) == 3
    assert [mail.subject for mail in await store.list_captured(connection, environment.id, None, 10)] == ["4", "3"]
