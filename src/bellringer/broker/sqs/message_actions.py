"""The actions on messages: send, receive, delete, hold longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from bellringer.broker.model import (
    LARGEST_BODY_BYTES,
    LONGEST_VISIBILITY_TIMEOUT_SECONDS,
    LONGEST_WAIT_SECONDS,
    Queue,
    ReceiptHandle,
)
from bellringer.broker.receipts import ReceiptInvalid
from bellringer.broker.service import Broker, ReceiptNotHeld
from bellringer.broker.sqs.batches import batch_answer, check_batch
from bellringer.broker.sqs.caller import Caller, queue_at
from bellringer.broker.sqs.errors import (
    BATCH_REQUEST_TOO_LONG,
    INVALID_PARAMETER_VALUE,
    RECEIPT_HANDLE_IS_INVALID,
    SqsError,
    invalid_value,
)
from bellringer.broker.sqs.messages import (
    Draft,
    check_needs,
    claimed_answer,
    draft_of,
    selection_of,
    sent_answer,
)
from bellringer.broker.sqs.requests import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
    ReceiveMessage,
    SendEntry,
    SendMessage,
    SendMessageBatch,
)
from bellringer.edge.raw import while_receiving
from bellringer.kernel.errors import InvalidInput

_MOST_MESSAGES = 10


class MessageActions:
    """The actions on messages over one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def send(self, caller: Caller, request: SendMessage) -> dict[str, Any]:
        """SendMessage."""
        queue = await queue_at(self._broker, caller, request.queue_url)
        check_needs(request, queue.settings)
        draft = draft_of(request, queue.settings)
        (message_id,) = await self._broker.send(queue, [draft.publication])
        return sent_answer(draft, queue, message_id)

    async def send_batch(self, caller: Caller, request: SendMessageBatch) -> dict[str, Any]:
        """SendMessageBatch: the entries that may be sent are stored all or none."""
        check_batch([entry.id for entry in request.entries], "SendMessageBatchRequestEntry")
        queue = await queue_at(self._broker, caller, request.queue_url)
        for entry in request.entries:
            _check_needs_in_batch(entry, queue)
        outcomes = [_draft_or_error(entry, queue) for entry in request.entries]
        drafts = [outcome for outcome in outcomes if isinstance(outcome, Draft)]
        size = sum(draft.size for draft in drafts)
        if size > LARGEST_BODY_BYTES:
            raise SqsError(
                BATCH_REQUEST_TOO_LONG,
                f"Batch requests cannot be longer than {LARGEST_BODY_BYTES} bytes. You have sent {size} bytes.",
            )
        ids = iter(await self._broker.send(queue, [draft.publication for draft in drafts]) if drafts else ())
        return batch_answer(
            [entry.id for entry in request.entries],
            [sent_answer(outcome, queue, next(ids)) if isinstance(outcome, Draft) else outcome for outcome in outcomes],
        )

    async def receive(self, caller: Caller, request: ReceiveMessage) -> dict[str, Any]:
        """ReceiveMessage: up to ten messages; a client that hangs up while it waits takes none along."""
        limit = 1 if request.max_number_of_messages is None else request.max_number_of_messages
        if not 1 <= limit <= _MOST_MESSAGES:
            reason = f"Must be between 1 and {_MOST_MESSAGES}, if provided"
            raise invalid_value(limit, "MaxNumberOfMessages", reason)
        _check_range(request.wait_time_seconds, "WaitTimeSeconds", LONGEST_WAIT_SECONDS)
        _check_range(request.visibility_timeout, "VisibilityTimeout", LONGEST_VISIBILITY_TIMEOUT_SECONDS)
        selection = selection_of(
            [*(request.attribute_names or ()), *(request.message_system_attribute_names or ())],
            request.message_attribute_names or (),
        )
        queue = await queue_at(self._broker, caller, request.queue_url)
        claim = self._broker.claim(
            queue,
            limit,
            visibility_timeout_seconds=request.visibility_timeout,
            wait_seconds=request.wait_time_seconds,
        )
        messages = await while_receiving(caller.receive, claim)
        if not messages:
            return {}
        held_seconds = request.visibility_timeout
        if held_seconds == 0 or (held_seconds is None and queue.visibility_timeout_seconds == 0):
            # A look, not a hold: for the next one at once, not only when the time out is found to be over.
            await self._broker.release(queue, [message.receipt_handle for message in messages], [0.0] * len(messages))
        return {"Messages": [claimed_answer(message, queue, selection, caller.names) for message in messages]}

    async def delete(self, caller: Caller, request: DeleteMessage) -> dict[str, Any]:
        """DeleteMessage."""
        queue = await queue_at(self._broker, caller, request.queue_url)
        return await self._delete(queue, request.receipt_handle)

    async def delete_batch(self, caller: Caller, request: DeleteMessageBatch) -> dict[str, Any]:
        """DeleteMessageBatch."""
        check_batch([entry.id for entry in request.entries], "DeleteMessageBatchRequestEntry")
        queue = await queue_at(self._broker, caller, request.queue_url)
        outcomes = await _all(self._delete(queue, entry.receipt_handle) for entry in request.entries)
        return batch_answer([entry.id for entry in request.entries], outcomes)

    async def change_visibility(self, caller: Caller, request: ChangeMessageVisibility) -> dict[str, Any]:
        """ChangeMessageVisibility."""
        queue = await queue_at(self._broker, caller, request.queue_url)
        return await self._change_visibility(queue, request.receipt_handle, request.visibility_timeout)

    async def change_visibility_batch(self, caller: Caller, request: ChangeMessageVisibilityBatch) -> dict[str, Any]:
        """ChangeMessageVisibilityBatch."""
        check_batch([entry.id for entry in request.entries], "ChangeMessageVisibilityBatchRequestEntry")
        queue = await queue_at(self._broker, caller, request.queue_url)
        entries = request.entries
        try:
            held = await self._broker.change_visibility(
                queue, [(ReceiptHandle(entry.receipt_handle), entry.visibility_timeout) for entry in entries]
            )
        except InvalidInput:  # which of them it is shows one by one
            outcomes = await _all(
                self._change_visibility(queue, entry.receipt_handle, entry.visibility_timeout) for entry in entries
            )
        else:
            outcomes = [
                {} if is_held else _not_held(queue, entry.receipt_handle)
                for entry, is_held in zip(entries, held, strict=True)
            ]
        return batch_answer([entry.id for entry in entries], outcomes)

    async def _delete(self, queue: Queue, handle: str) -> dict[str, Any]:
        try:
            await self._broker.acknowledge(queue, ReceiptHandle(handle))
        except ReceiptNotHeld:
            # A standard queue answers so too: the message may come again, and whoever has it now deletes it.
            if queue.settings.fifo:
                raise _expired(handle) from None
        except ReceiptInvalid:
            raise _invalid_handle(handle) from None
        return {}

    async def _change_visibility(self, queue: Queue, handle: str, seconds: int) -> dict[str, Any]:
        _check_range(seconds, "VisibilityTimeout", LONGEST_VISIBILITY_TIMEOUT_SECONDS)
        try:
            (is_held,) = await self._broker.change_visibility(queue, [(ReceiptHandle(handle), seconds)])
        except ReceiptInvalid:
            raise _invalid_handle(handle) from None
        if not is_held:
            raise _not_held(queue, handle)
        return {}


