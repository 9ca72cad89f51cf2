"""Invocations, and a server that HTTP calls go to, for tests of what runs calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from bellringer.scheduler.model import Call, Invocation, TaskNumber

FIRE_AT = datetime(2026, 11, 21, 14, 45, tzinfo=UTC)
KEY = f"{UUID(int=7)}/report@2026-11-21T14:45:00+00:00"

_ENVIRONMENT = UUID(int=7)


def invocation_of(
    call: Call,
    payload: object = None,
    *,
    environment_id: UUID = _ENVIRONMENT,
    attempt: int = 1,
    time_limit_seconds: float = 60.0,
) -> Invocation:
    """A run of the task `report` with a payload that becomes JSON."""
    return Invocation(
        environment_id=environment_id,
        number=TaskNumber(1),
        task="report",
        fire_at=FIRE_AT,
        attempt=attempt,
        call=call,
        payload=msgspec.json.encode(payload),
        time_limit_seconds=time_limit_seconds,
    )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the server got; names of headers are in lower case. `connection` counts from 1."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


Reply = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class CalledServer:
    """Keeps the requests that it gets, and lets a test write the replies."""

    def __init__(self, reply: Reply) -> None:
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.url = ""
        self._reply = reply
        self._connections = 0
        self._serving: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until either side ends it."""
        self._connections += 1
        connection = self._connections
        task = asyncio.current_task()
        assert task is not None
        self._serving[writer] = task
        try:
            while not writer.is_closing():
                request = await _read(reader, connection)
                self.requests.append(request)
                self.arrived.set()
                await self._reply(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()
            del self._serving[writer]

    async def hang_up(self) -> None:
        """End every connection."""
        serving = dict(self._serving)
        for writer in serving:
            writer.transport.abort()
        await asyncio.gather(*serving.values())


async def _read(reader: asyncio.StreamReader, connection: int) -> Request:
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(line=line, headers=headers, body=body, connection=connection)


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Reply:
    """Give each request the same answer."""

    async def reply(_: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return reply


@asynccontextmanager
async def called_server(reply: Reply, context: ssl.SSLContext | None = None) -> AsyncIterator[CalledServer]:
    """Listen on this host until the block ends."""
    server = CalledServer(reply)
    options: dict[str, Any] = {} if context is None else {"ssl": context}
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, **options)
    try:
        scheme = "http" if context is None else "https"
        server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server
    finally:
        listening.close()
        await server.hang_up()
