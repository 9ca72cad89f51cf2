"""`bellringer replay`: feeds a file of events, one JSON object per line, through the HTTP API.

Every event goes out with an Idempotency-Key made of the run's id, the name of the file, the line's number and its
content. So an event whose answer was lost is sent again safely, and so is a whole run that was interrupted: repeated
with the same id within 24 hours it stores only what is missing.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import logging
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError, TransportError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from bellringer import __version__
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.errors import BellringerError
from bellringer.kernel.http_client import reason_of

DEFAULT_CONCURRENCY = 64
DEFAULT_PATIENCE_SECONDS = 60.0

_ANSWER_TIMEOUT = timedelta(seconds=30)
_LAST_ANSWERS_SECONDS = 5.0  # what is on its way when Ctrl-C comes may take this long
_REFRESH_SECONDS = 0.1
_PLAIN_LINE_SECONDS = 5.0

# The request may have been taken, or may be later: the same key again. Everything else of 4xx and 5xx is about the
# event, but for these, which every other event would meet as well.
_TRY_AGAIN = {429, 502, 503, 504}
_HOPELESS = {401, 403, 404, 405}

_RUN = re.compile(r"[A-Za-z0-9._-]{1,100}")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class ReplayError(BellringerError):
    """The replay cannot go on."""


class NoAnswer(BellringerError):
    """The server cannot be reached, or the connection ended before the answer did."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the server said."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300

    def problem(self) -> tuple[str | None, str]:
        """The `field` and `detail` of problem details (RFC 9457), or the best there is instead."""
        try:
            problem = msgspec.json.decode(self.body, type=_Problem)
        except msgspec.DecodeError:
            problem = _Problem()
        return problem.field, problem.detail or f"the server answered {self.status}"


class _Problem(msgspec.Struct, frozen=True):
    field: str | None = None
    detail: str | None = None


class Api:
    """The HTTP API of one server as the holder of one key sees it. Use `open_api`."""

    def __init__(self, client: Client, url: str, key: str) -> None:
        self.url = url
        self._client = client
        self._key = key

    async def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send one request. Raises `NoAnswer`."""
        builder = self._client.request(method, self.url + path).bearer_auth(self._key)
        if body is not None:
            builder = builder.headers({"Content-Type": "application/json", **(headers or {})}).body_bytes(body)
        try:
            response = await builder.build().send()
            content = bytes(await response.bytes())
        except TransportError as error:
            raise NoAnswer(reason_of(error)) from error
        except PyreqwestError as error:
            raise ReplayError(f"{self.url} cannot be asked: {reason_of(error)}") from error
        return Answer(
            status=response.status,
            body=content,
            retry_after_seconds=_retry_after_seconds(response.get_header("retry-after")),
        )


@asynccontextmanager
async def open_api(url: str, key: str) -> AsyncIterator[Api]:
    """A client for one server and key. Raises `ReplayError` for an address or a key that cannot be one."""
    url = url.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ReplayError(f"{printable(url)} is not the address of a server; write http://host:port")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ReplayError("the API key is empty or holds characters that no key has")
    builder = ClientBuilder().user_agent(f"bellringer/{__version__}").timeout(_ANSWER_TIMEOUT)
    builder = builder.follow_redirects(enable=False)
    if parts.hostname in _LOOPBACK:
        builder = builder.no_proxy()  # HTTP_PROXY is meant for other hosts than this one
    async with builder.build() as client:
        yield Api(client, url, key)


def url_of(host: str, port: int) -> str:
    """The address under which a server on this host is reached, given where it listens."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - recognised, not listened on
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def new_run() -> str:
    """An id for a run that has not been given one."""
    return secrets.token_hex(4)


def is_run(run: str) -> bool:
    """Whether a text can be the id of a run."""
    return _RUN.fullmatch(run) is not None


