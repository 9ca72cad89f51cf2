"""HTTP of the messages: the seed's three verbs, and those for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, QueryParameter

from bellringer.broker.checks import check_publications
from bellringer.broker.inspection_routes import inspection_routes
from bellringer.broker.metrics import refresh_queue_metrics
from bellringer.broker.model import LARGEST_BATCH, Publication, ReceiptHandle
from bellringer.broker.moves import Moves
from bellringer.broker.queue_routes import TAG, queue_routes
from bellringer.broker.service import Broker
from bellringer.broker.views import ClaimedMessage, claimed_message
from bellringer.edge.app import AnyRequest, OpenedEnvironment, Routes, while_connected
from bellringer.edge.decoding import decode_json
from bellringer.edge.model import Scope
from bellringer.edge.raw import JSON, RawReply, RawRequest, RawRoute
from bellringer.kernel.errors import InvalidInput, NotFound


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish: any text, or as `base64` any bytes.

    `delay_seconds` hides it for that long. A message of a FIFO queue needs a `group`. A `deduplication_id` that was
    used within five minutes publishes nothing, and answers with the id of the first.
    """

    msg: str | None = None
    base64: bytes | None = None
    delay_seconds: float | None = None
    group: str | None = None
    deduplication_id: str | None = None
    attributes: dict[str, Any] = {}


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The id of the message that was published."""

    id: int


class PublishedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of a batch, in the order given."""

    ids: Sequence[int]


class ClaimedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim took; empty when nothing came in time."""

    messages: list[ClaimedMessage]


class Handles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Receipt handles of messages that are done."""

    receipt_handles: Annotated[list[str], msgspec.Meta(min_length=1, max_length=LARGEST_BATCH)]


class VisibilityChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a message is to be held from now; 0 hands it back."""

    receipt_handle: str
    seconds: float


class VisibilityChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a batch."""

    changes: Annotated[list[VisibilityChange], msgspec.Meta(min_length=1, max_length=LARGEST_BATCH)]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """For each handle in the order given: whether it was good. One that is not belongs to an earlier attempt."""

    held: list[bool]


_ONE = msgspec.json.Decoder(NewMessage)
_BATCH = msgspec.json.Decoder(list[NewMessage])
_HANDLES = msgspec.json.Decoder(Handles)
_CHANGES = msgspec.json.Decoder(VisibilityChanges)
_encode = msgspec.json.Encoder().encode


def broker_routes(broker: Broker, moves: Moves) -> Routes:
    """The routes over one broker."""

    async def publish(request: RawRequest) -> RawReply:
        if request.body.lstrip()[:1] == b"[":
            messages: list[NewMessage] = decode_json(request.body, _BATCH)
            publications = [_publication(message, f"[{index}].") for index, message in enumerate(messages)]
            is_batch = True
        else:
            publications = [_publication(decode_json(request.body, _ONE), "")]
            is_batch = False
        name = request.parameters[0]
        try:
            queue = await broker.queue(request.environment.id, name)
        except NotFound:
            check_publications(publications, broker.default_settings())  # first: what is refused makes no queue
            queue = await broker.ensure_queue(request.environment.id, name)
        ids = await broker.send(queue, publications)
        return RawReply(status=201, body=_encode(PublishedMessages(ids=ids)) if is_batch else b'{"id":%d}' % ids[0])

    async def acknowledge(request: RawRequest) -> RawReply:
        name, handle = request.parameters
        queue = await broker.queue(request.environment.id, name)
        await broker.acknowledge(queue, ReceiptHandle(handle))
        return RawReply(status=204)

    async def acknowledge_batch(request: RawRequest) -> RawReply:
        handles = decode_json(request.body, _HANDLES).receipt_handles
        queue = await broker.queue(request.environment.id, request.parameters[0])
        held = await broker.acknowledge_each(queue, [ReceiptHandle(handle) for handle in handles])
        return RawReply(status=200, body=_encode(Held(held=held)))

    async def change_visibility(request: RawRequest) -> RawReply:
        changes = decode_json(request.body, _CHANGES).changes
        queue = await broker.queue(request.environment.id, request.parameters[0])
        held = await broker.change_visibility(
            queue, [(ReceiptHandle(change.receipt_handle), change.seconds) for change in changes]
        )
        return RawReply(status=200, body=_encode(Held(held=held)))

    @get(
        "/v1/messages/{queue:str}",
        tags=[TAG],
        summary="Claim messages",
        security=[{"key": []}],
        opt={"scope": Scope.CONSUME},
    )
    async def claim_messages(
        request: AnyRequest,
        environment: OpenedEnvironment,
        queue: FromPath[str],
        n: Annotated[int, QueryParameter(description="How many at most, 1 to 1000")] = 1,
        wait: Annotated[
            float | None, QueryParameter(description="Seconds to wait for the first, 0 to 20; the queue's if left out")
        ] = None,
        visibility_timeout: Annotated[
            float | None, QueryParameter(description="Seconds; the queue's own if left out")
        ] = None,
    ) -> ClaimedMessages:
        """Claim up to `n` messages, those that came back first, then the oldest. Nobody else gets them until their
        visibility timeout is over.
        """
        found = await broker.queue(environment.id, queue)
        claim = broker.claim(found, n, visibility_timeout_seconds=visibility_timeout, wait_seconds=wait)
        messages = await while_connected(request, claim)
        return ClaimedMessages(messages=[claimed_message(message) for message in messages])

    more = [queue_routes(broker), inspection_routes(broker, moves)]
    return Routes(
        handlers=[claim_messages, *(handler for routes in more for handler in routes.handlers)],
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
                scope=Scope.PUBLISH,
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
                scope=Scope.CONSUME,
            ),
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/acknowledge",
                handle=acknowledge_batch,
                summary="Delete a batch of messages that are done",
                description="Says of each whether it is deleted. A handle that is none refuses the whole batch.",
                tag=TAG,
                success_status=200,
                scope=Scope.CONSUME,
                requests={JSON: (Handles,)},
                responses=(Held,),
            ),
            RawRoute(
                method="POST",
                path="/v1/queues/{queue}/visibility",
                handle=change_visibility,
                summary="Hold messages on, or hand them back",
                description="Says of each whether it was held. A handle that is none refuses the whole batch.",
                tag=TAG,
                success_status=200,
                scope=Scope.CONSUME,
                requests={JSON: (VisibilityChanges,)},
                responses=(Held,),
            ),
            *(route for routes in more for route in routes.raw),
        ],
        refresh_metrics=[lambda: refresh_queue_metrics(broker)],
    )


def _publication(message: NewMessage, place: str) -> Publication:
    if message.msg is not None and message.base64 is None:
        body = message.msg.encode()
    elif message.base64 is not None and message.msg is None:
        body = message.base64
    else:
        raise InvalidInput("a message has either msg or base64", field=f"{place}msg")
    return Publication(
        body=body,
        delay_seconds=message.delay_seconds,
        group=message.group,
        deduplication_id=message.deduplication_id,
        attributes=message.attributes,
    )
