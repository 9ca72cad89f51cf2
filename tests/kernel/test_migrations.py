from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.postgres import Cluster

from bellringer.assembly import SUBSYSTEMS
from bellringer.kernel import migrations
from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.errors import StartupError
from bellringer.kernel.migrations import Migration, apply, migrate, migrations_of

PATIENCE_SECONDS = 30

MIGRATE = """
import asyncio, json, sys
from bellringer.assembly import SUBSYSTEMS
from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.migrations import migrate

async def run():
    database = await Database.open(DatabaseConfig(pool_size=4), json.loads(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(await migrate(database, SUBSYSTEMS), flush=True)
    await database.close()

asyncio.run(run())
"""


@pytest.fixture
async def empty_arguments(cluster: Cluster) -> AsyncIterator[dict[str, Any]]:
    """How to connect to a database that was never migrated."""
    operator = await asyncpg.connect(**cluster.arguments("postgres"))
    await operator.execute("CREATE DATABASE never_migrated TEMPLATE template0")
    yield cluster.arguments("never_migrated")
    await operator.execute("DROP DATABASE never_migrated WITH (FORCE)")
    await operator.close()


@asynccontextmanager
async def opened(arguments: dict[str, Any], command_timeout_seconds: float = 60) -> AsyncIterator[Database]:
    config = DatabaseConfig(pool_size=4, command_timeout_seconds=command_timeout_seconds)
    database = await Database.open(config, arguments)
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def empty(empty_arguments: dict[str, Any]) -> AsyncIterator[Database]:
    async with opened(empty_arguments) as database:
        yield database


def migration(number: int, sql: str, subsystem: str = "birds") -> Migration:
    return Migration(subsystem=subsystem, number=number, name=f"step_{number}", sql=sql)


NEST = migration(1, "CREATE TABLE nests (tree text)")
EGG = migration(2, "CREATE TABLE eggs (colour text); ALTER TABLE nests ADD COLUMN eggs integer")
SONG = migration(1, "CREATE TABLE songs AS SELECT tree FROM nests", subsystem="songs")


async def ledger(database: Database) -> list[tuple[str, int]]:
    async with database.connection() as connection:
        rows = await connection.fetch(
            "SELECT subsystem, number FROM bellringer.migrations ORDER BY applied_at, subsystem, number"
        )
    return [(row["subsystem"], row["number"]) for row in rows]


async def exists(database: Database, table: str) -> bool:
    async with database.connection() as connection:
        return await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table) is True


async def test_migrations_are_applied_once_and_in_the_order_given(empty: Database) -> None:
    assert await apply(empty, [NEST, EGG, SONG]) == 3
    assert await ledger(empty) == [("birds", 1), ("birds", 2), ("songs", 1)]
    assert await apply(empty, [NEST, EGG, SONG]) == 0
    assert await exists(empty, "songs")


async def test_what_is_new_since_the_last_start_is_applied_alone(empty: Database) -> None:
    assert await apply(empty, [NEST]) == 1
    assert await apply(empty, [NEST, EGG]) == 1
    assert await ledger(empty) == [("birds", 1), ("birds", 2)]


async def test_the_products_own_migrations_make_a_database_from_nothing(empty: Database) -> None:
    number = sum(len(migrations_of(subsystem)) for subsystem in SUBSYSTEMS)
    assert await migrate(empty, SUBSYSTEMS) == number
    assert await migrate(empty, SUBSYSTEMS) == 0
    assert len(await ledger(empty)) == number


async def test_of_many_that_start_together_one_migrates(empty_arguments: dict[str, Any]) -> None:
    async with opened(empty_arguments) as one, opened(empty_arguments) as two, opened(empty_arguments) as three:
        starts = [apply(database, [NEST, EGG, SONG]) for database in (one, two, three) for _ in range(2)]
        assert sorted(await asyncio.gather(*starts)) == [0, 0, 0, 0, 0, 3]


async def test_of_several_processes_that_start_together_one_migrates(empty_arguments: dict[str, Any]) -> None:
    number = sum(len(migrations_of(subsystem)) for subsystem in SUBSYSTEMS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", MIGRATE, json.dumps(empty_arguments),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )
            for _ in range(3)
        ]  # fmt: skip
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert sorted(int(output.split()[-1]) for output, _ in answers) == [0, 0, number]


