"""`bellringer up --role orchestrator` with executors as processes: started, kept up, stopped, and not left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.postgres import Cluster
from tests.support.server import Server, empty_database, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.scenario, pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)]

KEY = "a-key-that-the-tests-set"
QUICK = """
[scheduler]
concurrency = 2

[orchestrator]
driver = "processes"
minimum = 1
maximum = 3
interval_seconds = 1
watch_seconds = 1
look_ahead_seconds = 60
provisioning_seconds = 8
quiet_seconds = 4
cool_down_seconds = 1
default_duration_seconds = 3.0
"""
PLAN = """
SELECT bellringer.schedule(
    'burst-' || number, '{"type": "message", "queue": "bells"}', at => date_trunc('second', now()) + interval '20 s'
)
FROM generate_series(1, 60) AS number
"""
SUCCEEDED = "SELECT count(*) FROM bellringer.occurrences WHERE outcome = 'succeeded'"
LATE = "SELECT count(*) FROM bellringer.occurrences WHERE started_at > due_at + interval '30 s' OR started_at < due_at"
EXECUTORS = "SELECT process FROM bellringer.executors ORDER BY started_at"
DECISIONS = "SELECT * FROM bellringer.scaling_decisions ORDER BY at"


@pytest.fixture
async def url(cluster: Cluster) -> str:
    return await empty_database(cluster)


@contextmanager
def running(role: str, url: str, settings: str = "") -> Iterator[Server]:
    """A process of that role; with more settings in its `bellringer.toml`."""
    own = {"BELLRINGER_DATABASE_URL": url, "BELLRINGER_API_KEY": KEY}
    with serving(own, role=role, started=False) as server:
        (server.directory / "bellringer.toml").write_text(settings)
        server.spawn()
        yield server


@pytest.fixture
async def site(url: str) -> AsyncIterator[tuple[asyncpg.Connection[Any], Server]]:
    """A connection to the database, and an orchestrator beside a picker on it."""
    with running("picker", url), running("orchestrator", url, QUICK) as orchestrator:
        connection = await asyncpg.connect(url)

        async def is_migrated() -> bool:
            return await connection.fetchval("SELECT to_regclass('bellringer.scaling_decisions')") is not None

        await until(is_migrated)
        yield connection, orchestrator
        await connection.close()


async def executors(connection: asyncpg.Connection[Any], number: int) -> list[int]:
    """The process ids of the executors that live, once there are so many."""

    async def so_many() -> list[int]:
        found = [row["process"] for row in await connection.fetch(EXECUTORS) if is_alive(row["process"])]
        return found if len(found) == number else []

    return await until(so_many)


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended may stay as a zombie until somebody asks how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_executors_come_before_the_burst_run_it_on_time_and_go_after_it(
    site: tuple[asyncpg.Connection[Any], Server],
) -> None:
    connection, orchestrator = site
    (first,) = await executors(connection, 1)
    await connection.execute(PLAN)
    three = await executors(connection, 3)
    assert first in three
    assert await connection.fetchval(SUCCEEDED) == 0  # they are there before the burst

    async def all_done() -> bool:
        return await connection.fetchval(SUCCEEDED) == 60

    await until(all_done)
    assert await connection.fetchval(LATE) == 0
    assert await executors(connection, 1) == [first]

    desired = [row["desired"] for row in await connection.fetch(DECISIONS)]
    assert sorted(set(desired)) == [1, 3]
    changes = sum(before != after for before, after in pairwise(desired))
    assert changes == 2, desired
    assert orchestrator.terminate() == 0
    assert not is_alive(first)
    assert "Traceback" not in orchestrator.log()


async def test_an_executor_that_is_killed_comes_back_and_none_outlives_the_orchestrator(
    site: tuple[asyncpg.Connection[Any], Server],
) -> None:
    connection, orchestrator = site
    (first,) = await executors(connection, 1)
    os.kill(first, signal.SIGKILL)

    async def another() -> int:
        processes = [row["process"] for row in await connection.fetch(EXECUTORS)]
        return next((process for process in processes if process != first), 0)

    second = await until(another)
    assert is_alive(second)
    orchestrator.kill()

    async def gone() -> bool:
        return not is_alive(second)

    await until(gone)
