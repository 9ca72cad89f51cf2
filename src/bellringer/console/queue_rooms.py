"""HTTP of the rooms of the queues: the list, a queue, a message of it, and what can be done there.

The queues of the pipeline are shown and nothing more: their messages belong to all environments.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, FromQuery
from litestar.types import ControllerRouterHandler

from bellringer.broker import Broker, MessageId, Queue, QueueSettings
from bellringer.broker.model import MessageState, MoveState, StoredMessage
from bellringer.broker.moves import MOST_PER_SECOND, Moves
from bellringer.console.bodies import ShownBody, preview, shown
from bellringer.console.depth import Period
from bellringer.console.fragments import View, queue_fragments
from bellringer.console.pages import PAGE_HEADERS, Pages, base_url, redirect
from bellringer.console.session import AnyRequest, SignedIn
from bellringer.console.snapshot import QueueDetails, QueueState, SnapshotReader, state_of
from bellringer.edge.model import Environment
from bellringer.kernel.errors import InvalidInput, NotFound

_PEEKED = 20
_PEEKED_CHARACTERS = 2_000
_MESSAGE_CHARACTERS = 20_000
_LARGEST_ID = 2**63 - 1
_UNFINISHED = {MessageState.PENDING, MessageState.DELAYED, MessageState.IN_FLIGHT}
_SUFFIXES = {"json": ".json", "text": ".txt", "bytes": ".bin", "empty": ".txt"}
_ALWAYS_TOLD = {"visibility_timeout_seconds", "retention_seconds"}
# What a file may be called, wherever it is saved.
_ODD_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._-]")


class PeekedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it stands in a list: its beginning on a line, and more of it to fold out."""

    message: StoredMessage
    preview: str
    body: ShownBody


def queue_rooms(pages: Pages, reader: SnapshotReader, broker: Broker, moves: Moves) -> list[ControllerRouterHandler]:
    """All handlers."""
    return [
        *_lists(pages, reader, broker),
        *_messages(pages, reader, broker),
        *_actions(broker, moves),
        *_purge(pages, reader, broker),
    ]


def _lists(pages: Pages, reader: SnapshotReader, broker: Broker) -> list[ControllerRouterHandler]:
    @get("/console/queues")
    async def queues(request: AnyRequest, environment: SignedIn) -> Response[str]:
        own, pipeline = await reader.read_queues(environment)
        return pages.page(
            "queues.html", environment=environment, queues=own, pipeline=pipeline, base_url=base_url(request)
        )

    @get("/console/queues/{name:str}")
    async def queue(
        request: AnyRequest,
        environment: SignedIn,
        name: FromPath[str],
        *,
        pipeline: FromQuery[bool] = False,
        period: FromQuery[Period] = Period.HOUR,
    ) -> Response[str]:
        own, system = await reader.read_queues(environment)
        view = View(room="pipeline-queue" if pipeline else "queue", name=name, period=period)
        state = state_of(system if pipeline else own, name)
        details = QueueDetails(plots=await reader.read_plots(state, period), moves=await reader.read_moves(state.queue))
        values: dict[str, Any] = {"running": None, "moves": (), "destinations": []}
        for parts in queue_fragments(view, state, own, details).values():
            values |= parts
        return pages.page(
            "queue.html",
            environment=environment,
            base_url=base_url(request),
            peeked=[] if pipeline else await _peek(broker, state.queue),
            most_peeked=_PEEKED,
            settings_told=_settings_told(state.queue.settings),
            most_per_second=MOST_PER_SECOND,
            **values,
        )

    return [queues, queue]


async def _peek(broker: Broker, queue: Queue) -> list[PeekedMessage]:
    return [
        PeekedMessage(
            message=message, preview=preview(message.body), body=shown(message.body, most_characters=_PEEKED_CHARACTERS)
        )
        for message in await broker.peek(queue, _PEEKED)
    ]


