"""`bellringer replay`: what it sends, to a server that follows a script, and what comes of it, on a real one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import msgspec
import pytest
from tests.support.server import DEADLINE_SECONDS, Server, free_port, serving, until

from bellringer.kernel.errors import BellringerError
from bellringer.replay import (
    Replay,
    ReplayError,
    _retry_after_seconds,
    count_events,
    is_run,
    open_api,
    url_of,
)

KEY = "a-key-of-the-tests"
FIRST = datetime(2026, 11, 17, 2, 0, tzinfo=UTC)


def event(**fields: object) -> dict[str, object]:
    return {"type": "task.failed", "recipients": ["ann@acme.example"], **fields}


def write(file: Path, *lines: object) -> Path:
    """A file with these lines: text as it is, anything else as JSON."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    file.write_text(text, encoding="utf-8")
    return file


# A server that follows a script


class Received(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


Answer = tuple[int, dict[str, str], bytes] | None
"""A status, headers and a body; None breaks the connection off."""

TAKEN: Answer = (202, {}, b'{"id": "01"}')


class ScriptedServer:
    """Answers `POST /v1/events` by the script, a function of the request and its number, which counts from 1."""

    def __init__(self, script: Callable[[Received, int], Answer]) -> None:
        self.received: list[Received] = []
        self.overview: Answer = (200, {}, b'{"notifications": 0}')
        self.in_hand = self.most_in_hand = 0
        self.arrivals = asyncio.Queue[None]()
        self.let_go = asyncio.Event()
        self.let_go.set()
        self._script = script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = self.overview
        if head[0].startswith("POST /v1/events "):
            request = Received(at=time.monotonic(), headers=headers, body=body)
            self.received.append(request)
            self.arrivals.put_nowait(None)
            number = len(self.received)
            self.in_hand += 1
            self.most_in_hand = max(self.most_in_hand, self.in_hand)
            await self.let_go.wait()
            self.in_hand -= 1
            answer = self._script(request, number)
        if answer is None:
            return False
        status, answer_headers, content = answer
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in answer_headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await writer.drain()
        return True


@asynccontextmanager
async def scripted(
    script: Callable[[Received, int], Answer] = lambda _request, _number: TAKEN,
) -> AsyncIterator[tuple[ScriptedServer, str]]:
    scripted_server = ScriptedServer(script)
    listening = await asyncio.start_server(scripted_server.serve, "127.0.0.1", 0)
    async with listening:
        port: int = listening.sockets[0].getsockname()[1]
        yield scripted_server, f"http://127.0.0.1:{port}"
        scripted_server.let_go.set()


class Outcome(msgspec.Struct, kw_only=True):
    finished: bool
    told: list[str]
    accepted: int
    refused: int
    retries: int
    waits: int


async def replay(
    url: str,
    file: Path,
    *,
    run: str = "run",
    speed: float | None = None,
    concurrency: int = 8,
    patience_seconds: float = 60.0,
    stopping: asyncio.Event | None = None,
) -> Outcome:
    told: list[str] = []
    async with open_api(url, KEY) as api:
        replaying = Replay(
            api,
            file,
            run,
            tell=told.append,
            speed=speed,
            concurrency=concurrency,
            patience_seconds=patience_seconds,
        )
        await replaying.check_server()
        finished = await replaying.run(stopping or asyncio.Event())
    counts = replaying.counts
    return Outcome(
        finished=finished,
        told=told,
        accepted=counts.accepted,
        refused=counts.refused,
        retries=counts.retries,
        waits=counts.waits,
    )


async def test_sends_each_line_as_it_is_with_key_and_content_type(tmp_path: Path) -> None:
    cloud = event(specversion="1.0", id="1", source="/tests")
    file = write(tmp_path / "events.jsonl", "\ufeff" + json.dumps(event()), "", "  ", cloud, event(subject="Zürich"))
    async with scripted() as (server, url):
        outcome = await replay(url, file)
    assert (outcome.finished, outcome.accepted, outcome.told) == (True, 3, [])
    assert count_events(file) == 3
    sent = {request.body.decode(): request.headers for request in server.received}
    assert {text: headers["content-type"] for text, headers in sent.items()} == {
        json.dumps(event()): "application/json",
        json.dumps(cloud): "application/cloudevents+json",
        json.dumps(event(subject="Zürich")): "application/json",
    }
    assert {headers["authorization"] for headers in sent.values()} == {f"Bearer {KEY}"}


async def test_keys_follow_from_run_file_name_line_and_content(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = write(tmp_path / "events.jsonl", event(), event())
    async with scripted() as (server, url):
        await replay(url, file)
        await replay(url, write(tmp_path / "elsewhere" / "events.jsonl", event(), event()))
        same = Counter(request.key for request in server.received)
        assert sorted(same.values()) == [2, 2]
        await replay(url, file, run="another")
        await replay(url, write(tmp_path / "another.jsonl", event(), event()))
        await replay(url, write(file, event(subject="changed"), event(subject="changed")))
    keys = [request.key for request in server.received]
    assert len(set(keys)) == 8
    assert all(key.isascii() and len(key) < 255 for key in keys)


async def test_bad_lines_are_told_and_the_others_go_on(tmp_path: Path) -> None:
    def script(request: Received, _number: int) -> Answer:
        if b"bad" not in request.body:
            return TAKEN
        return 400, {}, b'{"status": 400, "detail": "not an email\\u001b[31m address", "field": "recipients[0]"}'

    file = write(tmp_path / "events.jsonl", event(), event(recipients=["bad"]), [event()], event())
    async with scripted(script) as (server, url):
        outcome = await replay(url, file)
    assert (outcome.finished, outcome.accepted, outcome.refused) == (True, 2, 2)
    assert sorted(outcome.told) == [
        "line 2: recipients[0]: not an email\N{REPLACEMENT CHARACTER}[31m address",
        "line 3: body: a line holds one event, and this is a list",
    ]
    assert len(server.received) == 3


async def test_a_problem_that_is_none_is_told_all_the_same(tmp_path: Path) -> None:
    async with scripted(lambda _request, _number: (500, {}, b"<html>")) as (_, url):
        outcome = await replay(url, write(tmp_path / "events.jsonl", event()))
    assert outcome.told == ["line 1: the server answered 500"]


async def test_retry_after_is_obeyed_by_every_sender(tmp_path: Path) -> None:
    def script(_request: Received, number: int) -> Answer:
        return (503, {"retry-after": "1"}, b"") if number == 1 else TAKEN

    file = write(tmp_path / "events.jsonl", *(event(subject=str(number)) for number in range(5)))
    async with scripted(script) as (server, url):
        outcome = await replay(url, file, concurrency=1)
    assert (outcome.accepted, outcome.waits) == (5, 1)
    first, again, *_ = server.received
    assert again.at - first.at >= 1.0
    assert (again.key, again.body) == (first.key, first.body)


async def test_an_event_whose_answer_was_lost_goes_out_again_under_the_same_key(tmp_path: Path) -> None:
    def script(_request: Received, number: int) -> Answer:
        return {1: None, 2: (502, {}, b""), 3: (503, {}, b"")}.get(number, TAKEN)

    async with scripted(script) as (server, url):
        outcome = await replay(url, write(tmp_path / "events.jsonl", event()))
    assert (outcome.accepted, outcome.retries, outcome.waits) == (1, 3, 0)
    assert len(server.received) == 4
    assert len({request.key for request in server.received}) == 1


async def test_gives_up_on_a_server_that_stays_away(tmp_path: Path) -> None:
    async with scripted(lambda _request, _number: None) as (_, url):
        with pytest.raises(ReplayError, match="has taken nothing for 0 s"):
            await replay(url, write(tmp_path / "events.jsonl", *[event()] * 20), patience_seconds=0)


@pytest.mark.parametrize("status", [401, 404, 301])
async def test_ends_when_no_event_will_be_taken(tmp_path: Path, status: int) -> None:
    async with scripted(lambda _request, _number: (status, {}, b'{"detail": "no"}')) as (server, url):
        with pytest.raises(ReplayError, match=r"takes no events from us: no$"):
            await replay(url, write(tmp_path / "events.jsonl", *[event()] * 1000))
    assert len(server.received) < 1000


async def test_holds_no_more_requests_open_than_it_may(tmp_path: Path) -> None:
    file = write(tmp_path / "events.jsonl", *(event(subject=str(number)) for number in range(50)))
    async with scripted() as (server, url):
        server.let_go.clear()
        replaying = asyncio.create_task(replay(url, file, concurrency=3))
        for _ in range(3):
            await server.arrivals.get()
        with pytest.raises(TimeoutError):  # time for a fourth, if there were one
            await asyncio.wait_for(server.arrivals.get(), 0.1)
        server.let_go.set()
        assert (await replaying).accepted == 50
        assert server.most_in_hand == 3


async def test_speed_keeps_the_recorded_pace(tmp_path: Path) -> None:
    def at(seconds: float, name: str) -> dict[str, object]:
        return event(time=(FIRST + timedelta(seconds=seconds)).isoformat(), subject=name)

    file = write(tmp_path / "events.jsonl", at(0, "a"), at(60, "b"), event(subject="c"), at(30, "late"), at(120, "d"))
    async with scripted() as (server, url):
        outcome = await replay(url, file, speed=200, concurrency=1)
    assert outcome.accepted == 5
    moments = {json.loads(request.body)["subject"]: request.at for request in server.received}
    assert list(moments) == ["a", "b", "c", "late", "d"]
    assert moments["b"] - moments["a"] >= 0.28
    assert moments["d"] - moments["a"] >= 0.58


@pytest.mark.parametrize("moment", ["2026-11-17T02:00:00", "yesterday", 12, None])
async def test_a_time_that_is_none_is_left_to_the_server(tmp_path: Path, moment: object) -> None:
    file = write(tmp_path / "events.jsonl", event(time=FIRST.isoformat()), event(time=moment))
    async with scripted() as (server, url):
        assert (await replay(url, file, speed=0.001)).accepted == 2
    assert len(server.received) == 2


async def test_stops_between_events_and_says_so(tmp_path: Path) -> None:
    later = (FIRST + timedelta(days=1)).isoformat()
    file = write(tmp_path / "events.jsonl", event(time=FIRST.isoformat()), event(time=later))
    stopping = asyncio.Event()
    async with scripted() as (server, url):
        replaying = asyncio.create_task(replay(url, file, speed=1, stopping=stopping))
        await server.arrivals.get()
        stopping.set()
        outcome = await replaying
    assert (outcome.finished, outcome.accepted) == (False, 1)


@pytest.mark.parametrize(
    ("overview", "message"),
    [
        ((401, {}, b'{"detail": "the API key is unknown"}'), "does not take the API key: the API key is unknown$"),
        ((404, {}, b"not found"), "is not a Bellringer: it answers GET /v1/overview with 404$"),
        ((200, {}, b"<html>"), "is not a Bellringer"),
        ((301, {"location": "https://elsewhere.example/"}, b""), "is not a Bellringer"),
        (None, "cannot be reached: "),
    ],
)
async def test_a_wrong_address_or_key_is_one_message(tmp_path: Path, overview: Answer, message: str) -> None:
    async with scripted() as (server, url):
        server.overview = overview
        with pytest.raises(ReplayError, match=message):
            await replay(url, write(tmp_path / "events.jsonl", event()))
        assert not server.received


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://", ""])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ReplayError, match="is not the address of a server"):
        async with open_api(url, KEY):
            pass


@pytest.mark.parametrize("key", ["", "with space", "schlüssel-der-tests", "line\nbreak"])
async def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(BellringerError, match="the API key is empty or holds characters that no key has"):
        async with open_api("http://127.0.0.1:1", key):
            pass


async def test_a_proxy_is_not_asked_for_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with scripted() as (_, url):
        assert (await replay(url, write(tmp_path / "events.jsonl", event()))).accepted == 1


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after_seconds("3") == 3
    assert _retry_after_seconds(None) is None
    assert _retry_after_seconds("soon") is None
    assert _retry_after_seconds("-1") is None
    assert _retry_after_seconds(format_datetime(FIRST)) is not None
    far = _retry_after_seconds(format_datetime(datetime.now(UTC) + timedelta(hours=1)))
    assert far is not None
    assert 3500 < far <= 3600


def test_an_address_to_listen_on_becomes_one_to_ask() -> None:
    assert url_of("127.0.0.1", 8080) == "http://127.0.0.1:8080"
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert url_of("::", 80) == "http://[::1]:80"
    assert url_of("::1", 80) == "http://[::1]:80"


def test_an_id_of_a_run_fits_into_a_header() -> None:
    assert is_run("2026-11-17_a.b")
    for run in ("", "a b", "ä", "a\n", "a" * 101):
        assert not is_run(run)


# On a real server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # A window as long as the tests: no mail is sent meanwhile.
    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "3600"}) as running:
        yield running


