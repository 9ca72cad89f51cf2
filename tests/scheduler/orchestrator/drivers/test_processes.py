"""Real child processes: each writes a line when it starts and one when it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.waiting import until

from bellringer.kernel.backoff import Backoff
from bellringer.scheduler.orchestrator.config import ProcessesConfig
from bellringer.scheduler.orchestrator.drivers.processes import Processes

CHILD = """
import os, signal, sys, time
journal = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def tell(what): os.write(journal, f"{what} {os.getpid()}\\n".encode())
def stop(number, frame):
    tell("told to stop")
    if "deaf" not in sys.argv: sys.exit(0)
signal.signal(signal.SIGTERM, stop)
tell("started")
if "brief" in sys.argv: sys.exit(3)
while True: signal.pause()
"""


class Journal:
    """What the children wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, what: str) -> list[int]:
        """The process ids that wrote it, in their order."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [int(line.rpartition(" ")[2]) for line in lines if line.startswith(what)]

    async def has(self, what: str, number: int) -> list[int]:
        """The same, once there are so many."""

        async def enough() -> list[int]:
            found = self.of(what)
            return found if len(found) >= number else []

        return await until(enough)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


Start = Callable[..., Processes]


@pytest.fixture
async def start(journal: Journal) -> AsyncIterator[Start]:
    drivers = []

    def start_one(*how: str, stop_timeout_seconds: float = 10.0) -> Processes:
        driver = Processes(
            [sys.executable, "-c", CHILD, str(journal.path), *how],
            ProcessesConfig(stop_timeout_seconds=stop_timeout_seconds),
            backoff=Backoff(first_seconds=0.01, cap_seconds=0.02),
        )
        drivers.append(driver)
        return driver

    yield start_one
    for driver in drivers:
        await driver.close()


async def scale(driver: Processes, executors: int) -> None:
    await driver.scale_to(executors, current=await driver.current(), reason="")


async def test_it_starts_and_stops_executors(start: Start, journal: Journal) -> None:
    driver = start()
    await scale(driver, 3)
    started = await journal.has("started", 3)
    assert await driver.current() == 3
    assert sorted(driver.process_ids) == sorted(started)

    await scale(driver, 1)
    assert await driver.current() == 1
    stopped = await journal.has("told to stop", 2)
    await driver.close()
    assert await driver.current() == 0
    assert sorted(await journal.has("told to stop", 3)) == sorted(started)
    assert len(set(stopped)) == 2
    assert not any(is_alive(pid) for pid in started)


async def test_an_executor_that_runs_something_goes_last(start: Start, journal: Journal) -> None:
    driver = start()
    await scale(driver, 3)
    await journal.has("started", 3)
    *_, youngest = driver.process_ids
    await driver.scale_to(1, current=3, reason="", busy=[youngest])
    assert driver.process_ids == [youngest]
    assert youngest not in await journal.has("told to stop", 2)


async def test_an_executor_that_dies_is_started_again(start: Start, journal: Journal) -> None:
    driver = start()
    await scale(driver, 2)
    first, second = await journal.has("started", 2)
    os.kill(first, signal.SIGKILL)
    *_, third = await journal.has("started", 3)
    assert sorted(driver.process_ids) == sorted([second, third])


async def test_an_executor_that_ends_at_once_is_started_again_and_again(start: Start, journal: Journal) -> None:
    driver = start("brief")
    await scale(driver, 1)
    await journal.has("started", 4)
    assert await driver.current() == 1
    await driver.close()
    count = len(journal.of("started"))
    assert not any(is_alive(pid) for pid in journal.of("started"))
    assert len(journal.of("started")) == count


async def test_an_executor_that_does_not_stop_in_time_is_killed(start: Start, journal: Journal) -> None:
    driver = start("deaf", stop_timeout_seconds=0.1)
    await scale(driver, 1)
    (pid,) = await journal.has("started", 1)
    await driver.close()
    assert journal.of("told to stop") == [pid]
    assert not is_alive(pid)


async def test_a_slow_stop_holds_up_nobody(start: Start, journal: Journal) -> None:
    driver = start("deaf", stop_timeout_seconds=0.5)
    await scale(driver, 2)
    await journal.has("started", 2)
    await scale(driver, 0)
    await scale(driver, 1)  # while the two are still ending
    assert len(await journal.has("started", 3)) == 3
    assert len(driver.process_ids) == 1


async def test_a_command_that_does_not_exist_is_tried_again_and_can_be_stopped(tmp_path: Path) -> None:
    config = ProcessesConfig(stop_timeout_seconds=1.0)
    driver = Processes([str(tmp_path / "nothing")], config, backoff=Backoff(first_seconds=0.01, cap_seconds=0.02))
    await scale(driver, 1)
    await asyncio.sleep(0)
    assert await driver.current() == 1
    await driver.close()
    assert driver.process_ids == []


OWNER = """
import asyncio, sys
from bellringer.scheduler.orchestrator.config import ProcessesConfig
from bellringer.scheduler.orchestrator.drivers.processes import Processes
async def main():
    driver = Processes([sys.executable, "-c", sys.argv[1], sys.argv[2]], ProcessesConfig())
    await driver.scale_to(2, current=0, reason="")
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_executors_do_not_outlive_an_orchestrator_that_is_killed(journal: Journal) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, CHILD, str(journal.path))
    children = await journal.has("started", 2)
    owner.kill()
    await owner.wait()
    assert sorted(await journal.has("told to stop", 2)) == sorted(children)

    async def all_gone() -> bool:
        return not any(is_running(pid) for pid in children)

    assert await until(all_gone)


def is_running(pid: int) -> bool:
    """Whether it lives; an orphan that has ended may stay as a zombie where nobody reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
