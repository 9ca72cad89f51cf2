"""The HTTP application: routes of all subsystems, one way to authenticate, one shape of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp, ControllerRouterHandler, Message, Scope
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bellringer import __version__
from bellringer.edge.decoding import invalid_input
from bellringer.edge.keys import Keys, bearer_key
from bellringer.edge.metrics import REQUESTS
from bellringer.edge.model import Environment
from bellringer.edge.openapi import openapi_document
from bellringer.edge.problems import Problem, problem, problem_of
from bellringer.edge.raw import RawRoute, RawRoutes
from bellringer.kernel.database import Database
from bellringer.kernel.errors import BellringerError, InvalidInput

AnyRequest = Request[Any, Any, Any]


class EdgeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to listen and what to take."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8080
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 4 * 1024 * 1024


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """What a subsystem hands to the edge."""

    handlers: Sequence[ControllerRouterHandler] = ()
    raw: Sequence[RawRoute] = ()
    refresh_metrics: Sequence[Callable[[], Awaitable[None]]] = ()


def build_app(config: EdgeConfig, database: Database, keys: Keys, subsystems: Sequence[Routes]) -> ASGIApp:
    """Put the routes of all subsystems behind one door."""

    async def authenticate(request: AnyRequest) -> Environment:
        return await keys.authenticate(bearer_key(request.headers.get("authorization")))

    raw_routes = [route for routes in subsystems for route in routes.raw]
    refreshes = [refresh for routes in subsystems for refresh in routes.refresh_metrics]
    app = Litestar(
        route_handlers=[
            *_health_handlers(database, refreshes),
            _openapi_json,
            *(handler for routes in subsystems for handler in routes.handlers),
        ],
        dependencies={"environment": Provide(authenticate)},
        exception_handlers={
            BellringerError: _answer_error,
            HTTPException: _answer_http_error,
            Exception: _answer_error,
        },
        before_send=[_count],
        openapi_config=OpenAPIConfig(
            title="Bellringer",
            version=__version__,
            description="Everything between “something happened” and “a person saw it”.",
            components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
            openapi_router=None,
            path="/unused",
        ),
        request_max_body_size=config.max_body_bytes,
        # Handlers speak for themselves: no default log of every error on top of ours.
        logging_config=None,
    )
    app.state.openapi = openapi_document(app, raw_routes)
    return RawRoutes(raw_routes, keys, max_body_bytes=config.max_body_bytes, otherwise=app)


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

    @get("/metrics", media_type=CONTENT_TYPE_LATEST, tags=["operation"], summary="Metrics for Prometheus")
    async def metrics() -> bytes:
        for refresh in refreshes:
            await refresh()
        return generate_latest()

    return [livez, readyz, metrics]


def _answer_error(_request: AnyRequest, error: Exception) -> Response[bytes]:
    return _answer(problem_of(error))


def _answer_http_error(_request: AnyRequest, error: HTTPException) -> Response[bytes]:
    if isinstance(error, ValidationException):
        return _answer(problem_of(_invalid_input(error)))
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


async def _count(message: Message, scope: Scope) -> None:
    if message["type"] == "http.response.start" and scope["type"] == ScopeType.HTTP:
        path = scope.get("path_template") or "unmatched"
        REQUESTS.labels(method=scope["method"], path=path, status=message["status"]).inc()