def _settings_told(settings: QueueSettings) -> str:
    """The settings that differ from the defaults, as JSON for a command to paste between single quotes."""
    defaults = msgspec.to_builtins(QueueSettings())
    told = {
        name: value
        for name, value in msgspec.to_builtins(settings).items()
        if name in _ALWAYS_TOLD or value != defaults[name]
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode().replace("'", "'\\''")


def _messages(pages: Pages, reader: SnapshotReader, broker: Broker) -> list[ControllerRouterHandler]:
    @get("/console/queues/{name:str}/messages")
    async def find_message(
        environment: SignedIn, name: FromPath[str], *, message_id: FromQuery[str] = ""
    ) -> Response[Any]:
        queue = await broker.read_queue(environment.id, name)
        return redirect(f"/console/queues/{queue.name}/messages/{_message_id(message_id.strip())}")

    @get("/console/queues/{name:str}/messages/{message_id:str}")
    async def message(
        environment: SignedIn, name: FromPath[str], message_id: FromPath[str], *, whole: FromQuery[bool] = False
    ) -> Response[str]:
        state = await _own_state(reader, environment, name)
        history = await broker.history(state.queue, _message_id(message_id))
        return pages.page(
            "queue-message.html",
            environment=environment,
            queue=state.queue,
            counts=state.counts,
            message=history.message,
            entries=history.entries,
            body=shown(history.message.body, most_characters=None if whole else _MESSAGE_CHARACTERS),
            # A page with all of a large body is not fetched again and again.
            is_followed=history.message.state in _UNFINISHED and not whole,
        )

    @get("/console/queues/{name:str}/messages/{message_id:str}/body")
    async def message_body(environment: SignedIn, name: FromPath[str], message_id: FromPath[str]) -> Response[bytes]:
        queue = await broker.read_queue(environment.id, name)
        found = (await broker.history(queue, _message_id(message_id))).message
        file_name = f"{_ODD_IN_FILE_NAMES.sub('_', queue.name)}-{found.id}{_SUFFIXES[shown(found.body).kind]}"
        return Response(
            found.body,
            media_type="application/octet-stream",
            headers={**PAGE_HEADERS, "content-disposition": f'attachment; filename="{file_name}"'},
        )

    return [find_message, message, message_body]


def _actions(broker: Broker, moves: Moves) -> list[ControllerRouterHandler]:
    @post("/console/queues/{name:str}/pause")
    async def pause(environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        queue = await broker.pause_queue(await broker.read_queue(environment.id, name))
        return redirect(f"/console/queues/{queue.name}")

    @post("/console/queues/{name:str}/resume")
    async def resume(environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        queue = await broker.resume_queue(await broker.read_queue(environment.id, name))
        return redirect(f"/console/queues/{queue.name}")

    @post("/console/queues/{name:str}/redrive")
    async def redrive(request: AnyRequest, environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        form = await request.form()
        source = await broker.read_queue(environment.id, name)
        chosen = str(form.get("destination", ""))
        destination = await broker.read_queue(environment.id, chosen) if chosen else None
        await moves.start(source, destination, _per_second(str(form.get("max_per_second", ""))))
        return redirect(f"/console/queues/{source.name}#redrive")

    @post("/console/queues/{name:str}/cancel-redrive")
    async def cancel_redrive(environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        source = await broker.read_queue(environment.id, name)
        for task in await moves.list(source, 1):
            if task.state is MoveState.RUNNING:
                await moves.cancel(task.id)
        return redirect(f"/console/queues/{source.name}#redrive")

    return [pause, resume, redrive, cancel_redrive]


def _purge(pages: Pages, reader: SnapshotReader, broker: Broker) -> list[ControllerRouterHandler]:
    def confirmation(environment: Environment, state: QueueState, *, typed: str | None = None) -> Response[str]:
        status = HTTPStatus.OK if typed is None else HTTPStatus.UNPROCESSABLE_ENTITY
        return pages.page("purge.html", environment=environment, status=status, state=state, typed=typed)

    @get("/console/queues/{name:str}/purge")
    async def confirm_purge(environment: SignedIn, name: FromPath[str]) -> Response[str]:
        return confirmation(environment, await _own_state(reader, environment, name))

    @post("/console/queues/{name:str}/purge")
    async def purge(request: AnyRequest, environment: SignedIn, name: FromPath[str]) -> Response[Any]:
        typed = str((await request.form()).get("name", "")).strip()
        state = await _own_state(reader, environment, name)
        if typed != state.queue.name:
            return confirmation(environment, state, typed=typed)
        await broker.purge_queue(state.queue)
        return redirect(f"/console/queues/{state.queue.name}")

    return [confirm_purge, purge]


async def _own_state(reader: SnapshotReader, environment: Environment, name: str) -> QueueState:
    own, _ = await reader.read_queues(environment)
    return state_of(own, name)


def _message_id(text: str) -> MessageId:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 0 < int(text) <= _LARGEST_ID):
        raise NotFound("There is no message with this id.")
    return MessageId(int(text))


def _per_second(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidInput("The pace is a whole number of messages a second.", field="max_per_second") from None
