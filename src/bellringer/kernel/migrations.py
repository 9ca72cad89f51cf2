"""Migrations: numbered SQL files per subsystem, one ledger keyed (subsystem, number), applied in layer order.

A migration runs once, in a transaction of its own, under an advisory lock that lets one process migrate at a time.
A ledger that names a migration which this code does not have was written by newer code: the start is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib import resources

import asyncpg
import msgspec

from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import StartupError
from bellringer.kernel.logs import get_logger

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_ADVISORY_LOCK = 0x42454C4C  # "BELL"
_PATIENCE_SECONDS = 24 * 3600.0  # an index on a large table takes its time, and so does waiting for who builds it

CREATE_LEDGER = """
CREATE SCHEMA IF NOT EXISTS bellringer;
CREATE TABLE IF NOT EXISTS bellringer.migrations (
    subsystem text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subsystem, number)
)
"""
APPLIED = "SELECT subsystem, number, checksum FROM bellringer.migrations"
RECORD = "INSERT INTO bellringer.migrations (subsystem, number, name, checksum) VALUES ($1, $2, $3, $4)"
# A session lock, not one of a transaction: it must outlast the transaction of each migration.
LOCK = "SELECT pg_advisory_lock($1)"
UNLOCK = "SELECT pg_advisory_unlock($1)"

_log = get_logger(__name__)


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One SQL file of one subsystem."""

    subsystem: str
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """A fingerprint of the SQL: an applied migration may not change."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations_of(subsystem: str) -> list[Migration]:
    """The migrations in `bellringer/<subsystem>/migrations`, in order. Raises `ValueError` on a gap in the numbers.

    A file that is named otherwise is refused too: it would never be applied.
    """
    folder = resources.files("bellringer") / subsystem.replace(".", "/") / "migrations"
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if match := _FILE_NAME.fullmatch(file.name):
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(subsystem=subsystem, number=int(match[1]), name=match[2], sql=sql))
        elif file.name.endswith(".sql"):
            raise ValueError(f"the migration {file.name} of {subsystem} is not named like 0001_what_it_does.sql")
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {subsystem} are not numbered 1, 2, 3, …")
    return found


async def migrate(database: Database, subsystems: Sequence[str]) -> int:
    """Apply what is missing, subsystem by subsystem in the order given; return how many were applied.

    Raises `StartupError` when the database was migrated by newer code, an applied migration has changed since, or
    PostgreSQL refuses one.
    """
    return await apply(database, [migration for subsystem in subsystems for migration in migrations_of(subsystem)])


async def apply(database: Database, known: Sequence[Migration]) -> int:
    """Apply those of the known migrations that are missing, as `migrate` does."""
    try:
        async with database.connection() as connection:
            await connection.execute(LOCK, _ADVISORY_LOCK, timeout=_PATIENCE_SECONDS)
            try:
                await connection.execute(CREATE_LEDGER)
                return await _apply_missing(connection, known)
            finally:
                await connection.execute(UNLOCK, _ADVISORY_LOCK)
    except asyncpg.PostgresError as error:
        raise StartupError(f"the database cannot be migrated: {_first_line(error)}") from error


async def _apply_missing(connection: Connection, known: Sequence[Migration]) -> int:
    applied = {(row["subsystem"], row["number"]): row["checksum"] for row in await connection.fetch(APPLIED)}
    unknown = applied.keys() - {(migration.subsystem, migration.number) for migration in known}
    if unknown:
        subsystem, number = min(unknown)
        raise StartupError(f"the database is newer than this Bellringer: it has migration {subsystem} {number:04}")
    missing = 0
    for migration in known:
        key = (migration.subsystem, migration.number)
        if key not in applied:
            await _apply(connection, migration)
            missing += 1
        elif applied[key] != migration.checksum:
            raise StartupError(f"migration {migration.subsystem} {migration.number:04} changed after it was applied")
    return missing


async def _apply(connection: Connection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql, timeout=_PATIENCE_SECONDS)
            await connection.execute(RECORD, migration.subsystem, migration.number, migration.name, migration.checksum)
    except asyncpg.PostgresError as error:
        number = f"{migration.subsystem} {migration.number:04}"
        raise StartupError(f"migration {number} failed: {_first_line(error)}") from error
    _log.info("migration applied", subsystem=migration.subsystem, number=migration.number, name=migration.name)


def _first_line(error: asyncpg.PostgresError) -> str:
    return str(error).splitlines()[0]  # details and hints stand below it
