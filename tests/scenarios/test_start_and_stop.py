"""`bellringer up` and the commands beside it: starts, stops, kills, refusals, and two processes on one database."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.postgres import Cluster
from tests.support.server import DEADLINE_SECONDS, WORKER, Server, empty_database, serving, until
from tests.support.smtp import SmtpServer

pytestmark = pytest.mark.scenario

ANN, BOB = "ann@acme.example", "bob@acme.example"
QUICK = {"BELLRINGER_DIGEST_WINDOW_SECONDS": "1"}
KILLED_NOW_AND_THEN = QUICK | {"BELLRINGER_VISIBILITY_TIMEOUT_SECONDS": "2"}
KEY = "a-key-that-the-tests-set"

_ESTABLISHED = "01"


def event(number: int = 0) -> dict[str, object]:
    return {"type": "task.failed", "recipients": [ANN, BOB], "data": {"number": number}}


@pytest.mark.parametrize("stop", [Server.interrupt, Server.terminate], ids=["SIGINT", "SIGTERM"])
def test_it_starts_works_stops_in_order_and_finds_its_data_again(stop: Callable[[Server], int]) -> None:
    with serving(QUICK) as server:
        notification_id = server.tell(event())
        server.until_settled()
        key = server.key
        assert len(server.postgres_processes()) > 1

        assert stop(server) == 0
        assert server.postgres_processes() == []
        log = server.log()
        assert server.url in log
        assert "/api-key" in log
        assert key not in log  # a log is kept, and read by others
        assert log.endswith("Stopping.\nStopped.\n")
        assert "Traceback" not in log
        assert "did not stop in time" not in log

        server.start()
        assert server.key == key
        assert server.outcomes(notification_id) == {ANN: "sent", BOB: "sent"}
        captured = server.get("/v1/captured-mail")["captured_mail"]
        assert [mail["recipients"] for mail in captured] == [[ANN, BOB]]
        assert stop(server) == 0
        assert server.log().count("migration applied") == log.count("migration applied")


@pytest.mark.parametrize("stop", [Server.interrupt, Server.terminate], ids=["SIGINT", "SIGTERM"])
def test_neither_a_long_poll_nor_an_idle_connection_holds_up_the_stop(stop: Callable[[Server], int]) -> None:
    with serving() as server:
        assert server.request("PUT", "/v1/message/jobs", {"msg": "the only one"}).status == 201
        assert len(server.get("/v1/messages/jobs")["messages"]) == 1
        idle = http.client.HTTPConnection("127.0.0.1", server.port)
        waiting = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_SECONDS)
        with closing(idle), closing(waiting):
            idle.request("GET", "/livez")
            assert idle.getresponse().read() == b"alive\n"
            waiting.request("GET", "/v1/messages/jobs?wait=20", headers={"Authorization": f"Bearer {server.key}"})
            until(lambda: not unread_bytes(server.port), "the server has read the request")

            began_at = time.monotonic()
            assert stop(server) == 0
            assert time.monotonic() - began_at < 15  # the claim would wait for 20
            assert json.loads(waiting.getresponse().read()) == {"messages": []}
        assert server.postgres_processes() == []
        assert "Traceback" not in server.log()


def test_a_client_that_never_ends_its_request_does_not_hold_up_the_stop_for_long() -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        head = f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        until(lambda: not unread_bytes(server.port), "the server has read what came")
        began_at = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began_at < 15
        assert server.postgres_processes() == []


def unread_bytes(port: int) -> int:
    """How many bytes wait in the connections to a local port, unread by the server."""
    unread = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state == _ESTABLISHED and int(local.partition(":")[2], 16) == port:
            unread += int(queues.partition(":")[2], 16)
    return unread


def test_a_stop_during_the_start_is_heeded() -> None:
    with serving(started=False) as server:
        server.spawn()
        until((server.data_directory / "lock").exists, "the start has begun")
        assert server.terminate() == 0
        assert server.postgres_processes() == []
        server.start()
        assert server.interrupt() == 0


def test_a_killed_server_leaves_no_postgres_behind_and_the_next_start_works() -> None:
    with serving(KILLED_NOW_AND_THEN) as server:
        first = server.tell(event())
        server.kill()
        until(lambda: not server.postgres_processes(), "PostgreSQL has ended by itself")

        server.start()
        second = server.tell(event())
        server.kill()
        server.start()  # at once: PostgreSQL may not have noticed yet
        server.until_settled()
        for notification_id in (first, second):
            assert server.outcomes(notification_id) == {ANN: "sent", BOB: "sent"}
        assert server.overview()["events"] == 2


def test_a_first_start_that_is_killed_at_any_point_is_completed_by_the_next() -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    for _ in range(3):
        with serving(QUICK, started=False) as server:
            server.spawn()
            steps = ["data", "data/postgres.new", "data/postgres", "data/postgres/postmaster.pid", "data/api-key"]
            step = server.directory / moments.choice(steps)
            until(lambda step=step, server=server: step.exists() or not server.is_running(), f"{step} is there")
            time.sleep(moments.uniform(0, 0.3))
            server.kill()
            server.start()
            notification_id = server.tell(event())
            server.until_settled()
            assert server.outcomes(notification_id) == {ANN: "sent", BOB: "sent"}


def refusal(server: Server, **settings: str) -> str:
    """The one line with which `bellringer up` refuses to start, soon and without a traceback."""
    # At the level "warning", so that the log is not in the way.
    ended = server.run("up", settings={"BELLRINGER_LOG_LEVEL": "warning", **settings})
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert re.fullmatch(r"bellringer: [^\n]+\n", ended.stderr), ended.stderr
    return ended.stderr.removeprefix("bellringer: ").rstrip("\n")


def test_what_is_in_use_already_is_refused_in_one_line() -> None:
    with serving() as server, serving(started=False) as other:
        assert refusal(other, BELLRINGER_PORT=str(server.port)) == (
            f"cannot listen on 127.0.0.1:{server.port}: Address already in use"
        )
        assert other.postgres_processes() == []
        assert refusal(other, BELLRINGER_DATA_DIRECTORY=str(server.data_directory)) == (
            f"the data directory {server.data_directory} is in use by process {server.process_id}"
        )
        assert server.readiness() == 200  # neither attempt did any harm
        other.start()


def test_a_database_that_cannot_be_used_is_refused_in_one_line() -> None:
    with serving(started=False) as server, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listening: connections are refused
        unreachable = f"postgresql://someone:secret@127.0.0.1:{nobody.getsockname()[1]}/anything"
        message = refusal(server, BELLRINGER_DATABASE_URL=unreachable)
        assert message.startswith("the database cannot be reached: ")
        assert "refused" in message
        assert "secret" not in message
        nowhere = refusal(server, BELLRINGER_DATABASE_URL="postgresql://someone@/anything?host=/nowhere")
        assert nowhere.startswith("the database cannot be reached: ")
        for url in ("mysql://localhost/anything", "nonsense"):
            assert refusal(server, BELLRINGER_DATABASE_URL=url).startswith("database: url must look like postgresql://")
        assert not server.data_directory.exists()


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("BELLRINGER_PORT", "many", "BELLRINGER_PORT"),
        ("BELLRINGER_PORT", "65536", "BELLRINGER_PORT"),
        ("BELLRINGER_PROT", "8080", "BELLRINGER_PROT"),
        ("BELLRINGER_API_KEY", "short", "api_key"),
        ("BELLRINGER_SMTP_URL", "http://localhost", "SMTP URL"),
        ("BELLRINGER_HOST", "host.invalid", "host"),
        ("BELLRINGER_DATA_DIRECTORY", "/proc/nowhere", "/proc/nowhere"),
    ],
)
def test_a_setting_that_is_not_valid_is_named_in_one_line(setting: str, value: str, named: str) -> None:
    with serving(started=False) as server:
        assert named.lower() in refusal(server, **{setting: value}).lower()
        assert server.postgres_processes() == []


def test_keys_are_made_listed_and_revoked_beside_a_running_server() -> None:
    with serving() as server:
        postmaster = server.postmaster()
        key = server.create_key("billing service")
        assert server.request("GET", "/v1/overview", key=key).status == 200

        other = server.create_key("of others", "--organisation", "acme", "--environment", "staging")
        assert server.request("POST", "/v1/events", event(), key=other).status == 202
        assert server.overview()["events"] == 0  # each key opens its own environment

        listed = server.run("keys", "list").stdout
        assert key not in listed
        assert server.run("keys", "revoke", id_of(listed, "billing service")).returncode == 0
        until(lambda: server.request("GET", "/v1/overview", key=key).status == 401, "the key is refused")
        assert server.request("GET", "/v1/overview").status == 200
        assert server.postmaster() == postmaster  # nobody restarted the database
        assert server.terminate() == 0
        assert server.postgres_processes() == []


def test_keys_are_made_listed_and_revoked_without_a_server() -> None:
    with serving(started=False) as server:
        kept = server.create_key("kept")
        revoked = server.create_key("revoked")
        assert server.run("keys", "revoke", id_of(server.run("keys", "list").stdout, "revoked")).returncode == 0
        unknown = server.run("keys", "revoke", "00000000-0000-0000-0000-000000000000")
        assert unknown.returncode == 1
        assert "bellringer: there is no API key 00000000-0000-0000-0000-000000000000" in unknown.stderr
        assert server.postgres_processes() == []

        server.settings["BELLRINGER_API_KEY"] = KEY
        server.start()
        status = {key: server.request("GET", "/v1/overview", key=key).status for key in (kept, revoked, KEY)}
        assert status == {kept: 200, revoked: 401, KEY: 200}


def id_of(listed: str, name: str) -> str:
    """The id of a key in the output of `keys list`."""
    found = re.search(rf"^([0-9a-f-]{{36}})\b.*\b{name}\b", listed, re.MULTILINE)
    assert found, f"no key {name} in:\n{listed}"
    return found[1]


async def test_two_processes_share_the_work_on_one_database(cluster: Cluster) -> None:
    url = await empty_database(cluster)
    settings = QUICK | {"BELLRINGER_DATABASE_URL": url, "BELLRINGER_API_KEY": KEY}
    with (
        SmtpServer() as smtp,
        serving(settings | {"BELLRINGER_SMTP_URL": smtp.url}, role="api", started=False) as api,
        serving(settings | {"BELLRINGER_SMTP_URL": smtp.url}, role=WORKER, started=False) as worker,
    ):
        # Together, on a database without a table; and with the same settings, as two processes of one host have them.
        worker.settings["BELLRINGER_PORT"] = str(api.port)
        api.spawn()
        worker.spawn()
        api.until_ready()
        worker.until_ready()
        expected = {api.tell(event(number)): [ANN, BOB] for number in range(20)}
        api.until_settled()
        smtp.check_arrivals(expected, exactly_once=True)
        assert api.overview()["sent"] == 2 * api.overview()["emails"]

        # Without the worker nothing is sent and nothing is lost; a second worker takes what is left.
        assert worker.terminate() == 0
        late = api.tell(event(20))
        assert api.queued()["notifications.accepted"] == 1
        assert api.outcomes(late) == {}
        assert api.readiness() == 200
        worker.start()
        api.until_settled()
        smtp.check_arrivals(expected | {late: [ANN, BOB]}, exactly_once=True)

        assert (api.interrupt(), worker.interrupt()) == (0, 0)
        assert "Traceback" not in api.log() + worker.log()
        assert not api.data_directory.exists()


async def test_it_starts_and_stops_on_a_database_of_someone_else(cluster: Cluster) -> None:
    own = {"BELLRINGER_DATABASE_URL": await empty_database(cluster), "BELLRINGER_API_KEY": KEY}
    with serving(KILLED_NOW_AND_THEN | own) as server:
        first = server.tell(event())
        assert server.terminate() == 0
        server.start()
        second = server.tell(event())
        server.kill()
        server.start()
        server.until_settled()
        for notification_id in (first, second):
            assert server.outcomes(notification_id) == {ANN: "sent", BOB: "sent"}
        another = server.create_key("another")
        assert server.request("GET", "/v1/overview", key=another).json() == server.overview()
        assert server.interrupt() == 0
        assert not server.data_directory.exists()
