"""Bellringer as its users run it: a process of its own, spoken to over HTTP, killed and started again.

    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "1"}) as server:
        notification_id = server.tell({"type": "task.failed", "recipients": ["ann@acme.example"]})
        server.until_settled()

A `Server` has a directory and a port of its own and keeps both over restarts. Whatever happens, its processes are
ended and its directory is removed; a failure inside the block carries the end of its log.
"""

from __future__ import annotations

import http.client
import itertools
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import asyncpg
import msgspec
from tests.support.postgres import Cluster

DEADLINE_SECONDS = 120.0
"""How long anything may take before a test gives up: the machine may be busy. What goes well takes a moment."""

NO_ANSWER: tuple[type[Exception], ...] = (OSError, http.client.HTTPException)
"""What a request raises when nobody listens, or when the connection ends before the answer does."""

ANY_ROLE, WORKER = "all", "worker"

_QUEUED = re.compile(r'^bellringer_queue_messages\{.*queue="([^"]+)",state="(\w+)"\} (\S+)$', re.MULTILINE)
_numbers = itertools.count(1)
_PIPELINE = {"notifications.accepted", "digests.closed", "emails.outbound"}

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, within_seconds: float = DEADLINE_SECONDS) -> T:
    """Ask again and again, and return the first answer that is true; fail when none comes in time."""
    give_up_at = time.monotonic() + within_seconds
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"not within {within_seconds:g} s: {what}; the last answer: {answer!r}"
        time.sleep(0.02)
    return answer


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - whatever the server said
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class Server:
    """`bellringer up` on a directory and a port of its own. Use `serving`, which cleans up."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, *, role: str = ANY_ROLE) -> None:
        self.directory = directory
        self.data_directory = directory / "data"
        self.port = free_port()
        self.role = role
        self.settings = {
            "BELLRINGER_DATA_DIRECTORY": str(self.data_directory),
            "BELLRINGER_PORT": str(self.port),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    # The process

    def start(self) -> None:
        """Start, and return when it is ready to work."""
        self.spawn()
        self.until_ready()

    def spawn(self) -> None:
        """Start, and return at once. To be called by the main thread: the process ends when its caller does."""
        assert self._process is None, "it runs already"
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*ended_with_us(), *_BELLRINGER, "up", "--role", self.role],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # what a terminal gives it, so that `interrupt` reaches all that Ctrl-C would
            )

    def until_ready(self) -> None:
        """Return when it can do its work; fail when it ends instead."""
        until(self._is_ready_or_gone, "the server is ready")
        assert self.is_running(), "the server ended at its start"

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The id of the process, which must have been started."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def kill(self) -> None:
        """End the process as a power cut would. Does nothing when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_SECONDS)
            self._process = None

    def interrupt(self) -> int:
        """Press Ctrl-C: SIGINT to the whole process group. Returns the exit code."""
        os.killpg(self.process_id, signal.SIGINT)
        return self.until_ended()

    def terminate(self) -> int:
        """Stop it with SIGTERM; return the exit code."""
        os.kill(self.process_id, signal.SIGTERM)
        return self.until_ended()

    def until_ended(self) -> int:
        """Wait for the end of the process; return the exit code."""
        assert self._process is not None, "it does not run"
        code = self._process.wait(DEADLINE_SECONDS)
        self._process = None
        return code

    def restart(self) -> None:
        """Stop it in order and start it again on the same directory."""
        assert self.terminate() == 0
        self.start()

    def run(self, *arguments: str, settings: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run another command of `bellringer` with the same settings and directory, to its end."""
        return subprocess.run(
            [*ended_with_us(), *_BELLRINGER, *arguments],
            cwd=self.directory,
            env={**self._environment(), **(settings or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def create_key(self, *arguments: str) -> str:
        """Make another API key with `keys create`; return it."""
        made = self.run("keys", "create", *arguments)
        assert made.returncode == 0, made.stderr
        return made.stdout.splitlines()[0].removeprefix("BELLRINGER_API_KEY=")

    def postgres_processes(self) -> list[int]:
        """The ids of all processes of the embedded PostgreSQL: they work inside its directory."""
        database_directory = os.fsencode(self.data_directory.resolve() / "postgres")
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended, or is not ours to look at
                if os.fsencode((process / "cwd").readlink()).startswith(database_directory):
                    found.append(int(process.name))
        return found

    def postmaster(self) -> int:
        """The id of the embedded PostgreSQL's first process."""
        return int((self.data_directory / "postgres" / "postmaster.pid").read_text().split("\n")[0])

    def log(self) -> str:
        """All that the process has said on its standard output and standard error, over all starts."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def log_tail(self, lines: int = 60) -> str:
        """The end of the log, and of PostgreSQL's own."""
        tail = [line[:600] for line in self.log().splitlines()[-lines:]]
        postgres_log = self.data_directory / "postgres.log"
        postgres_tail = postgres_log.read_text(errors="replace").splitlines()[-20:] if postgres_log.exists() else []
        return "\n".join([f"---- the end of the log of {self.role}", *tail, "---- of PostgreSQL's log", *postgres_tail])

    def clean_up(self) -> None:
        """End every process, by force, and remove the directory."""
        self.kill()
        give_up_at = time.monotonic() + 20
        while left := self.postgres_processes():  # they end by themselves, unless something is wrong
            if time.monotonic() > give_up_at:
                for process_id in left:
                    with suppress(ProcessLookupError):
                        os.kill(process_id, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.directory, ignore_errors=True)

    # HTTP

    @property
    def key(self) -> str:
        """The API key: the one that was set, or else the one made at the first start."""
        return self.settings.get("BELLRINGER_API_KEY") or (self.data_directory / "api-key").read_text()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        content: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> Reply:
        """Send one request on a connection of its own. `content` goes out as JSON, bytes as they are.

        Raises one of `NO_ANSWER`.
        """
        body = content if isinstance(content, bytes) or content is None else msgspec.json.encode(content)
        sent_headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)
        with closing(connection):
            connection.request(method, path, body, sent_headers | (headers or {}))
            response = connection.getresponse()
            answer_headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(status=response.status, headers=answer_headers, body=response.read())

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever the server said
        """The JSON at a path; it must be there."""
        reply = self.request("GET", path)
        assert reply.status == 200, f"GET {path}: {reply.status} {reply.body!r}"
        return reply.json()

    def tell(self, event: Mapping[str, object], *, idempotency_key: str | None = None) -> UUID:
        """Send an event, which must be accepted at once; return the id of its notification."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        reply = self.request("POST", "/v1/events", event, headers=headers)
        assert reply.status == 202, f"{reply.status} {reply.body!r}"
        return UUID(reply.json()["id"])

    def readiness(self) -> int | None:
        """The status of /readyz; None when nobody answers."""
        try:
            return self.request("GET", "/readyz", key="none").status
        except NO_ANSWER:
            return None

    def overview(self) -> dict[str, int]:
        """What the environment has done so far."""
        counts: dict[str, int] = self.get("/v1/overview")
        return counts

    def timeline(self, notification_id: UUID) -> list[dict[str, Any]]:
        """The steps of a notification."""
        steps: list[dict[str, Any]] = self.get(f"/v1/notifications/{notification_id}")["timeline"]
        return steps

    def outcomes(self, notification_id: UUID) -> dict[str, str]:
        """How a notification stands with each of its recipients: pending, sent or failed."""
        return {step["recipient"]: step["step"] for step in self.timeline(notification_id) if "recipient" in step}

    def queued(self) -> Counter[str]:
        """How many messages are on their way through each queue of the pipeline."""
        counts = Counter[str]()
        reply = self.request("GET", "/metrics")
        assert reply.status == 200, f"GET /metrics: {reply.status} {reply.body!r}"
        for queue, _, number in _QUEUED.findall(reply.body.decode()):
            if queue in _PIPELINE:
                counts[queue] += int(float(number))
        return counts

    def metric(self, name_and_labels: str) -> float:
        """The value of one metric, written as /metrics writes it; 0 when it is not there yet."""
        for line in self.request("GET", "/metrics").body.decode().splitlines():
            if line.startswith(f"{name_and_labels} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def until_settled(self) -> None:
        """Return when nothing is on its way: no digest is open and every email is sent or has failed."""

        # An event passes queue, digest, queue, queue. Looked at in this order, it cannot slip from one to the next.
        def is_settled() -> bool:
            return not self.queued().total() and not self.overview()["open_digests"] and not self.queued().total()

        until(is_settled, "every event has been sent or has failed")

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        return own | self.settings

    def _is_ready_or_gone(self) -> bool:
        if not self.is_running():
            return True
        if self.role == WORKER:
            return "Bellringer works on the queues" in self.log()
        return self.readiness() == 200


@contextmanager
def serving(
    settings: Mapping[str, str] | None = None, *, role: str = ANY_ROLE, started: bool = True
) -> Iterator[Server]:
    """A server with these settings (`BELLRINGER_…`), started unless told otherwise, and gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="bellringer-", dir="/tmp"))
    directory.chmod(0o755)
    server = Server(directory, settings, role=role)
    try:
        if started:
            server.start()
        yield server
    except BaseException as error:
        error.add_note(server.log_tail())
        raise
    finally:
        server.clean_up()


