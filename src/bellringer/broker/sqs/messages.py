"""Messages between the wire and the broker: what is sent becomes a publication, what is claimed becomes an answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from bellringer.broker.model import Message, MessageId, Publication, Queue, QueueSettings
from bellringer.broker.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    SqsError,
    invalid_value,
    missing_parameter,
)
from bellringer.broker.sqs.message_attributes import (
    TRACE_HEADER,
    check_attributes,
    check_system_attributes,
    from_stored,
    group_of,
    md5_of,
    md5_of_text,
    select,
    size_of,
    to_answer,
    to_stored,
    trace_header_of,
)
from bellringer.broker.sqs.names import (
    INVALID_CHARACTERS,
    MESSAGE_GROUP_OR_DEDUPLICATION_ID,
    Names,
    message_uuid,
    sequence_number,
)
from bellringer.broker.sqs.requests import AttributeValue, Outgoing

_LONGEST_DELAY_SECONDS = 900

_SYSTEM_ATTRIBUTES = frozenset(
    {
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "DeadLetterQueueSourceArn",
        "MessageDeduplicationId",
        "MessageGroupId",
        "SenderId",
        "SentTimestamp",
        "SequenceNumber",
        TRACE_HEADER,
    }
)


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message that may be published, its size in bytes and the MD5s to answer with."""

    publication: Publication
    size: int
    md5s: dict[str, str]


def check_needs(outgoing: Outgoing, settings: QueueSettings) -> None:
    """Raise `SqsError` for a message that lacks what a FIFO queue needs."""
    if not settings.fifo:
        return
    if outgoing.message_group_id is None:
        raise missing_parameter("MessageGroupId")
    if outgoing.message_deduplication_id is None and not settings.content_deduplication:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )


def draft_of(outgoing: Outgoing, settings: QueueSettings) -> Draft:
    """The draft of a message that has what its queue needs. Raises `SqsError`."""
    if not outgoing.message_body:
        raise missing_parameter("MessageBody")
    if INVALID_CHARACTERS.search(outgoing.message_body):
        raise SqsError(
            INVALID_MESSAGE_CONTENTS,
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
            "#xE000 to #xFFFD | #x10000 to #x10FFFF.",
        )
    _check_ids(outgoing, settings)
    attributes = outgoing.message_attributes or {}
    system_attributes = outgoing.message_system_attributes or {}
    check_attributes(attributes)
    check_system_attributes(system_attributes)
    body = outgoing.message_body.encode()
    size = len(body) + size_of(attributes)
    if size > settings.max_body_bytes:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "One or more parameters are invalid. "
            f"Reason: Message must be shorter than {settings.max_body_bytes} bytes.",
        )
    publication = Publication(
        body=body,
        delay_seconds=_delay_of(outgoing, settings),
        group=outgoing.message_group_id if settings.fifo else None,
        deduplication_id=outgoing.message_deduplication_id,
        attributes=to_stored(attributes, system_attributes, None if settings.fifo else outgoing.message_group_id),
    )
    md5s = {
        "MD5OfMessageBody": md5_of_text(outgoing.message_body),
        "MD5OfMessageAttributes": md5_of(attributes),
        "MD5OfMessageSystemAttributes": md5_of(system_attributes),
    }
    return Draft(publication=publication, size=size, md5s={name: md5 for name, md5 in md5s.items() if md5})


def sent_answer(draft: Draft, queue: Queue, message_id: MessageId) -> dict[str, str]:
    """What is answered of a message that was sent."""
    answer = {**draft.md5s, "MessageId": message_uuid(queue.id, message_id)}
    if queue.settings.fifo:
        answer["SequenceNumber"] = sequence_number(message_id)
    return answer


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which attributes of messages a client asks for."""

    system: frozenset[str]
    own: frozenset[str]


def selection_of(system: Collection[str], own: Collection[str]) -> Selection:
    """The attributes that a client names. Raises `SqsError` for a system attribute that does not exist."""
    for name in system:
        if name != "All" and name not in _SYSTEM_ATTRIBUTES:
            raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    return Selection(system=_SYSTEM_ATTRIBUTES if "All" in system else frozenset(system), own=frozenset(own))


def claimed_answer(message: Message, queue: Queue, selection: Selection, names: Names) -> dict[str, Any]:
    """What is answered of a message that was claimed."""
    body = message.body.decode("utf-8", "replace")
    if INVALID_CHARACTERS.search(body):  # published over another API, where any bytes may be
        body = INVALID_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", body)
    answer: dict[str, Any] = {
        "MessageId": _uuid_of(message, queue),
        "ReceiptHandle": message.receipt_handle,
        "MD5OfBody": md5_of_text(body),
        "Body": body,
    }
    if selection.system:
        system = _system_attributes(message, queue, names)
        answer["Attributes"] = {name: value for name, value in system.items() if value and name in selection.system}
    if selection.own and message.attributes:
        own: Mapping[str, AttributeValue] = select(from_stored(message.attributes), selection.own)
        if own:
            answer["MD5OfMessageAttributes"] = md5_of(own)
            answer["MessageAttributes"] = to_answer(own)
    return answer


def _system_attributes(message: Message, queue: Queue, names: Names) -> dict[str, str | None]:
    origin = message.origin
    earlier_attempts = 0 if origin is None else origin.attempts
    return {
        "SenderId": names.account,
        "SentTimestamp": _milliseconds(message.created_at),
        "ApproximateReceiveCount": str(earlier_attempts + message.attempts),
        "ApproximateFirstReceiveTimestamp": _milliseconds(message.first_claimed_at),
        "MessageGroupId": message.group or group_of(message.attributes),
        "MessageDeduplicationId": message.deduplication_id,
        "SequenceNumber": sequence_number(message.id) if queue.settings.fifo else None,
        "DeadLetterQueueSourceArn": None if origin is None else names.arn(origin.queue),
        TRACE_HEADER: trace_header_of(message.attributes),
    }


def _uuid_of(message: Message, queue: Queue) -> str:
    """A dead letter keeps the id that it was sent under."""
    if message.origin is not None:
        return message_uuid(message.origin.queue_id, message.origin.id)
    return message_uuid(queue.id, message.id)


def _check_ids(outgoing: Outgoing, settings: QueueSettings) -> None:
    for parameter, value in (
        ("MessageDeduplicationId", outgoing.message_deduplication_id),
        ("MessageGroupId", outgoing.message_group_id),
    ):
        if value is not None and not MESSAGE_GROUP_OR_DEDUPLICATION_ID.fullmatch(value):
            reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length"
            raise invalid_value(value, parameter, reason)
    if outgoing.message_deduplication_id is not None and not settings.fifo:
        raise _not_for_this_queue("MessageDeduplicationId", outgoing.message_deduplication_id)


def _delay_of(outgoing: Outgoing, settings: QueueSettings) -> float | None:
    delay_seconds = outgoing.delay_seconds
    if delay_seconds is None:
        return None
    if not 0 <= delay_seconds <= _LONGEST_DELAY_SECONDS:
        reason = f"DelaySeconds must be >= 0 and <= {_LONGEST_DELAY_SECONDS}"
        raise invalid_value(delay_seconds, "DelaySeconds", reason)
    if settings.fifo:
        if delay_seconds:
            raise _not_for_this_queue("DelaySeconds", delay_seconds)
        return None
    return float(delay_seconds)


def _not_for_this_queue(parameter: str, value: object) -> SqsError:
    return invalid_value(value, parameter, "The request include parameter that is not valid for this queue type")


def _milliseconds(at: datetime) -> str:
    return str(int(at.timestamp() * 1000))
