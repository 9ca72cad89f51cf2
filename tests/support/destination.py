"""An SMTP server in the test's own event loop, that says what it is told to at each stage, or hangs up."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from typing import Any, AnyStr

from aiosmtpd.smtp import SMTP, Envelope, Session
from tests.support.waiting import until

Script = str | Callable[[], str]
"""What to say, or a function that says it or hangs up."""


class Hangup(Exception):
    """What a script raises to end the connection without a word."""


def hang_up() -> str:
    raise Hangup


class Destination:
    """A server in this loop. `script` has what it says at a stage, or to a recipient; else it takes everything.

    Stages: greeting, EHLO, MAIL, an address, before DATA, DATA. `received` has what it took: recipients and message;
    `refused` what it was handed and did not take; `offered` is the message in hand. While `gate` is shut, it lets
    everybody wait at the end of DATA.
    """

    def __init__(self) -> None:
        self.script: dict[str, Script] = {}
        self.received: list[tuple[list[str], bytes]] = []
        self.refused: list[tuple[list[str], bytes]] = []
        self.connections: list[_Connection] = []
        self.begun = 0
        self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.offered = b""
        self._at_once = 0
        self._port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self._port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Begin to listen; offer STARTTLS if told how."""
        loop = asyncio.get_running_loop()
        protocol = functools.partial(_Connection, self, tls)
        self._server = await loop.create_server(protocol, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.hang_up()

        async def all_are_gone() -> bool:
            return not self.connections

        await until(all_are_gone)

    def says(self, stage: str) -> str | None:
        said = self.script.get(stage)
        return said() if callable(said) else said

    async def handle_MAIL(  # noqa: N802 - aiosmtpd calls the hooks by these names
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        return self._answer(server, "MAIL") or self._take(envelope, "mail_from", address)

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        said = self._answer(server, address)
        if said is None:
            envelope.rcpt_tos.append(address)
        return said or "250 OK"

    async def handle_DATA(self, server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.begun += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await self.gate.wait()
        self._at_once -= 1
        content = envelope.content
        assert isinstance(content, bytes)
        self.offered = content
        said = self._answer(server, "DATA")
        (self.received if said is None else self.refused).append((list(envelope.rcpt_tos), content))
        return said or "250 taken as 42"

    def _answer(self, server: SMTP, stage: str) -> str | None:
        try:
            return self.says(stage)
        except Hangup:
            assert isinstance(server, _Connection)
            server.hang_up()
            return "421 gone"

    def _take(self, envelope: Envelope, name: str, value: str) -> str:
        setattr(envelope, name, value)
        return "250 OK"


class _Connection(SMTP):
    def __init__(self, destination: Destination, tls: ssl.SSLContext | None) -> None:
        super().__init__(destination, hostname="localhost", tls_context=tls, require_starttls=tls is not None)
        self._destination = destination
        self._own_transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own_transport = transport
        if self not in self._destination.connections:  # it is made a second time by STARTTLS
            self._destination.connections.append(self)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self in self._destination.connections:
            self._destination.connections.remove(self)

    def hang_up(self) -> None:
        self._own_transport.abort()

    async def push(self, status: AnyStr) -> None:
        said = self._destination.says("greeting") if str(status).startswith("220 localhost") else None
        if said is not None:
            await super().push(said)
        else:
            await super().push(status)

    async def smtp_EHLO(self, hostname: str) -> None:  # noqa: N802
        if (said := self._destination.says("EHLO")) is not None:
            await super().push(said)
        else:
            await super().smtp_EHLO(hostname)

    async def smtp_HELO(self, hostname: str) -> None:  # noqa: N802
        if (said := self._destination.says("EHLO")) is not None:
            await super().push(said)
        else:
            await super().smtp_HELO(hostname)

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        try:
            said = self._destination.says("before DATA")
        except Hangup:
            self.hang_up()
            return
        if said is not None:
            await super().push(said)
        else:
            await super().smtp_DATA(arg)