@pytest.mark.scenario
def test_a_run_may_be_repeated_without_doubling(server: Server, tmp_path: Path) -> None:
    cloud = event(specversion="1.0", id="1", source="/tests")
    file = write(tmp_path / "events.jsonl", *(event(subject=str(number)) for number in range(300)), cloud)
    before = server.overview()["events"]
    for _ in range(2):
        done = server.run("replay", str(file), "--run", "once")
        assert done.returncode == 0, done.stderr
        assert "301 events in " in done.stdout
        assert "301 accepted." in done.stdout
        assert server.overview()["events"] == before + 301
    done = server.run("replay", str(file))
    assert done.returncode == 0
    assert "give --run " in done.stderr
    assert server.overview()["events"] == before + 602


@pytest.mark.scenario
def test_the_servers_own_problems_are_told_by_line(server: Server, tmp_path: Path) -> None:
    lines = [event(), "{not json", event(recipients=["nobody"]), event(specversion="1.0"), event(extra=1), event()]
    before = server.overview()["events"]
    done = server.run("replay", str(write(tmp_path / "events.jsonl", *lines)))
    assert done.returncode == 1
    assert "6 events in " in done.stdout
    assert "2 accepted, 4 refused." in done.stdout
    told = sorted(line for line in done.stderr.splitlines() if line.startswith("line "))
    assert [line.split(":")[0] for line in told] == ["line 2", "line 3", "line 4", "line 5"]
    assert told[1].startswith("line 3: recipients[0]: not an email address: ")
    assert server.overview()["events"] == before + 2


