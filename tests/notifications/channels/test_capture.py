"""The capture server: a real one on loopback that takes our mail and nobody else's."""

from __future__ import annotations

import email
import email.policy
from collections.abc import AsyncIterator
from email.message import EmailMessage
from typing import Any, cast
from uuid import UUID

import aiosmtplib
import pytest
from tests.support.pipeline import SENDER, Pipeline, notification, opened_pipeline, sender_of

from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, NotFound
from bellringer.notifications.channels.capture import CapturedMailbox, CaptureServer
from bellringer.notifications.channels.smtp import SmtpConfig, SmtpTransport, SmtpUnreachable
from bellringer.notifications.model import Submission

ANN, BOB = "ann@acme.example", "bob@acme.example"
UNKNOWN = UUID(int=1)


@pytest.fixture
async def url(database: Database) -> AsyncIterator[str]:
    server = CaptureServer(database)
    yield await server.start()
    await server.close()


@pytest.fixture
async def pipeline(database: Database, keys: Keys, url: str) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys, url=url) as opened:
        yield opened


@pytest.fixture
def mailbox(database: Database) -> CapturedMailbox:
    return CapturedMailbox(database)


async def tell(pipeline: Pipeline, environment: Environment, *recipients: str) -> UUID:
    submission = Submission(notifications=(notification(*recipients, subject="nightly-import"),))
    (notification_id,) = await pipeline.notifications.accept(environment.id, (submission,))
    return notification_id


def parsed(source: str) -> EmailMessage:
    return cast("EmailMessage", email.message_from_string(source, policy=cast("Any", email.policy.default)))


async def test_our_mail_is_captured_and_shown(
    pipeline: Pipeline, mailbox: CapturedMailbox, environment: Environment
) -> None:
    notification_id = await tell(pipeline, environment, "ann", "bob")
    await pipeline.run_through()
    (mail,) = await mailbox.list_mail(environment.id)
    assert (mail.sender, mail.recipients) == ("noreply@acme.example", [ANN, BOB])
    shown = await mailbox.get(environment.id, mail.id)
    assert (shown.subject, shown.recipients) == (mail.subject, mail.recipients)
    assert str(notification_id) in shown.html
    assert str(notification_id) in shown.text
    message = parsed(shown.source)
    assert (message["From"], message["Subject"]) == (SENDER, mail.subject)
    _, timeline = await pipeline.notifications.get(environment.id, notification_id)
    assert [(entry.step, entry.detail) for entry in timeline[3:]] == [("sent", "captured")] * 2


@pytest.mark.parametrize(
    "message_id", [None, "", "<hello>", "<hello@acme.example>", f"<{UNKNOWN}@acme.example>", "<@acme.example>", "\xff"]
)
async def test_other_mail_is_refused_for_good(
    url: str, pipeline: Pipeline, mailbox: CapturedMailbox, environment: Environment, message_id: str | None
) -> None:
    await tell(pipeline, environment, "ann")
    await pipeline.group_all()
    head = "" if message_id is None else f"Message-ID: {message_id}\r\n"
    transport = SmtpTransport(url, SENDER, SmtpConfig())
    (outcome,) = await transport.send([ANN], f"{head}Subject: hello\r\n\r\nhello\r\n".encode("latin-1"))
    await transport.close()
    assert outcome.state == "failed"
    assert outcome.reply == "550 only mail from this Bellringer is captured"
    assert await mailbox.list_mail(environment.id) == []


async def test_without_a_database_mail_is_refused_for_now(database: Database) -> None:
    server = CaptureServer(database)
    url = await server.start()
    await database.close()
    transport = SmtpTransport(url, SENDER, SmtpConfig())
    (outcome,) = await transport.send([ANN], f"Message-ID: <{UNKNOWN}@acme.example>\r\n\r\n".encode())
    assert (outcome.state, outcome.reply[:3]) == ("pending", "451")
    await transport.close()
    await server.close()


async def test_nobody_listens_before_the_start_and_after_the_close(database: Database) -> None:
    server = CaptureServer(database)
    await server.close()
    url = await server.start()
    await server.close()
    with pytest.raises(SmtpUnreachable):
        await SmtpTransport(url, SENDER, SmtpConfig()).send([ANN], b"")


async def test_it_listens_on_this_machine_alone(url: str) -> None:
    assert url.startswith("smtp://127.0.0.1:")
    client = aiosmtplib.SMTP(hostname="127.0.0.1", port=int(url.rpartition(":")[2]))
    await client.connect()
    await client.quit()


async def test_a_mailbox_shows_the_mail_of_its_environment_in_pages(
    pipeline: Pipeline, mailbox: CapturedMailbox, environment: Environment, keys: Keys
) -> None:
    elsewhere = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    for where, name in ((environment, "ann"), (elsewhere, "bob"), (environment, "cid"), (environment, "dan")):
        await tell(pipeline, where, name)
        await pipeline.run_through()
    first = await mailbox.list_mail(environment.id, limit=2)
    second = await mailbox.list_mail(environment.id, before=first[-1].id, limit=2)
    assert [mail.recipients[0][:3] for mail in first + second] == ["dan", "cid", "ann"]
    (theirs,) = await mailbox.list_mail(elsewhere.id)
    with pytest.raises(NotFound):
        await mailbox.get(environment.id, theirs.id)
    with pytest.raises(NotFound):
        await mailbox.get(environment.id, UNKNOWN)
    for limit in (0, 201):
        with pytest.raises(InvalidInput) as refused:
            await mailbox.list_mail(environment.id, limit=limit)
        assert refused.value.field == "limit"


async def test_an_email_that_was_sent_twice_is_captured_twice_and_is_the_same(
    pipeline: Pipeline, database: Database, mailbox: CapturedMailbox, environment: Environment, keys: Keys, url: str
) -> None:
    await tell(pipeline, environment, "ann")
    await pipeline.run_through()
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.deliveries SET state = 'pending'")  # as if nobody recorded it
        email_id = await connection.fetchval("SELECT id FROM bellringer.emails")
        await pipeline.broker.publish(connection, pipeline.outbound, [str(email_id).encode()])
    again = sender_of(database, pipeline.broker, pipeline.outbound, keys, url)
    await again.handle(await pipeline.broker.claim(pipeline.outbound, 1))
    await again.drain()
    sources = [(await mailbox.get(environment.id, mail.id)).source for mail in await mailbox.list_mail(environment.id)]
    assert len(sources) == 2
    assert sources[0] == sources[1]
