"""From the queue of emails to the answer of a server and its record, over real PostgreSQL and real SMTP."""

from __future__ import annotations

import asyncio
import email
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast
from uuid import UUID

import pytest
from tests.support.destination import Destination, hang_up
from tests.support.pipeline import Pipeline, consumer_of, notification, opened_pipeline, sender_of
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import Message, QueueCounts
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.notifications.channels.sender import RETRY
from bellringer.notifications.channels.smtp import SmtpUnreachable
from bellringer.notifications.model import NewNotification, Submission

ANN, BOB, CID = "ann@acme.example", "bob@acme.example", "cid@acme.example"


@pytest.fixture
async def destination() -> AsyncIterator[Destination]:
    opened = Destination()
    await opened.start()
    yield opened
    opened.gate.set()
    await opened.stop()


@pytest.fixture
async def pipeline(database: Database, keys: Keys, destination: Destination) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys, url=destination.url) as opened:
        yield opened


async def outgoing(pipeline: Pipeline, environment: Environment, *new: NewNotification) -> list[UUID]:
    """Bring events to the queue of emails; return their ids."""
    ids = await pipeline.notifications.accept(environment.id, (Submission(notifications=new),))
    await pipeline.group_all()
    return ids


async def states(database: Database) -> dict[str, tuple[str, str | None]]:
    """How every recipient stands, and what the server said of each."""
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT address, state::text, reply FROM bellringer.deliveries")
    return {row["address"]: (row["state"], row["reply"]) for row in rows}


async def counts(pipeline: Pipeline) -> QueueCounts:
    return (await pipeline.broker.counts([pipeline.outbound]))[pipeline.outbound.id]


async def pause_seconds(database: Database) -> float:
    """How long the message that is to come back waits."""
    async with database.connection() as connection:
        found: float = await connection.fetchval(
            "SELECT EXTRACT(epoch FROM due_at - clock_timestamp())::float8 FROM bellringer.tracked "
            "WHERE state = 'delayed'"
        )
    return found


async def make_older(database: Database, seconds: float) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE bellringer.emails SET created_at = created_at - make_interval(secs => $1)", seconds
        )


