"""Raw routes: served in front of the web framework. Those that take a request per message are here for speed, and
every other one with a JSON body because the framework reads `"1"` where a number is asked for.

Authentication, size limit and problem details are the same on both sides, and the OpenAPI document lists both
(`bellringer.edge.openapi`). A server hands requests over as `Incoming`: `bellringer.edge.rsgi` does, and `RawRoutes`
is an ASGI application beside that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from http import HTTPMethod
from typing import Any, TypeVar

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Send
from litestar.types import Scope as ConnectionScope
from prometheus_client import Counter

from bellringer.edge.incoming import AsgiIncoming, Incoming
from bellringer.edge.keys import Keys, bearer_key
from bellringer.edge.metrics import REQUESTS
from bellringer.edge.model import Access, Environment, Scope
from bellringer.edge.problems import problem_of
from bellringer.kernel.errors import InvalidInput, Unavailable

T = TypeVar("T")

JSON = "application/json"


class RawRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose key was accepted and whose body was read. Header names are in lower case.

    `query` is as sent, percent-encoded; `receive` tells when the client hangs up (see `while_receiving`).
    """

    access: Access
    parameters: Sequence[str]
    query: str
    headers: Mapping[str, str]
    body: bytes
    receive: Receive

    @property
    def environment(self) -> Environment:
        """What the request's key opens."""
        return self.access.environment


class RawReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: a status and JSON, or what its headers say, or no body."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = {}

    def all_headers(self) -> dict[str, str]:
        """The headers to send, but for the length."""
        return ({"content-type": JSON} if self.body else {}) | self.headers


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


class RawExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request that nobody has authenticated and whose body is still to be read. Header names are in lower case.

    `path` and `query` are as sent, percent-encoded. `read_body` raises `TooLarge`, and `InvalidInput` when the
    connection closes; `receive` tells of that later.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    read_body: Callable[[], Awaitable[bytes]]
    receive: Receive


class RawProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol that is not ours: it takes requests by method and path, and answers them all by itself.

    `takes` says so for a method and a decoded path; raw routes come first. `answer` authenticates, and puts every error
    into the shape that its clients expect. Requests are counted under the name of the protocol.
    """

    name: str
    takes: Callable[[str, str], bool]
    answer: Callable[[RawExchange], Awaitable[RawReply]]


class RawRoutes:
    """Answers requests to raw routes and protocols; as an ASGI application, it hands every other one on."""

    def __init__(
        self,
        routes: Sequence[RawRoute],
        keys: Keys,
        *,
        max_body_bytes: int,
        otherwise: ASGIApp,
        protocols: Sequence[RawProtocol] = (),
    ) -> None:
        self.otherwise = otherwise
        self._patterns: dict[tuple[str, str, int], list[_Pattern]] = {}
        for pattern in sorted(map(_pattern, routes), key=lambda pattern: -len(pattern.literals)):
            parts = pattern.route.path.split("/")
            self._patterns.setdefault(_shape(pattern.route.method, parts), []).append(pattern)
        self._protocols = protocols
        self._keys = keys
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        """Serve one connection as ASGI."""
        if scope["type"] == ScopeType.HTTP:
            reply = await self.answer(AsgiIncoming(scope, receive))
            if reply is not None:
                await _send(reply, send)
                return
        await self.otherwise(scope, receive, send)

    async def answer(self, incoming: Incoming) -> RawReply | None:
        """The reply to a request, which is never an exception; None when no route and no protocol takes it."""
        parts = incoming.path.split("/")
        pattern = self._find(incoming.method, parts)
        if pattern is not None:
            route = pattern.route
            reply = await self._answer_route(route, [parts[index] for index in pattern.parameters], incoming)
            _counter(route.method, route.path, reply.status).inc()
            return reply
        for protocol in self._protocols:
            if protocol.takes(incoming.method, incoming.path):
                reply = await self._answer_protocol(protocol, incoming)
                _counter(incoming.method, protocol.name, reply.status).inc()
                return reply
        return None

    def _find(self, method: str, parts: Sequence[str]) -> _Pattern | None:
        """The pattern that fits the parts of a path: the one that names most of them."""
        for pattern in self._patterns.get(_shape(method, parts), ()):
            if pattern.fits(parts):
                return pattern
        return None

    def methods_at(self, path: str) -> list[str]:
        """The methods that raw routes and protocols take at a path."""
        parts = path.split("/")
        of_routes = [method for method in HTTPMethod if self._find(method, parts) is not None]
        of_protocols = [method for method in HTTPMethod if any(one.takes(method, path) for one in self._protocols)]
        return [*of_routes, *of_protocols]

    async def _answer_route(self, route: RawRoute, parameters: Sequence[str], incoming: Incoming) -> RawReply:
        try:
            access = await self._keys.authenticate(bearer_key(incoming.authorization))
            self._keys.admit(access, route.scope)
            _check_path(incoming.path)
            return await route.handle(
                RawRequest(
                    access=access,
                    parameters=parameters,
                    query=incoming.query,
                    headers=incoming.headers,
                    body=await incoming.read_body(self._max_body_bytes),
                    receive=incoming.receive,
                )
            )
        except Exception as error:  # noqa: BLE001 - every error becomes a problem, as on the framework's side
            return _refusal(error)

    async def _answer_protocol(self, protocol: RawProtocol, incoming: Incoming) -> RawReply:
        exchange = RawExchange(
            method=incoming.method,
            path=incoming.encoded_path,
            query=incoming.query,
            headers=incoming.headers,
            read_body=partial(incoming.read_body, self._max_body_bytes),
            receive=incoming.receive,
        )
        try:
            return await protocol.answer(exchange)
        except Exception as error:  # noqa: BLE001 - a fault of ours, which the protocol has no words for
            return _refusal(error)


async def while_receiving(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do work that may take long for a client that may hang up: then it is cancelled, and `Unavailable` raised.

    The body of the request must have been read.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        if working.cancelled():
            raise Unavailable("the client has gone")
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(error: Exception) -> RawReply:
    problem = problem_of(error)
    return RawReply(status=problem.status, body=problem.body(), headers=problem.headers())


async def _send(reply: RawReply, send: Send) -> None:
    headers = reply.all_headers() | {"content-length": str(len(reply.body))}
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


@cache
def _counter(method: str, path: str, status: int) -> Counter:
    """Looked up once: finding a metric by its labels took 3 % of the time to accept an event."""
    return REQUESTS.labels(method=method, path=path, status=status)


def _check_path(path: str) -> None:
    # Servers put this character where the bytes of a path are not UTF-8.
    if "\N{REPLACEMENT CHARACTER}" in path:
        raise InvalidInput("the path is not valid UTF-8", field="path")


def _shape(method: str, parts: Sequence[str]) -> tuple[str, str, int]:
    """What most raw routes differ in: `/v1/message/{queue}` is ("PUT", "v1/message", 4)."""
    return (method, "/".join(parts[1:3]), len(parts))


class _Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Where the path of a route has words behind its first two, and where its parameters."""

    route: RawRoute
    literals: tuple[tuple[int, str], ...]
    parameters: tuple[int, ...]

    def fits(self, parts: Sequence[str]) -> bool:
        """Whether parts of the right shape have those words."""
        for index, word in self.literals:  # noqa: SIM110 - most have none, and a generator costs a third of a µs
            if parts[index] != word:
                return False
        return True


def _pattern(route: RawRoute) -> _Pattern:
    behind = list(enumerate(route.path.split("/")))[3:]
    return _Pattern(
        route=route,
        literals=tuple((index, part) for index, part in behind if not part.startswith("{")),
        parameters=tuple(index for index, part in behind if part.startswith("{")),
    )
