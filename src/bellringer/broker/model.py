"""Records and names of the broker."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NewType
from uuid import UUID

import msgspec

from bellringer.kernel.errors import InvalidInput

MessageId = NewType("MessageId", int)
ReceiptHandle = NewType("ReceiptHandle", UUID)

SYSTEM_ENVIRONMENT = UUID(int=0)
"""Owns the queues of Bellringer's own pipeline; no API key opens it."""

LARGEST_BODY_BYTES = 256 * 1024
LARGEST_BATCH = 1000
LONGEST_WAIT_SECONDS = 20.0
LONGEST_VISIBILITY_TIMEOUT_SECONDS = 12 * 3600
LONGEST_RETENTION_SECONDS = 366 * 24 * 3600

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and its settings."""

    id: UUID
    environment_id: UUID
    name: str
    visibility_timeout_seconds: int
    retention_seconds: int


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as its claimer holds it."""

    id: MessageId
    body: bytes
    receipt_handle: ReceiptHandle
    attempts: int
    created_at: datetime


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands. `stuck` counts messages claimed over five minutes ago and neither deleted nor returned."""

    pending: int
    in_flight: int
    delayed: int
    deleted: int
    stuck: int
    oldest_pending_age_seconds: float


def check_queue_name(name: str) -> str:
    """Return the name of a queue; raise `InvalidInput` when it is not one."""
    if not _QUEUE_NAME.fullmatch(name):
        raise InvalidInput(
            "a queue name is 1 to 80 letters, digits, dots, dashes or underscores, and starts with a letter or digit",
            field="queue",
        )
    return name
