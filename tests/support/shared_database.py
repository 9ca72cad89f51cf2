"""One database for all tests of a folder, emptied before each: making another takes longer than most tests.

A folder's `conftest.py` imports the two fixtures.
"""

from __future__ import annotations

import itertools
from typing import Any

import asyncpg
import pytest
from tests.support.postgres import Cluster

_TABLES = """
SELECT tablename FROM pg_tables
WHERE schemaname = 'bellringer' AND tablename NOT IN ('migrations', 'receipt_secrets')
"""
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
async def shared_database_arguments(cluster: Cluster) -> dict[str, Any]:
    """How to connect to the migrated database that the tests of the folder share."""
    name = f"shared_{next(_numbers)}"
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    return cluster.arguments(name)


@pytest.fixture
async def database_arguments(shared_database_arguments: dict[str, Any]) -> dict[str, Any]:
    """The same, when it is empty."""
    admin = await asyncpg.connect(**shared_database_arguments)
    tables = [row["tablename"] for row in await admin.fetch(_TABLES)]
    await admin.execute("SET session_replication_role = replica")  # foreign keys may rest: everything goes
    await admin.execute("; ".join(f"DELETE FROM bellringer.{table}" for table in tables))
    await admin.close()
    return shared_database_arguments
