"""HTTP of the tasks: make, change, stop, run, look at them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter

from bellringer.edge.app import OpenedEnvironment, Routes
from bellringer.edge.decoding import decode_json
from bellringer.edge.model import Scope
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute
from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.history_routes import history_routes
from bellringer.scheduler.model import TaskState
from bellringer.scheduler.service import Tasks
from bellringer.scheduler.views import NewTask, OccurrenceView, TaskBody, TaskView, occurrence_view, task_view

TAG = "tasks"


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, by name. `next` goes into `after` for the page that follows, which may be empty."""

    tasks: list[TaskView]
    next: str | None


_NEW_TASK = msgspec.json.Decoder(NewTask)
_TASK_BODY = msgspec.json.Decoder(TaskBody)
_KEY = [{"key": list[str]()}]
_encode = msgspec.json.Encoder().encode


def scheduler_routes(tasks: Tasks) -> Routes:
    """The routes over the tasks of all environments."""

    async def create_task(request: RawRequest) -> RawReply:
        wanted = decode_json(request.body, _NEW_TASK)
        task, is_new = await tasks.create(request.environment.id, wanted.name, wanted.definition())
        return RawReply(status=201 if is_new else 200, body=_encode(task_view(task)))

    async def put_task(request: RawRequest) -> RawReply:
        definition = decode_json(request.body, _TASK_BODY).definition()
        task, is_new = await tasks.put(request.environment.id, request.parameters[0], definition)
        return RawReply(status=201 if is_new else 200, body=_encode(task_view(task)))

    async def delete_task(request: RawRequest) -> RawReply:
        await tasks.delete(request.environment.id, request.parameters[0])
        return RawReply(status=204)

    async def pause_task(request: RawRequest) -> RawReply:
        task = await tasks.pause(request.environment.id, request.parameters[0])
        return RawReply(status=200, body=_encode(task_view(task)))

    async def resume_task(request: RawRequest) -> RawReply:
        task = await tasks.resume(request.environment.id, request.parameters[0])
        return RawReply(status=200, body=_encode(task_view(task)))

    async def cancel_task(request: RawRequest) -> RawReply:
        task = await tasks.cancel(request.environment.id, request.parameters[0])
        return RawReply(status=200, body=_encode(task_view(task)))

    async def run_task(request: RawRequest) -> RawReply:
        occurrence = await tasks.run_now(request.environment.id, request.parameters[0])
        return RawReply(status=201, body=_encode(occurrence_view(occurrence)))

    @get("/v1/tasks", summary="List the tasks", tags=[TAG], security=_KEY)
    async def list_tasks(
        environment: OpenedEnvironment,
        in_state: Annotated[
            str | None, QueryParameter(name="state", enum=list(TaskState), description="Only those in that state")
        ] = None,
        prefix: Annotated[str, QueryParameter(description="Only those whose names begin so")] = "",
        after: Annotated[str, QueryParameter(description="Only those whose names come after this one")] = "",
        limit: Annotated[int, QueryParameter(description="How many at most, 1 to 1000")] = 50,
    ) -> TaskList:
        """The tasks of the key's environment by name. A page of active or finished ones may be short of its limit
        without being the last: while there is a `next`, there may be more.
        """
        page = await tasks.page(environment.id, state=_state(in_state), prefix=prefix, after=after, limit=limit)
        return TaskList(tasks=[task_view(task) for task in page.tasks], next=page.next)

    @get("/v1/tasks/{task:str}", summary="Show a task", tags=[TAG], security=_KEY)
    async def show_task(environment: OpenedEnvironment, task: FromPath[str]) -> TaskView:
        """One task, with when it fires next and how it went last."""
        return task_view(await tasks.read(environment.id, task))

    more = history_routes(tasks)
    return Routes(
        handlers=[list_tasks, show_task, *more.handlers],
        raw=[
            RawRoute(
                method="POST",
                path="/v1/tasks",
                handle=create_task,
                summary="Make a task",
                description="The name makes it idempotent: given again with the same definition it answers 200 with "
                "the task as it stands, and with another definition it is refused.",
                tag=TAG,
                success_status=201,
                scope=Scope.PUBLISH,
                requests={JSON: (NewTask,)},
                responses=(TaskView,),
            ),
            RawRoute(
                method="PUT",
                path="/v1/tasks/{task}",
                handle=put_task,
                summary="Make or change a task",
                description="Says everything about it: what is left out gets its default. Another schedule holds from "
                "now on, the same one goes on. A task that was cancelled is active again. A new one answers 201.",
                tag=TAG,
                success_status=200,
                scope=Scope.PUBLISH,
                requests={JSON: (TaskBody,)},
                responses=(TaskView,),
            ),
            RawRoute(
                method="DELETE",
                path="/v1/tasks/{task}",
                handle=delete_task,
                summary="Delete a task and its history",
                description="What runs comes to its end, and leaves no record.",
                tag=TAG,
                success_status=204,
            ),
            RawRoute(
                method="POST",
                path="/v1/tasks/{task}/pause",
                handle=pause_task,
                summary="Pause a task",
                description="Nothing of it starts until it is resumed, but what was asked for by hand and what is "
                "tried again.",
                tag=TAG,
                success_status=200,
                responses=(TaskView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/tasks/{task}/resume",
                handle=resume_task,
                summary="Resume a task",
                description="Its fire times from now on take place; those during the pause do not.",
                tag=TAG,
                success_status=200,
                responses=(TaskView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/tasks/{task}/cancel",
                handle=cancel_task,
                summary="Cancel a task",
                description="Nothing of it starts any more, unless it is put again. What runs comes to its end; the "
                "history stays.",
                tag=TAG,
                success_status=200,
                responses=(TaskView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/tasks/{task}/run",
                handle=run_task,
                summary="Run a task now",
                description="Beside its schedule, which stays as it is. Answers with the occurrence.",
                tag=TAG,
                success_status=201,
                scope=Scope.PUBLISH,
                responses=(OccurrenceView,),
            ),
            *more.raw,
        ],
    )


def _state(text: str | None) -> TaskState | None:
    try:
        return None if text is None else TaskState(text)
    except ValueError:
        raise InvalidInput(f"state must be one of {', '.join(TaskState)}", field="state") from None
