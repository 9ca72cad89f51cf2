"""Records of notifications, and what an address may look like."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal
from uuid import UUID

import email_validator
import msgspec

from bellringer.kernel.errors import InvalidInput

LONGEST_TYPE = 200
LONGEST_DATA_BYTES = 256 * 1024
LARGEST_BATCH = 1000
MOST_RECIPIENTS = 10_000
LONGEST_WINDOW_SECONDS = 7 * 24 * 3600

# The first and the last moment of `datetime` stand for infinity in the database, and those near them have no name in
# other time zones. Producers send the first one for "not set".
EARLIEST, LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


class NewNotification(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way in: checked, and not stored yet. `data` is JSON text."""

    id: UUID
    type: str
    recipients: tuple[str, ...]
    data: str | None
    source: str | None = None
    subject: str | None = None
    occurred_at: datetime | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Notifications that are accepted together, once per `idempotency_key`.

    `fingerprint` tells whether a repeated key comes with the same content; None where the key alone decides.
    """

    notifications: tuple[NewNotification, ...]
    idempotency_key: str | None = None
    fingerprint: bytes | None = None


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted event."""

    id: UUID
    type: str
    source: str | None
    subject: str | None
    recipients: list[str]
    data: msgspec.Raw | None
    occurred_at: datetime
    accepted_at: datetime


class NotificationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted event without its data and with the first of its recipients only, and how far its digest is."""

    id: UUID
    type: str
    source: str | None
    subject: str | None
    first_recipients: list[str]
    recipient_count: int
    accepted_at: datetime
    closes_at: datetime | None
    closed_at: datetime | None


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step in the life of a notification. `closes_at` says when the digest that it is in closes."""

    step: Literal["accepted", "in_digest", "digest_closed", "sent", "pending", "failed"]
    at: datetime
    recipient: str | None = None
    digest_id: UUID | None = None
    email_id: UUID | None = None
    detail: str | None = None
    closes_at: datetime | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """How events of one type are handled. `digest_window_seconds` is how long a digest gathers them."""

    type: str
    digest_window_seconds: int
    updated_at: datetime


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment has done since it began, and what is open now.

    `notifications` counts pairs of event and recipient; `sent` and `failed` count recipients of emails.
    """

    events: int
    notifications: int
    digests: int
    open_digests: int
    emails: int
    sent: int
    failed: int


@lru_cache(maxsize=100_000)
def normalize_address(address: str) -> str:
    """An email address in the one spelling by which recipients are told apart: lower case, an ASCII domain.

    Raises `InvalidInput`. Checking takes about 40 microseconds, hence the cache: a flood names the same people.
    """
    try:
        checked = email_validator.validate_email(
            address, check_deliverability=False, allow_smtputf8=False, globally_deliverable=False
        )
    except email_validator.EmailNotValidError as error:
        raise InvalidInput(f"not an email address: {error}") from None
    return (checked.ascii_email or checked.normalized).lower()


def audience_of(recipients: tuple[str, ...]) -> bytes:
    """A short name for a set of recipients, given sorted: 16 bytes of SHA-256.

    Two recipients belong to the same audiences of a digest exactly when they have the same events in it, so grouping
    looks at audiences, of which a flood has few, and never at single notifications.
    """
    return hashlib.sha256("\n".join(recipients).encode()).digest()[:16]
