"""SQL of notifications, their idempotency keys and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from bellringer.kernel.database import Connection
from bellringer.notifications.model import (
    NewNotification,
    Notification,
    NotificationSummary,
    Overview,
    TimelineEntry,
    Workflow,
    audience_of,
)

# Sorted by key, so that two transactions with the same keys wait for each other in one order.
TAKE_KEYS = """
INSERT INTO bellringer.idempotency_keys (environment_id, key, fingerprint, notification_ids)
SELECT environment_id, key, fingerprint, string_to_array(notification_ids, ' ')::uuid[]
FROM unnest($1::uuid[], $2::text[], $3::bytea[], $4::text[]) AS new (environment_id, key, fingerprint, notification_ids)
ORDER BY environment_id, key
ON CONFLICT (environment_id, key) DO NOTHING
RETURNING environment_id, key
"""
READ_KEYS = """
SELECT stored.environment_id, stored.key, stored.fingerprint, stored.notification_ids
FROM unnest($1::uuid[], $2::text[]) AS asked (environment_id, key)
JOIN bellringer.idempotency_keys AS stored USING (environment_id, key)
"""
# An address holds no newline, so a list of them travels as lines: an array of arrays must not be ragged.
ADD = """
WITH added AS (
    INSERT INTO bellringer.notifications
        (id, environment_id, type, source, subject, data, recipients, audience, occurred_at)
    SELECT id, environment_id, type, source, subject, data::json, string_to_array(recipients, E'\\n'), audience,
        COALESCE(occurred_at, clock_timestamp())
    FROM unnest(
        $1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
        $9::timestamptz[]
    ) AS new (id, environment_id, type, source, subject, data, recipients, audience, occurred_at)
    RETURNING environment_id, cardinality(recipients) AS recipients
), counted AS (
    SELECT environment_id, count(*) AS events, sum(recipients) AS notifications FROM added GROUP BY environment_id
)
INSERT INTO bellringer.tally_entries (owner, name, change)
SELECT environment_id, 'events', events FROM counted
UNION ALL
SELECT environment_id, 'notifications', notifications FROM counted
"""
# One bound with or without `before`, and a limit that the planner cannot see: else its plan for any arguments walks
# from the newest on, and without statistics it sorts the whole environment. Index: notifications_environment, walked
# backwards.
LIST = """
SELECT id, type, source, subject, recipients, data::text, occurred_at, accepted_at
FROM bellringer.notifications
WHERE environment_id = $1 AND id < COALESCE($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY id DESC
LIMIT (SELECT $3::bigint)
"""
# Indexes: notifications_environment, walked backwards; the primary keys of digest_items and digests.
LIST_SUMMARIES = """
SELECT notification.id, notification.type, notification.source, notification.subject,
    notification.recipients[1:2] AS first_recipients, cardinality(notification.recipients) AS recipient_count,
    notification.accepted_at, digest.closes_at, digest.closed_at
FROM bellringer.notifications AS notification
LEFT JOIN bellringer.digest_items AS item ON item.notification_id = notification.id
LEFT JOIN bellringer.digests AS digest ON digest.id = item.digest_id
WHERE notification.environment_id = $1 AND notification.id < COALESCE($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY notification.id DESC
LIMIT (SELECT $3::bigint)
"""
FIND = """
SELECT id, type, source, subject, recipients, data::text, occurred_at, accepted_at
FROM bellringer.notifications
WHERE environment_id = $1 AND id = $2
"""
# Indexes: the primary key of digest_items, emails_digest, the primary key of deliveries.
TIMELINE = """
SELECT digest.id AS digest_id, item.joined_at, digest.closes_at, digest.closed_at,
    delivery.address, delivery.state::text, delivery.reply, delivery.updated_at, delivery.email_id
FROM bellringer.digest_items AS item
JOIN bellringer.digests AS digest ON digest.id = item.digest_id
LEFT JOIN bellringer.emails AS email ON email.digest_id = item.digest_id
    AND item.audience = ANY (email.audiences)
    AND (email.first_notification_id IS NULL
        OR item.notification_id BETWEEN email.first_notification_id AND email.last_notification_id)
LEFT JOIN bellringer.deliveries AS delivery ON delivery.email_id = email.id AND delivery.address = ANY ($2)
WHERE item.notification_id = $1
ORDER BY delivery.updated_at, delivery.address
"""
PUT_WORKFLOW = """
INSERT INTO bellringer.workflows (environment_id, type, digest_window_seconds) VALUES ($1, $2, $3)
ON CONFLICT (environment_id, type) DO UPDATE SET
    digest_window_seconds = excluded.digest_window_seconds, updated_at = clock_timestamp()
RETURNING type, digest_window_seconds, updated_at
"""
LIST_WORKFLOWS = """
SELECT type, digest_window_seconds, updated_at FROM bellringer.workflows WHERE environment_id = $1 ORDER BY type
"""
DELETE_WORKFLOW = "DELETE FROM bellringer.workflows WHERE environment_id = $1 AND type = $2 RETURNING type"
# Index: digests_open.
COUNT_OPEN_DIGESTS = "SELECT count(*) FROM bellringer.digests WHERE environment_id = $1 AND closed_at IS NULL"

# In small batches; index: idempotency_keys_created_at.
EXPIRE_KEYS = """
DELETE FROM bellringer.idempotency_keys WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM bellringer.idempotency_keys
    WHERE created_at < (SELECT clock_timestamp()) - make_interval(secs => $1)
    ORDER BY created_at
    LIMIT (SELECT $2::bigint)
))
"""
# A notification goes with its digest, which takes its items, emails and deliveries along. A digest with a recipient
# that still waits stays. Index: digests_closed.
EXPIRE_DIGESTS = """
WITH old AS MATERIALIZED (
    SELECT digest.id FROM bellringer.digests AS digest
    WHERE digest.closed_at < (SELECT clock_timestamp()) - make_interval(secs => $1) AND digest.email_count IS NOT NULL
        AND NOT EXISTS (
            SELECT FROM bellringer.emails AS email
            WHERE email.digest_id = digest.id AND EXISTS (
                SELECT FROM bellringer.deliveries WHERE email_id = email.id AND state = 'pending' OFFSET 0
            )
            OFFSET 0  -- looked up one by one, and not by a walk through all deliveries
        )
    ORDER BY digest.closed_at
    LIMIT (SELECT $2::bigint)
), notifications AS (
    DELETE FROM bellringer.notifications WHERE id = ANY (ARRAY(
        SELECT notification_id FROM bellringer.digest_items WHERE digest_id = ANY (ARRAY(SELECT id FROM old))
    ))
)
DELETE FROM bellringer.digests WHERE id = ANY (ARRAY(SELECT id FROM old))
"""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """What an idempotency key stands for already."""

    fingerprint: bytes | None
    notification_ids: list[UUID]


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key to be taken for notifications that come with it."""

    environment_id: UUID
    key: str
    fingerprint: bytes | None
    notification_ids: list[UUID]


