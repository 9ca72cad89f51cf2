"""Raw routes: served by plain ASGI in front of the web framework. Those that take a request per message are here for
speed, and every other one with a JSON body because the framework reads `"1"` where a number is asked for.

Measured with Granian on two cores, 256 connections, the same answer: 40,600 requests per second here, 11,000 through
the framework's routing and argument handling. Authentication, size limit and problem details are the same on both
sides, and the OpenAPI document lists both (`bellringer.edge.openapi`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Send
from litestar.types import Scope as ConnectionScope
from prometheus_client import Counter

from bellringer.edge.keys import Keys, bearer_key
from bellringer.edge.metrics import REQUESTS
from bellringer.edge.model import Access, Environment, Scope
from bellringer.edge.problems import problem_of
from bellringer.kernel.errors import InvalidInput, TooLarge

JSON = "application/json"
_LONGEST_LENGTH = 19  # the digits of 2**63


class RawRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose key was accepted and whose body was read. Header names are in lower case."""

    access: Access
    parameters: Sequence[str]
    headers: dict[str, str]
    body: bytes

    @property
    def environment(self) -> Environment:
        """What the request's key opens."""
        return self.access.environment


class RawReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: a status and JSON, or no body."""

    status: int
    body: bytes = b""


class RawRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route: `path` such as `/v1/message/{queue}`, of which the parts in braces are its parameters.

    A key needs `scope` to use it.

    The rest describes it in the OpenAPI document: the types of request bodies by content type, and of the
    answers with `success_status`; several types are alternatives.
    """

    method: str
    path: str
    handle: Callable[[RawRequest], Awaitable[RawReply]]
    summary: str
    description: str
    tag: str
    success_status: int
    scope: Scope = Scope.ADMIN
    requests: dict[str, tuple[Any, ...]] = {}
    request_headers: dict[str, str] = {}
    responses: tuple[Any, ...] = ()


class RawRoutes:
    """An ASGI application that serves raw routes itself and hands every other request on."""

    def __init__(self, routes: Sequence[RawRoute], keys: Keys, *, max_body_bytes: int, otherwise: ASGIApp) -> None:
        self._routes = {_shape(route.method, route.path.split("/")): route for route in routes}
        self._keys = keys
        self._max_body_bytes = max_body_bytes
        self._otherwise = otherwise

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == ScopeType.HTTP:
            parts = scope["path"].split("/")
            route = self._routes.get(_shape(scope["method"], parts))
            if route is not None:
                await self._serve(route, parts[3:], scope, receive, send)
                return
        await self._otherwise(scope, receive, send)

    def methods_at(self, path: str) -> list[str]:
        """The methods that raw routes take at a path."""
        parts = path.split("/")
        return [method for method, *shape in self._routes if (method, *shape) == _shape(method, parts)]

    async def _serve(
        self, route: RawRoute, parameters: Sequence[str], scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            access = await self._keys.authenticate(bearer_key(headers.get("authorization")))
            self._keys.admit(access, route.scope)
            _check_path(scope["path"])
            body = await self._read_body(headers, receive)
            reply = await route.handle(RawRequest(access=access, parameters=parameters, headers=headers, body=body))
            status, content, answer_headers = reply.status, reply.body, {"content-type": JSON} if reply.body else {}
        except Exception as error:  # noqa: BLE001 - every error becomes a problem, as on the framework's side
            problem = problem_of(error)
            status, content, answer_headers = problem.status, problem.body(), problem.headers()
        _counter(route.method, route.path, status).inc()
        answer_headers["content-length"] = str(len(content))
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in answer_headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": content, "more_body": False})

    async def _read_body(self, headers: dict[str, str], receive: Receive) -> bytes:
        announced = headers.get("content-length", "")
        # A length of more digits is too large whatever it says, and Python refuses to read thousands of them.
        if announced.isdecimal() and (len(announced) > _LONGEST_LENGTH or int(announced) > self._max_body_bytes):
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] != "http.request":
                raise InvalidInput("the connection closed before the body ended", field="body")
            chunks.append(event["body"])
            size += len(event["body"])
            if size > self._max_body_bytes:
                raise self._too_large()
            if not event["more_body"]:
                return b"".join(chunks)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"a request body holds at most {self._max_body_bytes} bytes", field="body")


@cache
def _counter(method: str, path: str, status: int) -> Counter:
    """Looked up once: finding a metric by its labels took 3 % of the time to accept an event."""
    return REQUESTS.labels(method=method, path=path, status=status)


def _check_path(path: str) -> None:
    # Servers put this character where the bytes of a path are not UTF-8.
    if "\N{REPLACEMENT CHARACTER}" in path:
        raise InvalidInput("the path is not valid UTF-8", field="path")


def _shape(method: str, parts: Sequence[str]) -> tuple[str, str, int]:
    """What tells raw routes apart: `/v1/message/{queue}` is ("PUT", "v1/message", 4)."""
    return (method, "/".join(parts[1:3]), len(parts))