async def test_a_migration_may_take_longer_than_any_other_command(empty_arguments: dict[str, Any]) -> None:
    slow = migration(1, "CREATE TABLE slow (); SELECT pg_sleep(0.4)")
    async with opened(empty_arguments, command_timeout_seconds=0.1) as one, opened(empty_arguments, 0.1) as two:
        outcomes = await asyncio.gather(apply(one, [slow]), apply(two, [slow]))
    assert sorted(outcomes) == [0, 1]


async def test_a_database_of_a_newer_bellringer_is_refused_in_one_line_and_left_alone(empty: Database) -> None:
    await apply(empty, [NEST, EGG])
    message = r"^the database is newer than this Bellringer: it has migration birds 0002$"
    with pytest.raises(StartupError, match=message):
        await apply(empty, [NEST, SONG])
    assert await ledger(empty) == [("birds", 1), ("birds", 2)]


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused(empty: Database) -> None:
    await apply(empty, [NEST])
    changed = migration(1, NEST.sql + " -- with a comment")
    with pytest.raises(StartupError, match=r"^migration birds 0001 changed after it was applied$"):
        await apply(empty, [changed])


async def test_a_migration_that_fails_leaves_nothing_and_stops_the_start_in_one_line(empty: Database) -> None:
    failing = migration(2, "CREATE TABLE half_done (); SELECT colour FROM feathers")
    with pytest.raises(StartupError, match=r'^migration birds 0002 failed: relation "feathers" does not exist$'):
        await apply(empty, [NEST, failing, SONG])
    assert await ledger(empty) == [("birds", 1)]
    assert not await exists(empty, "half_done")
    assert not await exists(empty, "songs")


async def test_after_a_failure_the_next_start_goes_on_where_it_stood(empty_arguments: dict[str, Any]) -> None:
    async with opened(empty_arguments) as first:
        with pytest.raises(StartupError):
            await apply(first, [NEST, migration(2, "SELECT 1/0")])
        async with opened(empty_arguments) as second, asyncio.timeout(PATIENCE_SECONDS):  # the lock is free
            assert await apply(second, [NEST, EGG]) == 1


async def test_an_account_that_may_not_create_anything_is_told_so_in_one_line(empty_arguments: dict[str, Any]) -> None:
    async with opened(empty_arguments) as owner, owner.connection() as connection:
        await connection.execute("CREATE ROLE may_do_nothing; ALTER DATABASE never_migrated SET role = may_do_nothing")
    try:
        async with opened(empty_arguments) as database:
            message = "^the database cannot be migrated: permission denied for database never_migrated$"
            with pytest.raises(StartupError, match=message):
                await migrate(database, SUBSYSTEMS)
    finally:
        operator = await asyncpg.connect(**empty_arguments | {"database": "postgres"})
        await operator.execute("ALTER DATABASE never_migrated RESET role; DROP ROLE may_do_nothing")
        await operator.close()


@pytest.mark.parametrize("subsystem", SUBSYSTEMS)
def test_every_subsystem_has_migrations_numbered_from_one(subsystem: str) -> None:
    found = migrations_of(subsystem)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations of a subsystem of the name birds."""
    monkeypatch.setattr(migrations.resources, "files", lambda _package: tmp_path)
    made = tmp_path / "birds" / "migrations"
    made.mkdir(parents=True)
    return made


def test_migrations_are_read_from_their_files_in_order(folder: Path) -> None:
    (folder / "0002_eggs.sql").write_text("SELECT 'egg'")
    (folder / "0001_nests.sql").write_text("SELECT 'nest'")
    (folder / "README.md").write_text("about nests")
    found = migrations_of("birds")
    assert [(one.subsystem, one.number, one.name, one.sql) for one in found] == [
        ("birds", 1, "nests", "SELECT 'nest'"),
        ("birds", 2, "eggs", "SELECT 'egg'"),
    ]


@pytest.mark.parametrize(
    "names",
    [["0001_a.sql", "0003_b.sql"], ["0002_a.sql"], ["0000_a.sql"], ["0001_a.sql", "0001_b.sql"]],
)
def test_numbers_with_a_gap_or_a_twin_are_refused(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).touch()
    with pytest.raises(ValueError, match="birds are not numbered"):
        migrations_of("birds")


@pytest.mark.parametrize("name", ["2_eggs.sql", "0002_Eggs.sql", "0002-eggs.sql", "eggs.sql"])
def test_a_file_that_would_never_be_applied_is_refused(folder: Path, name: str) -> None:
    (folder / "0001_nests.sql").touch()
    (folder / name).touch()
    with pytest.raises(ValueError, match=name):
        migrations_of("birds")
