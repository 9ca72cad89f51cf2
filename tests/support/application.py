"""The HTTP application with the routes of every subsystem, and ways to speak to it without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from litestar.types import ASGIApp

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker
from bellringer.broker.moves import Moves
from bellringer.broker.routes import broker_routes
from bellringer.edge.app import EdgeConfig, Routes, build_app
from bellringer.edge.keys import Keys
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Database
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.routes import notification_routes
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications
from bellringer.scheduler.routes import scheduler_routes
from bellringer.scheduler.service import Tasks


@asynccontextmanager
async def routes_of_all(database: Database, broker: Broker) -> AsyncIterator[list[Routes]]:
    """What the subsystems hand to the edge."""
    accepted = await broker.ensure_queue(SYSTEM_ENVIRONMENT, ACCEPTED_QUEUE)
    notifications = Notifications(database, broker, accepted, batcher=BatcherConfig())
    yield [
        broker_routes(broker, Moves(database, broker)),
        scheduler_routes(Tasks(database, broker)),
        notification_routes(notifications, CapturedMailbox(database)),
    ]
    await notifications.drain()


@asynccontextmanager
async def application(
    database: Database, keys: Keys, broker: Broker, config: EdgeConfig | None = None, *, more: Sequence[Routes] = ()
) -> AsyncIterator[ASGIApp]:
    """The application over a database."""
    async with routes_of_all(database, broker) as routes:
        yield build_app(config or EdgeConfig(), database, keys, [*routes, *more])


def client_of(app: ASGIApp, api_key: str | None = None) -> httpx.AsyncClient:
    """A client inside the process, with a key or without."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://bellringer", headers=headers)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What an ASGI application sent. `received` counts how many events it asked for."""

    status: int
    headers: dict[str, str]
    body: bytes
    received: int

    def json(self) -> Any:  # noqa: ANN401 - whatever it said
        """The body as JSON."""
        return msgspec.json.decode(self.body)


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    *chunks: bytes | None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    query: bytes = b"",
) -> Answer:
    """Hand a request to an application as it is, however odd. A chunk that is None is the end of the connection."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": query,
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    left = list(chunks or (b"",))
    sent: list[dict[str, Any]] = []
    received = 0

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 1
        chunk = left.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await app(scope, receive, send)  # type: ignore[arg-type]
    start, *rest = sent
    return Answer(
        status=start["status"],
        headers={name.decode(): value.decode() for name, value in start["headers"]},
        body=b"".join(event["body"] for event in rest),
        received=received,
    )