async def empty_database(cluster: Cluster, *, commit_delay_seconds: float = 0.0) -> str:
    """The URL of a database of the caller's own, without a table.

    With a delay each commit takes that much longer, where the cluster has fsync: what is killed at random is then
    often killed between two transactions, or before it hears of a commit.
    """
    name = f"scenario_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(**cluster.arguments("postgres"))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        await connection.execute(f"ALTER DATABASE {name} SET commit_siblings = 0")
        await connection.execute(f"ALTER DATABASE {name} SET commit_delay = {round(commit_delay_seconds * 1e6)}")
    finally:
        await connection.close()
    return cluster.url(name)


class EventStream:
    """Sends events from several threads until it is left, each with a key of its own and until it is accepted.

    `make_event` makes event number n. `accepted` has those answered with 202, by the id of their notification;
    `refusals` counts the answers of 5xx before that.
    """

    def __init__(
        self,
        server: Server,
        make_event: Callable[[int], dict[str, Any]],
        *,
        threads: int = 4,
        pause_seconds: float = 0.01,
    ) -> None:
        self.accepted: dict[UUID, dict[str, Any]] = {}
        self.refusals = Counter[int]()
        self._server = server
        self._make_event = make_event
        self._pause_seconds = pause_seconds
        self._give_up_at = math.inf
        self._finishing = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._send, args=(n, threads)) for n in range(threads)]

    def __enter__(self) -> Self:
        """Begin to send."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Make no new events, and return when those in hand are accepted, or a failure is known."""
        self._finishing.set()
        if error is not None:
            self._give_up_at = 0.0
        for thread in self._threads:
            thread.join()
        if error is None and self._failures:
            raise self._failures[0]

    def until_accepted(self, more: int) -> None:
        """Return when so many more events have been accepted than before."""
        number = len(self.accepted) + more
        until(lambda: self._failures or len(self.accepted) >= number, f"{more} more events are accepted")
        if self._failures:
            raise self._failures[0]

    def _send(self, first: int, step: int) -> None:
        number = first
        try:
            while not self._finishing.wait(self._pause_seconds):
                event = self._make_event(number)
                notification_id = self._until_accepted(event, f"event {number}")
                assert notification_id not in self.accepted, f"event {number} got the id of another one"
                self.accepted[notification_id] = event
                number += step
        except BaseException as error:  # noqa: BLE001 - raised again where the test sees it
            self._failures.append(error)

    def _until_accepted(self, event: dict[str, Any], key: str) -> UUID:
        """Do as a careful client does: the same key again after a lost connection or an answer of 5xx."""
        began_at = time.monotonic()
        while True:
            with suppress(*NO_ANSWER):
                reply = self._server.request("POST", "/v1/events", event, headers={"Idempotency-Key": key})
                if reply.status == 202:
                    return UUID(reply.json()["id"])
                assert reply.status >= 500, f"{key}: {reply.status} {reply.body!r}"
                self.refusals[reply.status] += 1
            assert time.monotonic() < min(self._give_up_at, began_at + DEADLINE_SECONDS), f"{key} was not accepted"
            time.sleep(0.05)


def free_port() -> int:
    """A port that nobody uses, below those that the kernel gives to outgoing connections, so that it stays free."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


_BELLRINGER = (sys.executable, "-m", "bellringer")


def ended_with_us() -> list[str]:
    """A prefix to a command that ends it when the tests themselves are killed."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
