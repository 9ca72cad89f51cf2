"""The queues that are measured side by side: each publishes, claims and acknowledges through its best way to batch.

Peers talk to PostgreSQL over one connection per client, with prepared statements. pgmq's table and statements are
written anew from what is public of its design, and spare it the PL/pgSQL functions around them; the seed's are taken
by the letter, in the form that its own index can serve.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import procrastinate
from pgqueuer.models import Job
from pgqueuer.queries import EntrypointExecutionParameter, Queries
from pgqueuer.types import QueueEntrypoint, QueueManagerId
from procrastinate.jobs import Job as ProcrastinateJob
from procrastinate.jobs import Status

from bellringer.kernel.database import Database, DatabaseConfig

ConnectArguments = dict[str, Any]
VISIBILITY_TIMEOUT = timedelta(seconds=600)


class QueueClient(ABC):
    """One producer or consumer of one queue."""

    @abstractmethod
    async def publish(self, bodies: Sequence[bytes]) -> None:
        """Store messages; return when they are committed."""

    @abstractmethod
    async def claim(self, limit: int) -> Sequence[Any]:
        """Take up to `limit` messages."""

    @abstractmethod
    async def acknowledge(self, claimed: Sequence[Any]) -> None:
        """Finish what was claimed; return when that is committed."""


class Contestant(ABC):
    """A queue under measurement.

    `largest_claim` is what it can take at a time; `most_ahead` how many messages its producers may be ahead, if that
    is more than two batches each.
    """

    name: str
    largest_claim = 1000
    most_ahead = 100

    @abstractmethod
    async def install(self, arguments: ConnectArguments) -> None:
        """Make the tables in an empty database."""

    @abstractmethod
    def open(self, arguments: ConnectArguments, clients: int) -> AbstractAsyncContextManager[Sequence[QueueClient]]:
        """Connect that many clients."""


class SqlClient(QueueClient):
    """A client over a connection of its own."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection


class SqlContestant(Contestant):
    """A contestant made of a schema and statements."""

    schema: str
    client: type[SqlClient]

    async def install(self, arguments: ConnectArguments) -> None:
        async with connected(arguments) as connection:
            await connection.execute(self.schema)

    @asynccontextmanager
    async def open(self, arguments: ConnectArguments, clients: int) -> AsyncIterator[Sequence[QueueClient]]:
        async with AsyncExitStack() as stack:
            yield [self.client(await stack.enter_async_context(connected(arguments))) for _ in range(clients)]


