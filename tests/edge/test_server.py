"""The real server on a real port, and clients that are slow, silent or rude; tests time how it stops."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Self

import httpx
import pytest
from litestar.types import ASGIApp, Receive, Scope, Send
from pyreqwest.client import ClientBuilder
from tests.support.application import application
from tests.support.server import free_port

from bellringer.broker import Broker, Publication
from bellringer.edge.app import EdgeConfig
from bellringer.edge.keys import Keys
from bellringer.edge.raw import RawReply, RawRequest, RawRoute, RawRoutes, while_receiving
from bellringer.edge.server import HttpServer
from bellringer.kernel.database import Database
from bellringer.kernel.errors import StartupError

PATIENCE_SECONDS = 10
PROMPTLY_SECONDS = 1.0
DRAIN_SECONDS = 0.5


class Waiting:
    """An application whose answers wait: until the waits are ended, or until the test lets them go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.waits_ended = asyncio.Event()
        self.let_go = asyncio.Event()
        self.read_bytes = 0
        self.sent_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by path."""
        assert scope["type"] == "http"
        paths: dict[str, Callable[[Receive, Send], Awaitable[None]]] = {
            "/quick": self._quick,
            "/poll": self._poll,
            "/stream": self._stream,
            "/slow": self._slow,
            "/upload": self._upload,
            "/large": self._large,
            "/endless": self._endless,
        }
        self.begun.set()
        await paths[scope["path"]](receive, send)

    async def _quick(self, _receive: Receive, send: Send) -> None:
        await _send(send, b"quick")

    async def _poll(self, _receive: Receive, send: Send) -> None:
        await self.waits_ended.wait()
        await _send(send, b"nothing came")

    async def _stream(self, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
        await self.waits_ended.wait()
        await send({"type": "http.response.body", "body": b"data: last\n\n", "more_body": False})

    async def _slow(self, _receive: Receive, send: Send) -> None:
        await self.let_go.wait()
        await _send(send, b"slow")

    async def _upload(self, receive: Receive, send: Send) -> None:
        while True:
            event: Any = await receive()
            self.read_bytes += len(event.get("body", b""))
            if event["type"] == "http.disconnect":
                return
            if not event.get("more_body"):
                break
        await _send(send, b"uploaded")

    async def _large(self, _receive: Receive, send: Send) -> None:
        await _send(send, b"x" * 50_000_000)

    async def _endless(self, receive: Receive, send: Send) -> None:
        async def send_without_end() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                self.sent_bytes += 65536
                await asyncio.sleep(0)

        sending = asyncio.create_task(send_without_end())
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        self.let_go.set()


async def _send(send: Send, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Serving:
    """A server that runs."""

    def __init__(self, app: ASGIApp, end_waits: Callable[[], None], host: str = "127.0.0.1") -> None:
        self.host, self.port = host, free_port()
        config = EdgeConfig(host=host, port=self.port)
        self.server = HttpServer(config, app, end_waits=end_waits, drain_timeout_seconds=DRAIN_SECONDS)
        self._stopping = asyncio.Event()
        self._running = asyncio.create_task(self.server.run(self._stopping))
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, as soon as there is somebody to take it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    reader, writer = await asyncio.open_connection(self.host, self.port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
                else:
                    self._writers.append(writer)
                    return reader, writer

    async def ask(self, *lines: str, body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request, or as much of it as is given, on a connection of its own."""
        reader, writer = await self.connect()
        writer.write("".join(f"{line}\r\n" for line in lines).encode("latin-1") + body)
        await writer.drain()
        return reader, writer

    async def stop(self) -> float:
        """Stop; return how many seconds that took."""
        began_at = time.monotonic()
        self._stopping.set()
        await asyncio.wait_for(self._running, PATIENCE_SECONDS)
        return time.monotonic() - began_at

    async def __aenter__(self) -> Self:
        """Return when it takes connections."""
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up, and stop it."""
        for writer in self._writers:
            writer.transport.abort()
        await self.stop()


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
async def serving(waiting: Waiting) -> AsyncIterator[Serving]:
    async with Serving(waiting, waiting.waits_ended.set) as opened:
        yield opened
        waiting.let_go.set()


def get(path: str) -> tuple[str, str, str]:
    return (f"GET {path} HTTP/1.1", "host: bellringer", "")


async def answer_from(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await reader.read()


async def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.01)


async def until_answered(reader: asyncio.StreamReader, end: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await reader.readuntil(end)


async def test_a_port_in_use_stops_the_start_in_one_line(waiting: Waiting) -> None:
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        server = HttpServer(EdgeConfig(port=port), waiting, end_waits=waiting.waits_ended.set)
        message = f"^cannot listen on 127.0.0.1:{port}: Address already in use$"
        with pytest.raises(StartupError, match=message):
            server.check_port()
        with pytest.raises(StartupError, match=message):
            await server.run(asyncio.Event())


async def test_a_port_that_another_bellringer_serves_is_not_shared_with_it(serving: Serving, waiting: Waiting) -> None:
    server = HttpServer(EdgeConfig(port=serving.port), waiting, end_waits=waiting.waits_ended.set)
    with pytest.raises(StartupError, match="Address already in use"):
        server.check_port()


async def test_an_address_of_another_host_stops_the_start_in_one_line(waiting: Waiting) -> None:
    config = EdgeConfig(host="192.0.2.1", port=free_port())
    server = HttpServer(config, waiting, end_waits=waiting.waits_ended.set)
    with pytest.raises(StartupError, match=r"^cannot listen on 192\.0\.2\.1:\d+: Cannot assign requested address$"):
        server.check_port()


async def test_a_port_is_free_again_at_once_after_the_stop(serving: Serving) -> None:
    reader, _ = await serving.ask(*get("/quick"))
    await until_answered(reader, b"quick")
    await serving.stop()
    serving.server.check_port()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_requests_are_answered_on_a_connection_that_stays_open(waiting: Waiting, host: str) -> None:
    async with Serving(waiting, waiting.waits_ended.set, host=host) as opened:
        reader, writer = await opened.ask(*get("/quick"))
        await until_answered(reader, b"quick")
        writer.write("\r\n".join(get("/quick")).encode() + b"\r\n")
        assert (await until_answered(reader, b"quick")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_it_stops_promptly_with_nobody_connected(serving: Serving) -> None:
    assert await serving.stop() < PROMPTLY_SECONDS


async def test_it_stops_promptly_with_idle_connections_open(serving: Serving) -> None:
    idle = [await serving.ask(*get("/quick")) for _ in range(10)]
    for reader, _ in idle:
        await until_answered(reader, b"quick")
    assert await serving.stop() < PROMPTLY_SECONDS
    assert [await answer_from(reader) for reader, _ in idle] == [b""] * 10


async def test_it_stops_promptly_with_a_long_poll_open_and_answers_it(serving: Serving, waiting: Waiting) -> None:
    reader, _ = await serving.ask(*get("/poll"))
    await waiting.begun.wait()
    assert await serving.stop() < PROMPTLY_SECONDS
    assert (await answer_from(reader)).endswith(b"nothing came")


async def test_it_stops_promptly_with_an_event_stream_open_and_ends_it(serving: Serving) -> None:
    reader, _ = await serving.ask(*get("/stream"))
    await until_answered(reader, b"data: first\n\n")
    assert await serving.stop() < PROMPTLY_SECONDS
    assert (await answer_from(reader)).endswith(b"data: last\n\n\r\n0\r\n\r\n")


async def test_a_request_in_hand_is_answered_before_it_stops(serving: Serving, waiting: Waiting) -> None:
    reader, _ = await serving.ask(*get("/slow"))
    await waiting.begun.wait()
    asyncio.get_running_loop().call_later(0.1, waiting.let_go.set)
    assert await serving.stop() >= 0.1
    assert (await answer_from(reader)).endswith(b"slow")


@pytest.mark.parametrize(
    "request_lines",
    [
        ("GET /quick HTTP/1.1", "host: bellringer"),
        ("POST /upload HTTP/1.1", "host: bellringer", "content-length: 10", "", "half"),
        ("POST /upload HTTP/1.1", "host: bellringer", "transfer-encoding: chunked", "", "2", "ha"),
        ("GET /large HTTP/1.1", "host: bellringer", ""),
        ("GET /slow HTTP/1.1", "host: bellringer", ""),
    ],
    ids=["half a head", "half a body", "half of the chunks", "an answer that is not read", "an answer that hangs"],
)
async def test_a_client_that_never_comes_to_an_end_holds_up_the_stop_no_longer_than_the_drain(
    serving: Serving, request_lines: tuple[str, ...]
) -> None:
    await serving.ask(*request_lines)
    reader, _ = await serving.ask(*get("/quick"))
    await until_answered(reader, b"quick")
    assert DRAIN_SECONDS * 0.9 <= await serving.stop() < DRAIN_SECONDS + PROMPTLY_SECONDS


async def test_a_client_that_goes_away_harms_nobody(serving: Serving, waiting: Waiting) -> None:
    for path in ("/poll", "/stream", "/large"):
        waiting.begun.clear()
        _, writer = await serving.ask(*get(path))
        await waiting.begun.wait()
        writer.transport.abort()
    reader, _ = await serving.ask(*get("/quick"))
    assert (await until_answered(reader, b"quick")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_stream_that_nobody_reads_ends_before_it_fills_the_memory(serving: Serving, waiting: Waiting) -> None:
    await serving.ask(*get("/endless"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting.let_go.wait()
    assert waiting.sent_bytes < 32 * 1024 * 1024


UPLOADS = [
    (("content-length: 10", ""), b"0123456789", True),
    (("transfer-encoding: chunked", ""), b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n", True),
    (("content-length: 10", ""), b"01234", False),
    (("transfer-encoding: chunked", ""), b"4\r\n0123\r\n6\r\n456", False),
    (("transfer-encoding: chunked", ""), b"4\r\n0123\r\n", False),
    (("transfer-encoding: chunked", ""), b"4\r\n0123\r\nnonsense", False),
]


@pytest.mark.parametrize(("headers", "body", "is_whole"), UPLOADS)
async def test_a_body_that_breaks_off_is_told_from_a_whole_one(
    serving: Serving, headers: tuple[str, ...], body: bytes, is_whole: bool
) -> None:
    reader, writer = await serving.ask("POST /upload HTTP/1.1", "host: bellringer", *headers, body=body)
    if is_whole:
        assert (await until_answered(reader, b"uploaded")).startswith(b"HTTP/1.1 200 ")
    else:
        writer.write_eof()
        assert b"uploaded" not in await answer_from(reader)


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
async def test_http_2_is_spoken_on_both_sides_of_the_door(keys: Keys, api_key: str) -> None:
    async def tell_host(scope: Scope, _receive: Receive, send: Send) -> None:
        await _send(send, dict(scope["headers"])[b"host"])  # type: ignore[typeddict-item]

    async def tell_all(request: RawRequest) -> RawReply:
        return RawReply(status=200, body=request.headers["host"].encode() + request.body)

    route = RawRoute(
        method="PUT", path="/v1/eggs", handle=tell_all, summary="", description="", tag="", success_status=200
    )
    door = RawRoutes([route], keys, max_body_bytes=1024, otherwise=tell_host)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"e"
        yield b"gg"

    async with Serving(door, lambda: None) as serving, ClientBuilder().http2_prior_knowledge().build() as client:
        url = f"http://127.0.0.1:{serving.port}"
        host = url.removeprefix("http://").encode()
        asked = client.put(f"{url}/v1/eggs").bearer_auth(api_key)
        assert await (await asked.body_bytes(b"egg").build().send()).bytes() == host + b"egg"
        asked = client.put(f"{url}/v1/eggs").bearer_auth(api_key)
        assert await (await asked.body_stream(chunks()).build().send()).bytes() == host + b"egg"
        assert await (await client.get(f"{url}/elsewhere").build().send()).bytes() == host


class Product(Serving):
    """The whole application behind the server."""

    def __init__(self, app: ASGIApp, broker: Broker, api_key: str) -> None:
        super().__init__(app, broker.wakeups.close)
        self.key = f"authorization: Bearer {api_key}"
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", headers={"authorization": f"Bearer {api_key}"}
        )


@pytest.fixture
async def product(database: Database, keys: Keys, broker: Broker, api_key: str) -> AsyncIterator[Product]:
    async with (
        application(database, keys, broker) as app,
        Product(app, broker, api_key) as opened,
        opened.client,
    ):
        yield opened


async def test_a_claim_that_waits_is_answered_by_the_stop(product: Product, broker: Broker) -> None:
    await product.client.put("/v1/queues/nests", content=b"{}")
    claim = asyncio.create_task(product.client.get("/v1/messages/nests?wait=20"))
    await until(lambda: bool(broker.wakeups.queues()))
    assert await product.stop() < PROMPTLY_SECONDS
    assert (await claim).json() == {"messages": []}


async def test_a_body_that_is_announced_as_too_large_is_refused_before_it_is_sent(product: Product) -> None:
    reader, _ = await product.ask(
        "PUT /v1/message/nests HTTP/1.1", "host: bellringer", product.key, "content-length: 999999999", ""
    )
    assert (await until_answered(reader, b'"field":"body"}')).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("header", "body", "is_taken"),
    [
        ("content-length: 11", b'{"msg":"a"}', True),
        ("transfer-encoding: chunked", b'b\r\n{"msg":"a"}\r\n0\r\n\r\n', True),
        ("content-length: 12", b'{"msg":"a"}', False),
        ("transfer-encoding: chunked", b'b\r\n{"msg":"a"}\r\n', False),
    ],
)
async def test_a_message_is_taken_when_its_body_has_come_to_its_end(
    product: Product, header: str, body: bytes, is_taken: bool
) -> None:
    await product.client.put("/v1/queues/nests", content=b"{}")
    request = ("PUT /v1/message/nests HTTP/1.1", "host: bellringer", product.key, "connection: close", header, "")
    reader, writer = await product.ask(*request, body=body)
    if not is_taken:
        writer.write_eof()
    await answer_from(reader)
    claimed = await product.client.get("/v1/messages/nests?n=10")
    assert [message["msg"] for message in claimed.json()["messages"]] == (["a"] if is_taken else [])


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
async def test_work_for_a_client_that_hangs_up_is_called_off(keys: Keys, api_key: str) -> None:
    begun, called_off = asyncio.Event(), asyncio.Event()

    async def work() -> RawReply:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            called_off.set()
        return RawReply(status=200)

    async def handle(request: RawRequest) -> RawReply:
        return await while_receiving(request.receive, work())

    route = RawRoute(
        method="GET", path="/v1/eggs", handle=handle, summary="", description="", tag="", success_status=200
    )
    door = RawRoutes([route], keys, max_body_bytes=1024, otherwise=Waiting())
    async with Serving(door, lambda: None) as serving, asyncio.timeout(PATIENCE_SECONDS):
        key = f"authorization: Bearer {api_key}"
        _, writer = await serving.ask("GET /v1/eggs HTTP/1.1", "host: bellringer", key, "")
        await begun.wait()
        writer.transport.abort()
        await called_off.wait()


async def test_a_header_that_cannot_be_read_is_refused_rather_than_overlooked(product: Product) -> None:
    body = b'{"type":"egg.laid","recipients":["wren@birds.example"]}'
    headers = ("connection: close", f"content-length: {len(body)}", "idempotency-key: \xe9", "")
    reader, _ = await product.ask("POST /v1/events HTTP/1.1", "host: bellringer", product.key, *headers, body=body)
    head, _, answer = (await answer_from(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer)["field"] == "idempotency-key"


async def test_chunks_without_end_are_refused_at_the_limit(product: Product) -> None:
    reader, writer = await product.ask(
        "PUT /v1/message/nests HTTP/1.1", "host: bellringer", product.key, "transfer-encoding: chunked", ""
    )
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"

    async def send_without_end() -> None:
        while True:
            writer.write(chunk)
            await writer.drain()

    sending = asyncio.create_task(send_without_end())
    with suppress(ConnectionError):  # the server's hanging up may overtake its answer
        assert (await until_answered(reader, b'"field":"body"}')).startswith(b"HTTP/1.1 413 ")
    await asyncio.wait([sending], timeout=PATIENCE_SECONDS)
    assert isinstance(sending.exception(), ConnectionError)  # it was not read to an end that never comes


RUDE = [
    ("GET / HTTP/9.9", "host: bellringer", ""),
    ("nonsense", ""),
    ("GET /v1/queues", ""),
    ("GET /v1/queues HTTP/1.1", ""),
    ("PUT /v1/queues/\xff HTTP/1.1", "host: bellringer", "content-length: 2", "", "{}"),
    ("PUT /v1/queues/a HTTP/1.1", "host: bellringer", "content-length: 99999999999999999999999", "", "{}"),
    ("PUT /v1/queues/a HTTP/1.1", "host: bellringer", "content-length: -1", "", "{}"),
    ("PUT /v1/queues/a HTTP/1.1", "host: bellringer", "content-length: 2", "transfer-encoding: chunked", "", "zz"),
    ("PUT /v1/queues/a HTTP/1.1", "host: bellringer", "transfer-encoding: chunked", "", "zz", "{}"),
    ("GET /" + "a" * 100_000 + " HTTP/1.1", "host: bellringer", ""),
    ("GET /v1/queues HTTP/1.1", "host: bellringer", "x: " + "a" * 1_000_000, ""),
    ("GET /v1/queues HTTP/1.1", "host: bellringer", *(f"x{number}: y" for number in range(1000)), ""),
    ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",),
]


async def test_what_is_not_http_gets_no_5xx_and_does_not_disturb_the_others(product: Product) -> None:
    for lines in RUDE:
        try:
            reader, writer = await product.ask(*lines)
            writer.write_eof()
            status = (await answer_from(reader))[:12]
        except OSError:
            status = b""  # it hung up, which will do
        assert status in {b"", *(f"HTTP/1.{minor} {code}".encode() for minor in (0, 1) for code in range(400, 500))}
    assert (await product.client.get("/v1/queues")).json() == {"queues": []}


async def test_a_weird_name_over_the_wire_is_refused(product: Product) -> None:
    for name in ("a%2Fb", "%00", "%FF", "a" * 20_000):
        request_line = f"PUT /v1/queues/{name} HTTP/1.1"
        headers = ("host: bellringer", product.key, "content-length: 2", "connection: close", "")
        reader, _ = await product.ask(request_line, *headers, body=b"{}")
        head, _, body = (await answer_from(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4")
        assert json.loads(body)["type"].startswith("urn:bellringer:problem:")


async def test_a_head_request_gets_no_body(product: Product) -> None:
    reader, _ = await product.ask("HEAD /livez HTTP/1.1", "host: bellringer", "connection: close", "")
    assert (await answer_from(reader)).endswith(b"\r\n\r\n")


async def test_a_client_that_hangs_up_over_a_long_poll_takes_no_message_along(
    database: Database, broker: Broker, keys: Keys
) -> None:
    key = await keys.create("acme", "production", "test")
    queue = await broker.ensure_queue((await keys.authenticate(key)).environment.id, "orders")
    async with (
        application(database, keys, broker) as app,
        Serving(app, broker.wakeups.close) as serving,
    ):
        _, writer = await serving.ask(
            "GET /v1/messages/orders?wait=20 HTTP/1.1", "host: bellringer", f"authorization: Bearer {key}", ""
        )
        await until(lambda: broker.wakeups.queues() == [queue.id])
        writer.transport.abort()
        await until(lambda: broker.wakeups.queues() == [])
        await broker.send(queue, [Publication(body=b"order")])
        assert [message.attempts for message in await broker.claim(queue, 10)] == [1]
