"""HTTP calls: what a server gets, and what its answer makes of a run."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.scheduler_calls import KEY, Request, answering, called_server, invocation_of
from tests.support.server import free_port
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.scheduler.callers.http import HttpCaller
from bellringer.scheduler.model import CallFailed, HttpCall


@pytest.fixture
async def caller() -> AsyncIterator[HttpCaller]:
    opened = HttpCaller(connect_timeout_seconds=PATIENCE_SECONDS)
    yield opened
    await opened.close()


async def failure(caller: HttpCaller, url: str, time_limit_seconds: float = 60.0) -> str:
    """Why a call fails."""
    with pytest.raises(CallFailed) as failed:
        await caller.call(invocation_of(HttpCall(url=url), time_limit_seconds=time_limit_seconds))
    return str(failed.value)


async def test_a_request_carries_the_payload_and_says_which_run_it_is(caller: HttpCaller) -> None:
    async with called_server(answering(204)) as server:
        call = HttpCall(url=f"{server.url}/reports?kind=daily", headers={"X-Team": "billing"})
        await caller.call(invocation_of(call, {"order": 7}, attempt=3))
    (request,) = server.requests
    assert request.line == "POST /reports?kind=daily HTTP/1.1"
    assert request.body == b'{"order":7}'
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == KEY
    assert request.headers["bellringer-task"] == "report"
    assert request.headers["bellringer-fire-time"] == "2026-11-21T14:45:00+00:00"
    assert request.headers["bellringer-attempt"] == "3"
    assert request.headers["x-team"] == "billing"


async def test_without_a_payload_there_is_no_body(caller: HttpCaller) -> None:
    async with called_server(answering()) as server:
        await caller.call(invocation_of(HttpCall(url=server.url, method="GET")))
    (request,) = server.requests
    assert request.line == "GET / HTTP/1.1"
    assert request.body == b""
    assert "content-type" not in request.headers


async def test_a_content_type_of_ones_own_stays_the_only_one(caller: HttpCaller) -> None:
    async with called_server(answering()) as server:
        headers = {"content-type": "application/cloudevents+json"}
        await caller.call(invocation_of(HttpCall(url=server.url, headers=headers), {}))
    assert server.requests[0].headers["content-type"] == "application/cloudevents+json"


async def test_calls_one_after_the_other_share_a_connection(caller: HttpCaller) -> None:
    async with called_server(answering(200, b"thanks")) as server:
        for _ in range(3):
            await caller.call(invocation_of(HttpCall(url=server.url)))
    assert [request.connection for request in server.requests] == [1, 1, 1]


@pytest.mark.parametrize("status", [200, 202, 299])
async def test_an_answer_of_2xx_is_success(caller: HttpCaller, status: int) -> None:
    async with called_server(answering(status)) as server:
        await caller.call(invocation_of(HttpCall(url=server.url)))


@pytest.mark.parametrize("status", [300, 400, 404, 429, 500, 503])
async def test_any_other_answer_is_a_failure_that_shows_it(caller: HttpCaller, status: int) -> None:
    async with called_server(answering(status, "no such order: 7 €".encode())) as server:
        assert await failure(caller, f"{server.url}/x?token=secret") == (
            f"{server.url} answered {status}: no such order: 7 €"
        )


async def test_of_a_long_answer_the_first_500_characters_are_shown(caller: HttpCaller) -> None:
    async with called_server(answering(500, b"x" * 10_000)) as server:
        assert await failure(caller, server.url) == f"{server.url} answered 500: {'x' * 500}"


async def test_an_answer_that_is_no_text_is_shown_all_the_same(caller: HttpCaller) -> None:
    async with called_server(answering(500, b"\xff\x00")) as server:
        assert await failure(caller, server.url) == f"{server.url} answered 500: \ufffd\x00"


async def test_redirects_are_not_followed(caller: HttpCaller) -> None:
    async with called_server(answering(307, location="/elsewhere")) as server:
        assert await failure(caller, server.url) == f"{server.url} answered 307"
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_never_ends_is_read_up_to_a_bound(caller: HttpCaller, status: int) -> None:
    written = 0

    async def reply(_: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 %d X\r\n\r\n" % status)
        while True:
            writer.write(b"x" * 65_536)
            written += 65_536
            await writer.drain()

    async with called_server(reply) as server, asyncio.timeout(PATIENCE_SECONDS):
        if status == 200:
            await caller.call(invocation_of(HttpCall(url=server.url)))
        else:
            assert await failure(caller, server.url) == f"{server.url} answered 500: {'x' * 500}"
        await server.hung_up.wait()
    assert written < 50_000_000  # what fits into the buffers between the two


async def test_a_small_answer_that_becomes_a_large_one_stays_small(caller: HttpCaller) -> None:
    async with called_server(answering(500, b"zipped", content_encoding="gzip")) as server:
        assert await failure(caller, server.url) == f"{server.url} answered 500: zipped"
    assert "accept-encoding" not in server.requests[0].headers


async def test_an_answer_that_breaks_off_is_a_failure(caller: HttpCaller) -> None:
    async def reply(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc")
        writer.close()

    async with called_server(reply) as server:
        assert (await failure(caller, server.url)).startswith(f"{server.url} broke its answer off: ")


async def test_a_connection_that_ends_without_an_answer_is_a_failure(caller: HttpCaller) -> None:
    async def reply(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with called_server(reply) as server:
        assert await failure(caller, server.url) == (
            f"{server.url} cannot be reached: connection closed before message completed"
        )
    assert len(server.requests) == 1  # nobody knows what became of it, so it is not sent again


async def test_what_is_no_http_is_a_failure(caller: HttpCaller) -> None:
    async def reply(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.acme.example ESMTP\r\n\r\n")

    async with called_server(reply) as server:
        assert (await failure(caller, server.url)).startswith(f"{server.url} ")


async def test_a_server_that_is_not_there_is_named(caller: HttpCaller) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await failure(caller, f"{url}/x?token=secret") == f"{url} cannot be reached: connection refused"


async def test_a_host_that_does_not_exist_is_named(caller: HttpCaller) -> None:
    host = "a" * 64  # longer than a name can be, so that no other server is asked for it
    assert (await failure(caller, f"http://{host}/x")).startswith(f"http://{host} cannot be reached: ")


async def test_a_server_that_takes_no_connection_is_given_up() -> None:
    hasty = HttpCaller(connect_timeout_seconds=0.05)
    with full_server() as url:
        assert await failure(hasty, url) == f"{url} took no connection within 0.05 s"
    await hasty.close()


async def test_a_call_that_is_cancelled_ends_at_once_and_its_connection_at_the_time_limit(caller: HttpCaller) -> None:
    async with called_server(hanging) as server, asyncio.timeout(PATIENCE_SECONDS):
        call = asyncio.create_task(caller.call(invocation_of(HttpCall(url=server.url), time_limit_seconds=0.1)))
        await server.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not server.hung_up.is_set()
        await server.hung_up.wait()


async def test_a_server_that_never_answers_is_given_up_after_the_time_limit(caller: HttpCaller) -> None:
    async with called_server(hanging) as server:
        assert await failure(caller, server.url, time_limit_seconds=0.1) == f"{server.url} did not answer in time"


async def test_a_server_with_a_trusted_certificate_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    caller = HttpCaller()
    async with called_server(answering(), context) as server:
        await caller.call(invocation_of(HttpCall(url=server.url)))
    await caller.close()


async def test_a_certificate_that_nobody_vouches_for_is_a_failure(caller: HttpCaller, tmp_path: Path) -> None:
    context, _ = certified(tmp_path)
    async with called_server(answering(), context) as server:
        assert (await failure(caller, server.url)).startswith(
            f"{server.url} cannot be reached: invalid peer certificate"
        )
    assert server.requests == []


@pytest.mark.parametrize("url", ["ftp://acme.example", "http://", "http://[::1", "/x", ""])
async def test_a_url_that_nobody_checked_is_a_failure(caller: HttpCaller, url: str) -> None:
    assert (await failure(caller, url)).startswith("the request cannot be made: ")


async def hanging(_: Request, __: asyncio.StreamWriter) -> None:
    """Answer nothing."""


@contextmanager
def full_server() -> Iterator[str]:
    """A server that has no room for one more connection."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def certified(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server needs for TLS, and the file of the certificate to trust it by."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    extensions = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *extensions, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
