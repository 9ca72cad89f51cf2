"""What the benchmarks of schedulers share: processes that run tasks, the marks that their no-ops leave, the waiting.

The no-op of every contestant is the same: it appends the time to a file. So a start is the moment when a task's own
code ran, whatever a contestant's tables say. All processes and PostgreSQL read the clock of one machine.
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from bench.queue_contestants import ConnectArguments, connected

_MARK = struct.Struct("<d")
_ROOT = Path(__file__).parent.parent


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of a contestant is told, as JSON: its part, the database, and where its no-ops leave marks.

    `fire_at` is a time in seconds since 1970.
    """

    part: str
    arguments: ConnectArguments
    marks: str
    fire_at: float
    tasks: int

    def for_part(self, part: str) -> Job:
        """The same for another part."""
        return msgspec.structs.replace(self, part=part)


class Marks:
    """The file in which no-ops note when they ran; one write each, which no other process can split."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self) -> None:
        """Note that a task runs now."""
        os.write(self._file, _MARK.pack(time.time()))

    def count(self) -> int:
        """How many there are by now."""
        return os.fstat(self._file).st_size // _MARK.size

    def read(self) -> list[float]:
        """All of them, in seconds since 1970."""
        return [moment for (moment,) in _MARK.iter_unpack(Path(self.path).read_bytes())]


def job_of_this_process() -> Job:
    """What this process was told on its command line."""
    return msgspec.json.decode(sys.argv[1], type=Job)


def command(module: str, job: Job) -> list[str]:
    """The command line of a contestant's process."""
    return [sys.executable, "-m", module, msgspec.json.encode(job).decode()]


def url(arguments: ConnectArguments, driver: str = "postgresql") -> str:
    """The database as a URL, for those that take nothing else."""
    return f"{driver}://{arguments['user']}@/{arguments['database']}?host={quote(str(arguments['host']), safe='')}"


@contextmanager
def running(
    commands: Sequence[Sequence[str]], directory: Path, settings: dict[str, str] | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes until they are not needed any more. What they say goes to `processes.log`."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", **(settings or {})}
    processes: list[subprocess.Popen[bytes]] = []
    with (directory / "processes.log").open("ab") as log:
        try:
            processes.extend(
                subprocess.Popen(line, cwd=directory, env=environment, stdout=log, stderr=log) for line in commands
            )
            yield processes
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def check_alive(processes: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    """End the benchmark when a process has ended."""
    if any(process.poll() is not None for process in processes):
        raise SystemExit(f"a process ended:\n{(directory / 'processes.log').read_text()[-3000:]}")


async def wait_for_count(arguments: ConnectArguments, query: str, target: int, deadline: float) -> int:
    """Wait until the query's count is the target, or for the deadline (as of `time.time()`); returns the count."""
    async with connected(arguments) as connection:
        while True:
            count: int = await connection.fetchval(query, timeout=300)
            if count == target or time.time() > deadline:
                return count
            await asyncio.sleep(0.2)
