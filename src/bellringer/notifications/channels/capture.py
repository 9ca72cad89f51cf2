"""The capture server: a real SMTP server on loopback that keeps what it is sent, for development and the demo.

It takes mail from this Bellringer alone: the Message-ID must name one of its emails.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import functools
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import parseaddr
from typing import Any, cast
from uuid import UUID

from aiosmtpd.smtp import SMTP, Envelope, Session

from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, NotFound, Unavailable
from bellringer.notifications.channels import store
from bellringer.notifications.channels.model import CapturedMail, CapturedMessage

LARGEST_PAGE = 200
_LARGEST_MESSAGE_BYTES = 32 * 1024 * 1024


class CaptureServer:
    """Listens on a free port of 127.0.0.1 from `start` to `close`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Begin to listen; return the URL to send to."""
        loop = asyncio.get_running_loop()
        protocol = functools.partial(SMTP, self, data_size_limit=_LARGEST_MESSAGE_BYTES, hostname="localhost")
        self._server = await loop.create_server(protocol, "127.0.0.1", 0)
        return f"smtp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Keep a message; aiosmtpd calls this by name. Answers 250 after the commit, 451 without a database."""
        content = cast("bytes", envelope.content)
        message = _parse(content)
        try:
            email_id = UUID(parseaddr(message.get("Message-ID", ""))[1].partition("@")[0])
        except (ValueError, LookupError, AttributeError, MessageError):  # what the parser raises on nonsense
            return "550 only mail from this Bellringer is captured"
        try:
            async with self._database.connection() as connection:
                captured = await store.capture(
                    connection,
                    email_id,
                    envelope.mail_from or "",
                    envelope.rcpt_tos,
                    str(message.get("Subject", "")),
                    content,
                )
        except Unavailable:
            return "451 the database is not available, try again later"
        return "250 captured" if captured else "550 only mail from this Bellringer is captured"


class CapturedMailbox:
    """Reads what the capture server kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_mail(
        self, environment_id: UUID, *, before: UUID | None = None, limit: int = 50
    ) -> list[CapturedMail]:
        """Captured mail of an environment, newest first. Raises `InvalidInput`."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit must be from 1 to {LARGEST_PAGE}", field="limit")
        async with self._database.connection() as connection:
            return await store.list_captured(connection, environment_id, before, limit)

    async def get(self, environment_id: UUID, mail_id: UUID) -> CapturedMessage:
        """One message in full. Raises `NotFound`."""
        async with self._database.connection() as connection:
            found = await store.find_captured(connection, environment_id, mail_id)
        if found is None:
            raise NotFound(f"there is no captured mail {mail_id}")
        mail, source = found
        message = _parse(source)
        return CapturedMessage(
            id=mail.id,
            sender=mail.sender,
            recipients=mail.recipients,
            subject=mail.subject,
            received_at=mail.received_at,
            text=_body(message, "plain"),
            html=_body(message, "html"),
            source=source.decode("ascii", "replace"),
        )


def _parse(source: bytes) -> EmailMessage:
    return cast("EmailMessage", email.message_from_bytes(source, policy=cast("Any", email.policy.default)))


def _body(message: EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    return "" if part is None else str(part.get_content())