class Counts(msgspec.Struct, kw_only=True):
    """How far a replay has come. `waits` counts how often the server asked to be left alone for a while."""

    accepted: int = 0
    refused: int = 0
    retries: int = 0
    waits: int = 0

    @property
    def done(self) -> int:
        """The events that need no more sending."""
        return self.accepted + self.refused

    def __str__(self) -> str:
        parts = [f"{self.accepted:,} accepted"]
        parts += [f"{self.refused:,} refused"] if self.refused else []
        parts += [f"{self.retries:,} sent again"] if self.retries else []
        parts += [f"asked to wait {self.waits:,} times"] if self.waits else []
        return ", ".join(parts)


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file: an event, or what somebody took for one."""

    number: int
    content: bytes
    is_cloud_event: bool
    time: datetime | None


class _Peek(msgspec.Struct, frozen=True):
    specversion: Any = None
    time: Any = None


_PEEK = msgspec.json.Decoder(_Peek)


class Replay:
    """Sends the events of one file. `run` may be called once.

    `tell` gets one line of text about each event that the server refuses. With a `speed`, events go out at that many
    times the pace that their `time` tells of; one without a `time` goes right after the event before it.
    """

    def __init__(
        self,
        api: Api,
        file: Path,
        run: str,
        *,
        tell: Callable[[str], None],
        speed: float | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        patience_seconds: float = DEFAULT_PATIENCE_SECONDS,
    ) -> None:
        self.counts = Counts()
        self._api = api
        self._file = file
        self._run = run
        self._tell = tell
        self._speed = speed
        self._slots = asyncio.Semaphore(concurrency)
        self._patience_seconds = patience_seconds
        self._backoff = Backoff(first_seconds=0.2, cap_seconds=5.0)
        self._first: tuple[float, datetime] | None = None
        self._hold_until = 0.0
        self._halt = asyncio.Event()
        self._failure: BellringerError | None = None

    async def run(self, stopping: asyncio.Event) -> bool:
        """Send everything, and return True; or False when `stopping` was set before that.

        Raises `ReplayError` when nothing was taken for `patience_seconds`, or nothing will be with this key.
        """
        sending = asyncio.create_task(self._send_all())
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([sending, stopped], return_when=asyncio.FIRST_COMPLETED)
            finished = sending.done() and not self._halt.is_set()
            if not sending.done():
                self._halt.set()
                await asyncio.wait([sending], timeout=_LAST_ANSWERS_SECONDS)
        finally:
            stopped.cancel()
            sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        if self._failure is not None:
            raise self._failure
        return finished

    async def check_server(self) -> None:
        """Ask for something harmless: what is wrong with the address or the key is said once, before any event.

        Raises `ReplayError`.
        """
        try:
            answer = await self._api.request("GET", "/v1/overview")
        except NoAnswer as error:
            raise ReplayError(f"{self._api.url} cannot be reached: {error}") from error
        if answer.status in _TRY_AGAIN:
            return
        if answer.status in {401, 403}:
            raise ReplayError(f"{self._api.url} does not take the API key: {answer.problem()[1]}")
        if not answer.is_success or b'"notifications"' not in answer.body:
            raise ReplayError(f"{self._api.url} is not a Bellringer: it answers GET /v1/overview with {answer.status}")

    async def _send_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            try:
                for line in _lines(self._file):
                    await self._until_due(line)
                    await self._slots.acquire()
                    if self._halt.is_set():
                        return
                    group.create_task(self._send(line))
            except ReplayError as error:
                self._fail(error)

    async def _until_due(self, line: _Line) -> None:
        if self._speed is None or line.time is None:
            return
        now = asyncio.get_running_loop().time()
        self._first = self._first or (now, line.time)
        began_at, first_time = self._first
        await self._pause(began_at + (line.time - first_time).total_seconds() / self._speed - now)

    async def _send(self, line: _Line) -> None:
        """Send one event until the server takes or refuses it, or there is no hope."""
        try:
            answer = await self._answer_to(line)
            if answer is not None:
                self._judge(line, answer)
        except BellringerError as error:
            self._fail(error)
        finally:
            self._slots.release()

    def _judge(self, line: _Line, answer: Answer) -> None:
        if answer.is_success:
            self.counts.accepted += 1
            return
        field, detail = answer.problem()
        if answer.status in _HOPELESS or answer.status < 400:
            raise ReplayError(f"{self._api.url} takes no events from us: {detail}")
        self.counts.refused += 1
        self._tell(printable(f"line {line.number}: {f'{field}: ' if field else ''}{detail}"))

    async def _answer_to(self, line: _Line) -> Answer | None:
        """What the server says in the end; None when the replay halts before that."""
        if line.content.startswith(b"["):  # the server would take a list of events, as many as one
            problem = _Problem("body", "a line holds one event, and this is a list")
            return Answer(status=400, body=msgspec.json.encode(problem))
        loop = asyncio.get_running_loop()
        kind = "application/cloudevents+json" if line.is_cloud_event else "application/json"
        headers = {"Content-Type": kind, "Idempotency-Key": self._idempotency_key(line)}
        failures, failing_since = 0, 0.0
        while True:
            while (wait_seconds := self._hold_until - loop.time()) > 0 and not self._halt.is_set():
                await self._pause(wait_seconds)
            if self._halt.is_set():
                return None
            try:
                answer = await self._api.request("POST", "/v1/events", line.content, headers)
                reason = f"it answers {answer.status}"
            except NoAnswer as error:
                answer, reason = None, str(error)
            if answer is not None and answer.status not in _TRY_AGAIN:
                return answer
            self.counts.retries += 1
            if answer is not None and answer.retry_after_seconds is not None:
                # The server is there and says what it wants: that is obeyed for as long as it says so.
                self.counts.waits += 1
                self._hold_until = max(self._hold_until, loop.time() + answer.retry_after_seconds)
                failures = 0
                continue
            failures += 1
            failing_since = loop.time() if failures == 1 else failing_since
            if loop.time() - failing_since > self._patience_seconds:
                raise ReplayError(f"{self._api.url} has taken nothing for {self._patience_seconds:g} s: {reason}")
            await self._pause(self._backoff.wait_seconds(failures))

    def _idempotency_key(self, line: _Line) -> str:
        named_content = os.fsencode(self._file.name) + b"\0" + line.content
        return f"{self._run}:{line.number}:{hashlib.sha256(named_content).hexdigest()[:32]}"

    def _fail(self, failure: BellringerError) -> None:
        self._failure = self._failure or failure
        self._halt.set()

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the replay halts."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._halt.wait(), seconds)


def count_events(file: Path) -> int | None:
    """How many lines of a file are not empty; None where looking would use them up."""
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return sum(1 for line in opened if line.strip())


def _lines(file: Path) -> Iterator[_Line]:
    try:
        with file.open("rb") as opened:
            for number, raw in enumerate(opened, 1):
                content = (raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw).strip()
                if content:
                    yield _line(number, content)
    except OSError as error:
        raise ReplayError(f"{file} cannot be read: {error.strerror or error}") from error


def _line(number: int, content: bytes) -> _Line:
    """What the replay itself needs of a line. What is wrong with it, the server says better."""
    try:
        peek = _PEEK.decode(content)
    except msgspec.DecodeError:
        peek = _Peek()
    moment = None
    with suppress(msgspec.ValidationError):
        moment = msgspec.convert(peek.time, datetime | None)
    if moment is not None and moment.tzinfo is None:
        moment = None  # the server refuses it
    return _Line(number=number, content=content, is_cloud_event=peek.specversion is not None, time=moment)


def _retry_after_seconds(value: str | None) -> float | None:
    """What a Retry-After header asks for: seconds, or a date."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def printable(text: str) -> str:
    """Text of others, safe for a terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


# On the screen


async def replay_file(
    file: Path, url: str, key: str, run: str | None, speed: float | None, results: Console, messages: Console
) -> int:
    """Replay a file, say how it goes in `messages` and how it went in `results`, and return the exit code.

    0: the server took every event; 1: it refused some; 128 and the signal's number: interrupted. Raises `ReplayError`.
    """
    interrupted = asyncio.Event()
    received: list[int] = []

    def interrupt(number: int) -> None:
        received.append(number)
        interrupted.set()

    def tell(text: str) -> None:
        messages.print(Text(text), soft_wrap=True)

    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, interrupt, signal_number)
    run = run or new_run()
    async with open_api(url, key) as api:
        replay = Replay(api, file, run, tell=tell, speed=speed)
        await replay.check_server()
        tell(f"Run {run}: give --run {run} to go on after an interruption.")
        total = count_events(file)
        began_at = loop.time()
        async with progress_shown(messages, replay.counts, total, lambda: str(replay.counts)):
            finished = await replay.run(interrupted)
    counts, seconds = replay.counts, loop.time() - began_at
    if not finished:
        of_total = "" if total is None else f" of {total:,}"
        tell(f"Interrupted after {counts.done:,}{of_total} events: {counts}. Go on with --run {run}.")
        return 128 + received[0]
    rate = f"{counts.done / max(seconds, 0.001):,.0f}/s"
    results.print(Text(f"{counts.done:,} events in {seconds:.1f} s ({rate}): {counts}."), soft_wrap=True)
    return 1 if counts.refused else 0


@asynccontextmanager
async def progress_shown(
    console: Console, counts: Counts, total: int | None, note: Callable[[], str], indent: str = ""
) -> AsyncIterator[None]:
    """Show how a replay comes along: as a bar on a terminal, as plain lines elsewhere, both with `note` at the end."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    of_total = "" if total is None else f"/{total:,}"
    ended_at: float | None = None

    def rate() -> str:
        nonlocal ended_at
        if counts.done == total and ended_at is None:
            ended_at = loop.time()
        return f"{counts.done / max((ended_at or loop.time()) - began_at, 0.001):,.0f}/s"

    async def print_lines() -> None:
        said = ""
        while True:
            await asyncio.sleep(_PLAIN_LINE_SECONDS)
            line = f"{indent}{counts.done:,}{of_total} events, {rate()}, {note()}"
            if line != said:
                console.print(Text(line), soft_wrap=True)
            said = line

    async def move_bar(progress: Progress) -> None:
        task = progress.add_task("", total=total, rate="", note="")
        while True:
            progress.update(task, completed=counts.done, rate=rate(), note=note())
            await asyncio.sleep(_REFRESH_SECONDS)

    if not console.is_terminal:
        async with _beside(print_lines()):
            yield
        return
    bar = Progress(
        *([TextColumn(indent[1:])] if indent else []),
        BarColumn(bar_width=24, style="dim", complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
        TextColumn("{task.completed:,.0f}" + of_total + " events"),
        TextColumn("{task.fields[rate]}", style="dim"),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    )
    with bar, logs_above():
        async with _beside(move_bar(bar)):
            yield


@contextmanager
def logs_above() -> Iterator[None]:
    """While rich redraws a part of the terminal, let log lines go through it, so that neither tears the other."""
    moved = []
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream.isatty():
            moved.append((handler, handler.stream))
            handler.setStream(_CurrentStandardError())
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


class _CurrentStandardError:
    """Whatever `sys.stderr` is at the moment: rich puts something of its own there while it draws."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