class PgmqClient(SqlClient):
    async def publish(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            await self._connection.fetchval(
                "INSERT INTO q_bench (vt, message) VALUES (clock_timestamp(), $1) RETURNING msg_id",
                f'"{bodies[0].decode()}"',
            )
        else:
            await self._connection.fetch(
                "INSERT INTO q_bench (vt, message) SELECT clock_timestamp(), unnest($1::jsonb[]) RETURNING msg_id",
                [f'"{body.decode()}"' for body in bodies],
            )

    async def claim(self, limit: int) -> Sequence[Any]:
        return await self._connection.fetch(
            "WITH visible AS ("
            " SELECT msg_id FROM q_bench WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT $1 FOR UPDATE SKIP LOCKED)"
            " UPDATE q_bench SET vt = clock_timestamp() + $2, read_ct = read_ct + 1"
            " FROM visible WHERE q_bench.msg_id = visible.msg_id"
            " RETURNING q_bench.msg_id, read_ct, enqueued_at, vt, message",
            limit,
            VISIBILITY_TIMEOUT,
        )

    async def acknowledge(self, claimed: Sequence[Any]) -> None:
        await self._connection.fetch(
            "DELETE FROM q_bench WHERE msg_id = ANY($1) RETURNING msg_id", [row["msg_id"] for row in claimed]
        )


class Pgmq(SqlContestant):
    """pgmq: a message's visibility time is updated at the claim, and its row deleted at the end."""

    name = "pgmq"
    client = PgmqClient
    schema = """
        CREATE TABLE q_bench (
            msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            read_ct integer NOT NULL DEFAULT 0,
            enqueued_at timestamptz NOT NULL DEFAULT now(),
            vt timestamptz NOT NULL,
            message jsonb,
            headers jsonb
        );
        CREATE INDEX q_bench_vt ON q_bench (vt);
    """

    async def fill(self, arguments: ConnectArguments, messages: int) -> None:
        """Make that many messages pending."""
        async with connected(arguments) as connection:
            await connection.execute(
                "INSERT INTO q_bench (vt, message) SELECT clock_timestamp(), to_jsonb(repeat(md5(number::text), 3) || "
                f"'abcd') FROM generate_series(1, {messages}) number",
                timeout=3600,
            )
            await connection.execute("VACUUM ANALYZE q_bench", timeout=3600)


class SeedClient(SqlClient):
    async def publish(self, bodies: Sequence[bytes]) -> None:
        await self._connection.execute(
            "INSERT INTO messages (msg, created_at) SELECT unnest($1::text[]), NOW()",
            [body.decode() for body in bodies],
        )

    async def claim(self, limit: int) -> Sequence[Any]:
        return await self._connection.fetch(
            "WITH picked AS ("
            " SELECT id FROM messages WHERE picked_at IS NULL AND deleted_at IS NULL"
            " ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)"
            " UPDATE messages SET picked_at = NOW(), receipt_handle = gen_random_uuid()::text"
            " FROM picked WHERE messages.id = picked.id RETURNING messages.id, msg, receipt_handle",
            limit,
        )

    async def acknowledge(self, claimed: Sequence[Any]) -> None:
        await self._connection.execute(
            "UPDATE messages SET deleted_at = NOW() FROM unnest($1::integer[], $2::text[]) AS held (id, receipt_handle)"
            " WHERE messages.id = held.id AND messages.receipt_handle = held.receipt_handle",
            [row["id"] for row in claimed],
            [row["receipt_handle"] for row in claimed],
        )


class Seed(SqlContestant):
    """The seed's table: a pick and a soft delete, each an update, and no index but the primary key."""

    name = "seed"
    client = SeedClient
    schema = """
        CREATE TABLE messages (
            id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            msg text,
            created_at timestamp,
            picked_at timestamp,
            deleted_at timestamp,
            receipt_handle varchar
        );
    """


class PgQueuerClient(QueueClient):
    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._manager = QueueManagerId(uuid4())
        self._entrypoints = {QueueEntrypoint("bench"): EntrypointExecutionParameter(0)}

    async def publish(self, bodies: Sequence[bytes]) -> None:
        count = len(bodies)
        await self._queries.enqueue(["bench"] * count, list(bodies), [0] * count)

    async def claim(self, limit: int) -> Sequence[Job]:
        return await self._queries.dequeue(limit, self._entrypoints, self._manager, None, VISIBILITY_TIMEOUT)

    async def acknowledge(self, claimed: Sequence[Job]) -> None:
        await self._queries.log_jobs([(job, "successful", None) for job in claimed])


class PgQueuer(Contestant):
    """PGQueuer through its own queries: enqueue, dequeue and the batched log of finished jobs."""

    name = "PGQueuer"

    async def install(self, arguments: ConnectArguments) -> None:
        async with connected(arguments) as connection:
            await Queries.from_asyncpg_connection(connection).install()

    @asynccontextmanager
    async def open(self, arguments: ConnectArguments, clients: int) -> AsyncIterator[Sequence[QueueClient]]:
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(connected(arguments)) for _ in range(clients)]
            yield [PgQueuerClient(Queries.from_asyncpg_connection(connection)) for connection in connections]


class ProcrastinateClient(QueueClient):
    def __init__(self, app: procrastinate.App, worker_id: int) -> None:
        self._manager = app.job_manager
        self._worker_id = worker_id

    async def publish(self, bodies: Sequence[bytes]) -> None:
        await self._manager.batch_defer_jobs_async(
            [
                ProcrastinateJob(
                    id=None,
                    queue="bench",
                    lock=None,
                    queueing_lock=None,
                    task_name="bench",
                    task_kwargs={"body": body.decode()},
                )
                for body in bodies
            ]
        )

    async def claim(self, limit: int) -> Sequence[ProcrastinateJob]:  # noqa: ARG002 - it takes one at a time
        job = await self._manager.fetch_job(["bench"], self._worker_id)
        return [] if job is None else [job]

    async def acknowledge(self, claimed: Sequence[ProcrastinateJob]) -> None:
        for job in claimed:
            await self._manager.finish_job(job, Status.SUCCEEDED, delete_job=True)


class Procrastinate(Contestant):
    """Procrastinate through its job manager: defers in batches, fetches and finishes one job at a time."""

    name = "Procrastinate"
    largest_claim = 1

    async def install(self, arguments: ConnectArguments) -> None:
        async with self._app(arguments, 1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def open(self, arguments: ConnectArguments, clients: int) -> AsyncIterator[Sequence[QueueClient]]:
        async with self._app(arguments, clients).open_async() as app:
            workers = [await app.job_manager.register_worker() for _ in range(clients)]
            yield [ProcrastinateClient(app, worker) for worker in workers]

    @staticmethod
    def _app(arguments: ConnectArguments, clients: int) -> procrastinate.App:
        target = {("dbname" if key == "database" else key): value for key, value in arguments.items()}
        connector = procrastinate.PsycopgConnector(kwargs=target, min_size=clients, max_size=clients)
        return procrastinate.App(connector=connector)


@asynccontextmanager
async def connected(arguments: ConnectArguments) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection of its own."""
    connection = await asyncpg.connect(**arguments)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def opened_database(arguments: ConnectArguments) -> AsyncIterator[Database]:
    """Bellringer's pool, with its usual settings."""
    database = await Database.open(DatabaseConfig(), arguments)
    try:
        yield database
    finally:
        await database.close()
