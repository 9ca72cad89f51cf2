"""Servers to test against: the wheel's PostgreSQL under our launcher, and Debian's."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bellringer.kernel.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresConfig

_DEBIAN_BINARIES = Path("/usr/lib/postgresql/15/bin")
# The tests' data is thrown away: a disk that waits would only make them slow. Durability has tests of its own.
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A server that runs."""

    connect_arguments: dict[str, Any]

    def arguments(self, database: str) -> dict[str, Any]:
        """What `asyncpg.connect` needs to reach one of its databases."""
        return self.connect_arguments | {"database": database}

    def url(self, database: str) -> str:
        """The same as a URL."""
        host = self.connect_arguments["host"]
        port = self.connect_arguments.get("port", 5432)
        return f"postgresql://{self.connect_arguments['user']}@/{database}?host={host}&port={port}"


@asynccontextmanager
async def wheel_cluster(directory: Path) -> AsyncIterator[Cluster]:
    """PostgreSQL 18 out of the wheel, as the product runs it."""
    server = EmbeddedPostgres(EmbeddedPostgresConfig(data_directory=directory))
    await server.start()
    try:
        yield Cluster(connect_arguments=server.connect_arguments())
    finally:
        await server.stop()


@asynccontextmanager
async def debian_cluster(_directory: Path) -> AsyncIterator[Cluster]:
    """PostgreSQL 15 from Debian's package postgresql-15; skips where it is not installed."""
    if not (_DEBIAN_BINARIES / "initdb").exists():
        pytest.skip("needs Debian's PostgreSQL: apt-get install postgresql-15")
    account = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    # Not pytest's own folder, which only its owner may enter, and short, for the socket's sake.
    home = Path(tempfile.mkdtemp(prefix="bellringer-pg15-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(home, account, account)
    data = home / "data"
    await _run_as(account, "initdb", "-D", str(data), "-U", "bellringer", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = " ".join(f"-c {name}={value}" for name, value in _FAST.items())
    options += f" -c listen_addresses= -c unix_socket_directories={home}"
    log = str(home / "log")
    await _run_as(account, "pg_ctl", "-D", str(data), "-w", "-l", log, "-o", options, "start")
    try:
        yield Cluster(connect_arguments={"host": str(home), "port": 5432, "user": "bellringer"})
    finally:
        await _run_as(account, "pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
        shutil.rmtree(home)


class ExternalPostgres:
    """A PostgreSQL that is not Bellringer's own: nobody but the test starts it again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._postgres = EmbeddedPostgres(EmbeddedPostgresConfig(data_directory=directory))

    @property
    def url(self) -> str:
        arguments = self._postgres.connect_arguments()
        return f"postgresql://{arguments['user']}@/{arguments['database']}?host={arguments['host']}"

    def start(self) -> None:
        asyncio.run(self._postgres.start())

    def stop_fast(self) -> None:
        """Break the connections off and write everything out."""
        asyncio.run(self._postgres.stop())

    def stop_immediately(self) -> None:
        """Drop everything; the next start recovers from the log, as after a crash."""
        postmaster = (self._directory / "postgres" / "postmaster.pid").read_text().split("\n")[0]
        os.kill(int(postmaster), signal.SIGQUIT)
        asyncio.run(self._postgres.stop())


@contextmanager
def external_postgres() -> Iterator[ExternalPostgres]:
    directory = Path(tempfile.mkdtemp(prefix="bellringer-", dir="/tmp"))
    postgres = ExternalPostgres(directory)
    try:
        postgres.start()
        yield postgres
    finally:
        postgres.stop_fast()
        shutil.rmtree(directory)


async def _run_as(account: str, binary: str, *arguments: str) -> None:
    await asyncio.to_thread(
        subprocess.run,
        [str(_DEBIAN_BINARIES / binary), *arguments],
        user=account if os.getuid() == 0 else None,
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
    )
