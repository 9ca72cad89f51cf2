"""HTTP of the queues: settings, counts, pause, purge."""

from __future__ import annotations

import msgspec
from litestar import get
from litestar.params import FromPath

from bellringer.broker.model import Queue, QueueCounts, QueueSettings
from bellringer.broker.service import Broker
from bellringer.edge.app import OpenedEnvironment, Routes
from bellringer.edge.decoding import decode_json
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute
from bellringer.kernel.errors import NotFound

TAG = "queues"


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, its settings and how it stands."""

    name: str
    paused: bool
    settings: QueueSettings
    counts: QueueCounts


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of an environment, by name."""

    queues: list[QueueView]


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages went."""

    purged: int


_SETTINGS = msgspec.json.Decoder(QueueSettings)
_KEY = [{"key": list[str]()}]
_encode = msgspec.json.Encoder().encode


def queue_routes(broker: Broker) -> Routes:
    """The routes of the queues."""

    async def view(queue: Queue) -> QueueView:
        counts = (await broker.counts([queue])).get(queue.id)
        if counts is None:
            raise NotFound(f"there is no queue {queue.name}")
        return _view(queue, counts)

    async def configure_queue(request: RawRequest) -> RawReply:
        settings = decode_json(request.body, _SETTINGS)
        found = await broker.configure_queue(request.environment.id, request.parameters[0], settings)
        return RawReply(status=200, body=_encode(await view(found)))

    async def delete_queue(request: RawRequest) -> RawReply:
        await broker.delete_queue(await broker.read_queue(request.environment.id, request.parameters[0]))
        return RawReply(status=204)

    async def purge_queue(request: RawRequest) -> RawReply:
        purged = await broker.purge_queue(await broker.read_queue(request.environment.id, request.parameters[0]))
        return RawReply(status=200, body=_encode(Purged(purged=purged)))

    async def pause_queue(request: RawRequest) -> RawReply:
        queue = await broker.read_queue(request.environment.id, request.parameters[0])
        return RawReply(status=200, body=_encode(await view(await broker.pause_queue(queue))))

    async def resume_queue(request: RawRequest) -> RawReply:
        queue = await broker.read_queue(request.environment.id, request.parameters[0])
        return RawReply(status=200, body=_encode(await view(await broker.resume_queue(queue))))

    @get("/v1/queues", summary="List the queues", tags=[TAG], security=_KEY)
    async def list_queues(environment: OpenedEnvironment) -> QueueList:
        """The queues of the key's environment with their counts."""
        queues = await broker.list_queues([environment.id])
        counts = await broker.counts(queues)
        return QueueList(queues=[_view(queue, counts[queue.id]) for queue in queues if queue.id in counts])

    @get("/v1/queues/{queue:str}", summary="Show a queue", tags=[TAG], security=_KEY)
    async def show_queue(environment: OpenedEnvironment, queue: FromPath[str]) -> QueueView:
        """One queue with its counts."""
        return await view(await broker.read_queue(environment.id, queue))

    return Routes(
        handlers=[list_queues, show_queue],
        raw=[
            RawRoute(
                method="PUT",
                path="/v1/queues/{queue}",
                handle=configure_queue,
                summary="Make or change a queue",
                description="Sets every setting: what is left out gets its default. Publishing makes a queue with the "
                "defaults by itself.",
                tag=TAG,
                success_status=200,
                requests={JSON: (QueueSettings,)},
                responses=(QueueView,),
            ),
            RawRoute(
                method="DELETE",
                path="/v1/queues/{queue}",
                handle=delete_queue,
                summary="Delete a queue and its messages",
                description="One of the same name that is made later is another queue.",
                tag=TAG,
                success_status=204,
            ),
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/purge",
                handle=purge_queue,
                summary="Remove every message",
                description="Those in flight too; their receipt handles do nothing from then on.",
                tag=TAG,
                success_status=200,
                responses=(Purged,),
            ),
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/pause",
                handle=pause_queue,
                summary="Pause a queue",
                description="Claims get nothing, in every process within a second; publishing goes on.",
                tag=TAG,
                success_status=200,
                responses=(QueueView,),
            ),
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/resume",
                handle=resume_queue,
                summary="Resume a queue",
                description="Ends a pause.",
                tag=TAG,
                success_status=200,
                responses=(QueueView,),
            ),
        ],
    )


def _view(queue: Queue, counts: QueueCounts) -> QueueView:
    return QueueView(name=queue.name, paused=queue.paused, settings=queue.settings, counts=counts)
