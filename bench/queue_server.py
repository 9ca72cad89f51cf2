"""A server for `bench.queue_http_publish`: the product's own, the same with one transaction per request, or bare.

The bare one bounds what any server of this kind could do: plain ASGI, no authentication, no look at what came, and one
connection that inserts all bodies that arrived while it wrote the ones before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server
from litestar.types import HTTPScope

from bellringer.assembly import assemble, open_database
from bellringer.broker import Publication, Queue
from bellringer.broker.model import MessageId
from bellringer.config import Config, read_config
from bellringer.kernel.database import Connection
from bellringer.kernel.service import Supervisor
from bellringer.roles import Role, services_of


class Bare:
    """The bare server: PUT stores the body of the request as one row."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[tuple[bytes, asyncio.Future[int]]] = []
        self._arrived = asyncio.Event()

    async def serve(
        self, scope: HTTPScope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        stored = asyncio.get_running_loop().create_future()
        if scope["method"] == "PUT":
            event = await receive()
            self._waiting.append((event["body"], stored))
            self._arrived.set()
        else:
            stored.set_result(0)
        body = b'{"id":%d}' % await stored
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    async def write(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._waiting = self._waiting, []
            rows = await self._connection.fetch(
                "INSERT INTO log (body) SELECT unnest($1::bytea[]) RETURNING id", [body for body, _ in batch]
            )
            for (_, stored), row in zip(batch, rows, strict=True):
                if not stored.done():  # its client may have gone
                    stored.set_result(row["id"])


async def run_bare(config: Config, stopping: asyncio.Event) -> None:
    async with open_database(config) as database, database.connection() as connection:
        await connection.execute(
            "CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)"
        )
        bare = Bare(connection)
        server = Server(bare.serve, port=config.edge.port, interface=Interfaces.ASGINL, backlog=1024, log_enabled=False)
        tasks = [asyncio.create_task(work) for work in (server.serve(), bare.write(), stopping.wait())]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()


async def run_product(config: Config, stopping: asyncio.Event, mode: str) -> None:
    async with assemble(config) as assembly:
        await assembly.keys.create("bench", "bench", "bench", config.api_key)
        if mode == "single":
            broker = assembly.notifications._broker

            async def send(queue: Queue, publications: Sequence[Publication]) -> list[MessageId]:
                lane = await broker._lane(queue)
                (answer,) = await lane._write_publications([publications])
                if isinstance(answer, Exception):
                    raise answer
                return answer

            broker.send = send
        role = Role.ALL if mode == "with workers" else Role.API
        await Supervisor(services_of(role, assembly)).run(stopping)


async def main(mode: str) -> None:
    config = read_config(os.environ)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await (run_bare(config, stopping) if mode == "bare" else run_product(config, stopping, mode))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
