"""Real databases for the tests: every test that asks for one runs on PostgreSQL 18 (the wheel's) and 15 (Debian's)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import hypothesis
import pytest
from tests.support.postgres import Cluster, debian_cluster, wheel_cluster

from bellringer.assembly import SUBSYSTEMS
from bellringer.broker import Broker, BrokerConfig
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.migrations import migrate

# A database serves all examples of a test, so an example asserts what it adds; a busy machine misses deadlines.
hypothesis.settings.register_profile(
    "bellringer", max_examples=50, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
hypothesis.settings.load_profile("bellringer")

pytest_plugins = ["tests.support.skips"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session", params=["postgres18", "postgres15"])
async def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A running server with a migrated template database."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    start = {"postgres18": wheel_cluster, "postgres15": debian_cluster}[request.param]
    async with start(directory) as running:
        database = await Database.open(DatabaseConfig(pool_size=4), running.arguments("template1"))
        await migrate(database, SUBSYSTEMS)
        await database.close()
        yield running


@pytest.fixture
async def database_arguments(cluster: Cluster) -> AsyncIterator[dict[str, object]]:
    """How to connect to a migrated database of the test's own."""
    name = f"test_{next(_numbers)}"
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute(f"CREATE DATABASE {name}")
    yield cluster.arguments(name)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


@pytest.fixture
async def database(database_arguments: dict[str, object]) -> AsyncIterator[Database]:
    opened = await Database.open(DatabaseConfig(pool_size=8), database_arguments)
    yield opened
    await opened.close()


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database, SystemClock())


@pytest.fixture
async def api_key(keys: Keys) -> str:
    return await keys.create("acme", "production", "test")


@pytest.fixture
async def environment(keys: Keys, api_key: str) -> Environment:
    """The environment acme/production, opened by `api_key`."""
    return (await keys.authenticate(api_key)).environment


@pytest.fixture
async def broker(database: Database) -> AsyncIterator[Broker]:
    opened = Broker(database, BrokerConfig())
    yield opened
    await opened.drain()