@pytest.mark.scenario
def test_what_stops_it_is_one_line(server: Server, tmp_path: Path) -> None:
    file = str(write(tmp_path / "events.jsonl", event()))
    nobody = f"http://127.0.0.1:{free_port()}"
    environment = {"BELLRINGER_DATA_DIRECTORY": str(tmp_path / "nothing")}
    for arguments, settings, message in [
        (["--key", "wrong-key-wrong-key"], {}, "does not take the API key: the API key is unknown or revoked"),
        (["--url", nobody], {}, f"{nobody} cannot be reached: connection refused"),
        (["--url", "nowhere"], {}, "nowhere is not the address of a server; write http://host:port"),
        ([], environment, "no API key: give --key or BELLRINGER_API_KEY"),
    ]:
        done = server.run("replay", file, *arguments, settings=settings)
        assert done.returncode == 1
        assert done.stdout == ""
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("bellringer: ")


@pytest.mark.scenario
def test_wrong_usage_ends_with_code_2(server: Server, tmp_path: Path) -> None:
    file = str(write(tmp_path / "events.jsonl", event()))
    for arguments in ([file, "--speed", "0"], [file, "--speed", "inf"], [file, "--run", "a b"], [str(tmp_path)]):
        assert server.run("replay", *arguments).returncode == 2


@pytest.mark.scenario
def test_ctrl_c_ends_it_and_the_run_goes_on_later(server: Server, tmp_path: Path) -> None:
    later = (FIRST + timedelta(days=1)).isoformat()
    file = write(tmp_path / "events.jsonl", event(time=FIRST.isoformat()), event(time=later))
    before = server.overview()["events"]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    replaying = subprocess.Popen(
        [sys.executable, "-m", "bellringer", "replay", str(file), "--speed", "1", "--run", "interrupted"],
        cwd=server.directory,
        env=settings | server.settings,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: server.overview()["events"] == before + 1, "the first event is there")
        replaying.send_signal(signal.SIGINT)
        _, messages = replaying.communicate(timeout=DEADLINE_SECONDS)
    finally:
        replaying.kill()
        replaying.wait()
    assert replaying.returncode == 128 + signal.SIGINT
    last = messages.splitlines()[-1]
    assert last == "Interrupted after 1 of 2 events: 1 accepted. Go on with --run interrupted."
    assert server.run("replay", str(file), "--run", "interrupted").returncode == 0
    assert server.overview()["events"] == before + 2
