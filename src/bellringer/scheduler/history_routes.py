"""HTTP of what became of tasks, and of what is to come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter

from bellringer.edge.app import OpenedEnvironment, Routes
from bellringer.edge.decoding import decode_json
from bellringer.edge.model import Scope
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute
from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.calendar import MinuteLoad
from bellringer.scheduler.history_store import ExecutorView, FunctionView
from bellringer.scheduler.model import Incident, IncidentKind, Schedule
from bellringer.scheduler.service import Tasks, preview
from bellringer.scheduler.views import OccurrenceDetail, OccurrenceView, occurrence_detail, occurrence_view

TAG = "task history"
EXECUTION = "task execution"


class OccurrenceList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of occurrences, the newest first. `next` goes into `before` for the page that follows."""

    occurrences: list[OccurrenceView]
    next: datetime | None


class IncidentList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of incidents, the newest first. `next` goes into `before` for the page that follows."""

    incidents: list[Incident]
    next: int | None


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """The minutes in which anything is to start."""

    minutes: list[MinuteLoad]


class ExecutorList(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that execute."""

    executors: list[ExecutorView]


class FunctionList(msgspec.Struct, frozen=True, kw_only=True):
    """The functions that tasks can call, by name."""

    functions: list[FunctionView]


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule, and how many of its fire times are wanted, 1 to 1000."""

    schedule: Schedule
    count: int = 10


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The first fire times of a schedule, if a task were made of it now."""

    fire_times: list[datetime]


_PREVIEW = msgspec.json.Decoder(PreviewRequest)
_KEY = [{"key": list[str]()}]
_encode = msgspec.json.Encoder().encode

Limit = Annotated[int, QueryParameter(description="How many at most, 1 to 1000")]


def history_routes(tasks: Tasks) -> Routes:
    """The routes for who looks at what happened, and mends it."""

    async def retry_occurrence(request: RawRequest) -> RawReply:
        name, fire_at = request.parameters
        occurrence = await tasks.retry(request.environment.id, name, _moment(fire_at, "fire_at"))
        return RawReply(status=200, body=_encode(occurrence_view(occurrence)))

    async def cancel_occurrence(request: RawRequest) -> RawReply:
        name, fire_at = request.parameters
        occurrence = await tasks.cancel_occurrence(request.environment.id, name, _moment(fire_at, "fire_at"))
        return RawReply(status=200, body=_encode(occurrence_view(occurrence)))

    async def preview_schedule(request: RawRequest) -> RawReply:
        wanted = decode_json(request.body, _PREVIEW)
        fire_times = preview(wanted.schedule, wanted.count, await tasks.now())
        return RawReply(status=200, body=_encode(Preview(fire_times=fire_times)))

    @get("/v1/tasks/{task:str}/occurrences", summary="List what became of a task", tags=[TAG], security=_KEY)
    async def list_occurrences(
        environment: OpenedEnvironment,
        task: FromPath[str],
        before: Annotated[str | None, QueryParameter(description="Only those with a fire time before this")] = None,
        limit: Limit = 50,
    ) -> OccurrenceList:
        """Its occurrences, the newest first, with those that are picked already for the next two minutes."""
        moment = None if before is None else _moment(before, "before")
        found = await tasks.occurrences(environment.id, task, before=moment, limit=limit)
        return OccurrenceList(
            occurrences=[occurrence_view(occurrence) for occurrence in found],
            next=found[-1].fire_at if len(found) == limit else None,
        )

    @get("/v1/tasks/{task:str}/occurrences/{fire_at:str}", summary="Show an occurrence", tags=[TAG], security=_KEY)
    async def show_occurrence(
        environment: OpenedEnvironment, task: FromPath[str], fire_at: FromPath[str]
    ) -> OccurrenceDetail:
        """One occurrence with its four times, and its attempts before the newest."""
        return occurrence_detail(*await tasks.occurrence(environment.id, task, _moment(fire_at, "fire_at")))

    @get("/v1/incidents", summary="List what did not go as planned", tags=[TAG], security=_KEY)
    async def list_incidents(
        environment: OpenedEnvironment,
        kind: Annotated[
            list[IncidentKind] | None, QueryParameter(description="Only those of that kind; may be repeated")
        ] = None,
        unresolved: Annotated[bool, QueryParameter(description="Only failures that nobody tried again")] = False,  # noqa: FBT002
        before: Annotated[int | None, QueryParameter(description="Only those with an id below this")] = None,
        limit: Limit = 50,
    ) -> IncidentList:
        """Starts later than promised, failures, fire times that were skipped, tasks that were refused."""
        found = await tasks.incidents(
            environment.id, kinds=kind or (), unresolved=unresolved, before=before, limit=limit
        )
        return IncidentList(incidents=found, next=found[-1].id if len(found) == limit else None)

    @get("/v1/calendar", summary="Show what is to come", tags=[TAG], security=_KEY)
    async def show_calendar(
        environment: OpenedEnvironment,
        start: Annotated[str | None, QueryParameter(description="From which minute on; now if left out")] = None,
        hours: Annotated[int, QueryParameter(description="How many hours, 1 to 168")] = 24,
    ) -> Calendar:
        """The minutes in which anything is to start, each with how many fire times lie in it. It ends early where the
        schedules fire too often to look at all of them.
        """
        moment = await tasks.now() if start is None else _moment(start, "start")
        return Calendar(minutes=await tasks.calendar(environment.id, moment, hours))

    @get("/v1/executors", summary="List the executors", tags=[EXECUTION], security=_KEY)
    async def list_executors(environment: OpenedEnvironment) -> ExecutorList:
        """The processes that run the calls of the key's environment."""
        found = await tasks.executors()
        return ExecutorList(executors=[one for one in found if one.environment_id in {None, environment.id}])

    @get("/v1/functions", summary="List the functions", tags=[EXECUTION], security=_KEY)
    async def list_functions(environment: OpenedEnvironment) -> FunctionList:
        """The functions that tasks of the key's environment can call."""
        return FunctionList(functions=await tasks.functions(environment.id))

    return Routes(
        handlers=[list_occurrences, show_occurrence, list_incidents, show_calendar, list_executors, list_functions],
        raw=[
            RawRoute(
                method="POST",
                path="/v1/tasks/{task}/occurrences/{fire_at}/retry",
                handle=retry_occurrence,
                summary="Try an occurrence again",
                description="One that is over and did not succeed is due at once, as another attempt.",
                tag=TAG,
                success_status=200,
                responses=(OccurrenceView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/tasks/{task}/occurrences/{fire_at}/cancel",
                handle=cancel_occurrence,
                summary="Cancel an occurrence",
                description="One that has not started does not start; one that runs is stopped within a second or so.",
                tag=TAG,
                success_status=200,
                responses=(OccurrenceView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/schedules/preview",
                handle=preview_schedule,
                summary="Show when a schedule fires",
                description="Without making a task of it.",
                tag=TAG,
                success_status=200,
                scope=Scope.PUBLISH,
                requests={JSON: (PreviewRequest,)},
                responses=(Preview,),
            ),
        ],
    )


def _moment(text: str, field: str) -> datetime:
    """A time in ISO 8601, with its offset from UTC. Raises `InvalidInput`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{field} must be a time such as 2026-01-05T10:01:00Z", field=field) from None
    if moment.tzinfo is None:
        raise InvalidInput("the time lacks an offset from UTC, such as Z or +02:00", field=field)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidInput("the time is out of range", field=field) from None
