"""What notifications do for HTTP: accept events, show them, keep the workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from bellringer.broker import Broker, Queue
from bellringer.kernel.batcher import BatcherConfig, MicroBatcher
from bellringer.kernel.database import ITEM_FAULTS, Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound
from bellringer.kernel.tally import Tallies
from bellringer.kernel.text import check_text
from bellringer.notifications import store
from bellringer.notifications.channels.email import parse_sender
from bellringer.notifications.channels.smtp import SmtpConfig
from bellringer.notifications.model import (
    LONGEST_TYPE,
    LONGEST_WINDOW_SECONDS,
    NewNotification,
    Notification,
    NotificationSummary,
    Overview,
    Submission,
    TimelineEntry,
    Workflow,
)

ACCEPTED_QUEUE = "notifications.accepted"

LARGEST_PAGE = 200


class NotificationsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long things take and are kept, how large an email grows, and where it leaves."""

    digest_window_seconds: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_WINDOW_SECONDS)] = 300
    recipients_per_email: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    events_per_email: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 500
    idempotency_seconds: Annotated[int, msgspec.Meta(ge=1)] = 24 * 3600
    retention_seconds: Annotated[int, msgspec.Meta(ge=3600)] = 30 * 24 * 3600
    give_up_after_seconds: Annotated[int, msgspec.Meta(ge=0)] = 24 * 3600
    visibility_timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 30.0
    email_from: str = "Bellringer <bellringer@localhost>"
    smtp: SmtpConfig = SmtpConfig()

    def __post_init__(self) -> None:
        try:
            parse_sender(self.email_from)
        except InvalidInput:
            raise ValueError("email_from must be one address, such as Bellringer <bellringer@acme.example>") from None


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one caller of `accept` waits for."""

    environment_id: UUID
    submissions: tuple[Submission, ...]


class Notifications:
    """Accepts events and answers questions about them."""

    def __init__(self, database: Database, broker: Broker, accepted: Queue, *, batcher: BatcherConfig) -> None:
        self._database = database
        self._broker = broker
        self._accepted = accepted
        self._tallies = Tallies(database)
        self._acceptor = MicroBatcher[_Request, list[UUID]](
            "accept", self._write, config=batcher, weigh=_weigh, isolate=ITEM_FAULTS
        )

    async def accept(self, environment_id: UUID, submissions: tuple[Submission, ...]) -> list[UUID]:
        """Store a request's events, all or none, and return their ids after the commit, in the order given.

        An idempotency key that was taken before answers with its ids and stores nothing. Raises `Conflict` when it
        comes with other content, `InvalidInput` for what PostgreSQL cannot store, `Overloaded`, `Unavailable`.
        """
        try:
            return await self._acceptor.submit(_Request(environment_id=environment_id, submissions=submissions))
        except ITEM_FAULTS as error:
            raise InvalidInput(f"an event cannot be stored: {error}", field="body") from error

    async def drain(self) -> None:
        """Return when what was submitted is stored."""
        await self._acceptor.drain()

    async def list_notifications(
        self, environment_id: UUID, *, before: UUID | None = None, limit: int = 50
    ) -> list[Notification]:
        """Notifications of an environment, newest first. Raises `InvalidInput`."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit must be from 1 to {LARGEST_PAGE}", field="limit")
        async with self._database.connection() as connection:
            return await store.list_notifications(connection, environment_id, before, limit)

    async def list_summaries(
        self, environment_id: UUID, *, before: UUID | None = None, limit: int = 50
    ) -> list[NotificationSummary]:
        """The same in brief, for who looks every second: no data, few recipients. Raises `InvalidInput`."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit must be from 1 to {LARGEST_PAGE}", field="limit")
        async with self._database.connection() as connection:
            return await store.list_summaries(connection, environment_id, before, limit)

    async def get(self, environment_id: UUID, notification_id: UUID) -> tuple[Notification, list[TimelineEntry]]:
        """A notification and what happened to it. Raises `NotFound`."""
        async with self._database.connection() as connection:
            notification = await store.find(connection, environment_id, notification_id)
            if notification is None:
                raise NotFound(f"there is no notification {notification_id}")
            return notification, await store.timeline(connection, notification)

    async def put_workflow(self, environment_id: UUID, type_: str, digest_window_seconds: int) -> Workflow:
        """Set how long events of a type are gathered; for events accepted from then on. Raises `InvalidInput`."""
        check_text(type_, "type", LONGEST_TYPE)
        if not 0 <= digest_window_seconds <= LONGEST_WINDOW_SECONDS:
            raise InvalidInput(
                f"digest_window_seconds must be from 0 to {LONGEST_WINDOW_SECONDS}", field="digest_window_seconds"
            )
        async with self._database.connection() as connection:
            return await store.put_workflow(connection, environment_id, type_, digest_window_seconds)

    async def list_workflows(self, environment_id: UUID) -> Sequence[Workflow]:
        """The workflows that were set, by type."""
        async with self._database.connection() as connection:
            return await store.list_workflows(connection, environment_id)

    async def delete_workflow(self, environment_id: UUID, type_: str) -> None:
        """Return a type to the defaults. Raises `NotFound`, or `InvalidInput` for an impossible type."""
        check_text(type_, "type", LONGEST_TYPE)
        async with self._database.connection() as connection:
            if not await store.delete_workflow(connection, environment_id, type_):
                raise NotFound(f"the type {type_} has no settings of its own")

    async def overview(self, environment_id: UUID) -> Overview:
        """What an environment has done so far."""
        tallies = await self._tallies.read([environment_id])
        async with self._database.connection() as connection:
            return await store.overview(connection, environment_id, tallies[environment_id])

    async def _write(self, requests: Sequence[_Request]) -> list[list[UUID] | Exception]:
        async with self._database.transaction() as connection:
            keys = _Keys(requests)
            if keys.new:
                free = await store.take_keys(connection, list(keys.new.values()))
                taken = keys.new.keys() - free
                if taken:
                    keys.stored = await store.read_keys(connection, list(taken))
            notifications: list[tuple[UUID, NewNotification]] = []
            answers = [keys.answer(request, notifications) for request in requests]
            if notifications:
                await store.add(connection, notifications)
                bodies = [str(notification.id).encode() for _, notification in notifications]
                await self._broker.publish(connection, self._accepted, bodies)
        self._broker.wakeups.wake(self._accepted.id)
        return answers


class _Keys:
    """The idempotency keys of one batch: which submission brings a key first, and what the others get."""

    def __init__(self, requests: Sequence[_Request]) -> None:
        self.new: dict[tuple[UUID, str], store.NewKey] = {}
        self.stored: dict[tuple[UUID, str], store.StoredKey] = {}
        for request in requests:
            for submission in request.submissions:
                if submission.idempotency_key is not None:
                    new = _new_key(request.environment_id, submission.idempotency_key, submission)
                    self.new.setdefault((new.environment_id, new.key), new)

    def answer(self, request: _Request, notifications: list[tuple[UUID, NewNotification]]) -> list[UUID] | Exception:
        """The ids for one request; what is to be stored for it is added to `notifications`."""
        ids: list[UUID] = []
        new: list[tuple[UUID, NewNotification]] = []
        for submission in request.submissions:
            own = [notification.id for notification in submission.notifications]
            known = self._known(request.environment_id, submission, own)
            if known is None:
                new += [(request.environment_id, notification) for notification in submission.notifications]
                ids += own
            elif known.fingerprint != submission.fingerprint:
                return Conflict(f"the Idempotency-Key {submission.idempotency_key} came with another body before")
            else:
                ids += known.notification_ids
        notifications += new  # all or none
        return ids

    def _known(
        self, environment_id: UUID, submission: Submission, own: list[UUID]
    ) -> store.StoredKey | store.NewKey | None:
        if submission.idempotency_key is None:
            return None
        key = (environment_id, submission.idempotency_key)
        if key in self.stored:
            return self.stored[key]
        first = self.new[key]
        return None if first.notification_ids == own else first


def _new_key(environment_id: UUID, key: str, submission: Submission) -> store.NewKey:
    return store.NewKey(
        environment_id=environment_id,
        key=key,
        fingerprint=submission.fingerprint,
        notification_ids=[notification.id for notification in submission.notifications],
    )


def _weigh(request: _Request) -> int:
    """About as many bytes as the request takes in memory and on its way to the database."""
    weight = 0
    for submission in request.submissions:
        for notification in submission.notifications:
            weight += 256 + len(notification.data or "") + 64 * len(notification.recipients)
    return weight