async def test_an_email_is_sent_recorded_and_done(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    ids = await outgoing(pipeline, environment, notification("ann", "bob"), notification("ann", "bob"))
    assert await pipeline.sends.run_once() is True
    ((recipients, message),) = destination.received
    assert recipients == [ANN, BOB]
    assert all(str(found).encode() in message for found in ids)
    assert await states(database) == {ANN: ("sent", "taken as 42"), BOB: ("sent", "taken as 42")}
    assert (await counts(pipeline)).deleted == 1
    assert (await pipeline.notifications.overview(environment.id)).sent == 2


async def test_no_recipient_is_named_in_the_message(
    pipeline: Pipeline, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann", "bob", "cid", subject="nightly-import"))
    await pipeline.sends.run_once()
    ((recipients, content),) = destination.received
    assert recipients == [ANN, BOB, CID]
    message = email.message_from_bytes(content)
    parts = [part for part in message.walk() if not part.is_multipart()]
    decoded = b"".join(cast("bytes", part.get_payload(decode=True)) for part in parts)
    for address in recipients:
        for text in (content, decoded):
            assert address.encode() not in text
            assert not re.search(rb"\b" + address.partition("@")[0].encode() + rb"\b", text)
    assert message["To"] == "undisclosed-recipients:;"


async def test_each_recipient_is_recorded_with_its_own_answer_and_only_who_waits_is_tried_again(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    destination.script |= {BOB: "550 nobody", CID: "451 later"}
    await outgoing(pipeline, environment, notification("ann", "bob", "cid"))
    await pipeline.sends.run_once()
    assert await states(database) == {
        ANN: ("sent", "taken as 42"),
        BOB: ("failed", "550 nobody"),
        CID: ("pending", "451 later"),
    }
    assert (await counts(pipeline)).delayed == 1

    destination.script.clear()
    await pipeline.end_pauses()
    await pipeline.sends.run_once()
    assert [recipients for recipients, _ in destination.received] == [[ANN], [CID]]
    assert destination.received[0][1] == destination.received[1][1]
    assert {address: state for address, (state, _) in (await states(database)).items()} == {
        ANN: "sent",
        BOB: "failed",
        CID: "sent",
    }
    overview = await pipeline.notifications.overview(environment.id)
    assert (overview.sent, overview.failed) == (2, 1)


@pytest.mark.parametrize(
    "script",
    [{"DATA": "451 later"}, {"DATA": hang_up}, {"before DATA": "421 closing"}, {"MAIL": hang_up}, {ANN: hang_up}],
)
async def test_every_attempt_sends_the_same_bytes(
    pipeline: Pipeline,
    database: Database,
    destination: Destination,
    environment: Environment,
    script: dict[str, str | Callable[[], str]],
) -> None:
    destination.script |= script
    await outgoing(pipeline, environment, notification("ann", subject="a"), notification("ann", subject="b"))
    for _ in range(3):
        await pipeline.sends.run_once()
        assert (await states(database))[ANN][0] == "pending"
        await pipeline.end_pauses()
    destination.script.clear()
    await pipeline.sends.run_once()
    assert (await states(database))[ANN][0] == "sent"
    ((_, taken),) = destination.received
    assert {content for _, content in destination.refused} <= {taken}
    message_id = email.message_from_bytes(taken)["Message-ID"]
    async with database.connection() as connection:
        assert str(await connection.fetchval("SELECT id FROM bellringer.emails")) in message_id


async def test_the_pause_grows_with_the_refusals(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    destination.script["DATA"] = "451 later"
    await outgoing(pipeline, environment, notification("ann"))
    for attempt in range(1, 8):
        await pipeline.sends.run_once()
        ceiling = RETRY.ceiling_seconds(attempt)
        assert ceiling / 2 - PATIENCE_SECONDS < await pause_seconds(database) <= ceiling
        await pipeline.end_pauses()


@pytest.mark.parametrize("said", ["451 later", hang_up])
async def test_who_waits_for_too_long_is_given_up(
    pipeline: Pipeline,
    database: Database,
    destination: Destination,
    environment: Environment,
    said: str | Callable[[], str],
) -> None:
    destination.script["DATA"] = said
    await outgoing(pipeline, environment, notification("ann", "bob"))
    await pipeline.sends.run_once()
    assert (await states(database))[ANN][0] == "pending"
    await pipeline.end_pauses()
    await make_older(database, 3600)
    await pipeline.sends.run_once()
    for state, reply in (await states(database)).values():
        assert (state, (reply or "")[:9]) == ("failed", "gave up: ")
    assert (await counts(pipeline)).deleted == 1
    assert (await pipeline.notifications.overview(environment.id)).failed == 2


async def test_a_server_that_is_down_keeps_every_email_in_the_queue(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann"), notification("bob"))
    await destination.stop()
    for _ in range(3):
        with pytest.raises(SmtpUnreachable):
            await pipeline.sends.run_once()
        assert (await counts(pipeline)).pending == 2
    assert {state for state, _ in (await states(database)).values()} == {"pending"}
    await destination.start()
    await pipeline.sends.run_once()
    assert {state for state, _ in (await states(database)).values()} == {"sent"}
    assert len(destination.received) == 2


async def test_a_server_that_stays_down_for_too_long_is_given_up(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann"))
    await destination.stop()
    await make_older(database, 3600)
    await pipeline.sends.run_once()
    state, reply = (await states(database))[ANN]
    assert (state, (reply or "")[:9]) == ("failed", "gave up: ")


async def test_an_outage_does_not_lengthen_the_pause_after_a_refusal(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann"))
    await destination.stop()
    for _ in range(8):
        with pytest.raises(SmtpUnreachable):
            await pipeline.sends.run_once()
    await destination.start()
    destination.script["DATA"] = "451 later"
    await pipeline.sends.run_once()
    assert await pause_seconds(database) <= RETRY.ceiling_seconds(1)


async def test_one_email_over_which_the_server_hangs_up_stops_no_other(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    await outgoing(
        pipeline, environment, *(notification(f"reader-{number}") for number in range(10)), notification("poison")
    )
    destination.script["poison@acme.example"] = hang_up
    for _ in range(3):
        await pipeline.sends.run_once()
        await pipeline.end_pauses()
    found = await states(database)
    assert found.pop("poison@acme.example")[0] == "pending"
    assert {state for state, _ in found.values()} == {"sent"}
    assert len(destination.received) == 10


async def test_one_email_that_cannot_be_composed_stops_no_other_and_is_given_up_in_time(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    ids = await outgoing(pipeline, environment, notification("ann"), notification("bob"), notification("cid"))
    async with database.connection() as connection:
        # Nothing that comes in over HTTP leads to this; it stands for whatever a composer may stumble over.
        await connection.execute("UPDATE bellringer.notifications SET occurred_at = '-infinity' WHERE id = $1", ids[1])
    destination.script[CID] = "451 later"
    await pipeline.sends.run_once()
    found = await states(database)
    assert (found[ANN][0], found[BOB][0], found[CID][0]) == ("sent", "pending", "pending")
    assert "cannot be sent" in (found[BOB][1] or "")
    assert (await counts(pipeline)).delayed == 2  # no attempt follows at once
    assert destination.begun == 1

    await pipeline.end_pauses()
    await make_older(database, 3600)
    await pipeline.sends.run_once()
    assert {address: state for address, (state, _) in (await states(database)).items()} == {
        ANN: "sent",
        BOB: "failed",
        CID: "failed",
    }


async def test_a_message_that_names_no_email_stops_no_other(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann"))
    async with database.transaction() as connection:
        await pipeline.broker.publish(connection, pipeline.outbound, [b"no id", str(UUID(int=1)).encode()])
    await pipeline.sends.run_once()
    assert (await states(database))[ANN][0] == "sent"
    found = await counts(pipeline)
    assert (found.deleted, found.delayed) == (2, 1)  # an email that was removed is done, what is no id comes back


async def take(pipeline: Pipeline) -> Sequence[Message]:
    return await pipeline.broker.claim(pipeline.outbound, 100)


async def test_an_email_that_was_sent_is_not_sent_again_when_its_message_comes_again(
    pipeline: Pipeline, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann"))
    slow = await take(pipeline)
    await pipeline.end_pauses()
    await pipeline.sends.run_once()
    await pipeline.sender.handle(slow)
    assert len(destination.received) == 1
    assert (await counts(pipeline)).deleted == 1
    assert (await pipeline.notifications.overview(environment.id)).sent == 1


async def test_what_a_server_took_is_recorded_though_the_hold_was_lost_meanwhile(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, notification("ann"))
    slow = await take(pipeline)
    destination.gate.clear()
    sending = asyncio.create_task(pipeline.sender.handle(slow))

    async def it_has_begun() -> bool:
        return destination.begun == 1

    await until(it_has_begun)
    await pipeline.end_pauses()
    destination.gate.set()
    await asyncio.wait_for(sending, PATIENCE_SECONDS)
    assert (await states(database))[ANN][0] == "sent"
    assert (await counts(pipeline)).pending == 1
    await pipeline.sends.run_once()
    assert len(destination.received) == 1
    assert (await counts(pipeline)).deleted == 1


async def test_no_more_emails_are_in_hand_than_connections_and_slots_allow(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment, keys: Keys
) -> None:
    await outgoing(pipeline, environment, *(notification(f"reader-{number}") for number in range(12)))
    sender = sender_of(
        database, pipeline.broker, pipeline.outbound, keys, destination.url, concurrency=3, connections=2
    )
    destination.gate.clear()
    sending = asyncio.create_task(consumer_of(pipeline.broker, pipeline.outbound, sender.handle).run_once())

    async def two_have_begun() -> bool:
        return destination.begun == 2

    await until(two_have_begun)
    assert len(destination.connections) == 2
    destination.gate.set()
    await asyncio.wait_for(sending, PATIENCE_SECONDS)
    assert destination.most_at_once <= 2
    assert len(destination.received) == 12
    await sender.drain()


async def test_draining_waits_for_the_record_of_what_was_sent(
    pipeline: Pipeline, database: Database, destination: Destination, environment: Environment
) -> None:
    await outgoing(pipeline, environment, *(notification(f"reader-{number}") for number in range(5)))
    handling = asyncio.create_task(pipeline.sends.run_once())

    async def all_have_arrived() -> bool:
        return len(destination.received) == 5

    await until(all_have_arrived)
    await handling
    await pipeline.sender.drain()
    assert {state for state, _ in (await states(database)).values()} == {"sent"}


async def test_events_of_several_environments_are_sent_in_the_name_of_each(
    pipeline: Pipeline, destination: Destination, environment: Environment, keys: Keys
) -> None:
    staging = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    for where in (environment, staging):
        await pipeline.notifications.accept(where.id, (Submission(notifications=(notification("ann"),)),))
    await pipeline.group_all()
    await pipeline.sends.run_once()
    subjects = {str(email.message_from_bytes(content)["Subject"]) for _, content in destination.received}
    assert {subject.partition("]")[0] for subject in subjects} == {"[acme/production", "[acme/staging"}
