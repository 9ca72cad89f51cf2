"""PostgreSQL 18 out of a wheel under our own launcher: started, watched, ended, and open to one account only.

In the data directory stand `postgres` (the database), `lock` (held while a process owns the directory, with its id
inside), `postgres.log`, `run` (the socket) and the two files of authentication. The server listens on a unix socket
in a private directory and admits one account, the one that runs Bellringer, by what the kernel says of its peer.
Started by root it runs as `nobody`, for PostgreSQL refuses root; the files of authentication therefore lie where
the server itself cannot write.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import asyncpg
import msgspec

from bellringer.kernel.backoff import Backoff
from bellringer.kernel.errors import StartupError
from bellringer.kernel.logs import get_logger
from bellringer.kernel.postgres_host import (
    MAJOR_VERSION,
    binary,
    claim_private_directory,
    give_to_server,
    is_root,
    privileges,
    release_pid_file,
    reports_ready,
    server_on,
    server_uid,
    socket_directory,
    telling_line,
)
from bellringer.kernel.service import Loop

_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_STEADY_AFTER_SECONDS = 60.0
# No wal_compression: this build has neither lz4 nor zstd.
_SETTINGS = [
    "shared_buffers=128MB",
    "max_wal_size=2GB",
    "max_connections=100",
    "jit=off",
    "timezone=UTC",
    "cluster_name=bellringer",
    "log_line_prefix=%m [%p] %q%u@%d %a ",
]
_SAFETY = ["fsync=on", "full_page_writes=on", "synchronous_commit=on", "unix_socket_permissions=0700", "port=5432"]

_log = get_logger(__name__)


class EmbeddedPostgresConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the database lies, how long the server may take, and PostgreSQL's settings on top of ours.

    The time to start counts from the last line in the server's log: a long recovery that reports its progress is not
    cut off. What keeps the data safe and the server private cannot be set.
    """

    data_directory: Path
    start_timeout_seconds: float = 60
    stop_timeout_seconds: float = 30
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class EmbeddedPostgres(Loop):
    """The server of one data directory: `start`, then `run` beside the work, then `stop` when `run` has returned.

    `run` starts a server that ended again, each time no sooner after its last start than a growing pause. The kernel
    shuts the server down when the thread that spawned it ends: start it from one that lives as long, the main thread.
    """

    def __init__(self, config: EmbeddedPostgresConfig) -> None:
        super().__init__("embedded_postgres", interval_seconds=0.1)
        self._config = config
        self._directory = config.data_directory.resolve()
        self._database_directory = self._directory / "postgres"
        self._log_path = self._directory / "postgres.log"
        self._log_offset = 0
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._restart_pause = Backoff(first_seconds=0.2, cap_seconds=30)
        self._started_at = 0.0
        self._ends_in_a_row = 0

    def connect_arguments(self) -> dict[str, Any]:
        """What `asyncpg.connect` needs to reach the server."""
        return _connect_arguments(self._directory)

    async def start(self) -> None:
        """Take the lock, end an orphan, create the database if there is none, and return when it answers.

        Raises `StartupError` in one line, and then nothing is left running.
        """
        try:
            self._take_lock()
            try:
                self._write_authentication()
                if not self._holds_database():
                    await self._create_database()
                await self._launch()
            except BaseException:
                await self.stop()
                raise
        except OSError as error:
            raise StartupError(f"the data directory {self._directory} cannot be used: {error}") from error

    async def stop(self) -> None:
        """Shut the server down, breaking its connections off, and give the directory free. May be repeated."""
        await self._end_process()
        self._process = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def run_once(self) -> bool:
        """Start the server again if it has ended. Raises `StartupError` or `OSError` when that fails."""
        lived_seconds = time.monotonic() - self._started_at
        if self._process is None or self._process.poll() is None:
            return False
        if lived_seconds > _STEADY_AFTER_SECONDS:
            self._ends_in_a_row = 0
        if lived_seconds < self._restart_pause.ceiling_seconds(self._ends_in_a_row + 1):
            return False
        self._ends_in_a_row += 1
        _log.error("PostgreSQL ended; starting it again", last_line=self._last_line(), times=self._ends_in_a_row)
        await self._launch()
        return False

    def _take_lock(self) -> None:
        # Open to pass but not to look, because nobody must pass through to the database.
        self._directory.mkdir(mode=0o711 if is_root() else 0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode() or "of unknown id"
            os.close(descriptor)
            raise StartupError(f"the data directory {self._directory} is in use by process {holder}") from None
        self._lock = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def _write_authentication(self) -> None:
        """Admit the account that runs this process, and no other. Anew at each start: a copy may change hands."""
        try:
            account = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            raise StartupError(f"PostgreSQL needs a name for the account with uid {os.geteuid()}") from None
        for name, line in (
            ("pg_hba.conf", "local all bellringer peer map=owner"),
            ("pg_ident.conf", f'owner "{account}" bellringer'),
        ):
            path = self._directory / name
            path.write_text(f"# Written by Bellringer at each start.\n{line}\n")
            path.chmod(0o644)

    def _holds_database(self) -> bool:
        """Whether there is a database; raises `StartupError` when it is not one that we can run."""
        directory = self._database_directory
        if not (directory / "PG_VERSION").exists():
            return False
        version, owner = (directory / "PG_VERSION").read_text().strip(), directory.stat().st_uid
        if version != MAJOR_VERSION:
            raise StartupError(f"{directory} is of PostgreSQL {version}, and this is PostgreSQL {MAJOR_VERSION}")
        if owner != server_uid():
            raise StartupError(f"{directory} must belong to uid {server_uid()}, and belongs to uid {owner}")
        directory.chmod(0o700)  # a copy often is open to others, and PostgreSQL refuses that
        return True

    async def _create_database(self) -> None:
        """Run initdb beside the final place, so that a half-made database is never taken for a whole one."""
        directory = self._directory / "postgres.new"
        await self._end_orphan(directory)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        give_to_server(directory)
        options = "--encoding=UTF8 --locale=C --locale-provider=builtin --builtin-locale=C.UTF-8 --data-checksums"
        command = [str(binary("initdb")), f"--pgdata={directory}", "--username=bellringer", *options.split()]
        with tempfile.TemporaryFile() as output:
            process = self._spawn([*command, "--auth=peer", "--no-instructions"], output, death_signal="KILL")
            try:
                await _comes_true(lambda: process.poll() is not None, self._config.start_timeout_seconds)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            if process.returncode != 0:
                raise StartupError(f"initdb failed: {telling_line(output.read())}")
        directory.rename(self._database_directory)
        # Else a power cut might undo the renaming alone, and the next start would discard the database.
        descriptor = os.open(self._directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    async def _launch(self) -> None:
        """Spawn the server and return when it answers."""
        give_up_at = time.monotonic() + self._config.start_timeout_seconds
        await self._end_orphan(self._database_directory)
        release_pid_file(self._database_directory)
        claim_private_directory(socket_directory(self._directory))
        while True:
            if self._log_path.exists() and self._log_path.stat().st_size > _LOG_LIMIT_BYTES:
                self._log_path.replace(self._directory / "postgres.log.1")
            self._log_path.touch(mode=0o600)
            with self._log_path.open("ab") as log:
                self._log_offset, self._started_at = log.tell(), time.monotonic()
                self._process = self._spawn(self._server_command(), log, death_signal="INT")
            try:
                return await self._until_it_answers(self._process)
            except StartupError as error:
                await self._end_process()
                # Backends notice the violent end of their postmaster a moment later; PostgreSQL waits for none.
                if "is still in use" not in str(error) or time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(0.1)

    def _server_command(self) -> list[str]:
        places = [
            "listen_addresses=",
            f'unix_socket_directories="{socket_directory(self._directory)}"',
            f"hba_file={self._directory / 'pg_hba.conf'}",
            f"ident_file={self._directory / 'pg_ident.conf'}",
        ]
        asked = [f"{name}={value}" for name, value in self._config.settings.items()]
        # The last one counts, and all of them count more than what stands in a file.
        settings = [*_SETTINGS, *asked, *_SAFETY, *places]
        options = [f"--{setting}" for setting in settings]
        return [str(binary("postgres")), "-D", str(self._database_directory), *options]

    def _spawn(self, command: list[str], output: IO[bytes], *, death_signal: str) -> subprocess.Popen[bytes]:
        """Run a program of PostgreSQL as the server's account, away from the terminal and its Ctrl-C."""
        places = [self._database_directory, socket_directory(self._directory)]
        return subprocess.Popen(  # noqa: S603 - our own programs
            [*privileges(places, death_signal), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            # No more: our environment may hold secrets, and PG* in it would change what we ask for.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,
            umask=0o077,
        )

    async def _until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        quiet_since, written = time.monotonic(), 0
        # Its own file says when it is ready; asking would put a refusal in its log every few milliseconds.
        while not (reports_ready(self._database_directory, process.pid) and await self._answers()):
            if process.poll() is not None:
                raise StartupError(f"PostgreSQL did not start: {self._last_line()}")
            if (size := self._log_path.stat().st_size) != written:
                quiet_since, written = time.monotonic(), size
            if time.monotonic() - quiet_since > self._config.start_timeout_seconds:
                raise StartupError(f"PostgreSQL did not start in time: {self._last_line()}")
            await asyncio.sleep(0.02)

    async def _answers(self) -> bool:
        """Whether the server takes a connection; makes our database in it when that is missing."""
        arguments = self.connect_arguments()
        try:
            try:
                connection = await asyncpg.connect(**arguments)
            except asyncpg.InvalidCatalogNameError:
                connection = await asyncpg.connect(**arguments | {"database": "postgres"})
                await connection.execute("CREATE DATABASE bellringer")
            await connection.close()
        except (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError):
            return False
        except asyncpg.PostgresError as error:
            raise StartupError(f"PostgreSQL does not let us in: {error}") from error
        return True

    async def _end_process(self) -> None:
        if (process := self._process) is not None:
            await self._end(process.pid, lambda: process.poll() is not None)

    async def _end_orphan(self, directory: Path) -> None:
        """End the server of an owner that was killed: we hold the lock, so no live owner has one."""
        if (orphan := server_on(directory)) is not None:
            _log.warning("ending a PostgreSQL that was left behind", pid=orphan)
            await self._end(orphan, lambda: server_on(directory) != orphan)
            if server_on(directory) is not None:
                raise StartupError(f"process {orphan} still runs PostgreSQL on {directory} and cannot be ended")

    async def _end(self, pid: int, has_ended: Callable[[], bool]) -> None:
        """Shut a server down: in order, then at once, then by force."""
        orderly = (signal.SIGINT, self._config.stop_timeout_seconds)
        for signal_number, wait_seconds in (orderly, (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
            if has_ended():
                return
            with suppress(ProcessLookupError):
                os.kill(pid, signal_number)
            await _comes_true(has_ended, wait_seconds)

    def _last_line(self) -> str:
        with self._log_path.open("rb") as log:
            log.seek(max(self._log_offset, log.seek(0, os.SEEK_END) - 8192))
            return telling_line(log.read())


def running_server(config: EmbeddedPostgresConfig) -> dict[str, Any] | None:
    """How to connect to the server that a live process runs on this data directory; None if there is none.

    Raises `StartupError` when PostgreSQL is not installed.
    """
    directory = config.data_directory.resolve()
    arguments = _connect_arguments(directory)
    target = [f"--host={arguments['host']}", "--port=5432", "--username=bellringer", "--dbname=bellringer"]
    command = [str(binary("pg_isready")), "--quiet", *target]
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - our own program
        return None
    with suppress(OSError), (directory / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return arguments
    return None


def _connect_arguments(directory: Path) -> dict[str, Any]:
    host = str(socket_directory(directory))
    return {"host": host, "port": 5432, "user": "bellringer", "database": "bellringer"}


async def _comes_true(condition: Callable[[], bool], within_seconds: float) -> bool:
    give_up_at = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(0.02)
    return True
