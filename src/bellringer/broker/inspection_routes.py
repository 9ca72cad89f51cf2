"""HTTP for looks at messages without a claim, at queues over time, and for moves between queues."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter

from bellringer.broker.model import (
    HistoryEntry,
    MessageId,
    MoveState,
    MoveTask,
    QueueSample,
)
from bellringer.broker.moves import Moves
from bellringer.broker.queue_routes import TAG
from bellringer.broker.samples import KEPT_SECONDS
from bellringer.broker.service import Broker
from bellringer.broker.views import MessageView, message_view
from bellringer.edge.app import OpenedEnvironment, Routes
from bellringer.edge.decoding import decode_json
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute
from bellringer.kernel.errors import InvalidInput, NotFound


class MessageViews(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that nobody holds, by id."""

    messages: list[MessageView]


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A message and what happened to it, oldest first."""

    message: MessageView
    history: list[HistoryEntry]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stood over time; each sample holds until the next."""

    samples: list[QueueSample]


class NewMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to move messages; without a destination, each to the queue that it came from as a dead letter."""

    destination: str | None = None
    max_per_second: int | None = None


class MoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A move of messages; `to_move` is how many waited when it began."""

    id: UUID
    state: MoveState
    to_move: int
    moved: int
    max_per_second: int | None
    failure: str | None
    started_at: datetime
    ended_at: datetime | None


class MoveList(msgspec.Struct, frozen=True, kw_only=True):
    """The moves out of a queue, the newest first."""

    moves: list[MoveView]


_MOVE = msgspec.json.Decoder(NewMove)
_KEY = [{"key": list[str]()}]
_encode = msgspec.json.Encoder().encode


def inspection_routes(broker: Broker, moves: Moves) -> Routes:
    """The routes for who looks at a queue and mends it."""

    async def start_move(request: RawRequest) -> RawReply:
        wanted = decode_json(request.body or b"{}", _MOVE)
        source = await broker.read_queue(request.environment.id, request.parameters[0])
        destination = None
        if wanted.destination is not None:
            try:
                destination = await broker.read_queue(request.environment.id, wanted.destination)
            except NotFound as error:
                raise InvalidInput(str(error), field="destination") from None
        task = await moves.start(source, destination, wanted.max_per_second)
        return RawReply(status=202, body=_encode(_move_view(task)))

    async def cancel_move(request: RawRequest) -> RawReply:
        queue = await broker.read_queue(request.environment.id, request.parameters[0])
        running = [task for task in await moves.list(queue, 1) if task.state is MoveState.RUNNING]
        if not running:
            raise NotFound(f"no messages of {queue.name} are being moved")
        return RawReply(status=200, body=_encode(_move_view(await moves.cancel(running[0].id))))

    @get("/v1/queues/{queue:str}/peek", summary="Look at messages without a claim", tags=[TAG], security=_KEY)
    async def peek(
        environment: OpenedEnvironment,
        queue: FromPath[str],
        n: Annotated[int, QueryParameter(description="How many at most, 1 to 1000")] = 10,
    ) -> MessageViews:
        """The first messages that nobody holds."""
        messages = await broker.peek(await broker.queue(environment.id, queue), n)
        return MessageViews(messages=[message_view(message) for message in messages])

    @get(
        "/v1/queues/{queue:str}/messages/{message_id:int}",
        summary="What happened to a message",
        tags=[TAG],
        security=_KEY,
    )
    async def history(environment: OpenedEnvironment, queue: FromPath[str], message_id: FromPath[int]) -> HistoryView:
        """A message and its history, for as long as its queue keeps it."""
        found = await broker.history(await broker.queue(environment.id, queue), MessageId(message_id))
        return HistoryView(message=message_view(found.message), history=found.entries)

    @get("/v1/queues/{queue:str}/samples", summary="How a queue stood over time", tags=[TAG], security=_KEY)
    async def list_samples(
        environment: OpenedEnvironment,
        queue: FromPath[str],
        seconds: Annotated[int, QueryParameter(description="Of the last how many seconds, 1 to 86400")] = 3600,
    ) -> Samples:
        """Depth and totals, at most one sample in ten seconds."""
        if not 1 <= seconds <= KEPT_SECONDS:
            raise InvalidInput(f"seconds must be from 1 to {KEPT_SECONDS}", field="seconds")
        return Samples(samples=await broker.samples(await broker.queue(environment.id, queue), seconds))

    @get("/v1/queues/{queue:str}/moves", summary="List the moves out of a queue", tags=[TAG], security=_KEY)
    async def list_moves(environment: OpenedEnvironment, queue: FromPath[str]) -> MoveList:
        """The last ten moves, the newest first."""
        tasks = await moves.list(await broker.queue(environment.id, queue))
        return MoveList(moves=[_move_view(task) for task in tasks])

    return Routes(
        handlers=[peek, history, list_samples, list_moves],
        raw=[
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/moves",
                handle=start_move,
                summary="Move the messages that wait",
                description="To another queue, or as dead letters back to where each came from. One move of a queue "
                "runs at a time.",
                tag=TAG,
                success_status=202,
                requests={JSON: (NewMove,)},
                responses=(MoveView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/cancel-move",
                handle=cancel_move,
                summary="Cancel the move that runs",
                description="What is moved stays moved.",
                tag=TAG,
                success_status=200,
                responses=(MoveView,),
            ),
        ],
    )


def _move_view(task: MoveTask) -> MoveView:
    return MoveView(
        id=task.id,
        state=task.state,
        to_move=task.to_move,
        moved=task.moved,
        max_per_second=task.max_per_second,
        failure=task.failure,
        started_at=task.started_at,
        ended_at=task.ended_at,
    )
