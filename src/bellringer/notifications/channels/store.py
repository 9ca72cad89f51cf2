"""SQL of emails, deliveries and captured mail."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from bellringer.kernel.database import Connection
from bellringer.kernel.ids import uuid7
from bellringer.notifications.channels.email import DigestEvent
from bellringer.notifications.channels.model import CapturedMail, OutboundEmail, Outcome

# Beyond these an event is listed without its data: an email of 1000 events must not hold 1000 payloads in memory.
MOST_EVENTS_WITH_DATA = 200
LARGEST_DATA_SHOWN_BYTES = 64 * 1024

LOAD_EMAIL = """
SELECT email.environment_id, email.digest_id, email.audiences, email.part, email.parts, email.created_at,
    email.first_notification_id, email.last_notification_id,
    EXTRACT(epoch FROM clock_timestamp() - email.created_at)::float8 AS age_seconds,
    waiting.addresses AS pending, waiting.refusals
FROM bellringer.emails AS email
CROSS JOIN LATERAL (
    SELECT COALESCE(array_agg(address ORDER BY address), '{}') AS addresses, COALESCE(max(refusals), 0) AS refusals
    FROM bellringer.deliveries
    WHERE email_id = email.id AND state = 'pending'
) AS waiting
WHERE email.id = $1
"""
# Index: digest_items_audience.
LOAD_EVENTS = """
SELECT notification.id AS notification_id, notification.type, notification.occurred_at, notification.subject,
    CASE WHEN item.position <= $5 AND octet_length(notification.data::text) <= $6
        THEN notification.data::text END AS data
FROM (
    SELECT notification_id, row_number() OVER (ORDER BY notification_id) AS position
    FROM bellringer.digest_items
    WHERE digest_id = $1 AND audience = ANY ($2)
        AND ($3::uuid IS NULL OR notification_id BETWEEN $3 AND $4)
) AS item
JOIN bellringer.notifications AS notification ON notification.id = item.notification_id
ORDER BY notification.occurred_at, notification.id
"""
# A recipient who was told already stays told, whatever a slower attempt reports. Primary key of deliveries.
RECORD = """
WITH outcome AS (
    SELECT email_id, address, state::bellringer.delivery_state AS state, reply
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS outcome (email_id, address, state, reply)
), settled AS (
    UPDATE bellringer.deliveries AS delivery
    SET state = outcome.state, reply = outcome.reply, updated_at = clock_timestamp(),
        refusals = delivery.refusals + (outcome.state = 'pending')::integer
    FROM outcome
    WHERE delivery.email_id = outcome.email_id AND delivery.address = outcome.address AND delivery.state = 'pending'
    RETURNING delivery.email_id, delivery.state
)
INSERT INTO bellringer.tally_entries (owner, name, change)
SELECT email.environment_id, settled.state::text, count(*)
FROM settled
JOIN bellringer.emails AS email ON email.id = settled.email_id
WHERE settled.state <> 'pending'
GROUP BY email.environment_id, settled.state
"""
# The environment comes from the email that the Message-ID names: mail that is not ours is not captured.
CAPTURE = """
INSERT INTO bellringer.captured_mail (id, environment_id, sender, recipients, subject, message)
SELECT $1, email.environment_id, $3, $4, $5, $6 FROM bellringer.emails AS email WHERE email.id = $2
RETURNING id
"""
# Index: captured_mail_environment, walked backwards.
LIST_CAPTURED = """
SELECT id, sender, recipients, subject, received_at
FROM bellringer.captured_mail
WHERE environment_id = $1 AND id < COALESCE($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
LIMIT (SELECT $3::bigint)
"""
FIND_CAPTURED = """
SELECT id, sender, recipients, subject, received_at, message
FROM bellringer.captured_mail WHERE environment_id = $1 AND id = $2
"""
# Index: captured_mail_received_at.
EXPIRE_CAPTURED = """
DELETE FROM bellringer.captured_mail WHERE id = ANY (ARRAY(
    SELECT id FROM bellringer.captured_mail
    WHERE received_at < (SELECT clock_timestamp()) - make_interval(secs => $1)
    ORDER BY received_at
    LIMIT (SELECT $2::bigint)
))
"""


async def load_email(connection: Connection, email_id: UUID) -> OutboundEmail | None:
    """An email with its events and the recipients who still wait; None when it has been removed."""
    email = await connection.fetchrow(LOAD_EMAIL, email_id)
    if email is None:
        return None
    events = await connection.fetch(
        LOAD_EVENTS,
        email["digest_id"],
        email["audiences"],
        email["first_notification_id"],
        email["last_notification_id"],
        MOST_EVENTS_WITH_DATA,
        LARGEST_DATA_SHOWN_BYTES,
    )
    return OutboundEmail(
        id=email_id,
        environment_id=email["environment_id"],
        part=email["part"],
        parts=email["parts"],
        created_at=email["created_at"],
        age_seconds=email["age_seconds"],
        pending=tuple(email["pending"]),
        refusals=email["refusals"],
        events=tuple(
            DigestEvent(
                notification_id=row["notification_id"],
                type=row["type"],
                occurred_at=row["occurred_at"],
                subject=row["subject"],
                data=_decode(row["data"]),
            )
            for row in events
        ),
    )


async def record(connection: Connection, outcomes: Sequence[tuple[UUID, Outcome]]) -> None:
    """Store what became of recipients, each given with its email."""
    await connection.execute(
        RECORD,
        [email_id for email_id, _ in outcomes],
        [outcome.address for _, outcome in outcomes],
        [outcome.state for _, outcome in outcomes],
        [outcome.reply for _, outcome in outcomes],
    )


async def capture(
    connection: Connection, email_id: UUID, sender: str, recipients: Sequence[str], subject: str, message: bytes
) -> bool:
    """Keep a message; return False when no email has that id."""
    captured = await connection.fetchval(CAPTURE, uuid7(), email_id, sender, recipients, subject, message)
    return captured is not None


async def list_captured(
    connection: Connection, environment_id: UUID, before: UUID | None, limit: int
) -> list[CapturedMail]:
    """Captured mail of an environment, newest first, from the one before `before` on."""
    rows = await connection.fetch(LIST_CAPTURED, environment_id, before, limit)
    return [CapturedMail(**dict(row)) for row in rows]


async def find_captured(
    connection: Connection, environment_id: UUID, mail_id: UUID
) -> tuple[CapturedMail, bytes] | None:
    """One captured message and its source."""
    row = await connection.fetchrow(FIND_CAPTURED, environment_id, mail_id)
    if row is None:
        return None
    fields = dict(row)
    message: bytes = fields.pop("message")
    return CapturedMail(**fields), message


async def expire_captured(connection: Connection, older_than_seconds: float, limit: int) -> int:
    """Remove old captured mail; return how many."""
    return int((await connection.execute(EXPIRE_CAPTURED, older_than_seconds, limit)).rpartition(" ")[2])


def _decode(data: str | None) -> object:
    if data is None:
        return None
    try:
        decoded: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None  # JSON to PostgreSQL but not to us, such as a lone surrogate: the event is told without it
    if isinstance(decoded, dict):
        decoded.pop("recipients", None)  # a CloudEvent may name them here, and none of them may see the others
    return decoded