async def take_keys(connection: Connection, keys: Sequence[NewKey]) -> set[tuple[UUID, str]]:
    """Take idempotency keys, each at most once; return those that were free."""
    rows = await connection.fetch(
        TAKE_KEYS,
        [key.environment_id for key in keys],
        [key.key for key in keys],
        [key.fingerprint for key in keys],
        [" ".join(map(str, key.notification_ids)) for key in keys],
    )
    return {(row["environment_id"], row["key"]) for row in rows}


async def read_keys(connection: Connection, keys: Sequence[tuple[UUID, str]]) -> dict[tuple[UUID, str], StoredKey]:
    """What keys that were taken before stand for."""
    rows = await connection.fetch(READ_KEYS, [environment for environment, _ in keys], [key for _, key in keys])
    return {
        (row["environment_id"], row["key"]): StoredKey(
            fingerprint=row["fingerprint"], notification_ids=row["notification_ids"]
        )
        for row in rows
    }


async def add(connection: Connection, notifications: Sequence[tuple[UUID, NewNotification]]) -> None:
    """Store notifications, each given with its environment."""
    new = [notification for _, notification in notifications]
    await connection.execute(
        ADD,
        [notification.id for notification in new],
        [environment_id for environment_id, _ in notifications],
        [notification.type for notification in new],
        [notification.source for notification in new],
        [notification.subject for notification in new],
        [notification.data for notification in new],
        ["\n".join(notification.recipients) for notification in new],
        [audience_of(notification.recipients) for notification in new],
        [notification.occurred_at for notification in new],
    )


