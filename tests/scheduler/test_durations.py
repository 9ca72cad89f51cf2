"""How long runs took, as executors write it down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from tests.support.scheduler_database import Interrupted

from bellringer.kernel.database import DatabaseConfig
from bellringer.kernel.errors import Unavailable
from bellringer.scheduler.durations import KEPT, Durations
from bellringer.scheduler.model import HttpCall, Invocation, TaskNumber
from bellringer.scheduler.occurrence_store import Started

ONCE, RECURRING = Started(verdict="run"), Started(verdict="run", is_recurring=True)


def run_of(number: int = 1, url: str = "https://acme.example/hook") -> Invocation:
    return Invocation(
        environment_id=UUID(int=1),
        number=TaskNumber(number),
        task="report",
        fire_at=datetime(2026, 1, 1, tzinfo=UTC),
        attempt=1,
        call=HttpCall(url=url),
        payload=b"",
        time_limit_seconds=60.0,
    )


@pytest.fixture
async def database(database_arguments: dict[str, Any]) -> AsyncIterator[Interrupted]:
    opened = await Interrupted.open(DatabaseConfig(pool_size=4), database_arguments)
    assert isinstance(opened, Interrupted)
    yield opened
    await opened.close()


@pytest.fixture
def durations(database: Interrupted) -> Durations:
    return Durations(database)


async def known(database: Interrupted) -> dict[str, list[float]]:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT subject, seconds FROM bellringer.run_durations")
    return {row["subject"]: row["seconds"] for row in rows}


async def test_a_recurring_task_has_statistics_of_its_own(database: Interrupted, durations: Durations) -> None:
    durations.add(run_of(1), RECURRING, 1.0)
    durations.add(run_of(2), RECURRING, 2.0)
    await durations.write()
    assert await known(database) == {"task 1": [1.0], "task 2": [2.0]}


async def test_one_time_tasks_share_those_of_what_they_call(database: Interrupted, durations: Durations) -> None:
    durations.add(run_of(1, "https://acme.example/hook?a=1"), ONCE, 1.0)
    durations.add(run_of(2, "https://acme.example/hook?a=2"), ONCE, 2.0)
    await durations.write()
    assert await known(database) == {"http https://acme.example/hook": [1.0, 2.0]}


async def test_runs_are_added_to_those_before(database: Interrupted, durations: Durations) -> None:
    for seconds in (1.0, 2.0):
        durations.add(run_of(), RECURRING, seconds)
        await durations.write()
    await durations.write()
    assert await known(database) == {"task 1": [1.0, 2.0]}


@pytest.mark.parametrize("pieces", [1, 3, 7])
async def test_the_newest_runs_are_kept(database: Interrupted, durations: Durations, pieces: int) -> None:
    for number in range(500):
        durations.add(run_of(), RECURRING, float(number))
        if number % (500 // pieces) == 0:
            await durations.write()
    await durations.write()
    assert await known(database) == {"task 1": [float(number) for number in range(500 - KEPT, 500)]}


async def test_what_could_not_be_written_is_written_later(database: Interrupted, durations: Durations) -> None:
    durations.add(run_of(), RECURRING, 1.0)
    database.is_down = True
    with pytest.raises(Unavailable):
        await durations.write()
    durations.add(run_of(), RECURRING, 2.0)
    database.is_down = False
    await durations.write()
    assert await known(database) == {"task 1": [1.0, 2.0]}


async def test_while_nothing_can_be_written_memory_is_bounded(database: Interrupted, durations: Durations) -> None:
    database.is_down = True
    for _ in range(10):
        for number in range(KEPT):
            durations.add(run_of(), RECURRING, float(number))
        with pytest.raises(Unavailable):
            await durations.write()
    assert sum(map(len, durations._new.values())) <= 2 * KEPT  # noqa: SLF001


async def test_the_longest_address_is_written(database: Interrupted, durations: Durations) -> None:
    durations.add(run_of(url="https://acme.example/" + "".join(map(str, range(5000)))), ONCE, 1.0)
    durations.add(run_of(), RECURRING, 1.0)
    await durations.write()
    assert len(await known(database)) == 2


async def test_the_typical_run_is_learnt(durations: Durations) -> None:
    for _ in range(200):
        durations.add(run_of(), RECURRING, 0.2)
    assert durations.typical_seconds == pytest.approx(0.2, abs=0.01)
