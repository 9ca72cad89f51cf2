from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
import pytest
from litestar.types import ASGIApp
from tests.support.html import text_of
from tests.support.site import Site
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.broker import Publication
from bellringer.console.fragments import View
from bellringer.console.live import Feed, Feeds
from bellringer.console.pages import Pages
from bellringer.console.snapshot import Snapshot, SnapshotReader
from bellringer.console.task_reader import TaskReader
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.clock import Clock, ManualClock
from bellringer.kernel.errors import NotFound, Unavailable
from bellringer.scheduler.config import SchedulerConfig

OVERVIEW = View(room="overview")


class Stream:
    """A browser's EventSource, without its reconnecting: what the server says, as it says it."""

    def __init__(self, app: ASGIApp, key: str | None, room: str = "overview") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._said = asyncio.Queue[bytes]()
        self._gone = asyncio.Event()
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.is_stuck = asyncio.Event()
        cookies = [] if key is None else [(b"cookie", f"bellringer_key={key}".encode())]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/console/live",
            "raw_path": b"/console/live",
            "query_string": f"room={room}".encode(),
            "root_path": "",
            "headers": cookies,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.serving = asyncio.create_task(app(scope, self._receive, self._send))  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        await asyncio.wait_for(self.serving, PATIENCE_SECONDS)

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def next(self, event: str, holds: Callable[[dict[str, str]], bool] = lambda _: True) -> dict[str, str]:
        """The data of the next event of that name that is as it should be."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                lines = (await self._said.get()).decode().splitlines()
                if lines[0] == f"event: {event}":
                    data: dict[str, str] = msgspec.json.decode(lines[1].removeprefix("data: "))
                    if holds(data):
                        return data

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if not self.is_reading.is_set():
            self.is_stuck.set()
            await self.is_reading.wait()
        if message["body"]:
            self._said.put_nowait(message["body"])


class CountingReader(SnapshotReader):
    """Counts the reads per environment, and fails while it is told to."""

    def __init__(self, site: Site, clock: Clock) -> None:
        super().__init__(site.broker, site.moves, site.notifications, site.mailbox, clock)
        self.reads = Counter[str]()
        self.is_away = False

    async def read(self, environment: Environment) -> Snapshot:
        self.reads[environment.name] += 1
        if self.is_away:
            raise Unavailable
        return await super().read(environment)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 20, tzinfo=UTC))


@pytest.fixture
def counting(site: Site, clock: ManualClock) -> CountingReader:
    return CountingReader(site, clock)


@pytest.fixture
def task_reader(site: Site) -> TaskReader:
    return TaskReader(site.tasks, site.samples, SchedulerConfig())


@pytest.fixture
async def feeds(counting: CountingReader, task_reader: TaskReader, clock: ManualClock) -> AsyncIterator[Feeds]:
    opened = Feeds(counting, task_reader, Pages(clock), clock)
    yield opened
    assert opened.count == 0


# The stream


async def test_the_stream_tells_all_at_first_and_then_what_changed(site: Site, api_key: str) -> None:
    async with Stream(site.app, api_key) as stream:
        first = await stream.next("fragments")
        assert set(first) == {"numbers", "pipeline", "latest-queues", "latest-notifications", "latest-mail"}
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"

        await site.tell("ann@acme.example", subject="Nightly import")
        told = await stream.next("fragments", lambda data: "Nightly import" in data.get("latest-notifications", ""))
        assert told["first-steps"] == ""
        assert "Events 1" in text_of(told["numbers"])
        assert "Accepted 1" in text_of(told["pipeline"])
        assert "latest-mail" not in told


@pytest.mark.parametrize(
    ("room", "fragments"),
    [
        ("queues", {"own-queues", "pipeline-queues"}),
        ("queue&name=orders", {"queue-actions", "queue-counts", "queue-plots", "queue-moves"}),
        ("queue&name=orders&period=24h", {"queue-actions", "queue-counts", "queue-plots", "queue-moves"}),
        ("pipeline-queue&name=emails.outbound", {"queue-counts", "queue-plots"}),
        ("queue-message&name=orders", {"queue-pulse"}),
        ("notifications", {"notification-list"}),
        ("notification", {"pulse"}),
        ("mail", {"mail-list"}),
    ],
)
async def test_each_room_has_its_fragments(site: Site, api_key: str, room: str, fragments: set[str]) -> None:
    await site.broker.ensure_queue(site.environment.id, "orders")
    async with Stream(site.app, api_key, room) as stream:
        assert set(await stream.next("fragments")) == fragments


async def test_a_queue_that_is_not_there_ends_the_stream(site: Site, api_key: str) -> None:
    stream = Stream(site.app, api_key, "queue&name=nowhere")
    await asyncio.wait_for(stream.serving, PATIENCE_SECONDS)


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_without_a_valid_key_the_stream_says_so_and_ends(site: Site, key: str | None) -> None:
    stream = Stream(site.app, key)
    assert await stream.next("signed-out") == {}
    await asyncio.wait_for(stream.serving, PATIENCE_SECONDS)


async def test_a_key_that_is_revoked_ends_its_streams(site: Site, keys: Keys, api_key: str) -> None:
    stream = Stream(site.app, api_key)
    await stream.next("fragments")
    (stored,) = await keys.list_keys()
    await keys.revoke(stored.id)
    await stream.next("signed-out")
    await asyncio.wait_for(stream.serving, PATIENCE_SECONDS)


async def test_streams_end_at_once_when_the_server_stops(site: Site, api_key: str, stopping: asyncio.Event) -> None:
    streams = [Stream(site.app, api_key) for _ in range(3)]
    for stream in streams:
        await stream.next("fragments")
    stopping.set()
    await asyncio.wait_for(asyncio.gather(*(stream.serving for stream in streams)), 1.0)
    late = Stream(site.app, api_key)
    await asyncio.wait_for(late.serving, 1.0)


async def test_a_client_that_does_not_read_does_not_hold_up_the_shutdown(
    site: Site, api_key: str, stopping: asyncio.Event
) -> None:
    stream = Stream(site.app, api_key)
    await stream.next("fragments")
    stream.is_reading.clear()
    await site.tell()
    await stream.is_stuck.wait()
    stopping.set()
    await asyncio.wait_for(stream.serving, PATIENCE_SECONDS)


async def test_a_stream_ends_with_its_client(site: Site, api_key: str) -> None:
    async with Stream(site.app, api_key) as stream:
        await stream.next("fragments")
    assert stream.serving.done()


# The feed


async def test_all_viewers_share_one_poll(feeds: Feeds, counting: CountingReader, environment: Environment) -> None:
    async with feeds.watch(environment, OVERVIEW) as first, feeds.watch(environment, OVERVIEW) as second:
        assert first is second
        assert (first.viewers, feeds.count) == (2, 1)
        await first.news.wait()
        html = first.fragments(OVERVIEW)["numbers"]
        assert second.fragments(OVERVIEW)["numbers"] is html
        assert counting.reads == {"production": 1}


async def test_each_environment_has_its_own_poll(
    feeds: Feeds, counting: CountingReader, environment: Environment, keys: Keys
) -> None:
    staging = (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment
    async with feeds.watch(environment, OVERVIEW) as first, feeds.watch(staging, OVERVIEW) as second:
        await asyncio.gather(first.news.wait(), second.news.wait())
        assert set(counting.reads) == {"production", "staging"}


async def test_nothing_is_polled_while_nobody_looks(
    feeds: Feeds, counting: CountingReader, environment: Environment
) -> None:
    assert counting.reads.total() == 0
    async with feeds.watch(environment, OVERVIEW) as feed:
        await feed.news.wait()
    assert feeds.count == 0
    assert not [task for task in asyncio.all_tasks() if "Loop.run" in repr(task)]

    async with feeds.watch(environment, OVERVIEW) as again:
        assert again is not feed
        await again.news.wait()


async def test_a_fragment_is_rendered_anew_only_when_it_changed(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    assert feed.fragments(OVERVIEW) == {}
    await feed.run_once()
    before = feed.fragments(OVERVIEW)
    clock.advance(60)
    await feed.run_once()
    same = feed.fragments(OVERVIEW)
    assert all(same[name] is before[name] for name in before)

    await site.tell()
    await feed.run_once()
    after = feed.fragments(OVERVIEW)
    assert {name for name in before if after[name] is not before[name]} == {
        "numbers",
        "pipeline",
        "latest-notifications",
    }


async def test_the_plots_of_a_queue_are_read_every_five_seconds(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    orders = await site.broker.ensure_queue(environment.id, "orders")
    view = View(room="queue", name="orders")
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    with feed.look(view):
        await feed.run_once()
        before = feed.fragments(view)
        await site.broker.send(orders, [Publication(body=b"1")])
        clock.advance(4)
        await feed.run_once()
        soon = feed.fragments(view)
        assert soon["queue-counts"] is not before["queue-counts"]
        assert soon["queue-plots"] is before["queue-plots"]
        clock.advance(1)
        await feed.run_once()
        later = feed.fragments(view)
        assert later["queue-plots"] is not before["queue-plots"]
        assert later["queue-actions"] is before["queue-actions"]
    assert feed.viewers == 0


async def test_a_queue_that_is_deleted_while_somebody_looks_is_told_so(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    orders = await site.broker.ensure_queue(environment.id, "orders")
    view = View(room="queue", name="orders")
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    with feed.look(view):
        await feed.run_once()
        await site.broker.delete_queue(orders)
        await feed.run_once()
        with pytest.raises(NotFound):
            feed.fragments(view)


async def test_the_pace_is_that_of_the_last_seconds(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    await feed.run_once()
    for _ in range(3):
        await site.tell()
    clock.advance(2)
    await feed.run_once()
    assert "1.5 a second" in text_of(feed.fragments(OVERVIEW)["numbers"])
    for _ in range(6):
        clock.advance(1)
        await feed.run_once()
    assert "a second" not in text_of(feed.fragments(OVERVIEW)["numbers"])


async def test_a_database_that_goes_away_and_comes_back_is_told(
    counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    counting.is_away = True
    with pytest.raises(Unavailable):
        await feed.run_once()
    assert feed.is_in_trouble
    counting.is_away = False
    await feed.run_once()
    assert not feed.is_in_trouble


async def test_the_stream_outlives_trouble(site: Site, api_key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stream(site.app, api_key) as stream:
        await stream.next("fragments")
        with monkeypatch.context() as patch:
            patch.setattr(SnapshotReader, "read", _fail)
            assert await stream.next("trouble") == {}
        assert await stream.next("fragments") == {}


async def _fail(_self: SnapshotReader, _environment: Environment) -> Snapshot:
    raise Unavailable


# The rooms of the scheduler


async def test_who_looks_at_tasks_alone_costs_no_look_at_the_rest(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    await site.add_task("report")
    view = View(room="tasks")
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    with feed.look(view):
        await feed.run_once()
        assert "report" in text_of(feed.fragments(view)["task-list"])
        assert counting.reads["production"] == 0
        with feed.look(OVERVIEW):
            await feed.run_once()
            assert counting.reads["production"] == 1
            assert feed.fragments(OVERVIEW)
    await feed.run_once()
    assert feed.fragments(view) == {}


async def test_what_takes_long_to_read_is_read_less_often(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    await site.add_task("first", every_seconds=3600)
    view = View(room="calendar")
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    with feed.look(view):
        await feed.run_once()
        before = feed.fragments(view)
        await site.add_task("second", every_seconds=3600)
        clock.advance(14)
        await feed.run_once()
        assert feed.fragments(view)["calendar"] is before["calendar"]
        clock.advance(1)
        await feed.run_once()
        assert feed.fragments(view)["calendar"] is not before["calendar"]


@pytest.mark.parametrize(
    "view",
    [
        View(room="tasks", prefix="\x00"),
        View(room="tasks", after="x" * 10_000),
        View(room="tasks", state="asleep"),
        View(room="task", name="no such/name"),
        View(room="calendar", at="9999-12-31T23:59:59Z"),
        View(room="occurrence", name="report", at="0001-01-01T00:00:00+14:00"),
        View(room="failures", before="9" * 30),
    ],
    ids=lambda view: view.query[:60],
)
async def test_an_address_that_is_none_troubles_nobody_else(
    site: Site,
    counting: CountingReader,
    task_reader: TaskReader,
    clock: ManualClock,
    environment: Environment,
    view: View,
) -> None:
    await site.add_task("report")
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    good = View(room="tasks")
    with feed.look(view), feed.look(good):
        await feed.run_once()
        assert "report" in feed.fragments(good)["task-list"]
        with pytest.raises(NotFound):
            feed.fragments(view)


async def test_a_task_that_is_deleted_while_somebody_looks_is_told_so(
    site: Site, counting: CountingReader, task_reader: TaskReader, clock: ManualClock, environment: Environment
) -> None:
    await site.add_task("report")
    view = View(room="task", name="report")
    feed = Feed(environment, counting, task_reader, Pages(clock), clock)
    with feed.look(view):
        await feed.run_once()
        assert "Run now" in text_of(feed.fragments(view)["task-actions"])
        await site.tasks.delete(environment.id, "report")
        clock.advance(1)
        await feed.run_once()
        with pytest.raises(NotFound):
            feed.fragments(view)
