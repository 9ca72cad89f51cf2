"""A real SMTP server on loopback that keeps what it takes, and refuses, waits or goes away when it is told to."""

from __future__ import annotations

import asyncio
import email
import email.policy
import functools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from email.message import EmailMessage
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self, cast
from uuid import UUID

from aiosmtpd.smtp import SMTP, Envelope, Session

_NOTIFICATION = re.compile(r'\bdata-notification="([0-9a-f-]{36})"')

Stage = Literal["MAIL", "RCPT", "DATA"]


class ReceivedEmail:
    """A message that was taken, for the recipients of its envelope; or one that was refused at DATA."""

    def __init__(self, sender: str, recipients: tuple[str, ...], content: bytes) -> None:
        self.sender = sender
        self.recipients = recipients
        self.content = content
        self.received_at = time.monotonic()

    @cached_property
    def message(self) -> EmailMessage:
        """The message, parsed."""
        return cast("EmailMessage", email.message_from_bytes(self.content, policy=cast("Any", email.policy.default)))

    @property
    def message_id(self) -> str:
        """The header Message-ID."""
        return str(self.message["Message-ID"])

    @cached_property
    def text(self) -> str:
        """The text part."""
        return self._body("plain")

    @cached_property
    def html(self) -> str:
        """The HTML part."""
        return self._body("html")

    @cached_property
    def notification_ids(self) -> list[UUID]:
        """The events that it tells of, as the HTML part names them."""
        return [UUID(found) for found in _NOTIFICATION.findall(self.html)]

    def _body(self, kind: str) -> str:
        part = self.message.get_body((kind,))
        assert part is not None, f"there is no {kind} part"
        return str(part.get_content()).replace("\r\n", "\n")


class SmtpServer:
    """Listens on one port of 127.0.0.1, in a thread of its own, from `start` to `stop`, as often as wanted.

    `refuse` sets what it answers from then on. With `delay_seconds` it answers that much later that it took a
    message: whoever is cut off in between does not know that it did.
    """

    def __init__(self, *, delay_seconds: float = 0.0) -> None:
        self.port = 0
        self.delay_seconds = delay_seconds
        self.received: list[ReceivedEmail] = []
        self.refused: list[ReceivedEmail] = []
        self._refusal: tuple[str, Stage] | None = None
        self._refused_recipients: dict[str, str] = {}
        self._connections: set[_Connection] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens; the same after a restart."""
        return f"smtp://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin to listen."""
        assert self._thread is None, "it runs already"
        listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listening)))
        self._thread.start()
        assert listening.wait(20), "the SMTP server did not start"

    def stop(self) -> None:
        """Stop listening and break every connection off. Does nothing when it is not running."""
        if self._thread is not None:
            assert self._loop is not None
            assert self._stopping is not None
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(20)
            assert not self._thread.is_alive(), "the SMTP server did not stop"
            self._thread = None

    def refuse(self, reply: str, *, at: Stage = "DATA") -> None:
        """Answer every message at this stage with this reply, such as "451 try again later"."""
        self._refusal = (reply, at)

    def refuse_recipient(self, address: str, reply: str) -> None:
        """Answer RCPT for this address with this reply."""
        self._refused_recipients[address] = reply

    def accept(self) -> None:
        """Refuse nothing and nobody any more."""
        self._refusal = None
        self._refused_recipients.clear()

    def arrivals(self) -> dict[tuple[str, UUID], list[str]]:
        """The Message-IDs under which each pair of recipient and event arrived, as often as it did."""
        found = defaultdict[tuple[str, UUID], list[str]](list)
        for received in tuple(self.received):
            for notification_id in received.notification_ids:
                for recipient in received.recipients:
                    found[(recipient, notification_id)].append(received.message_id)
        return dict(found)

    def check_arrivals(self, expected: Mapping[UUID, Collection[str]], *, exactly_once: bool) -> None:
        """Fail unless each event arrived at each of its recipients and at no one else, under one Message-ID.

        An email may have come several times unless `exactly_once`, but only with the same content.
        """
        arrivals = self.arrivals()
        wanted = {(recipient, event) for event, recipients in expected.items() for recipient in recipients}
        missing, surplus = wanted - arrivals.keys(), arrivals.keys() - wanted
        assert not missing, f"{len(missing)} of {len(wanted)} never arrived, such as {sorted(missing)[:3]}"
        assert not surplus, f"{len(surplus)} arrived that nobody sent, such as {sorted(surplus)[:3]}"
        doubled = {pair: ids for pair, ids in arrivals.items() if len(ids if exactly_once else set(ids)) > 1}
        assert not doubled, f"{len(doubled)} arrived more than once, such as {sorted(doubled.items())[:3]}"
        contents = defaultdict[str, set[bytes]](set)
        for received in (*self.received, *self.refused):
            contents[received.message_id].add(received.content)
        changed = [message_id for message_id, variants in contents.items() if len(variants) > 1]
        assert not changed, f"the content changed between attempts: {changed}"

    async def handle_MAIL(  # noqa: N802 - aiosmtpd calls the hooks by these names
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take or refuse a sender."""
        if self._refusal is not None and self._refusal[1] == "MAIL":
            return self._refusal[0]
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        """Take or refuse a recipient."""
        if self._refusal is not None and self._refusal[1] == "RCPT":
            return self._refusal[0]
        if address in self._refused_recipients:
            return self._refused_recipients[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Keep or refuse a message."""
        received = ReceivedEmail(envelope.mail_from or "", tuple(envelope.rcpt_tos), cast("bytes", envelope.content))
        if self._refusal is not None and self._refusal[1] == "DATA":
            self.refused.append(received)
            return self._refusal[0]
        self.received.append(received)
        await asyncio.sleep(self.delay_seconds)
        return "250 taken"

    async def _serve(self, listening: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        protocol = functools.partial(_Connection, self, self._connections)
        server = await self._loop.create_server(protocol, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await self._stopping.wait()
        server.close()
        for connection in tuple(self._connections):
            connection.abort()
            await connection.ended.wait()


class _Connection(SMTP):
    """One connection, which the server can break off."""

    def __init__(self, handler: SmtpServer, connections: set[_Connection]) -> None:
        super().__init__(handler, hostname="localhost")
        self.ended = asyncio.Event()
        self._connections = connections
        self._own_transport: asyncio.BaseTransport | None = None

    def abort(self) -> None:
        """Break it off at once."""
        cast("asyncio.Transport", self._own_transport).abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember a connection that begins."""
        super().connection_made(transport)
        self._own_transport = transport
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget a connection that has ended."""
        super().connection_lost(error)
        self._connections.discard(self)
        self.ended.set()
