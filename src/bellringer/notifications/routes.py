"""HTTP of notifications: events in, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import delete, get
from litestar.params import FromPath, QueryParameter

from bellringer.edge.app import OpenedEnvironment, Routes
from bellringer.edge.decoding import decode_json
from bellringer.edge.model import Scope
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.channels.model import CapturedMail, CapturedMessage
from bellringer.notifications.intake import CloudEvent, PlainEvent, read_events
from bellringer.notifications.model import Notification, Overview, TimelineEntry, Workflow
from bellringer.notifications.service import Notifications

_KEY: list[dict[str, list[str]]] = [{"key": []}]


class AcceptedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The id of the notification that an event became."""

    id: UUID


class AcceptedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of a batch, in the order given."""

    ids: Sequence[UUID]


class NotificationList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of notifications, newest first. `next` goes into `before` for the page that follows."""

    notifications: list[Notification]
    next: UUID | None


class NotificationDetail(Notification, frozen=True, kw_only=True):
    """A notification and its steps so far."""

    timeline: list[TimelineEntry]


class WorkflowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How events of a type are handled: how long a digest gathers them, 0 to 604800 seconds."""

    digest_window_seconds: int


class WorkflowList(msgspec.Struct, frozen=True, kw_only=True):
    """The types with settings of their own."""

    workflows: Sequence[Workflow]


class CapturedMailList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of captured mail, newest first. `next` goes into `before` for the page that follows."""

    captured_mail: list[CapturedMail]
    next: UUID | None


_WORKFLOW_SETTINGS = msgspec.json.Decoder(WorkflowSettings)
_encode = msgspec.json.Encoder().encode

Before = Annotated[UUID | None, QueryParameter(description="Only what is older than this id")]
Limit = Annotated[int, QueryParameter(description="How many at most, 1 to 200")]


def notification_routes(notifications: Notifications, mailbox: CapturedMailbox) -> Routes:
    """The routes over the notifications of all environments."""

    async def accept(request: RawRequest) -> RawReply:
        intake = read_events(request.headers, request.body)
        ids = await notifications.accept(request.environment.id, intake.submissions)
        return RawReply(
            status=202, body=_encode(AcceptedEvents(ids=ids) if intake.is_batch else AcceptedEvent(id=ids[0]))
        )

    async def put_workflow(request: RawRequest) -> RawReply:
        settings = decode_json(request.body, _WORKFLOW_SETTINGS)
        workflow = await notifications.put_workflow(
            request.environment.id, request.parameters[0], settings.digest_window_seconds
        )
        return RawReply(status=200, body=_encode(workflow))

    @get("/v1/notifications", tags=["events"], summary="List notifications", security=_KEY)
    async def list_notifications(
        environment: OpenedEnvironment, before: Before = None, limit: Limit = 50
    ) -> NotificationList:
        """The notifications of the key's environment, newest first."""
        page = await notifications.list_notifications(environment.id, before=before, limit=limit)
        return NotificationList(notifications=page, next=page[-1].id if len(page) == limit else None)

    @get("/v1/notifications/{notification_id:uuid}", tags=["events"], summary="Show a notification", security=_KEY)
    async def show_notification(environment: OpenedEnvironment, notification_id: FromPath[UUID]) -> NotificationDetail:
        """A notification with its timeline: accepted, in digest, digest closed, and per recipient sent or failed."""
        notification, timeline = await notifications.get(environment.id, notification_id)
        return NotificationDetail(**msgspec.structs.asdict(notification), timeline=timeline)

    # The scope of those who send events: `bellringer replay` asks for it before it sends any.
    @get("/v1/overview", tags=["events"], summary="Count what happened", security=_KEY, opt={"scope": Scope.PUBLISH})
    async def overview(environment: OpenedEnvironment) -> Overview:
        """What the environment has done since it began."""
        return await notifications.overview(environment.id)

    @get("/v1/workflows", tags=["workflows"], summary="List the workflows", security=_KEY)
    async def list_workflows(environment: OpenedEnvironment) -> WorkflowList:
        """The event types with settings of their own; every other type has the defaults."""
        return WorkflowList(workflows=await notifications.list_workflows(environment.id))

    @delete("/v1/workflows/{event_type:str}", tags=["workflows"], summary="Return to the defaults", security=_KEY)
    async def delete_workflow(environment: OpenedEnvironment, event_type: FromPath[str]) -> None:
        """Remove a type's own settings."""
        await notifications.delete_workflow(environment.id, event_type)

    @get("/v1/captured-mail", tags=["captured mail"], summary="List captured mail", security=_KEY)
    async def list_mail(environment: OpenedEnvironment, before: Before = None, limit: Limit = 50) -> CapturedMailList:
        """What the capture server took instead of a real one, newest first."""
        page = await mailbox.list_mail(environment.id, before=before, limit=limit)
        return CapturedMailList(captured_mail=page, next=page[-1].id if len(page) == limit else None)

    @get("/v1/captured-mail/{mail_id:uuid}", tags=["captured mail"], summary="Show captured mail", security=_KEY)
    async def show_mail(environment: OpenedEnvironment, mail_id: FromPath[UUID]) -> CapturedMessage:
        """One message: its source, its text and its HTML."""
        return await mailbox.get(environment.id, mail_id)

    return Routes(
        handlers=[
            list_notifications,
            show_notification,
            overview,
            list_workflows,
            delete_workflow,
            list_mail,
            show_mail,
        ],
        raw=[
            RawRoute(
                method="POST",
                path="/v1/events",
                handle=accept,
                summary="Tell what happened, and whom",
                description="Takes one event or a batch of up to 1000 (a JSON array), plain or as CloudEvents 1.0 in "
                "structured or batch mode. Answers after the commit; a batch is stored all or none.",
                tag="events",
                success_status=202,
                scope=Scope.PUBLISH,
                requests={
                    JSON: (PlainEvent, list[PlainEvent]),
                    "application/cloudevents+json": (CloudEvent,),
                    "application/cloudevents-batch+json": (list[CloudEvent],),
                },
                request_headers={
                    "Idempotency-Key": "Up to 255 characters. For 24 hours the same key with the same body answers "
                    "with the same ids and queues nothing; with another body it is refused."
                },
                responses=(AcceptedEvent, AcceptedEvents),
            ),
            RawRoute(
                method="PUT",
                path="/v1/workflows/{event_type}",
                handle=put_workflow,
                summary="Set the digest window",
                description="Sets how long events of a type are gathered. It holds for events that join a digest from "
                "then on.",
                tag="workflows",
                success_status=200,
                requests={JSON: (WorkflowSettings,)},
                responses=(Workflow,),
            ),
        ],
    )