async def _all(works: Iterable[Awaitable[dict[str, Any]]]) -> list[dict[str, Any] | Exception]:
    """Do all at once, so that they share a commit; what goes wrong stands in the place of its answer."""
    return await asyncio.gather(*(_outcome(work) for work in works))


async def _outcome(work: Awaitable[dict[str, Any]]) -> dict[str, Any] | Exception:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - told in the answer to the batch, the others unharmed
        return error


def _check_needs_in_batch(entry: SendEntry, queue: Queue) -> None:
    try:
        check_needs(entry, queue.settings)
    except SqsError as error:  # the service has one code for these in a batch, and refuses it as a whole
        raise SqsError(INVALID_PARAMETER_VALUE, str(error)) from None


def _draft_or_error(entry: SendEntry, queue: Queue) -> Draft | SqsError:
    try:
        return draft_of(entry, queue.settings)
    except SqsError as error:
        return error


def _check_range(value: int | None, parameter: str, highest: float) -> None:
    if value is not None and not 0 <= value <= highest:
        raise invalid_value(value, parameter, f"Must be >= 0 and <= {highest:g}, if provided")


def _not_held(queue: Queue, handle: str) -> SqsError:
    if queue.settings.fifo:
        return _expired(handle)
    reason = "Message does not exist or is not available for visibility timeout change"
    return invalid_value(handle, "ReceiptHandle", reason)


def _expired(handle: str) -> SqsError:
    return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired")


def _invalid_handle(handle: str) -> SqsError:
    return SqsError(RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.')
