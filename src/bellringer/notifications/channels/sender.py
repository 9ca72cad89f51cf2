"""Sends emails: takes them from the queue emails.outbound, composes them, and records what the server said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal
from uuid import UUID

import msgspec
from prometheus_client import Counter

from bellringer.broker import Broker, Message, Queue, ReceiptNotHeld
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.batcher import MicroBatcher
from bellringer.kernel.database import Database
from bellringer.kernel.errors import Unavailable
from bellringer.kernel.logs import get_logger
from bellringer.notifications.channels import store
from bellringer.notifications.channels.email import DigestEmail, compose
from bellringer.notifications.channels.model import OutboundEmail, Outcome
from bellringer.notifications.channels.smtp import SmtpTransport, SmtpUnreachable, unsettled

OUTBOUND_QUEUE = "emails.outbound"

RETRY = Backoff(first_seconds=2.0, cap_seconds=900.0)

_log = get_logger(__name__)

_EMAILS = Counter("bellringer_email_recipients_total", "Recipients of emails by outcome", ["outcome"])


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What to record of one attempt at one email."""

    email_id: UUID
    message: Message
    outcomes: list[Outcome]
    finished: bool


class EmailSender:
    """Handles messages of outbound emails, several at a time."""

    def __init__(
        self,
        database: Database,
        broker: Broker,
        outbound: Queue,
        keys: Keys,
        transport: SmtpTransport,
        *,
        email_from: str,
        give_up_after_seconds: float,
        concurrency: int,
    ) -> None:
        self._database = database
        self._broker = broker
        self._outbound = outbound
        self._keys = keys
        self._transport = transport
        self._email_from = email_from
        self._give_up_after_seconds = give_up_after_seconds
        # Bounds the emails in memory; the composed bytes of one are held while the server takes them.
        self._slots = asyncio.Semaphore(concurrency)
        self._environments: dict[UUID, Environment] = {}
        self._recorder = MicroBatcher[_Report, None]("record deliveries", self._record)

    async def handle(self, messages: Sequence[Message]) -> None:
        """Send a batch; an email that fails comes back later and disturbs no other.

        Raises `Unavailable` when no server, or no database, was there for some of it.
        """
        results = await asyncio.gather(*(self._send(message) for message in messages), return_exceptions=True)
        outage: BaseException | None = None
        for message, error in zip(messages, results, strict=True):
            if isinstance(error, SmtpUnreachable):
                await self._hand_back(message, after_seconds=0.0)
            elif isinstance(error, Exception) and not isinstance(error, Unavailable):
                _log.error("message failed", id=message.id, attempts=message.attempts, exc_info=error)
                await self._hand_back(message, after_seconds=RETRY.wait_seconds(message.attempts))
                continue
            outage = outage or error
        if outage is not None:
            raise outage

    async def drain(self) -> None:
        """Return when every answer of a server is recorded and the connections are closed."""
        await self._recorder.drain()
        await self._transport.close()

    async def _send(self, message: Message) -> None:
        email_id = UUID(message.body.decode())
        async with self._slots:
            async with self._database.connection() as connection:
                email = await store.load_email(connection, email_id)
            if email is None or not email.pending:
                outcomes: list[Outcome] = []  # removed, or an attempt before this one reached everybody
            else:
                outcomes = await self._attempt(email)
        outcomes = [self._settle(outcome, email) for outcome in outcomes]
        for outcome in outcomes:
            _EMAILS.labels(outcome=outcome.state).inc()
        finished = all(outcome.state != "pending" for outcome in outcomes)
        await self._recorder.submit(_Report(email_id=email_id, message=message, outcomes=outcomes, finished=finished))
        if not finished and email is not None:
            # By the server's refusals and not by the message's attempts, which an outage drives up.
            await self._hand_back(message, after_seconds=RETRY.wait_seconds(email.refusals + 1))

    async def _hand_back(self, message: Message, *, after_seconds: float) -> None:
        await self._broker.release(self._outbound, [message.receipt_handle], [after_seconds])

    async def _attempt(self, email: OutboundEmail) -> list[Outcome]:
        try:
            return await self._transport.send(email.pending, await self._compose(email))
        except Unavailable as error:
            if not isinstance(error, SmtpUnreachable) or email.age_seconds < self._give_up_after_seconds:
                raise
            return unsettled(email.pending, str(error))
        except Exception as error:  # noqa: BLE001 - what is wrong with one email ends, like a refusal, with giving up
            _log.error("email failed", id=str(email.id), exc_info=error)
            return unsettled(email.pending, f"the email cannot be sent: {error!r}")

    async def _compose(self, email: OutboundEmail) -> bytes:
        environment = await self._environment(email.environment_id)
        return compose(
            DigestEmail(
                email_id=email.id,
                organisation=environment.organisation,
                environment=environment.name,
                sender=self._email_from,
                created_at=email.created_at,
                events=email.events,
                part=email.part,
                parts=email.parts,
            )
        )

    def _settle(self, outcome: Outcome, email: OutboundEmail | None) -> Outcome:
        """Give up on a recipient whose time to try is over."""
        if outcome.state == "pending" and email is not None and email.age_seconds >= self._give_up_after_seconds:
            state: Literal["failed"] = "failed"
            return Outcome(address=outcome.address, state=state, reply=f"gave up: {outcome.reply}")
        return outcome

    async def _environment(self, environment_id: UUID) -> Environment:
        if environment_id not in self._environments:
            self._environments[environment_id] = await self._keys.environment(environment_id)
        return self._environments[environment_id]

    async def _record(self, reports: Sequence[_Report]) -> list[Exception | None]:
        outcomes = [(report.email_id, outcome) for report in reports for outcome in report.outcomes]
        finished = [report.message for report in reports if report.finished]
        async with self._database.transaction() as connection:
            if outcomes:
                await store.record(connection, outcomes)
            if finished:
                # What the server took is true even if our hold ran out meanwhile: it is recorded all the same, and
                # the attempt that holds the message now finds nobody waiting.
                with suppress(ReceiptNotHeld):
                    await self._broker.complete(connection, self._outbound, finished)
        return [None] * len(reports)
