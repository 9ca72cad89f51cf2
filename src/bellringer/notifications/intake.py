"""Bodies of `POST /v1/events` into submissions: the plain form, and CloudEvents 1.0 in JSON.

CloudEvents: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md. Structured mode
(`application/cloudevents+json`) and batch mode (`application/cloudevents-batch+json`). A CloudEvent names its
recipients in the extension attribute `recipients` (addresses separated by commas) or in `data.recipients`.
Its (source, id) is its idempotency key, as the specification has it, unless the request brings a key of its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, TypeVar

import msgspec

from bellringer.edge.decoding import decode_json
from bellringer.kernel.errors import InvalidInput, TooLarge, UnsupportedFormat
from bellringer.kernel.ids import uuid7
from bellringer.kernel.text import check_text
from bellringer.notifications.model import (
    EARLIEST,
    LARGEST_BATCH,
    LATEST,
    LONGEST_DATA_BYTES,
    LONGEST_TYPE,
    MOST_RECIPIENTS,
    NewNotification,
    Submission,
    normalize_address,
)

LONGEST_KEY = 255

Event = TypeVar("Event", bound="PlainEvent | CloudEvent")
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class PlainEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plain form of an event."""

    type: str
    recipients: list[str]
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    subject: str | None = None
    source: str | None = None
    time: Instant | None = None


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A CloudEvent in JSON. Extension attributes other than `recipients` are allowed and not kept."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    recipients: str | list[str] | None = None
    subject: str | None = None
    time: Instant | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    data_base64: str | None = None


class _DataWithRecipients(msgspec.Struct, frozen=True):
    recipients: list[str]


_PLAIN = msgspec.json.Decoder(PlainEvent)
_PLAIN_BATCH = msgspec.json.Decoder(list[PlainEvent])
_CLOUD = msgspec.json.Decoder(CloudEvent)
_CLOUD_BATCH = msgspec.json.Decoder(list[CloudEvent])
_DATA_WITH_RECIPIENTS = msgspec.json.Decoder(_DataWithRecipients)


class Intake(msgspec.Struct, frozen=True, kw_only=True):
    """A request understood: what to store, and whether the answer is a list."""

    submissions: tuple[Submission, ...]
    is_batch: bool


def read_events(headers: Mapping[str, str], body: bytes) -> Intake:
    """Understand a request. `headers` has names in lower case.

    Raises `InvalidInput` with the field at fault, `TooLarge`, or `UnsupportedFormat` for another content type.
    """
    key = headers.get("idempotency-key")
    if key is not None:
        check_text(key, "Idempotency-Key", LONGEST_KEY)
    if "ce-specversion" in headers:
        raise UnsupportedFormat(
            "CloudEvents are taken in structured or batch mode, not in binary mode", field="ce-specversion"
        )
    content_type = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    match content_type:
        case "application/json":
            return _read_plain(body, key)
        case "application/cloudevents+json":
            return _read_cloud([decode_json(body, _CLOUD)], key, body, is_batch=False)
        case "application/cloudevents-batch+json":
            events = decode_json(body, _CLOUD_BATCH)
            return _read_cloud(events, key, body, is_batch=True)
        case _:
            raise UnsupportedFormat(
                "send application/json, application/cloudevents+json or application/cloudevents-batch+json",
                field="Content-Type",
            )


def _read_plain(body: bytes, key: str | None) -> Intake:
    is_batch = body.lstrip().startswith(b"[")
    events = decode_json(body, _PLAIN_BATCH) if is_batch else [decode_json(body, _PLAIN)]
    notifications = _convert(events, _from_plain_event, is_batch=is_batch)
    return Intake(submissions=(_submission(notifications, key, body),), is_batch=is_batch)


def _read_cloud(events: Sequence[CloudEvent], key: str | None, body: bytes, *, is_batch: bool) -> Intake:
    notifications = _convert(events, _from_cloud_event, is_batch=is_batch)
    if key is not None:
        return Intake(submissions=(_submission(notifications, key, body),), is_batch=is_batch)
    # (source, id) names the event whatever it says, so no fingerprint: a producer's retry may differ in, say, time.
    # Neither of them holds a line break, nor does a key of a header: no two of all these are mistaken for another.
    submissions = tuple(
        Submission(notifications=(notification,), idempotency_key=f"{event.source}\n{event.id}")
        for event, notification in zip(events, notifications, strict=True)
    )
    return Intake(submissions=submissions, is_batch=is_batch)


