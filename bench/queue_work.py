"""The work that contestants do: producers and consumers side by side, on a database that nobody has used before.

A benchmark runs on one PostgreSQL, the embedded one with `fsync` and `synchronous_commit` on and autovacuum as it is
by default. Each measurement gets a database of its own, copied from the contestant's empty one, so nobody inherits
anybody's dead rows or statistics.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from bellringer.kernel.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresConfig
from bellringer.kernel.logs import configure_logs
from bench.queue_contestants import ConnectArguments, Contestant, QueueClient, connected

BODY_BYTES = 100
_WARM_UP_SECONDS = 0.3

# Of random bytes, for PostgreSQL compresses large values: alike bodies would flatter whoever stores many in a row.
_RANDOM = random.Random(7)
_BODIES = [base64.b64encode(_RANDOM.randbytes(BODY_BYTES * 3 // 4)) for _ in range(20_000)]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement saw; times in milliseconds. `verbs` holds every duration of each verb."""

    messages: int
    seconds: float
    verbs: dict[str, list[float]]
    wal_bytes_per_message: float
    dead_tuples_per_message: float

    @property
    def messages_per_second(self) -> float:
        """Messages published, claimed and acknowledged per second."""
        return self.messages / self.seconds


class Stock:
    """Messages published and not yet claimed: a consumer waits for as many as it claims, a producer for room.

    So every contestant is asked for what is there, nobody polls an empty queue, and no backlog outlives the work.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._stock = 0
        self._closed = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    async def wait_for_room(self) -> None:
        while self._stock >= self._room:
            self._emptied.clear()
            await self._emptied.wait()

    def add(self, number: int) -> None:
        self._stock += number
        self._filled.set()

    async def reserve(self, number: int) -> int:
        """Reserve that many, or the rest after the end: 0 when nothing is left."""
        while self._stock < number and not self._closed:
            self._filled.clear()
            await self._filled.wait()
        reserved = min(number, self._stock)
        self._stock -= reserved
        self._emptied.set()
        return reserved

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._filled.set()


class Installs(Protocol):
    """Whoever has tables to make in an empty database."""

    name: str

    async def install(self, arguments: ConnectArguments) -> None: ...


class Postgres:
    """One server for all contestants of a benchmark."""

    def __init__(self, arguments: ConnectArguments) -> None:
        self._arguments = arguments
        self._templates: dict[str, str] = {}

    async def execute(self, statement: str) -> None:
        """Run a statement as the owner, outside every measured database."""
        async with connected(self._arguments) as connection:
            await connection.execute(statement, timeout=600)

    @asynccontextmanager
    async def fresh_database(self, contestant: Installs) -> AsyncIterator[ConnectArguments]:
        """A database with the contestant's empty tables, dropped afterwards."""
        if contestant.name not in self._templates:
            template = f"template_{len(self._templates)}"
            await self.execute(f"CREATE DATABASE {template}")
            await contestant.install({**self._arguments, "database": template})
            self._templates[contestant.name] = template
        template = self._templates[contestant.name]
        await self.execute(f"CREATE DATABASE run_{template} TEMPLATE {template}")
        try:
            yield {**self._arguments, "database": f"run_{template}"}
        finally:
            await self.execute(f"DROP DATABASE run_{template} WITH (FORCE)")

    async def wal_position(self) -> int:
        """Bytes of WAL written since the beginning of time."""
        async with connected(self._arguments) as connection:
            position: int = await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            return position


@asynccontextmanager
async def running_postgres(directory: Path) -> AsyncIterator[Postgres]:
    """The embedded PostgreSQL, on a directory of its own."""
    configure_logs("warning", "text")
    async with AsyncExitStack() as stack:
        server = EmbeddedPostgres(EmbeddedPostgresConfig(data_directory=directory / ".bellringer"))
        await server.start()
        stack.push_async_callback(server.stop)
        yield Postgres(server.connect_arguments())


def bodies(number: int) -> Iterator[list[bytes]]:
    """Batches of bodies, for ever: no body twice among 20,000."""
    around = itertools.cycle(_BODIES)
    while True:
        yield list(itertools.islice(around, number))


async def measure(postgres: Postgres, contestant: Contestant, *, batch: int, pairs: int, seconds: float) -> Outcome:
    """Let `pairs` producers and as many consumers work in batches for `seconds`, and until all is acknowledged.

    WAL counts from after a checkpoint and a warm-up, so that no images of whole pages of older tables are in it.
    Dead tuples are rows that were updated or deleted, whether or not a vacuum has come by since.
    """
    async with postgres.fresh_database(contestant) as arguments:
        async with contestant.open(arguments, 2 * pairs) as clients:
            await postgres.execute("CHECKPOINT")
            warm_up, _ = await work(clients, contestant, batch, _WARM_UP_SECONDS)
            verbs: dict[str, list[float]] = {}
            before, started = await postgres.wal_position(), time.perf_counter()
            messages, verbs = await work(clients, contestant, batch, seconds)
            elapsed, after = time.perf_counter() - started, await postgres.wal_position()
        return Outcome(
            messages=messages,
            seconds=elapsed,
            verbs=verbs,
            wal_bytes_per_message=(after - before) / messages,
            dead_tuples_per_message=await dead_tuples(arguments) / (warm_up + messages),
        )


async def work(
    clients: Sequence[QueueClient], contestant: Contestant, batch: int, seconds: float
) -> tuple[int, dict[str, list[float]]]:
    """Half of the clients publish for `seconds`, the others claim and acknowledge until nothing is left."""
    producers, consumers = clients[::2], clients[1::2]
    claim = min(batch, contestant.largest_claim)
    stock = Stock(room=max(2 * batch * len(producers), contestant.most_ahead))
    verbs: dict[str, list[float]] = {"publish": [], "claim": [], "acknowledge": []}
    deadline = time.perf_counter() + seconds
    acknowledged = 0

    async def produce(client: QueueClient) -> None:
        for batch_of_bodies in bodies(batch):
            await stock.wait_for_room()
            started = time.perf_counter()
            if started > deadline:
                return
            await client.publish(batch_of_bodies)
            verbs["publish"].append((time.perf_counter() - started) * 1000)
            stock.add(batch)

    async def consume(client: QueueClient) -> None:
        nonlocal acknowledged
        while reserved := await stock.reserve(claim):
            started = time.perf_counter()
            claimed = await client.claim(reserved)
            taken = time.perf_counter()
            stock.add(reserved - len(claimed))
            if not claimed:
                continue
            await client.acknowledge(claimed)
            verbs["claim"].append((taken - started) * 1000)
            verbs["acknowledge"].append((time.perf_counter() - taken) * 1000)
            acknowledged += len(claimed)

    consuming = [asyncio.create_task(consume(client)) for client in consumers]
    await asyncio.gather(*(produce(client) for client in producers))
    stock.close()
    await asyncio.gather(*consuming)
    return acknowledged, verbs


async def dead_tuples(arguments: ConnectArguments) -> int:
    """Rows updated or deleted in a database that all clients have left: at their end they report their statistics."""
    async with connected(arguments) as connection:
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        while await connection.fetchval(others):
            await connection.execute("SELECT pg_sleep(0.01)")
        dead: int = await connection.fetchval(
            "SELECT COALESCE(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables"
        )
        return dead


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def quantiles(times: Sequence[float]) -> str:
    """The median and the 99th percentile, to print."""
    return f"{percentile(times, 0.5):.2f} / {percentile(times, 0.99):.2f}"
