"""HTTP of the console: its rooms, its stream, its static files and the page that explains the API."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any
from uuid import UUID

import msgspec
from litestar import MediaType, Response, Router, asgi, get
from litestar.di import Provide
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler, Receive, Scope, Send

from bellringer.broker import Broker
from bellringer.broker.moves import Moves
from bellringer.console.fragments import view_of
from bellringer.console.live import Feeds, Streamer
from bellringer.console.pages import MAIL_HEADERS, STATIC_PATH, Pages, base_url, redirect
from bellringer.console.queue_rooms import queue_rooms
from bellringer.console.reference import reference_of
from bellringer.console.session import (
    HOME,
    AnyRequest,
    SessionEnded,
    Sessions,
    SignedIn,
    key_of,
    refuse_other_sites,
    session_handlers,
    to_login,
)
from bellringer.console.snapshot import PAGE_SIZE, SnapshotReader
from bellringer.console.task_reader import TaskReader
from bellringer.console.task_rooms import task_rooms
from bellringer.console.timeline import MOST_ADDRESSES, outline_of
from bellringer.edge.app import Routes
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.edge.problems import problem, problem_of
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.errors import BellringerError, NotFound
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.service import Notifications
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.samples import Samples
from bellringer.scheduler.service import Tasks

_LARGEST_SOURCE_SHOWN = 256 * 1024
_IMMUTABLE = "public, max-age=31536000, immutable"
# The framework's router does not step back: each level that takes a parameter needs a catch-all of its own.
_ELSEWHERE = [
    "/console/{rest:path}",
    "/console/logout",
    "/console/queues/{name:str}/{rest:path}",
    "/console/queues/{name:str}/messages/{message_id:str}/{rest:path}",
    "/console/tasks/{name:str}/{rest:path}",
    "/console/tasks/{name:str}/occurrences/{fire_at:str}/{rest:path}",
    "/console/notifications/{name:str}/{rest:path}",
    "/console/mail/{name:str}/{rest:path}",
]


def console_routes(
    keys: Keys,
    broker: Broker,
    moves: Moves,
    notifications: Notifications,
    mailbox: CapturedMailbox,
    tasks: Tasks,
    samples: Samples,
    scheduler: SchedulerConfig,
    stopping: asyncio.Event,
) -> Routes:
    """The console over the services. Its streams end when `stopping` is set."""
    clock = SystemClock()
    pages = Pages(clock)
    reader = SnapshotReader(broker, moves, notifications, mailbox, clock)
    task_reader = TaskReader(tasks, samples, scheduler)
    sessions = Sessions(keys)
    streamer = Streamer(keys, Feeds(reader, task_reader, pages, clock), stopping)

    # Functions and no methods: the framework copies a router with all that its members are bound to.
    async def environment_of(request: AnyRequest) -> Environment:
        return await sessions.environment(request)

    def answer_error(request: AnyRequest, error: Exception) -> Response[Any]:
        if isinstance(error, SessionEnded):
            return to_login(request)
        found = problem(HTTPStatus(error.status_code), error.detail) if isinstance(error, HTTPException) else None
        return pages.error_page(found or problem_of(error), request.scope["state"].get("environment"))

    router = Router(
        path="/",
        route_handlers=[
            *session_handlers(keys, sessions, pages),
            *_rooms(pages, reader),
            *queue_rooms(pages, reader, broker, moves),
            *task_rooms(pages, task_reader, tasks),
            *_notification_rooms(pages, notifications),
            *_mail_rooms(pages, mailbox),
            _stream(streamer),
            *_public_handlers(pages, sessions),
        ],
        dependencies={"environment": Provide(environment_of)},
        guards=[refuse_other_sites],
        # Each class that the application answers itself: a handler of its base would not come before that.
        exception_handlers=dict.fromkeys((BellringerError, HTTPException, Exception), answer_error),
        include_in_schema=False,
    )
    return Routes(handlers=[router])


def _rooms(pages: Pages, reader: SnapshotReader) -> list[ControllerRouterHandler]:
    @get("/console")
    async def overview(request: AnyRequest, environment: SignedIn) -> Response[str]:
        snapshot = await reader.read(environment)
        parts = {**msgspec.structs.asdict(snapshot), "is_new": snapshot.is_new}
        return pages.page("overview.html", environment=environment, base_url=base_url(request), **parts)

    @get(_ELSEWHERE)
    async def elsewhere(environment: SignedIn) -> None:  # noqa: ARG001 - only who is signed in is told
        raise NotFoundException("There is nothing at this address.")

    return [overview, elsewhere]


def _notification_rooms(pages: Pages, notifications: Notifications) -> list[ControllerRouterHandler]:
    @get("/console/notifications")
    async def list_notifications(environment: SignedIn, before: FromQuery[str] = "") -> Response[str]:
        page = await notifications.list_summaries(
            environment.id, before=_id_of(before) if before else None, limit=PAGE_SIZE + 1
        )
        return pages.page("notifications.html", environment=environment, notifications=page, is_first=not before)

    @get("/console/notifications/{notification_id:str}")
    async def notification(environment: SignedIn, notification_id: FromPath[str]) -> Response[str]:
        found, timeline = await notifications.get(environment.id, _id_of(notification_id))
        return pages.page(
            "notification.html",
            environment=environment,
            notification=found,
            outline=outline_of(found, timeline),
            most_addresses=MOST_ADDRESSES,
        )

    return [list_notifications, notification]


def _mail_rooms(pages: Pages, mailbox: CapturedMailbox) -> list[ControllerRouterHandler]:
    @get("/console/mail")
    async def list_mail(environment: SignedIn, before: FromQuery[str] = "") -> Response[str]:
        page = await mailbox.list_mail(environment.id, before=_id_of(before) if before else None, limit=PAGE_SIZE + 1)
        return pages.page("mail.html", environment=environment, mail=page, is_first=not before)

    @get("/console/mail/{mail_id:str}")
    async def message(environment: SignedIn, mail_id: FromPath[str], view: FromQuery[str] = "") -> Response[str]:
        found = await mailbox.get(environment.id, _id_of(mail_id))
        views = [name for name in ("html", "text") if getattr(found, name)] + ["source"]
        return pages.page(
            "message.html",
            environment=environment,
            message=found,
            views=views,
            view=view if view in views else views[0],
            source_shown=_LARGEST_SOURCE_SHOWN,
        )

    @get("/console/mail/{mail_id:str}/html")
    async def message_html(environment: SignedIn, mail_id: FromPath[str]) -> Response[str]:
        found = await mailbox.get(environment.id, _id_of(mail_id))
        return Response(found.html, media_type=MediaType.HTML, headers=dict(MAIL_HEADERS))

    return [list_mail, message, message_html]


def _stream(streamer: Streamer) -> ControllerRouterHandler:
    @asgi("/console/live", copy_scope=False)
    async def live(scope: Scope, receive: Receive, send: Send) -> None:
        request = AnyRequest(scope, receive, send)
        await streamer.serve(key_of(request), view_of(dict(request.query_params)), receive, send)

    return live


def _public_handlers(pages: Pages, sessions: Sessions) -> list[ControllerRouterHandler]:
    @get("/", sync_to_thread=False)
    def home() -> Redirect:
        return redirect(HOME)

    @get(STATIC_PATH + "/{asset_version:str}/{name:str}", sync_to_thread=False)
    def static(asset_version: FromPath[str], name: FromPath[str]) -> Response[bytes]:
        asset = pages.asset(asset_version, name)
        headers = {"cache-control": _IMMUTABLE, "x-content-type-options": "nosniff"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    @get("/docs")
    async def docs(request: AnyRequest) -> Response[str]:
        return pages.page(
            "docs.html",
            environment=await sessions.environment_if_any(request),
            reference=reference_of(request.app.state.openapi),
            base_url=base_url(request),
        )

    return [home, static, docs]


def _id_of(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("There is nothing with this id.") from None
