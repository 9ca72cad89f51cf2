"""Records and names of the broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NewType
from uuid import UUID

import msgspec

from bellringer.kernel.errors import InvalidInput

MessageId = NewType("MessageId", int)
"""The number of a message in its queue: 1, 2, 3, ..., in the order of their publication."""

ReceiptHandle = NewType("ReceiptHandle", str)
"""Names one attempt at one message; opaque, and cannot be guessed."""

SYSTEM_ENVIRONMENT = UUID(int=0)
"""Owns the queues of Bellringer's own pipeline; no API key opens it."""

LARGEST_BODY_BYTES = 256 * 1024
LARGEST_ATTRIBUTES_BYTES = 512 * 1024
LARGEST_BATCH = 1000
LARGEST_MESSAGE_ID = 2**63 - 1
LONGEST_WAIT_SECONDS = 20.0
LONGEST_VISIBILITY_TIMEOUT_SECONDS = 12 * 3600
LONGEST_DELAY_SECONDS = 12 * 3600
LONGEST_RETENTION_SECONDS = 366 * 24 * 3600
LONGEST_GROUP = 128
MOST_RECEIVES = 1000

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set of a queue; all but `fifo` can be changed.

    `retention_seconds` counts from the publication of a message until it and its history go; one that is not finished
    by then stays all the same, unless messages of the queue expire (`expires`). After `max_receives` attempts a message
    goes to the dead letter queue, a queue of the same environment.
    """

    visibility_timeout_seconds: int = 600
    retention_seconds: int = 7 * 24 * 3600
    delay_seconds: float = 0.0
    wait_seconds: float = 0.0
    max_body_bytes: int = LARGEST_BODY_BYTES
    fifo: bool = False
    expires: bool = False
    content_deduplication: bool = False
    max_receives: int | None = None
    dead_letter_queue: str | None = None
    redrive_allow: dict[str, Any] | None = None
    tags: dict[str, str] = {}


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and its settings."""

    id: UUID
    number: int
    environment_id: UUID
    name: str
    settings: QueueSettings
    paused: bool
    created_at: datetime
    modified_at: datetime

    @property
    def visibility_timeout_seconds(self) -> int:
        """How long a claim holds unless it says otherwise."""
        return self.settings.visibility_timeout_seconds

    @property
    def retention_seconds(self) -> int:
        """How long a message and its history stay, from its publication."""
        return self.settings.retention_seconds


_NONE: Mapping[str, Any] = MappingProxyType({})


class Publication(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message to publish.

    `delay_seconds` hides it for that long; None means as long as its queue says. `group` orders it within a FIFO
    queue. A `deduplication_id` that was used within five minutes publishes nothing.
    """

    body: bytes
    delay_seconds: float | None = None
    group: str | None = None
    deduplication_id: str | None = None
    attributes: Mapping[str, Any] = _NONE


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter comes from."""

    queue: str
    queue_id: UUID
    id: MessageId
    attempts: int


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as its claimer holds it."""

    id: MessageId
    body: bytes
    receipt_handle: ReceiptHandle
    attempts: int
    created_at: datetime
    first_claimed_at: datetime
    group: str | None
    deduplication_id: str | None
    attributes: Mapping[str, Any]
    origin: Origin | None


class MessageState(StrEnum):
    """Where a message stands."""

    PENDING = "pending"
    DELAYED = "delayed"
    IN_FLIGHT = "in_flight"
    FINISHED = "finished"
    DEAD_LETTERED = "dead_lettered"
    EXPIRED = "expired"
    PURGED = "purged"


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as somebody looks at it who does not claim it."""

    id: MessageId
    body: bytes
    state: MessageState
    attempts: int
    created_at: datetime
    group: str | None
    deduplication_id: str | None
    attributes: Mapping[str, Any]
    origin: Origin | None


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a message; `attempt` counts from 1."""

    at: datetime
    event: str
    attempt: int | None


class MessageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A message and what happened to it, in order."""

    message: StoredMessage
    entries: list[HistoryEntry]


class QueueSample(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stood at a moment; `published` and `finished` are totals of its life."""

    at: datetime
    pending: int
    in_flight: int
    delayed: int
    published: int
    finished: int


class MoveState(StrEnum):
    """Where a move stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class MoveTask(msgspec.Struct, frozen=True, kw_only=True):
    """A move of the messages of one queue to another, or without a destination to where each of them came from.

    `to_move` is how many waited at its start.
    """

    id: UUID
    source_id: UUID
    destination_id: UUID | None
    state: MoveState
    max_per_second: int | None
    to_move: int
    moved: int
    failure: str | None
    started_at: datetime
    ended_at: datetime | None


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands, and what went through it in its life.

    `stuck` counts messages claimed over five minutes ago and neither finished nor returned (at most 10,000 of them).
    `seconds_to_deletion` is the average from claim to acknowledgement of the claims finished last.
    """

    pending: int
    in_flight: int
    delayed: int
    deleted: int
    stuck: int
    oldest_pending_age_seconds: float
    published: int
    redelivered: int
    dead_lettered: int
    expired: int
    purged: int
    published_per_minute: float
    seconds_to_deletion: float


def check_queue_name(name: str) -> str:
    """Return the name of a queue; raise `InvalidInput` when it is not one."""
    if not _QUEUE_NAME.fullmatch(name):
        raise InvalidInput(
            "a queue name is 1 to 80 letters, digits, dots, dashes or underscores, and starts with a letter or digit",
            field="queue",
        )
    return name


def check_settings(settings: QueueSettings) -> None:
    """Raise `InvalidInput` for the first setting that is out of range."""
    _check_range(
        "visibility_timeout_seconds", settings.visibility_timeout_seconds, 0, LONGEST_VISIBILITY_TIMEOUT_SECONDS
    )
    _check_range("retention_seconds", settings.retention_seconds, 60, LONGEST_RETENTION_SECONDS)
    _check_range("delay_seconds", settings.delay_seconds, 0, LONGEST_DELAY_SECONDS)
    _check_range("wait_seconds", settings.wait_seconds, 0, LONGEST_WAIT_SECONDS)
    _check_range("max_body_bytes", settings.max_body_bytes, 1, LARGEST_BODY_BYTES)
    if settings.max_receives is not None:
        _check_range("max_receives", settings.max_receives, 1, MOST_RECEIVES)
    if (settings.max_receives is None) != (settings.dead_letter_queue is None):
        raise InvalidInput("max_receives and dead_letter_queue go together", field="dead_letter_queue")
    if settings.dead_letter_queue is not None:
        try:
            check_queue_name(settings.dead_letter_queue)
        except InvalidInput as error:
            raise InvalidInput(str(error), field="dead_letter_queue") from None
    if settings.content_deduplication and not settings.fifo:
        raise InvalidInput("content_deduplication is for FIFO queues", field="content_deduplication")


def _check_range(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidInput(f"{field} must be from {least:g} to {most:g}", field=field)
