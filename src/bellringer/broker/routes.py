"""HTTP of the broker: the seed's three verbs, and the queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter

from bellringer.broker.checks import check_publications
from bellringer.broker.metrics import refresh_queue_metrics
from bellringer.broker.model import Message, Publication, Queue, QueueCounts, QueueSettings, ReceiptHandle
from bellringer.broker.service import Broker
from bellringer.edge.app import AnyRequest, OpenedEnvironment, Routes, while_connected
from bellringer.edge.decoding import decode_json
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute

TAG = "queues"


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish: any text. `delay_seconds` hides it for that long."""

    msg: str
    delay_seconds: float = 0.0


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The id of the message that was published."""

    id: int


class PublishedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of a batch, in the order given."""

    ids: Sequence[int]


class ClaimedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message held under its receipt handle until it is deleted or its visibility timeout runs out."""

    id: int
    msg: str
    receipt_handle: str
    attempts: int
    created_at: datetime


class ClaimedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim took, the oldest first; empty when nothing came in time."""

    messages: list[ClaimedMessage]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, its settings and how it stands."""

    name: str
    visibility_timeout_seconds: int
    retention_seconds: int
    counts: QueueCounts


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of an environment, by name."""

    queues: list[QueueView]


_ONE = msgspec.json.Decoder(NewMessage)
_BATCH = msgspec.json.Decoder(list[NewMessage])
_SETTINGS = msgspec.json.Decoder(QueueSettings)
_encode = msgspec.json.Encoder().encode


def broker_routes(broker: Broker) -> Routes:
    """The routes over one broker."""

    async def publish(request: RawRequest) -> RawReply:
        is_batch = request.body.lstrip().startswith(b"[")
        messages = decode_json(request.body, _BATCH) if is_batch else [decode_json(request.body, _ONE)]
        publications = [
            Publication(body=message.msg.encode(), delay_seconds=message.delay_seconds) for message in messages
        ]
        check_publications(publications)  # first: what is refused makes no queue
        queue = await broker.ensure_queue(request.environment.id, request.parameters[0])
        ids = await broker.send(queue, publications)
        answer = PublishedMessages(ids=ids) if is_batch else PublishedMessage(id=ids[0])
        return RawReply(status=201, body=_encode(answer))

    async def acknowledge(request: RawRequest) -> RawReply:
        name, handle = request.parameters
        queue = await broker.queue(request.environment.id, name)
        await broker.acknowledge(queue, ReceiptHandle(handle))
        return RawReply(status=204)

    async def configure_queue(request: RawRequest) -> RawReply:
        settings = decode_json(request.body, _SETTINGS)
        found = await broker.configure_queue(
            request.environment.id,
            request.parameters[0],
            settings,
        )
        return RawReply(status=200, body=_encode(_view(found, (await broker.counts([found]))[found.id])))

    @get("/v1/messages/{queue:str}", tags=[TAG], summary="Claim messages", security=[{"key": []}])
    async def claim_messages(
        request: AnyRequest,
        environment: OpenedEnvironment,
        queue: FromPath[str],
        n: Annotated[int, QueryParameter(description="How many at most, 1 to 1000")] = 1,
        wait: Annotated[float, QueryParameter(description="Seconds to wait for the first, 0 to 20")] = 0.0,
        visibility_timeout: Annotated[
            float | None, QueryParameter(description="Seconds; the queue's own if left out")
        ] = None,
    ) -> ClaimedMessages:
        """Claim up to `n` messages, the oldest first. Nobody else gets them until their visibility timeout is over."""
        found = await broker.queue(environment.id, queue)
        claim = broker.claim(found, n, visibility_timeout_seconds=visibility_timeout, wait_seconds=wait)
        messages = await while_connected(request, claim)
        return ClaimedMessages(messages=[_claimed(message) for message in messages])

    @get("/v1/queues", tags=[TAG], summary="List the queues", security=[{"key": []}])
    async def list_queues(environment: OpenedEnvironment) -> QueueList:
        """The queues of the key's environment with their counts."""
        queues = await broker.list_queues([environment.id])
        counts = await broker.counts(queues)
        return QueueList(queues=[_view(queue, counts[queue.id]) for queue in queues])

    @get("/v1/queues/{queue:str}", tags=[TAG], summary="Show a queue", security=[{"key": []}])
    async def show_queue(environment: OpenedEnvironment, queue: FromPath[str]) -> QueueView:
        """One queue with its counts."""
        found = await broker.read_queue(environment.id, queue)
        return _view(found, (await broker.counts([found]))[found.id])

    return Routes(
        handlers=[claim_messages, list_queues, show_queue],
        raw=[
            RawRoute(
                method="PUT",
                path="/v1/message/{queue}",
                handle=publish,
                summary="Publish one message or a batch",
                description="Answers after the commit. A batch is a JSON array of up to 1000 messages, stored all or "
                "none. A queue that does not exist is made.",
                tag=TAG,
                success_status=201,
                requests={JSON: (NewMessage, list[NewMessage])},
                responses=(PublishedMessage, PublishedMessages),
            ),
            RawRoute(
                method="DELETE",
                path="/v1/message/{queue}/{receipt_handle}",
                handle=acknowledge,
                summary="Delete a message that is done",
                description="Only the handle of the current attempt deletes. Deleting again is no error.",
                tag=TAG,
                success_status=204,
            ),
            RawRoute(
                method="PUT",
                path="/v1/queues/{queue}",
                handle=configure_queue,
                summary="Make or change a queue",
                description="Sets a queue's visibility timeout and retention. Publishing makes a queue with the "
                "defaults by itself.",
                tag=TAG,
                success_status=200,
                requests={JSON: (QueueSettings,)},
                responses=(QueueView,),
            ),
        ],
        refresh_metrics=[lambda: refresh_queue_metrics(broker)],
    )


def _claimed(message: Message) -> ClaimedMessage:
    return ClaimedMessage(
        id=message.id,
        msg=message.body.decode("utf-8", "replace"),
        receipt_handle=message.receipt_handle,
        attempts=message.attempts,
        created_at=message.created_at,
    )


def _view(queue: Queue, counts: QueueCounts) -> QueueView:
    return QueueView(
        name=queue.name,
        visibility_timeout_seconds=queue.visibility_timeout_seconds,
        retention_seconds=queue.retention_seconds,
        counts=counts,
    )
