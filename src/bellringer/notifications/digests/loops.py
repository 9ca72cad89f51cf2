"""Background work of digests: join what was accepted, close what is due, group what was closed.

Each round is one transaction that also completes or publishes the messages on its two sides. It completes first: an
attempt that lost its hold ends there, and while the transaction lasts no sweep can take the hold away.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from bellringer.broker import Broker, Message, Queue
from bellringer.kernel.database import Database
from bellringer.kernel.service import Loop
from bellringer.notifications.digests import store

CLOSED_QUEUE = "digests.closed"

_CLOSE_BATCH = 100
_PUBLISH_BATCH = 1000


class DigestsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When a digest closes by default, and how large an email may grow."""

    window_seconds: int
    recipients_per_email: int
    events_per_email: int


class Joiner:
    """Handles messages of accepted notifications: they join the open digest."""

    def __init__(self, database: Database, broker: Broker, accepted: Queue, config: DigestsConfig) -> None:
        self._database = database
        self._broker = broker
        self._accepted = accepted
        self._config = config

    async def handle(self, messages: Sequence[Message]) -> None:
        """Let a batch join."""
        ids = [UUID(message.body.decode()) for message in messages]
        async with self._database.transaction() as connection:
            await self._broker.complete(connection, self._accepted, messages)
            await store.join(connection, ids, self._config.window_seconds)


class DigestCloser(Loop):
    """Closes digests whose window is over. Safe in every process at once."""

    def __init__(self, database: Database, broker: Broker, closed: Queue, *, interval_seconds: float = 0.25) -> None:
        super().__init__("digest closer", interval_seconds=interval_seconds)
        self._database = database
        self._broker = broker
        self._closed = closed

    async def run_once(self) -> bool:
        """Close one batch and announce each digest."""
        async with self._database.transaction() as connection:
            closed = await store.close_due(connection, _CLOSE_BATCH)
            if closed:
                await self._broker.publish(connection, self._closed, [str(digest_id).encode() for digest_id in closed])
        self._broker.wakeups.wake(self._closed.id, len(closed))
        return len(closed) == _CLOSE_BATCH


class Grouper:
    """Handles messages of closed digests: each becomes as few emails as its recipients allow."""

    def __init__(
        self, database: Database, broker: Broker, closed: Queue, outbound: Queue, config: DigestsConfig
    ) -> None:
        self._database = database
        self._broker = broker
        self._closed = closed
        self._outbound = outbound
        self._config = config

    async def handle(self, messages: Sequence[Message]) -> None:
        """Group the digests one by one, each in a transaction of its own."""
        for message in messages:
            digest_id = UUID(message.body.decode())
            async with self._database.transaction() as connection:
                await self._broker.complete(connection, self._closed, [message])
                if await store.group(
                    connection, digest_id, self._config.recipients_per_email, self._config.events_per_email
                ):
                    async for email_ids in store.email_ids(connection, digest_id, _PUBLISH_BATCH):
                        bodies = [str(email_id).encode() for email_id in email_ids]
                        await self._broker.publish(connection, self._outbound, bodies)
            self._broker.wakeups.wake(self._outbound.id)
