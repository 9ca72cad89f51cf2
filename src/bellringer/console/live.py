"""What changes while somebody looks: one feed per environment, and the stream of server-sent events to each viewer.

event: fragments    data: {"<fragment>": "<html>", ...}   those that changed, all of them at first
event: trouble      data: {}                              the database is away; fragments follow when it is back
event: signed-out   data: {}                              the key is not valid (any more); the stream ends
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import UUID

import msgspec
from litestar.types import Receive, Send

from bellringer.console.fragments import View, fragments_of, queue_of
from bellringer.console.pages import PAGE_HEADERS, Pages
from bellringer.console.plot import Plot
from bellringer.console.snapshot import Pace, QueueDetails, Snapshot, SnapshotReader
from bellringer.console.task_reader import Fragments, Reading, TaskReader
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment, Scope
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.clock import Clock
from bellringer.kernel.errors import InvalidInput, NotAllowed, NotAuthenticated, NotFound, Unavailable
from bellringer.kernel.service import Loop

_HEARTBEAT_SECONDS = 15.0  # shorter than what proxies take for an idle connection
_READ_TIMEOUT_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_FAREWELL_SECONDS = 1.0  # a client that does not read must not hold up the shutdown
_PACE_SAMPLES = 6
_PLOT_SECONDS = 5.0  # a plot of a day has thousands of samples behind it
_HEADERS = {**PAGE_HEADERS, "content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}

_encode = msgspec.json.Encoder().encode

Chunks = Callable[[bytes], Awaitable[None]]


class Feed(Loop):
    """Polls one environment for all who look at it, once a second."""

    def __init__(
        self, environment: Environment, reader: SnapshotReader, task_reader: TaskReader, pages: Pages, clock: Clock
    ) -> None:
        # A failing feed is watched by a person who waits: the pauses stay short.
        super().__init__("console feed", interval_seconds=1.0, backoff=Backoff(first_seconds=1.0, cap_seconds=2.0))
        self.is_in_trouble = False
        self.news = asyncio.Event()
        """Set after the next round; then another event takes its place."""
        self._environment = environment
        self._reader = reader
        self._task_reader = task_reader
        self._pages = pages
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_PACE_SAMPLES)
        self._views = Counter[View]()
        self._plots: dict[View, tuple[float, tuple[Plot, ...]]] = {}
        self._details: dict[View, QueueDetails] = {}
        self._of_tasks: dict[View, dict[Reading, tuple[float, Fragments]] | None] = {}  # None: it is gone
        self._rendered: dict[View, dict[str, tuple[Mapping[str, Any], str]]] = {}

    @property
    def viewers(self) -> int:
        """How many look."""
        return self._views.total()

    @contextmanager
    def look(self, view: View) -> Iterator[None]:
        """Be a viewer: what a view needs is read while somebody has it."""
        self._views[view] += 1
        try:
            yield
        finally:
            self._views[view] -= 1
            if not self._views[view]:
                del self._views[view]
                for known in (self._plots, self._details, self._of_tasks, self._rendered):
                    known.pop(view, None)

    async def run_once(self) -> bool:
        """Read what somebody looks at, and tell the viewers."""
        views = list(self._views)
        try:
            async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
                if not views or not all(view.is_of_tasks for view in views):
                    await self._read_snapshot(views)
                for view in views:
                    if view.is_of_tasks:
                        await self._read_tasks(view)
        except Exception:
            self.is_in_trouble = True
            raise
        else:
            self.is_in_trouble = False
        finally:
            told, self.news = self.news, asyncio.Event()
            told.set()
        return False

    def fragments(self, view: View) -> dict[str, str]:
        """The HTML of each fragment of a view, rendered once for all viewers; empty before the first round.

        Raises `NotFound` when what it shows is gone.
        """
        fragments: Fragments = {}
        if view.is_of_tasks:
            fragments = self._task_fragments(view)
        elif self._snapshot is not None:
            fragments = fragments_of(view, self._snapshot, self._details.get(view))
        return {name: self._render(view, name, values) for name, values in fragments.items()}

    def _task_fragments(self, view: View) -> Fragments:
        known = self._of_tasks.get(view, {})
        if known is None:
            raise NotFound("It is gone.")
        return {name: values for _, read in known.values() for name, values in read.items()}

    def _render(self, view: View, name: str, values: Mapping[str, Any]) -> str:
        rendered = self._rendered.setdefault(view, {})
        known = rendered.get(name)
        if known is None or known[0] != values:
            known = (values, self._pages.render(f"fragments/{name}.html", values))
            rendered[name] = known
        return known[1]

    async def _read_snapshot(self, views: Sequence[View]) -> None:
        snapshot = await self._reader.read(self._environment)
        for view in views:
            if view.has_details:
                await self._read_details(view, snapshot)
        self._snapshot = msgspec.structs.replace(snapshot, pace=self._pace(snapshot))

    async def _read_tasks(self, view: View) -> None:
        known = self._of_tasks.get(view) or {}
        now = self._clock.monotonic()
        try:
            for reading in self._task_reader.readings(view):
                read_at, _ = known.get(reading, (-math.inf, {}))
                if now - read_at >= reading.seconds:
                    known[reading] = (now, await reading.read(self._environment, view))
        except (NotFound, InvalidInput):  # the fault of one address, of which the viewers of others know nothing
            self._of_tasks[view] = None
        else:
            self._of_tasks[view] = known

    async def _read_details(self, view: View, snapshot: Snapshot) -> None:
        try:
            state = queue_of(view, snapshot)
        except NotFound:
            return  # its viewers find out when they ask for the fragments
        now = self._clock.monotonic()
        read_at, plots = self._plots.get(view, (-math.inf, ()))
        if now - read_at >= _PLOT_SECONDS:
            plots = await self._reader.read_plots(state, view.period)
            self._plots[view] = (now, plots)
        self._details[view] = QueueDetails(plots=plots, moves=await self._reader.read_moves(state.queue))

    def _pace(self, snapshot: Snapshot) -> Pace:
        now = self._clock.monotonic()
        self._samples.append((now, snapshot.overview.events, snapshot.overview.sent))
        began_at, events, sent = self._samples[0]
        elapsed = now - began_at
        if not elapsed:
            return Pace()
        return Pace(
            events_per_second=(snapshot.overview.events - events) / elapsed,
            sent_per_second=(snapshot.overview.sent - sent) / elapsed,
        )


class Feeds:
    """The feeds of the environments that somebody looks at."""

    def __init__(self, reader: SnapshotReader, task_reader: TaskReader, pages: Pages, clock: Clock) -> None:
        self._reader = reader
        self._task_reader = task_reader
        self._pages = pages
        self._clock = clock
        self._running: dict[UUID, tuple[Feed, asyncio.Event, asyncio.Task[None]]] = {}

    @property
    def count(self) -> int:
        """How many environments are polled."""
        return len(self._running)

    @asynccontextmanager
    async def watch(self, environment: Environment, view: View) -> AsyncIterator[Feed]:
        """The environment's feed, which starts with its first viewer and ends with its last."""
        if environment.id not in self._running:
            feed, stopping = (
                Feed(environment, self._reader, self._task_reader, self._pages, self._clock),
                asyncio.Event(),
            )
            self._running[environment.id] = (feed, stopping, asyncio.create_task(feed.run(stopping)))
        feed, stopping, polling = self._running[environment.id]
        try:
            with feed.look(view):
                yield feed
        finally:
            if not feed.viewers:
                del self._running[environment.id]
                stopping.set()
                # The round in hand still holds a connection of the pool, which may be about to close.
                await asyncio.wait([polling])


