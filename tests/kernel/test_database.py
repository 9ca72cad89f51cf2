from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import msgspec
import pytest

from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.errors import StartupError, Unavailable

PATIENCE_SECONDS = 10

Arguments = dict[str, Any]


class Wire:
    """The way to the server, over a TCP port of its own, which can be cut and mended."""

    def __init__(self, arguments: Arguments) -> None:
        self._socket = f"{arguments['host']}/.s.PGSQL.{arguments['port']}"
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._port = 0
        self._arguments = arguments

    async def mend(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Close the port and every connection."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def arguments(self) -> Arguments:
        """How to connect over this wire."""
        return self._arguments | {"host": "127.0.0.1", "port": self._port, "ssl": False}

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        self._writers += [writer, server_writer]
        await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def wire_to(arguments: Arguments) -> AsyncIterator[Wire]:
    wire = Wire(arguments)
    await wire.mend()
    try:
        yield wire
    finally:
        await wire.cut()


async def ask(database: Database, query: str, *values: object) -> object:
    async with database.connection() as connection:
        return await connection.fetchval(query, *values)


async def answer(database: Database) -> object:
    return await ask(database, "SELECT 42")


async def until_it_answers(database: Database) -> None:
    """Ask until there is an answer; until then nothing but `Unavailable` may come."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(Unavailable):
                assert await answer(database) == 42
                return
            await asyncio.sleep(0.01)


async def terminate(arguments: Arguments, *process_ids: int) -> None:
    """End connections from another one, as an operator would, and return when they have ended."""
    operator = await asyncpg.connect(**arguments)
    await operator.executemany("SELECT pg_terminate_backend($1, 5000)", [(process_id,) for process_id in process_ids])
    await operator.close()


async def test_a_transaction_is_committed_at_the_end_of_its_block(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("CREATE TABLE kept ()")
    assert await ask(database, "SELECT to_regclass('kept') IS NOT NULL")


async def test_a_transaction_whose_block_raises_leaves_nothing(database: Database) -> None:
    async def create_and_fail() -> None:
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE lost ()")
            raise KeyError

    with pytest.raises(KeyError):
        await create_and_fail()
    assert await ask(database, "SELECT to_regclass('lost') IS NULL")


async def test_a_session_is_told_apart_and_counts_in_utc(database: Database) -> None:
    async with database.connection() as connection:
        shown = await connection.fetchrow(
            "SELECT current_setting('application_name'), current_setting('TimeZone'), current_setting('jit')"
        )
    assert tuple(shown or ()) == ("bellringer", "UTC", "off")


async def test_a_connection_that_ends_in_the_middle_of_the_work_makes_the_database_unavailable(
    database: Database, database_arguments: Arguments
) -> None:
    async def lose_the_connection() -> None:
        async with database.transaction() as connection:
            await terminate(database_arguments, await connection.fetchval("SELECT pg_backend_pid()"))
            await connection.fetchval("SELECT 1")

    with pytest.raises(Unavailable):
        await lose_the_connection()
    assert await answer(database) == 42


async def test_idle_connections_that_ended_are_replaced(database: Database, database_arguments: Arguments) -> None:
    async def process_ids_of_three() -> set[int]:
        async with database.connection() as one, database.connection() as two, database.connection() as three:
            return {await connection.fetchval("SELECT pg_backend_pid()") for connection in (one, two, three)}

    before = await process_ids_of_three()
    await terminate(database_arguments, *before)
    after = None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while after is None:
            with suppress(Unavailable):  # it may take one failure for each to be noticed
                after = await process_ids_of_three()
    assert len(after) == 3
    assert not after & before


async def test_a_server_that_goes_away_is_unavailable_until_it_is_back(database_arguments: Arguments) -> None:
    async with wire_to(database_arguments) as wire:
        database = await Database.open(DatabaseConfig(pool_size=4), wire.arguments())
        assert await answer(database) == 42
        await wire.cut()
        for _ in range(5):  # the connections of the pool first, then new ones
            with pytest.raises(Unavailable):
                await answer(database)
        await wire.mend()
        await until_it_answers(database)
        await database.close()


async def test_a_server_that_does_not_answer_in_time_is_unavailable(database_arguments: Arguments) -> None:
    config = DatabaseConfig(pool_size=4, command_timeout_seconds=0.05)
    database = await Database.open(config, database_arguments)
    with pytest.raises(Unavailable, match="TimeoutError"):
        await ask(database, "SELECT pg_sleep(60)")
    assert await answer(database) == 42
    await database.close()


async def raise_in_postgresql(database: Database, condition: str) -> None:
    message = "MESSAGE = 'first line', DETAIL = 'more', HINT = 'advice'"
    await ask(database, f"DO $$ BEGIN RAISE {condition} USING {message}; END $$")


PASSING = [
    "connection_failure",
    "admin_shutdown",
    "crash_shutdown",
    "cannot_connect_now",
    "query_canceled",
    "too_many_connections",
    "out_of_memory",
    "disk_full",
    "deadlock_detected",
    "serialization_failure",
]
LASTING = [
    "division_by_zero",
    "character_not_in_repertoire",
    "unique_violation",
    "check_violation",
    "undefined_table",
    "insufficient_privilege",
    "syntax_error",
    "program_limit_exceeded",
    "feature_not_supported",
]


async def test_what_passes_by_itself_makes_the_database_unavailable(
    database: Database, subtests: pytest.Subtests
) -> None:
    for condition in PASSING:
        with subtests.test(condition):
            with pytest.raises(Unavailable) as raised:
                await raise_in_postgresql(database, condition)
            assert str(raised.value) == "the database is not available: first line"
            assert await answer(database) == 42


async def test_what_stays_wrong_is_told_as_postgresql_tells_it(database: Database, subtests: pytest.Subtests) -> None:
    for condition in LASTING:
        with subtests.test(condition), pytest.raises(asyncpg.PostgresError):
            await raise_in_postgresql(database, condition)


UNSTORABLE = [
    ("text", "nul \0"), ("text", "half a \ud83d surrogate"), ("text", 5), ("text[]", ["fine", "nul \0"]),
    ("text[]", ["\udcff"]), ("integer", 2**31), ("bigint", 2**63), ("integer", "five"), ("json", "{"),
    ("uuid", "no uuid"), ("timestamptz", "yesterday"),
]  # fmt: skip


async def test_a_value_that_cannot_be_stored_is_the_callers_fault(
    database: Database, subtests: pytest.Subtests
) -> None:
    for type_, value in UNSTORABLE:
        with subtests.test(type=type_, value=value), pytest.raises(asyncpg.DataError):
            await ask(database, f"SELECT $1::{type_}", value)


async def test_of_two_transactions_in_a_deadlock_one_may_try_again(database: Database) -> None:
    locked = [asyncio.Event(), asyncio.Event()]

    async def lock(first: int, second: int) -> None:
        async with database.transaction() as connection:
            await connection.execute("SET LOCAL deadlock_timeout = '20ms'")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", first)
            locked[first].set()
            await locked[second].wait()
            await connection.execute("SELECT pg_advisory_xact_lock($1)", second)

    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(lock(0, 1), lock(1, 0), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "Unavailable"]


async def test_a_closed_database_is_unavailable(database_arguments: Arguments) -> None:
    database = await Database.open(DatabaseConfig(pool_size=4), database_arguments)
    await database.close()
    with pytest.raises(Unavailable):
        await answer(database)


async def test_closing_does_not_wait_for_ever_for_work_in_hand(database_arguments: Arguments) -> None:
    database = await Database.open(DatabaseConfig(pool_size=4), database_arguments)
    begun = asyncio.Event()

    async def work() -> None:
        async with database.connection() as connection:
            begun.set()
            await connection.execute("SELECT pg_sleep(60)")

    working = asyncio.create_task(work())
    await begun.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await database.close(timeout_seconds=0.05)
        with pytest.raises(Unavailable):
            await working


async def open_and_close(url: str) -> None:
    database = await Database.open(DatabaseConfig(url=url, pool_size=4, connect_timeout_seconds=5))
    await database.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bell:secret@127.0.0.1:1/bellringer",  # nobody listens
        "postgresql://bell:secret@nowhere.invalid/bellringer",
        "postgresql://bell:sec#ret@127.0.0.1/bellringer",
        "postgresql://bell:sec/ret@127.0.0.1/bellringer",
        "postgresql://bell:secret@127.0.0.1:secret/bellringer",
        "postgresql://bell:secret@[::1/bellringer",
        "postgresql://bell:secret@127.0.0.1/bellringer?sslmode=secret",
    ],
)
async def test_a_url_that_leads_nowhere_stops_the_start_in_one_line_that_keeps_the_password(url: str) -> None:
    with pytest.raises(StartupError) as raised:
        await open_and_close(url)
    assert "database" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "sec" not in str(raised.value)


async def test_a_database_that_does_not_exist_stops_the_start_in_one_line(database_arguments: Arguments) -> None:
    with pytest.raises(StartupError, match=r'^the database cannot be reached: database "nowhere" does not exist$'):
        await Database.open(DatabaseConfig(pool_size=4), database_arguments | {"database": "nowhere"})


async def test_a_server_that_is_not_postgresql_stops_the_start_in_one_line() -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_http, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StartupError, match=r"^the database cannot be reached: .*$"):
            await open_and_close(f"postgresql://bell@127.0.0.1:{port}/bellringer")


@pytest.mark.parametrize(
    ("version", "is_refused"), [("14.19", True), ("9.6.24", True), ("15.0", False), ("18.1", False)]
)
async def test_postgresql_15_is_the_oldest_that_will_do(version: str, is_refused: bool) -> None:
    def message(kind: bytes, content: bytes) -> bytes:
        return kind + struct.pack("!i", len(content) + 4) + content

    async def speak_as_that_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """No such server is at hand: this one knows how to let somebody in, and answers every query with nothing."""
        ready = message(b"Z", b"I")
        await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0] - 4)
        writer.write(message(b"R", struct.pack("!i", 0)))
        writer.write(message(b"S", b"server_version\0" + version.encode() + b"\0") + ready)
        while (kind := await reader.readexactly(1)) != b"X":
            await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0] - 4)
            if kind == b"Q":
                writer.write(message(b"C", b"SELECT 0\0") + ready)
        writer.close()

    async with await asyncio.start_server(speak_as_that_version, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        opening = open_and_close(f"postgresql://bell@127.0.0.1:{port}/bellringer?sslmode=disable")
        if is_refused:
            newest = version.partition(".")[0]
            with pytest.raises(StartupError, match=f"^PostgreSQL 15 or newer is needed, the server is {newest}$"):
                await opening
        else:
            await opening


@pytest.mark.parametrize(
    "setting",
    [{"pool_size": 3}, {"pool_size": 1001}, {"connect_timeout_seconds": 0}, {"command_timeout_seconds": -1.0}],
)
def test_settings_that_cannot_work_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(setting, DatabaseConfig)
