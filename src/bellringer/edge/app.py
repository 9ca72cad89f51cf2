"""The HTTP application: routes of all subsystems, one way to authenticate, one shape of errors."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPMethod, HTTPStatus
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import NamedDependency, Provide
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp, ControllerRouterHandler, Message
from litestar.types import Scope as ConnectionScope
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bellringer import __version__
from bellringer.edge.decoding import invalid_input
from bellringer.edge.keys import Keys, bearer_key
from bellringer.edge.metrics import REQUESTS
from bellringer.edge.model import Environment, Scope
from bellringer.edge.openapi import openapi_document
from bellringer.edge.problems import Problem, problem, problem_of
from bellringer.edge.raw import RawProtocol, RawRoute, RawRoutes, while_receiving
from bellringer.kernel.database import Database
from bellringer.kernel.errors import BellringerError, InvalidInput

T = TypeVar("T")

AnyRequest = Request[Any, Any, Any]

OpenedEnvironment: TypeAlias = NamedDependency[Environment]
"""The parameter `environment` of a handler: what the request's key opens.

The key needs the scope that the handler names, as in `@get(path, opt={"scope": Scope.CONSUME})`: without one, admin.
"""


class EdgeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to listen and what to take."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8080
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise ValueError("host must be an IP address, such as 127.0.0.1 or 0.0.0.0") from None


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """What a subsystem hands to the edge."""

    handlers: Sequence[ControllerRouterHandler] = ()
    raw: Sequence[RawRoute] = ()
    protocols: Sequence[RawProtocol] = ()
    refresh_metrics: Sequence[Callable[[], Awaitable[None]]] = ()


def build_app(config: EdgeConfig, database: Database, keys: Keys, subsystems: Sequence[Routes]) -> ASGIApp:
    """Put the routes of all subsystems behind one door."""

    async def authenticate(request: AnyRequest) -> Environment:
        access = await keys.authenticate(bearer_key(request.headers.get("authorization")))
        keys.admit(access, request.route_handler.opt.get("scope", Scope.ADMIN))
        return access.environment

    def answer_http_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
        return _answer_http_error(error, door.methods_at(request.scope["path"]))

    raw_routes = [route for routes in subsystems for route in routes.raw]
    refreshes = [refresh for routes in subsystems for refresh in routes.refresh_metrics]
    handlers = [
        *_health_handlers(database, refreshes),
        *(handler for routes in subsystems for handler in routes.handlers),
    ]
    dependencies = {"environment": Provide(authenticate)}
    app = Litestar(
        route_handlers=[*handlers, _openapi_json],
        dependencies=dependencies,
        exception_handlers={
            BellringerError: _answer_error,
            HTTPException: answer_http_error,
            Exception: _answer_error,
        },
        before_send=[_count],
        openapi_config=None,
        request_max_body_size=config.max_body_bytes,
        # Handlers speak for themselves: no default log of every error on top of ours.
        logging_config=None,
    )
    # An application of its own, never served: with a document come pages of the framework's, at a path of its choice.
    described = Litestar(
        route_handlers=handlers,
        dependencies=dependencies,
        openapi_config=OpenAPIConfig(
            title="Bellringer",
            version=__version__,
            description="Everything between “something happened” and “a person saw it”.",
            use_handler_docstrings=True,
            components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
        ),
        logging_config=None,
    )
    app.state.openapi = openapi_document(described, raw_routes)
    protocols = [protocol for routes in subsystems for protocol in routes.protocols]
    door = RawRoutes(raw_routes, keys, max_body_bytes=config.max_body_bytes, otherwise=app, protocols=protocols)
    return door


async def while_connected(request: AnyRequest, work: Coroutine[Any, Any, T]) -> T:
    """Do work that may take long for a client that may hang up: then it is cancelled, and `Unavailable` raised."""
    return await while_receiving(request.receive, work)


@get("/v1/openapi.json", media_type=MediaType.JSON, include_in_schema=False, sync_to_thread=False)
def _openapi_json(request: AnyRequest) -> dict[str, Any]:
    document: dict[str, Any] = request.app.state.openapi
    return document


def _health_handlers(
    database: Database, refreshes: Sequence[Callable[[], Awaitable[None]]]
) -> list[ControllerRouterHandler]:
    @get(
        "/livez",
        media_type=MediaType.TEXT,
        tags=["operation"],
        summary="Whether the process runs",
        sync_to_thread=False,
    )
    def livez() -> str:
        return "alive\n"

    @get("/readyz", media_type=MediaType.TEXT, tags=["operation"], summary="Whether it can do its work")
    async def readyz() -> str:
        async with database.connection() as connection:
            await connection.execute("SELECT 1")
        return "ready\n"

    @get("/metrics", media_type=MediaType.TEXT, tags=["operation"], summary="Metrics for Prometheus")
    async def metrics() -> Response[bytes]:
        for refresh in refreshes:
            await refresh()
        # As a header: the framework adds a second charset to a media type, and Prometheus refuses two.
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})

    return [livez, readyz, metrics]


def _answer_error(_request: AnyRequest, error: Exception) -> Response[bytes]:
    return _answer(problem_of(error))


def _answer_http_error(error: HTTPException, raw_methods: Sequence[str]) -> Response[bytes]:
    """An error of the framework's, which knows nothing of the methods that raw routes take at the same path."""
    if isinstance(error, ValidationException):
        return _answer(problem_of(_invalid_input(error)))
    if isinstance(error, MethodNotAllowedException) or (isinstance(error, NotFoundException) and raw_methods):
        allowed = (error.headers or {}).get("allow", "").split(", ")
        refused = _answer(problem(HTTPStatus.METHOD_NOT_ALLOWED, "this path does not take this method"))
        refused.headers["allow"] = ", ".join(sorted({*allowed, *raw_methods} - {""}))
        return refused
    return _answer(problem(HTTPStatus(error.status_code), error.detail))


def _invalid_input(error: ValidationException) -> InvalidInput:
    """The framework's list of faults as one, with the field where the caller put it."""
    faults = error.extra if isinstance(error.extra, list) else []
    fault = faults[0] if faults and isinstance(faults[0], dict) else {}
    found = invalid_input(str(fault.get("message", error.detail)))
    key = str(fault.get("key", ""))
    if key and key != "data":
        found.field = key
    return found


def _answer(answer: Problem) -> Response[bytes]:
    return Response(content=answer.body(), status_code=answer.status, headers=answer.headers())


async def _count(message: Message, scope: ConnectionScope) -> None:
    if message["type"] == "http.response.start" and scope["type"] == ScopeType.HTTP:
        path = scope.get("path_template") or "unmatched"
        # A client may invent methods, and each would stay in memory.
        method = scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"
        REQUESTS.labels(method=method, path=path, status=message["status"]).inc()
