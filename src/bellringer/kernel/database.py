"""The database: one pool of connections, transactions, and its failures as two decisions for the caller.

A lost connection, a database that is starting, stopping or out of resources, and a deadlock raise `Unavailable`: the
outcome is unknown or nothing was done, and the caller may try again. Everything else that PostgreSQL says stays an
`asyncpg.PostgresError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias

import asyncpg
import asyncpg.pool
import msgspec

from bellringer.kernel.errors import StartupError, Unavailable

OLDEST_SUPPORTED_VERSION = 15

Positive = Annotated[float, msgspec.Meta(gt=0)]

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
"""A connection of the pool, or one that the caller opened: operations that join a transaction take either."""

ITEM_FAULTS: tuple[type[Exception], ...] = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
"""What PostgreSQL and the driver raise because of one row's content; see `MicroBatcher`."""

_PASSING: tuple[type[Exception], ...] = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # the server shuts down, crashed, or is starting up
    asyncpg.InsufficientResourcesError,  # too many connections, no memory, a full disk
    asyncpg.TransactionRollbackError,  # a deadlock: PostgreSQL ended one of the transactions
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server ended the connection between two statements
    OSError,
    TimeoutError,
)


_SERVER_SETTINGS = {
    "application_name": "bellringer",
    "jit": "off",
    # A plan that was made while a table was small, to read all of it, is kept until the next ANALYZE finds it grown: a
    # claim took 37 ms instead of 1 ms after the first 100,000. Without the choice, an index serves from the first row.
    "enable_seqscan": "off",
    "TimeZone": "UTC",
    # Statements look at what was committed when they begin, also where the database's own default is another.
    "default_transaction_isolation": "read committed",
    # A process that is stopped in the middle of a transaction keeps its locks no longer than this.
    "idle_in_transaction_session_timeout": "10s",
}


class DatabaseConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the database and how many connections to keep."""

    url: str | None = None
    pool_size: Annotated[int, msgspec.Meta(ge=4, le=1000)] = 16
    connect_timeout_seconds: Positive = 10.0
    command_timeout_seconds: Positive = 60.0

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(("postgresql://", "postgres://")):
            raise ValueError("url must look like postgresql://user:password@host:port/database")


class Database:
    """A pool of connections to one PostgreSQL database."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, config: DatabaseConfig, connect_arguments: dict[str, Any] | None = None) -> Database:
        """Open the pool, to `connect_arguments` (the embedded server) or else to `config.url`.

        Raises `StartupError` when the database does not answer or is older than PostgreSQL 15.
        """
        arguments: dict[str, Any] = connect_arguments or {"dsn": config.url}
        try:
            pool = await asyncpg.create_pool(
                min_size=1,
                max_size=config.pool_size,
                timeout=config.connect_timeout_seconds,
                command_timeout=config.command_timeout_seconds,
                server_settings=_SERVER_SETTINGS,
                reset=_keep_session,
                **arguments,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise StartupError(f"the database cannot be reached: {_reason(error)}") from error
        except ValueError:  # its text may hold a part of the password
            raise StartupError(
                "the database's URL is not valid; special characters in its password must be percent-encoded"
            ) from None
        database = cls(pool)
        await database._refuse_old_server()
        return database

    async def _refuse_old_server(self) -> None:
        async with self.connection() as connection:
            version = connection.get_server_version()
        if version.major < OLDEST_SUPPORTED_VERSION:
            await self.close()
            raise StartupError(
                f"PostgreSQL {OLDEST_SUPPORTED_VERSION} or newer is needed, the server is {version.major}"
            )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection in autocommit mode. Raises `Unavailable` when the database is lost."""
        try:
            async with self._pool.acquire() as connection:
                yield connection
        except _PASSING as error:
            raise Unavailable(f"the database is not available: {_reason(error)}") from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction, committed when the block ends without an error."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def close(self, timeout_seconds: float = 10.0) -> None:
        """Close every connection, by force after `timeout_seconds`."""
        try:
            await asyncio.wait_for(self._pool.close(), timeout_seconds)
        except TimeoutError:
            self._pool.terminate()


async def _keep_session(connection: Connection) -> None:
    """Nothing to reset when a connection comes back: the driver ends its transaction, and no statement of ours leaves
    anything else behind. The driver's own reset is a round trip, for which every group commit would wait.
    """


def _reason(error: Exception) -> str:
    """One line: PostgreSQL adds details and hints below its message."""
    return (str(error) or type(error).__name__).splitlines()[0]
