"""An environment whose pipeline moves when a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from litestar.types import ASGIApp

from bellringer.broker import Broker, Queue
from bellringer.broker.loops import InboxMover
from bellringer.broker.moves import Moves
from bellringer.edge.model import Environment
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Database
from bellringer.kernel.ids import uuid7
from bellringer.notifications.channels import store as channels
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.channels.model import Outcome
from bellringer.notifications.digests.loops import DigestCloser, DigestsConfig, Grouper, Joiner
from bellringer.notifications.model import NewNotification, Submission
from bellringer.notifications.service import Notifications
from bellringer.scheduler.model import Call, MessageCall, Schedule, Task, TaskDefinition
from bellringer.scheduler.samples import Samples
from bellringer.scheduler.service import Tasks


class Site:
    """The console over a database, and the pipeline beside it."""

    def __init__(
        self,
        database: Database,
        broker: Broker,
        queues: Sequence[Queue],
        environment: Environment,
        app: ASGIApp,
        tasks: Tasks,
    ) -> None:
        accepted, closed, outbound = queues
        digests = DigestsConfig(window_seconds=0, recipients_per_email=100, events_per_email=1000)
        self.app = app
        self.environment = environment
        self.broker = broker
        self.notifications = Notifications(database, broker, accepted, batcher=BatcherConfig())
        self.mailbox = CapturedMailbox(database)
        self.moves = Moves(database, broker)
        self.tasks = tasks
        self.samples = Samples(database)
        self._database = database
        self._accepted, self._closed, self._outbound = accepted, closed, outbound
        self._joiner = Joiner(database, broker, accepted, digests)
        self._closer = DigestCloser(database, broker, closed)
        self._grouper = Grouper(database, broker, closed, outbound, digests)

    async def tell(self, *recipients: str, type_: str = "task.failed", subject: str | None = "Import") -> UUID:
        """Accept an event; return the id of its notification."""
        notification = NewNotification(
            id=uuid7(),
            type=type_,
            subject=subject,
            source="scheduler",
            recipients=tuple(sorted(recipients or ("ann@acme.example",))),
            data='{"reason": "disk full", "retry": true}',
        )
        ids = await self.notifications.accept(self.environment.id, (Submission(notifications=(notification,)),))
        return ids[0]

    async def join(self) -> None:
        """Let what was accepted join its digest."""
        await self._joiner.handle(await self.broker.claim(self._accepted, 1000))

    async def group(self) -> list[UUID]:
        """Close the digests and make their emails; return the ids of the emails."""
        await self._closer.run_once()
        await self._grouper.handle(await self.broker.claim(self._closed, 1000))
        messages = await self.broker.claim(self._outbound, 1000)
        async with self._database.transaction() as connection:
            await self.broker.complete(connection, self._outbound, messages)
        return [UUID(message.body.decode()) for message in messages]

    async def add_task(self, name: str, *, call: Call | None = None, payload: object = None, **when: Any) -> Task:  # noqa: ANN401 - any schedule
        """Make a task that publishes a message, unless it is to call something else, every hour unless told."""
        definition = TaskDefinition(
            schedule=Schedule(**(when or {"every_seconds": 3600.0})),
            call=call or MessageCall(queue="reports"),
            payload=msgspec.Raw(msgspec.json.encode(payload)),
        )
        task, _ = await self.tasks.create(self.environment.id, name, definition)
        return task

    async def deliver(self) -> None:
        """Let what was published inside transactions, dead letters too, come to its queue."""
        await InboxMover(self._database, self.broker).run_once()

    async def report(self, email_id: UUID, *outcomes: Outcome) -> None:
        """Store what became of recipients."""
        async with self._database.connection() as connection:
            await channels.record(connection, [(email_id, outcome) for outcome in outcomes])

    async def capture(self, email_id: UUID, source: bytes, subject: str = "Something happened") -> UUID:
        """Put a message into the mailbox; return its id."""
        async with self._database.connection() as connection:
            recipients = ["ann@acme.example", "ben@acme.example"]
            assert await channels.capture(connection, email_id, "bell@acme.example", recipients, subject, source)
        return (await self.mailbox.list_mail(self.environment.id, limit=1))[0].id