def _convert(
    events: Sequence[Event], convert: Callable[[Event], NewNotification], *, is_batch: bool
) -> tuple[NewNotification, ...]:
    if not 1 <= len(events) <= LARGEST_BATCH:
        raise InvalidInput(f"a batch holds 1 to {LARGEST_BATCH} events", field="body")
    notifications = []
    for index, event in enumerate(events):
        try:
            notifications.append(convert(event))
        except InvalidInput as error:
            if is_batch:
                error.field = f"[{index}].{error.field}"
            raise
    return tuple(notifications)


def _from_plain_event(event: PlainEvent) -> NewNotification:
    return new_notification(
        type=event.type,
        source=event.source,
        subject=event.subject,
        occurred_at=event.time,
        recipients=event.recipients,
        data=_text_of(event.data),
    )


def _from_cloud_event(event: CloudEvent) -> NewNotification:
    check_text(event.id, "id", LONGEST_KEY)
    check_text(event.source, "source", LONGEST_KEY)
    if bytes(event.data) and event.data_base64 is not None:
        raise InvalidInput("an event has either data or data_base64", field="data_base64")
    return new_notification(
        type=event.type,
        source=event.source,
        subject=event.subject,
        occurred_at=event.time,
        recipients=_recipients_of(event),
        data=_text_of(event.data) if event.data_base64 is None else _base64_text(event.data_base64),
    )


def _recipients_of(event: CloudEvent) -> list[str]:
    if isinstance(event.recipients, str):
        return [address.strip() for address in event.recipients.split(",")]
    if event.recipients is not None:
        return event.recipients
    if bytes(event.data):
        try:
            return _DATA_WITH_RECIPIENTS.decode(event.data).recipients
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # data may have any shape: then it names nobody
    raise InvalidInput("name the recipients in the attribute recipients or in data.recipients", field="recipients")


def new_notification(
    *,
    type: str,  # noqa: A002 - the name that the field has in every form
    source: str | None,
    subject: str | None,
    occurred_at: datetime | None,
    recipients: list[str],
    data: str | None,
) -> NewNotification:
    """An event with an id and its recipients in order. Raises `InvalidInput` with the field at fault."""
    check_text(type, "type", LONGEST_TYPE)
    check_text(source, "source", LONGEST_KEY)
    check_text(subject, "subject", 500)
    if occurred_at is not None and not EARLIEST <= occurred_at < LATEST:
        raise InvalidInput(f"time must be from {EARLIEST.year} to {LATEST.year - 1}", field="time")
    if not 1 <= len(recipients) <= MOST_RECIPIENTS:
        raise InvalidInput(f"an event has 1 to {MOST_RECIPIENTS} recipients", field="recipients")
    return NewNotification(
        id=uuid7(),
        type=type,
        source=source,
        subject=subject,
        occurred_at=occurred_at,
        recipients=_normalize(recipients),
        data=data,
    )


def _normalize(recipients: list[str]) -> tuple[str, ...]:
    normalized = set()
    for index, address in enumerate(recipients):
        try:
            normalized.add(normalize_address(address))
        except InvalidInput as error:
            raise InvalidInput(str(error), field=f"recipients[{index}]") from None
    return tuple(sorted(normalized))


def _text_of(data: msgspec.Raw) -> str | None:
    raw = bytes(data)
    if not raw:  # the field is absent
        return None
    if len(raw) > LONGEST_DATA_BYTES:
        raise TooLarge(f"data holds at most {LONGEST_DATA_BYTES} bytes", field="data")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput("data is not valid UTF-8", field="data") from None


def _base64_text(data: str) -> str:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("data_base64 is not base64", field="data_base64") from None
    return msgspec.json.encode(data).decode()


def _submission(notifications: tuple[NewNotification, ...], key: str | None, body: bytes) -> Submission:
    if key is None:
        return Submission(notifications=notifications)
    return Submission(notifications=notifications, idempotency_key=key, fingerprint=hashlib.sha256(body).digest()[:16])
