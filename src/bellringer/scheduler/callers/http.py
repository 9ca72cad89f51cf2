"""HTTP calls: a request with the payload as its body."""

from __future__ import annotations

from datetime import timedelta
from typing import cast
from urllib.parse import urlsplit

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import BuilderError, DecodeError, NetworkError, PyreqwestError, ReadError, RequestTimeoutError
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response

from bellringer import __version__
from bellringer.kernel.http_client import reason_of
from bellringer.scheduler.model import CallFailed, HttpCall, Invocation

_MOST_BYTES_READ = 64 * 1024
_MOST_CHARACTERS_SHOWN = 500
_KEEP_ALIVE = timedelta(seconds=30)
# Servers close connections that rest for a few seconds (gunicorn: 2). A request on one that is just being closed is
# lost, and must not be repeated: nobody knows whether it was taken.
_LONGEST_REST = timedelta(seconds=1.5)
# pyreqwest leaves a request that is cancelled under way; its own time limit ends it. It must not come first, or a run
# that took too long would look like one that failed.
_AFTER_THE_TIME_LIMIT_SECONDS = 1.0


class HttpCaller:
    """Runs HTTP calls; connections are kept and shared. An answer of 2xx is success, redirects are not followed.

    Whom to trust and which proxy to ask is as the environment says (`SSL_CERT_FILE`, `HTTPS_PROXY`, `NO_PROXY`). A call
    that is cancelled ends here at once, and its connection at the time limit of the run.
    """

    def __init__(self, *, connect_timeout_seconds: float = 10.0) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._client = (
            ClientBuilder()
            .user_agent(f"bellringer/{__version__}")
            .follow_redirects(enable=False)
            .connect_timeout(timedelta(seconds=connect_timeout_seconds))
            .pool_idle_timeout(_LONGEST_REST)
            .tcp_keepalive(_KEEP_ALIVE)
            # What is read is bounded; what it would become is not.
            .gzip(enable=False)
            .brotli(enable=False)
            .zstd(enable=False)
            .deflate(enable=False)
            .build()
        )

    async def call(self, invocation: Invocation) -> None:
        """Send the request; return when its answer was read, or 64 KiB of it. Raises `CallFailed`."""
        call = cast("HttpCall", invocation.call)
        try:
            async with self._request(call, invocation) as response:
                answer = await _read(response)
                status = response.status
        except PyreqwestError as error:
            raise CallFailed(self._sentence(error, _server_of(call))) from None
        except ValueError as error:
            raise CallFailed(f"the request cannot be made: {error}") from None
        if not 200 <= status < 300:
            shown = answer.decode(errors="replace")[:_MOST_CHARACTERS_SHOWN]
            raise CallFailed(f"{_server_of(call)} answered {status}: {shown}".removesuffix(": "))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.close()

    def _request(self, call: HttpCall, invocation: Invocation) -> StreamRequest:
        headers = {
            "Idempotency-Key": invocation.key,
            "Bellringer-Task": invocation.task,
            "Bellringer-Fire-Time": invocation.fire_at.isoformat(),
            "Bellringer-Attempt": str(invocation.attempt),
        }
        builder = self._client.request(call.method, call.url).headers({**call.headers, **headers})
        if invocation.payload != b"null":
            if not any(name.lower() == "content-type" for name in call.headers):
                builder = builder.header("Content-Type", "application/json")
            builder = builder.body_bytes(invocation.payload)
        limit = timedelta(seconds=invocation.time_limit_seconds + _AFTER_THE_TIME_LIMIT_SECONDS)
        return builder.timeout(limit).streamed_read_buffer_limit(_MOST_BYTES_READ).build_streamed()

    def _sentence(self, error: PyreqwestError, server: str) -> str:
        match error:
            case BuilderError():
                return f"the request cannot be made: {reason_of(error)}"
            case RequestTimeoutError() if _is_of_connecting(error):
                return f"{server} took no connection within {self._connect_timeout_seconds:g} s"
            case RequestTimeoutError():
                return f"{server} did not answer in time"
            case ReadError() | DecodeError():
                return f"{server} broke its answer off: {reason_of(error)}"
            case NetworkError():
                return f"{server} cannot be reached: {reason_of(error)}"
            case _:
                return f"{server} gave no answer that can be read: {reason_of(error)}"


def _is_of_connecting(error: RequestTimeoutError) -> bool:
    # A ConnectTimeoutError may also mean that the time was up while nothing was answered.
    return any(cause["message"] == "client error (Connect)" for cause in error.details["causes"] or [])


async def _read(response: Response) -> bytes:
    answer = bytearray()
    while len(answer) < _MOST_BYTES_READ and (chunk := await response.body_reader.read_chunk()) is not None:
        answer += bytes(chunk)
    return bytes(answer)


def _server_of(call: HttpCall) -> str:
    """Where a call goes, without what may be secret in it."""
    parts = urlsplit(call.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
