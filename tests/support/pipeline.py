"""The way of an event from its acceptance to the SMTP server, in one process, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
from tests.support.queues import make_due

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, Consumer, ConsumerConfig, Queue
from bellringer.broker.loops import Sweeper
from bellringer.edge.keys import Keys
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Connection, Database
from bellringer.kernel.ids import uuid7
from bellringer.notifications import store
from bellringer.notifications.channels.sender import OUTBOUND_QUEUE, EmailSender
from bellringer.notifications.channels.smtp import SmtpConfig, SmtpTransport
from bellringer.notifications.digests.loops import CLOSED_QUEUE, DigestCloser, DigestsConfig, Grouper, Joiner
from bellringer.notifications.model import NewNotification
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications

SENDER = "Bellringer <noreply@acme.example>"
NOWHERE = "smtp://127.0.0.1:1"
"""Where nobody listens."""

_READ_EMAILS = """
SELECT email.id, email.part, email.parts, email.event_count,
    ARRAY(SELECT address FROM bellringer.deliveries WHERE email_id = email.id ORDER BY address) AS addresses,
    ARRAY(
        SELECT notification_id FROM bellringer.digest_items AS item
        WHERE item.digest_id = email.digest_id AND item.audience = ANY (email.audiences)
            AND (email.first_notification_id IS NULL
                OR item.notification_id BETWEEN email.first_notification_id AND email.last_notification_id)
        ORDER BY notification_id
    ) AS events
FROM bellringer.emails AS email
WHERE email.digest_id = $1
"""


class Email(msgspec.Struct, frozen=True, kw_only=True):
    """An email as it is stored: to whom, and which events it tells of."""

    id: UUID
    part: int
    parts: int
    event_count: int
    addresses: list[str]
    events: list[UUID]


class Pipeline:
    """Its parts, and a round of each. Nothing waits: a round that finds nothing ends at once."""

    def __init__(
        self, database: Database, broker: Broker, keys: Keys, queues: Sequence[Queue], config: DigestsConfig, url: str
    ) -> None:
        self.database = database
        self.broker = broker
        self.accepted, self.closed, self.outbound = queues
        self.notifications = Notifications(database, broker, self.accepted, batcher=BatcherConfig())
        self.joiner = Joiner(database, broker, self.accepted, config)
        self.closer = DigestCloser(database, broker, self.closed)
        self.grouper = Grouper(database, broker, self.closed, self.outbound, config)
        self.sweeper = Sweeper(database, broker)
        self.sender = sender_of(database, broker, self.outbound, keys, url)
        self.joins = consumer_of(broker, self.accepted, self.joiner.handle)
        self.groups = consumer_of(broker, self.closed, self.grouper.handle)
        self.sends = consumer_of(broker, self.outbound, self.sender.handle)
        broker.wakeups.close()

    async def end_windows(self) -> None:
        """Let the window of every digest be over."""
        async with self.database.connection() as connection:
            await connection.execute("UPDATE bellringer.digests SET closes_at = now() WHERE closed_at IS NULL")

    async def end_pauses(self) -> None:
        """Let every message that is to come back come back now."""
        await make_due(self.database)
        await self.sweeper.run_once()

    async def group_all(self) -> None:
        """Join, close and group what there is."""
        while await self.joins.run_once():
            pass
        await self.end_windows()
        while await self.closer.run_once():
            pass
        while await self.groups.run_once():
            pass

    async def run_through(self) -> None:
        """Bring everything that was accepted to the SMTP server, once."""
        await self.group_all()
        while await self.sends.run_once():
            pass

    async def close(self) -> None:
        """Write what is in memory, and close the connections."""
        await self.notifications.drain()
        await self.sender.drain()


def consumer_of(broker: Broker, queue: Queue, handle: object) -> Consumer:
    """A consumer with pauses that no test waits for."""
    config = ConsumerConfig(batch_items=100, retry=Backoff(first_seconds=60, cap_seconds=600))
    return Consumer(broker, queue, handle, config)  # type: ignore[arg-type]


def sender_of(
    database: Database,
    broker: Broker,
    outbound: Queue,
    keys: Keys,
    url: str,
    *,
    give_up_after_seconds: float = 3600.0,
    concurrency: int = 16,
    connections: int = 4,
) -> EmailSender:
    """A sender to an SMTP server."""
    return EmailSender(
        database,
        broker,
        outbound,
        keys,
        SmtpTransport(url, SENDER, SmtpConfig(connections=connections, timeout_seconds=5.0)),
        email_from=SENDER,
        give_up_after_seconds=give_up_after_seconds,
        concurrency=concurrency,
    )


@asynccontextmanager
async def opened_pipeline(
    database: Database,
    keys: Keys,
    *,
    url: str = NOWHERE,
    window_seconds: int = 300,
    recipients_per_email: int = 100,
    events_per_email: int = 1000,
) -> AsyncIterator[Pipeline]:
    """A pipeline over a database, that ends at an SMTP server."""
    broker = Broker(database)
    queues = [
        await broker.ensure_queue(SYSTEM_ENVIRONMENT, name) for name in (ACCEPTED_QUEUE, CLOSED_QUEUE, OUTBOUND_QUEUE)
    ]
    config = DigestsConfig(
        window_seconds=window_seconds, recipients_per_email=recipients_per_email, events_per_email=events_per_email
    )
    opened = Pipeline(database, broker, keys, queues, config, url)
    yield opened
    await opened.close()
    await broker.drain()


def notification(*recipients: str, type: str = "task.failed", subject: str | None = None) -> NewNotification:  # noqa: A002
    """An event to store; a name alone stands for name@acme.example."""
    addresses = {name if "@" in name else f"{name}@acme.example" for name in recipients}
    return NewNotification(
        id=uuid7(), type=type, recipients=tuple(sorted(addresses)), data='{"error": "timeout"}', subject=subject
    )


async def add(connection: Connection, environment_id: UUID, *notifications: NewNotification) -> list[UUID]:
    """Store events without announcing them; return their ids."""
    await store.add(connection, [(environment_id, new) for new in notifications])
    return [new.id for new in notifications]


async def emails_of(connection: Connection, digest_id: UUID) -> list[Email]:
    """The emails of a digest, as they are stored."""
    return [Email(**dict(row)) for row in await connection.fetch(_READ_EMAILS, digest_id)]


def check_exactly_once(emails: Collection[Email], wanted: set[tuple[str, UUID]]) -> None:
    """Fail unless each pair of recipient and event is in one email, and no other pair in any."""
    found = defaultdict[tuple[str, UUID], int](int)
    for email in emails:
        assert email.event_count == len(email.events) > 0
        for address in email.addresses:
            for event in email.events:
                found[(address, event)] += 1
    assert found.keys() == wanted
    assert set(found.values()) <= {1}
