"""`bellringer up --demo`: the sample, and what a newcomer sees of it at the first start and at the second."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.postgres import Cluster
from tests.support.server import DEADLINE_SECONDS, Server, serving, until

from bellringer.demo.run import DIGEST_WINDOW_SECONDS, SAMPLE, SPEED
from bellringer.notifications.intake import read_events

SUM = "268 events -> 1,042 notifications -> 37 emails"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def sample() -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in SAMPLE.read_bytes().splitlines()]


def test_the_sample_is_small_and_every_event_is_valid() -> None:
    lines = SAMPLE.read_bytes().splitlines()
    assert SAMPLE.stat().st_size < 120_000
    submissions = [read_events({"content-type": "application/json"}, line).submissions for line in lines]
    notifications = [submission.notifications[0] for (submission,) in submissions]
    assert len(notifications) == 268
    assert sum(len(notification.recipients) for notification in notifications) == 1042
    assert all(address.endswith(".example") for event in sample() for address in event["recipients"])
    types = Counter(notification.type for notification in notifications)
    assert set(types) == {"task.failed", "task.succeeded", "task.slow", "pipeline.recovered"}
    assert types["task.failed"] > 200


def test_the_sample_comes_in_waves_that_digests_turn_into_37_emails() -> None:
    moments = [datetime.fromisoformat(event["time"]) for event in sample()]
    assert moments == sorted(moments)
    opened_at, digests = moments[0], [[sample()[0]]]
    window = DIGEST_WINDOW_SECONDS * SPEED
    for (before, moment), event in zip(pairwise(moments), sample()[1:], strict=True):
        since = (moment - opened_at).total_seconds()
        # Room for what is late on both sides: half a second of the replay.
        if since > window:
            assert since > window + 0.5 * SPEED
            assert (before - opened_at).total_seconds() < window - 0.5 * SPEED
            opened_at = moment
            digests.append([])
        digests[-1].append(event)
    assert len(digests) == 4
    assert sum(map(emails_of, digests)) == 37


def emails_of(digest: list[dict[str, Any]]) -> int:
    """How many sets of people there are that have the same events."""
    audiences = defaultdict(set)
    for event in digest:
        for address in event["recipients"]:
            audiences[address].add(tuple(event["recipients"]))
    return len({frozenset(audience) for audience in audiences.values()})


@contextmanager
def demo(server: Server, settings: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`bellringer up --demo` in the directory of a server that was not started; its output goes into screen.log."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    with screen_file(server).open("wb") as screen, error_file(server).open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "bellringer", "up", "--demo"],
            cwd=server.directory,
            env={**inherited, **server.settings, **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def screen_file(server: Server) -> Path:
    return server.directory / "screen.log"


def error_file(server: Server) -> Path:
    return server.directory / "errors.log"


def screen(server: Server) -> str:
    return screen_file(server).read_text()


def until_shown(server: Server, text: str, process: subprocess.Popen[bytes]) -> None:
    until(lambda: text in screen(server) or process.poll() is not None, f"the screen shows {text!r}")
    assert text in screen(server), f"{screen(server)}\n{error_file(server).read_text()}"


def stop(server: Server, process: subprocess.Popen[bytes], signal_number: int = signal.SIGINT) -> None:
    """Press Ctrl-C; it must end well."""
    process.send_signal(signal_number)
    assert process.wait(DEADLINE_SECONDS) == 0, error_file(server).read_text()
    assert "Traceback" not in error_file(server).read_text()


def assert_curl_works(server: Server) -> None:
    """Do as the curl command on the screen does; curl itself may not be installed."""
    shown = screen(server)
    command = shown[shown.index("curl ") : shown.index("\n\n  Ctrl-C")].replace("\\\n", "")
    program, url, *options = shlex.split(command)
    assert (program, options[0::2]) == ("curl", ["-H", "-H", "-d"])
    headers = dict(header.split(": ") for header in options[1:4:2])
    assert (url, headers["Authorization"]) == (f"{server.url}/v1/events", f"Bearer {server.key}")
    reply = server.request("POST", "/v1/events", options[5].encode(), headers=headers)
    assert reply.status == 202, reply


@pytest.mark.scenario
def test_the_first_start_replays_and_the_second_finds_it() -> None:
    with serving(started=False) as server:
        with demo(server) as process:
            until_shown(server, "Ctrl-C stops Bellringer.", process)
            counts = server.overview()
            shown = f"{counts['events']} events -> 1,042 notifications -> {counts['emails']} emails"
            assert shown in screen(server)
            assert (counts["events"], counts["notifications"]) == (268, 1042)
            # 37, unless the machine is so busy that a wave misses its digest.
            assert 20 < counts["emails"] < 100
            assert counts["open_digests"] == 0
            assert counts["sent"] > 0
            windows = {workflow["digest_window_seconds"] for workflow in server.get("/v1/workflows")["workflows"]}
            assert windows == {DIGEST_WINDOW_SECONDS}
            assert f"Console   {server.url}/console\n" in screen(server)
            assert f"API key   {server.key}\n" in screen(server)
            assert f"Data      {server.data_directory}\n" in screen(server)
            assert "captured instead of sent" in screen(server)
            assert_curl_works(server)
            emails = counts["emails"] + 1
            until(lambda: server.overview()["emails"] == emails, "the mail of the curl command is sent")
            stop(server, process)
            assert screen(server).endswith("Stopping.\nStopped.\n")
        with demo(server) as process:
            until_shown(server, "Ctrl-C stops Bellringer.", process)
            assert f"Found 269 events and {emails} emails from before: nothing is replayed.\n" in screen(server)
            assert f"rm -r {server.data_directory}" in screen(server)
            assert server.overview()["events"] == 269
            stop(server, process, signal.SIGTERM)


@pytest.mark.scenario
def test_ctrl_c_stops_it_in_the_middle() -> None:
    with serving(started=False) as server:
        with demo(server) as process:
            until((server.data_directory / "api-key").exists, "there is a key")
            until(lambda: server.readiness() == 200, "it is ready")
            until(lambda: server.overview()["events"] > 20, "the replay has begun")
            stop(server, process)
        assert screen(server).endswith("Stopping.\nStopped.\n")
        assert not server.postgres_processes()


@pytest.mark.scenario
async def test_an_external_database_gets_an_environment_and_a_key_for_the_demo_only(
    cluster: Cluster, database_arguments: dict[str, Any]
) -> None:
    await asyncio.to_thread(replay_into_an_external_database, cluster.url(database_arguments["database"]))


def replay_into_an_external_database(url: str) -> None:
    key_of_others = "a-key-of-the-others"
    with serving({"BELLRINGER_DATABASE_URL": url, "BELLRINGER_API_KEY": key_of_others}) as server:
        server.tell({"type": "task.failed", "recipients": ["ann@acme.example"]})
        server.terminate()
        own_key = server.settings.pop("BELLRINGER_API_KEY")
        with demo(server) as process:
            until_shown(server, "API key", process)
            found = re.search(r"API key   (bell_\S+)\n +made for default/demo, and revoked when", screen(server))
            assert found
            until_shown(server, " events -> 1,042 notifications -> ", process)
            assert msgspec.json.decode(server.request("GET", "/v1/overview", key=found[1]).body)["events"] == 268
            assert msgspec.json.decode(server.request("GET", "/v1/overview", key=own_key).body)["events"] == 1
            stop(server, process)
        listed = server.run("keys", "list").stdout
        assert re.search(rf"default/demo +demo +…{re.escape(found[1][-4:])} .* 20\S+ +20", listed), listed


@pytest.mark.scenario
def test_a_key_that_was_set_is_used_and_not_shown() -> None:
    with serving({"BELLRINGER_API_KEY": "a-key-of-the-tests"}, started=False) as server, demo(server) as process:
        until_shown(server, "A night at a data platform", process)
        assert "API key   the one in BELLRINGER_API_KEY\n" in screen(server)
        assert "a-key-of-the-tests" not in screen(server)
        stop(server, process)


@pytest.mark.scenario
def test_other_roles_have_no_demo() -> None:
    with serving(started=False) as server:
        done = server.run("up", "--demo", "--role", "api")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bellringer: the demo needs HTTP and the work behind it: leave --role out\n"


@pytest.mark.scenario
@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_shows_a_bar_and_no_logs(more: dict[str, str]) -> None:
    with serving(started=False) as server:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        inherited.pop("NO_COLOR", None)
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "bellringer", "up", "--demo"],
            cwd=server.directory,
            env={**inherited, "TERM": "xterm-256color", **server.settings, **more},
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        try:
            seen = read_until(ours, "181/268 events")
            process.send_signal(signal.SIGINT)
            seen += read_until(ours, "Stopped.")
            assert process.wait(DEADLINE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        text = ESCAPE.sub("", seen)
        assert "Starting PostgreSQL and Bellringer" in text
        assert f"Console   {server.url}/console" in text
        assert "━" in text
        assert "migration applied" not in text
        assert "Traceback" not in text
        assert ("\x1b[1;36m" in seen) == (not more)
        assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # the cursor is back


def read_until(terminal: int, text: str) -> str:
    seen = b""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while text not in ESCAPE.sub("", seen.decode(errors="ignore")):
        assert time.monotonic() < give_up_at, f"{text!r} is not in {seen.decode(errors='replace')}"
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    return seen.decode(errors="ignore")


def test_the_sample_is_in_the_wheel() -> None:
    package = Path(__file__).parents[2] / "src" / "bellringer"
    assert SAMPLE.is_relative_to(package)
    ignored = subprocess.run(["git", "check-ignore", "-q", str(SAMPLE)], cwd=package, check=False)
    assert ignored.returncode != 0  # hatch leaves out what git ignores