async def list_notifications(
    connection: Connection, environment_id: UUID, before: UUID | None, limit: int
) -> list[Notification]:
    """Notifications of an environment, newest first, from the one before `before` on."""
    return [_notification(row) for row in await connection.fetch(LIST, environment_id, before, limit)]


async def list_summaries(
    connection: Connection, environment_id: UUID, before: UUID | None, limit: int
) -> list[NotificationSummary]:
    """Notifications of an environment in brief, newest first, from the one before `before` on."""
    rows = await connection.fetch(LIST_SUMMARIES, environment_id, before, limit)
    return [NotificationSummary(**dict(row)) for row in rows]


async def find(connection: Connection, environment_id: UUID, notification_id: UUID) -> Notification | None:
    """One notification of an environment."""
    row = await connection.fetchrow(FIND, environment_id, notification_id)
    return None if row is None else _notification(row)


async def timeline(connection: Connection, notification: Notification) -> list[TimelineEntry]:
    """The steps of a notification, in their order."""
    entries = [TimelineEntry(step="accepted", at=notification.accepted_at)]
    rows = await connection.fetch(TIMELINE, notification.id, notification.recipients)
    if rows:
        digest = rows[0]
        closes = f"closes at {digest['closes_at'].isoformat(timespec='seconds')}"
        entries.append(
            TimelineEntry(
                step="in_digest",
                at=digest["joined_at"],
                digest_id=digest["digest_id"],
                detail=closes,
                closes_at=digest["closes_at"],
            )
        )
        if digest["closed_at"]:
            entries.append(TimelineEntry(step="digest_closed", at=digest["closed_at"], digest_id=digest["digest_id"]))
    entries += [
        TimelineEntry(
            step=row["state"],
            at=row["updated_at"],
            recipient=row["address"],
            email_id=row["email_id"],
            detail=row["reply"],
        )
        for row in rows
        if row["address"] is not None
    ]
    return entries


async def put_workflow(connection: Connection, environment_id: UUID, type_: str, window_seconds: int) -> Workflow:
    """Store how events of a type are handled."""
    row = await connection.fetchrow(PUT_WORKFLOW, environment_id, type_, window_seconds)
    assert row is not None  # noqa: S101 - insert and update both return the row
    return Workflow(**dict(row))


async def list_workflows(connection: Connection, environment_id: UUID) -> list[Workflow]:
    """The workflows that were set, by type."""
    return [Workflow(**dict(row)) for row in await connection.fetch(LIST_WORKFLOWS, environment_id)]


async def delete_workflow(connection: Connection, environment_id: UUID, type_: str) -> bool:
    """Return a type to the defaults; say whether it had settings of its own."""
    return await connection.fetchval(DELETE_WORKFLOW, environment_id, type_) is not None


async def overview(connection: Connection, environment_id: UUID, tallies: dict[str, int]) -> Overview:
    """What an environment has done, from its tallies, and its open digests."""
    return Overview(
        events=tallies["events"],
        notifications=tallies["notifications"],
        digests=tallies["digests"],
        open_digests=await connection.fetchval(COUNT_OPEN_DIGESTS, environment_id),
        emails=tallies["emails"],
        sent=tallies["sent"],
        failed=tallies["failed"],
    )


async def expire_keys(connection: Connection, older_than_seconds: float, limit: int) -> int:
    """Forget old idempotency keys; return how many."""
    return _number(await connection.execute(EXPIRE_KEYS, older_than_seconds, limit))


async def expire_digests(connection: Connection, older_than_seconds: float, limit: int) -> int:
    """Remove old digests with all that hangs on them; return how many."""
    return _number(await connection.execute(EXPIRE_DIGESTS, older_than_seconds, limit))


def _number(command_tag: str) -> int:
    return int(command_tag.rpartition(" ")[2])


def _notification(row: asyncpg.Record) -> Notification:
    data: str | None = row["data"]
    occurred_at: datetime = row["occurred_at"]
    return Notification(
        id=row["id"],
        type=row["type"],
        source=row["source"],
        subject=row["subject"],
        recipients=row["recipients"],
        data=None if data is None else msgspec.Raw(data.encode()),
        occurred_at=occurred_at,
        accepted_at=row["accepted_at"],
    )
