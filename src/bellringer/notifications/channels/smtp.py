"""SMTP out: a pool of connections, and the answers of a server sorted into outcomes per recipient.

RFC 5321: a reply of 4xx refuses for now, one of 5xx for good; RCPT is answered per recipient, MAIL and DATA for all.
A connection that is lost over an email, or an answer that does not come, leaves its outcome open: it is tried again
with the same Message-ID, like one refused for now. Where no connection is to be had, all emails wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parseaddr
from typing import Annotated, Literal
from urllib.parse import SplitResult, unquote, urlsplit

import aiosmtplib
import msgspec

from bellringer.kernel.errors import Unavailable
from bellringer.notifications.channels.model import Outcome

_DEFAULT_PORTS = {"smtp": 25, "smtps": 465}
_PERMANENT_CODES = range(500, 600)


class SmtpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where email leaves: `smtp://user:password@host:port` (STARTTLS where offered) or `smtps://…` (TLS at once).

    Without a URL the capture server inside Bellringer takes it.
    """

    url: str | None = None
    connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    idle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 20.0

    def __post_init__(self) -> None:
        if self.url is not None:
            parse_smtp_url(self.url)


class SmtpUnreachable(Unavailable):
    """The SMTP server does not answer, or takes no connection of ours."""


def parse_smtp_url(url: str) -> SplitResult:
    """Split the URL of an SMTP server. Raises `ValueError` when it is not one."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        # Not its own words: what stands where the port should may be a piece of the password.
        raise ValueError("a port is a number; in a password write # / ? @ as %23 %2F %3F %40") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError("an SMTP URL looks like smtp://user:password@host:port or smtps://…")
    if port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("an SMTP URL has a host and a port, and nothing behind them")
    return parts


class SmtpTransport:
    """Sends messages over at most `connections` connections, kept open between messages."""

    def __init__(self, url: str, sender: str, config: SmtpConfig) -> None:
        self._url = parse_smtp_url(url)
        self._sender = parseaddr(sender)[1]
        self._config = config
        self._idle: list[tuple[float, aiosmtplib.SMTP]] = []
        self._slots = asyncio.Semaphore(config.connections)

    async def send(self, recipients: Sequence[str], message: bytes) -> list[Outcome]:
        """Hand one message to the server; return an outcome per recipient.

        Raises `SmtpUnreachable` when no server is there to take or refuse it.
        """
        try:
            async with self._client() as client:
                refused, reply = await client.sendmail(self._sender, recipients, message)
        except aiosmtplib.SMTPRecipientsRefused as error:
            replies = {refusal.recipient: (refusal.code, refusal.message) for refusal in error.recipients}
            return _outcomes(recipients, replies, "")
        except aiosmtplib.SMTPResponseException as error:
            return _outcomes(recipients, dict.fromkeys(recipients, (error.code, error.message)), "")
        except (aiosmtplib.SMTPException, OSError) as error:
            return unsettled(recipients, f"the connection was lost: {error}")
        return _outcomes(recipients, refused, reply)

    async def close(self) -> None:
        """Close the connections that are kept open."""
        while self._idle:
            await _quit(self._idle.pop()[1])

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[aiosmtplib.SMTP]:
        async with self._slots:
            client = await self._kept_open() or await self._connect()
            try:
                yield client
            except (aiosmtplib.SMTPRecipientsRefused, aiosmtplib.SMTPDataError, aiosmtplib.SMTPSenderRefused):
                self._keep(client)  # the server spoke, and was reset
                raise
            except BaseException:
                client.close()
                raise
            self._keep(client)

    def _keep(self, client: aiosmtplib.SMTP) -> None:
        if client.is_connected:
            self._idle.append((asyncio.get_running_loop().time() + self._config.idle_seconds, client))

    async def _kept_open(self) -> aiosmtplib.SMTP | None:
        """A connection from before that still answers: servers close idle ones, and restart."""
        while self._idle:
            expires_at, client = self._idle.pop()
            if asyncio.get_running_loop().time() >= expires_at:
                await _quit(client)
            elif client.is_connected:
                return client
        return None

    async def _connect(self) -> aiosmtplib.SMTP:
        client = aiosmtplib.SMTP(
            hostname=self._url.hostname,
            port=self._url.port or _DEFAULT_PORTS[self._url.scheme],
            username=unquote(self._url.username) if self._url.username else None,
            password=unquote(self._url.password) if self._url.password else None,
            use_tls=self._url.scheme == "smtps",
            timeout=self._config.timeout_seconds,
        )
        try:
            await client.connect()
        except aiosmtplib.SMTPResponseException as error:  # the greeting, EHLO, STARTTLS or the login was refused
            raise SmtpUnreachable(f"the SMTP server refuses us: {error.code} {error.message}") from error
        except (aiosmtplib.SMTPException, OSError) as error:
            raise SmtpUnreachable(f"the SMTP server cannot be reached: {error}") from error
        return client


async def _quit(client: aiosmtplib.SMTP) -> None:
    try:
        await client.quit(timeout=1)
    except (aiosmtplib.SMTPException, OSError, TimeoutError):
        client.close()  # it was closing anyway


def unsettled(recipients: Sequence[str], reply: str) -> list[Outcome]:
    """Outcomes for recipients who are to be tried again."""
    return [Outcome(address=address, state="pending", reply=_printable(reply)) for address in recipients]


def _outcomes(recipients: Sequence[str], refused: Mapping[str, tuple[int, str]], accepted_reply: str) -> list[Outcome]:
    outcomes = []
    for address in recipients:
        state: Literal["sent", "failed", "pending"] = "sent"
        reply = accepted_reply
        if address in refused:
            code, text = refused[address]
            state = "failed" if code in _PERMANENT_CODES else "pending"
            reply = f"{code} {text}"
        outcomes.append(Outcome(address=address, state=state, reply=_printable(reply)))
    return outcomes


def _printable(reply: str) -> str:
    """A server's words, fit to be stored and shown."""
    return "".join(character if character.isprintable() else " " for character in reply)[:500]