class Streamer:
    """Serves streams until the client goes, the key is revoked, or `stopping` is set."""

    def __init__(self, keys: Keys, feeds: Feeds, stopping: asyncio.Event) -> None:
        self._keys = keys
        self._feeds = feeds
        self._stopping = stopping

    async def serve(self, key: str | None, view: View, receive: Receive, send: Send) -> None:
        """Answer one request with a stream."""
        headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def send_chunk(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        await _first_of(self._tell(key, view, send_chunk), _until_gone(receive), self._stopping.wait())
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, key: str | None, view: View, send_chunk: Chunks) -> None:
        await send_chunk(b"retry: 1000\n\n")
        while True:
            try:
                environment = await self._authenticate(key)
                async with self._feeds.watch(environment, view) as feed:
                    await self._follow(feed, key, view, send_chunk)
            except (NotAuthenticated, NotAllowed):
                await send_chunk(_event("signed-out", {}))
                return
            except NotFound:
                return
            except Unavailable:
                await send_chunk(_event("trouble", {}))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, feed: Feed, key: str | None, view: View, send_chunk: Chunks) -> None:
        sent: dict[str, str] = {}
        was_in_trouble = False
        loop = asyncio.get_running_loop()
        spoke_at = loop.time()
        while True:
            news = feed.news
            fragments = feed.fragments(view)
            changed = {name: html for name, html in fragments.items() if sent.get(name) != html}
            chunk = b""
            if feed.is_in_trouble:
                chunk = b"" if was_in_trouble else _event("trouble", {})
            elif changed or was_in_trouble:
                chunk = _event("fragments", changed)
                sent |= changed
            if not chunk and loop.time() - spoke_at >= _HEARTBEAT_SECONDS:
                chunk = b": still here\n\n"
            if chunk:
                await send_chunk(chunk)
                spoke_at = loop.time()
            was_in_trouble = feed.is_in_trouble
            await news.wait()
            if not feed.is_in_trouble:
                await self._authenticate(key)

    async def _authenticate(self, key: str | None) -> Environment:
        if key is None:
            raise NotAuthenticated
        access = await self._keys.authenticate(key)
        access.require(Scope.ADMIN)
        return access.environment


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(*operations: Coroutine[Any, Any, Any]) -> None:
    """Run operations until one of them ends, and end the others. Raises what the first one raised."""
    tasks = [asyncio.create_task(operation) for operation in operations]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _event(name: str, data: dict[str, str]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(data))
