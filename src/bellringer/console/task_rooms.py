"""HTTP of the rooms of the scheduler: tasks, one task, an occurrence, the calendar, failures, and what can be done."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from bellringer.console.bodies import shown
from bellringer.console.fragments import View, view_of
from bellringer.console.pages import Pages, base_url, redirect
from bellringer.console.session import AnyRequest, SignedIn
from bellringer.console.task_reader import TaskReader, moment_of
from bellringer.edge.model import Environment
from bellringer.scheduler.model import Task
from bellringer.scheduler.service import Tasks

_FAILURES = "/console/failures"
_PAYLOAD_CHARACTERS = 20_000


def task_rooms(pages: Pages, reader: TaskReader, tasks: Tasks) -> list[ControllerRouterHandler]:
    """All handlers."""
    return [*_lists(pages, reader), *_one_task(pages, reader), *_actions(tasks), *_cancel(pages, tasks)]


def _lists(pages: Pages, reader: TaskReader) -> list[ControllerRouterHandler]:
    async def page(template: str, request: AnyRequest, environment: Environment, view: View) -> Response[str]:
        values = await reader.read(environment, view)
        return pages.page(template, environment=environment, base_url=base_url(request), **values)

    @get("/console/tasks")
    async def list_tasks(request: AnyRequest, environment: SignedIn) -> Response[str]:
        return await page("tasks.html", request, environment, _view(request, room="tasks"))

    @get("/console/calendar")
    async def calendar(request: AnyRequest, environment: SignedIn) -> Response[str]:
        return await page("calendar.html", request, environment, _view(request, room="calendar"))

    @get(_FAILURES)
    async def failures(request: AnyRequest, environment: SignedIn) -> Response[str]:
        return await page("failures.html", request, environment, _view(request, room="failures"))

    return [list_tasks, calendar, failures]


def _one_task(pages: Pages, reader: TaskReader) -> list[ControllerRouterHandler]:
    @get("/console/tasks/{name:str}")
    async def task(request: AnyRequest, environment: SignedIn, name: FromPath[str]) -> Response[str]:
        values = await reader.read(environment, _view(request, room="task", name=name))
        raw = bytes(values["task"].definition.payload)
        payload = None if raw == b"null" else shown(raw, most_characters=_PAYLOAD_CHARACTERS)
        return pages.page("task.html", environment=environment, base_url=base_url(request), payload=payload, **values)

    @get("/console/tasks/{name:str}/occurrences/{fire_at:str}")
    async def occurrence(environment: SignedIn, name: FromPath[str], fire_at: FromPath[str]) -> Response[str]:
        values = await reader.read(environment, View(room="occurrence", name=name, at=fire_at))
        return pages.page("occurrence.html", environment=environment, **values)

    return [task, occurrence]


def _actions(tasks: Tasks) -> list[ControllerRouterHandler]:
    @post("/console/tasks/{name:str}/pause")
    async def pause(environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        return _to(await tasks.pause(environment.id, name))

    @post("/console/tasks/{name:str}/resume")
    async def resume(environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        return _to(await tasks.resume(environment.id, name))

    @post("/console/tasks/{name:str}/run")
    async def run(environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        occurrence = await tasks.run_now(environment.id, name)
        return redirect(f"/console/tasks/{occurrence.task}#history")

    @post("/console/tasks/{name:str}/occurrences/{fire_at:str}/retry")
    async def retry(
        request: AnyRequest, environment: SignedIn, name: FromPath[str], fire_at: FromPath[str]
    ) -> Response[Any]:
        occurrence = await tasks.retry(environment.id, name, moment_of(fire_at))
        is_from_failures = (await request.form()).get("from") == "failures"
        return redirect(_FAILURES if is_from_failures else f"/console/tasks/{occurrence.task}#history")

    @post("/console/tasks/{name:str}/occurrences/{fire_at:str}/cancel")
    async def cancel_occurrence(environment: SignedIn, name: FromPath[str], fire_at: FromPath[str]) -> Response[Any]:
        occurrence = await tasks.cancel_occurrence(environment.id, name, moment_of(fire_at))
        return redirect(f"/console/tasks/{occurrence.task}#history")

    return [pause, resume, run, retry, cancel_occurrence]


def _cancel(pages: Pages, tasks: Tasks) -> list[ControllerRouterHandler]:
    def confirmation(environment: Environment, task: Task, *, typed: str | None = None) -> Response[str]:
        status = HTTPStatus.OK if typed is None else HTTPStatus.UNPROCESSABLE_ENTITY
        return pages.page("cancel-task.html", environment=environment, status=status, task=task, typed=typed)

    @get("/console/tasks/{name:str}/cancel")
    async def confirm_cancel(environment: SignedIn, name: FromPath[str]) -> Response[str]:
        return confirmation(environment, await tasks.read(environment.id, name))

    @post("/console/tasks/{name:str}/cancel")
    async def cancel(request: AnyRequest, environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        task = await tasks.read(environment.id, name)
        typed = str((await request.form()).get("name", "")).strip()
        if typed != task.name:
            return confirmation(environment, task, typed=typed)
        return _to(await tasks.cancel(environment.id, name))

    return [confirm_cancel, cancel]


def _view(request: AnyRequest, **known: str) -> View:
    """The view of a page; a filter that was typed may have blanks around it."""
    return view_of({name: value.strip() for name, value in request.query_params.items()}, **known)


def _to(task: Task) -> Response[Any]:
    return redirect(f"/console/tasks/{task.name}")
