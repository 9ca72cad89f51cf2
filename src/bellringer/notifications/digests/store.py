"""SQL of digests: join, close, group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from bellringer.kernel.database import Connection

# Joining is an insert that meets the unique index of open digests. The row stays locked to the commit, so a digest
# closes before a batch joins or after, never between. What has joined stays where it is.
# Indexes: digests_open, the primary keys.
JOIN = """
WITH arrived AS MATERIALIZED (
    SELECT notification.id, notification.environment_id, notification.audience,
        COALESCE(workflow.digest_window_seconds, $2) AS window_seconds
    FROM bellringer.notifications AS notification
    LEFT JOIN bellringer.workflows AS workflow
        ON workflow.environment_id = notification.environment_id AND workflow.type = notification.type
    WHERE notification.id = ANY ($1)
        -- OFFSET 0: looked up one by one, and not by a walk through all that ever joined.
        AND NOT EXISTS (SELECT FROM bellringer.digest_items WHERE notification_id = notification.id OFFSET 0)
), joined AS (
    -- Sorted, so that two batches lock the digests in one order.
    INSERT INTO bellringer.digests AS digest (id, environment_id, window_seconds, closes_at, notification_count)
    SELECT gen_random_uuid(), environment_id, window_seconds,
        clock_timestamp() + make_interval(secs => window_seconds), count(*)
    FROM arrived
    GROUP BY environment_id, window_seconds
    ORDER BY environment_id, window_seconds
    ON CONFLICT (environment_id, window_seconds) WHERE closed_at IS NULL
        DO UPDATE SET notification_count = digest.notification_count + excluded.notification_count
    RETURNING digest.id, digest.environment_id, digest.window_seconds, digest.xmax = 0 AS is_new
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT environment_id, 'digests', count(*) FROM joined WHERE is_new GROUP BY environment_id
)
INSERT INTO bellringer.digest_items (notification_id, digest_id, audience)
SELECT arrived.id, joined.id, arrived.audience
FROM arrived
JOIN joined USING (environment_id, window_seconds)
"""
# Waits for the batch that joins rather than skip its digest: in a flood one batch follows upon another, and the digest
# would stay open (measured with three joiners: to the end of the flood). Locked in the order in which batches join.
# Index: digests_due.
CLOSE = """
WITH due AS MATERIALIZED (
    SELECT id FROM bellringer.digests
    WHERE closed_at IS NULL AND closes_at <= (SELECT clock_timestamp())
    ORDER BY closes_at
    LIMIT $1
), locked AS MATERIALIZED (
    SELECT digest.id
    FROM due
    JOIN bellringer.digests AS digest ON digest.id = due.id
    WHERE digest.closed_at IS NULL
    ORDER BY digest.environment_id, digest.window_seconds
    FOR UPDATE OF digest
)
UPDATE bellringer.digests AS digest SET closed_at = clock_timestamp() FROM locked WHERE digest.id = locked.id
RETURNING digest.id
"""
# Two recipients have the same events exactly when the same audiences hold them both, so the grouping works on the
# distinct audiences of the digest and never pairs recipients with single events. A group over $2 recipients is cut
# into chunks, one over $3 events into parts: SMTP servers and mail readers have limits, and nothing is left out.
# COLLATE "C" is the order of uuids; in others "aa" may sort behind "b". Index: digest_items_audience.
GROUP = """
WITH digest AS MATERIALIZED (
    -- One that is grouped already, or just now by another, stays as it is.
    SELECT id, environment_id FROM bellringer.digests
    WHERE id = $1 AND closed_at IS NOT NULL AND email_count IS NULL
    FOR UPDATE
), audience AS MATERIALIZED (
    SELECT item.audience, count(*) AS events, min(item.notification_id::text COLLATE "C")::uuid AS example
    FROM bellringer.digest_items AS item
    WHERE item.digest_id = (SELECT id FROM digest)
    GROUP BY item.audience
), recipient AS (
    SELECT address, array_agg(audience.audience ORDER BY audience.audience) AS audiences,
        sum(audience.events)::bigint AS events  -- as it is, a numeric, it would make the division by $3 one with a rest
    FROM audience
    JOIN bellringer.notifications AS notification ON notification.id = audience.example
    CROSS JOIN unnest(notification.recipients) AS address
    GROUP BY address
), numbered AS (
    SELECT address, audiences, events,
        (row_number() OVER (PARTITION BY audiences ORDER BY address) - 1) / $2 AS chunk
    FROM recipient
), chunk AS (
    SELECT audiences, events, array_agg(address ORDER BY address) AS addresses
    FROM numbered
    GROUP BY audiences, events, chunk
), email AS MATERIALIZED (
    SELECT gen_random_uuid() AS id, chunk.audiences, chunk.addresses, part.*
    FROM chunk
    CROSS JOIN LATERAL (
        SELECT 1 AS part, NULL::uuid AS first, NULL::uuid AS last, chunk.events WHERE chunk.events <= $3
        UNION ALL
        SELECT numbered_item.part + 1, min(numbered_item.id::text COLLATE "C")::uuid,
            max(numbered_item.id::text COLLATE "C")::uuid, count(*)
        FROM (
            SELECT item.notification_id AS id, (row_number() OVER (ORDER BY item.notification_id) - 1) / $3 AS part
            FROM bellringer.digest_items AS item
            WHERE item.digest_id = $1 AND item.audience = ANY (chunk.audiences)
        ) AS numbered_item
        WHERE chunk.events > $3
        GROUP BY numbered_item.part
    ) AS part
), added AS (
    INSERT INTO bellringer.emails (
        id, environment_id, digest_id, audiences, part, parts, first_notification_id, last_notification_id, event_count
    )
    SELECT email.id, digest.environment_id, digest.id, email.audiences, email.part,
        count(*) OVER (PARTITION BY email.audiences, email.addresses), email.first, email.last, email.events
    FROM email
    CROSS JOIN digest
    RETURNING environment_id
), addressed AS (
    INSERT INTO bellringer.deliveries (email_id, address)
    SELECT email.id, address FROM email CROSS JOIN unnest(email.addresses) AS address
), counted AS (
    INSERT INTO bellringer.tally_entries (owner, name, change)
    SELECT environment_id, 'emails', count(*) FROM added GROUP BY environment_id
)
UPDATE bellringer.digests SET email_count = (SELECT count(*) FROM added) WHERE id = (SELECT id FROM digest)
"""
# Index: emails_digest.
EMAILS_OF = "SELECT id FROM bellringer.emails WHERE digest_id = $1"


async def join(connection: Connection, notification_ids: Sequence[UUID], default_window_seconds: int) -> None:
    """Let notifications join the open digests of their environments, opening what is missing."""
    await connection.execute(JOIN, notification_ids, default_window_seconds)


async def close_due(connection: Connection, limit: int) -> list[UUID]:
    """Close up to `limit` digests whose window is over; return their ids."""
    return [row["id"] for row in await connection.fetch(CLOSE, limit)]


async def group(connection: Connection, digest_id: UUID, recipients_per_email: int, events_per_email: int) -> bool:
    """Turn a closed digest into emails, one per set of recipients that have the same events, unless it was done."""
    return await connection.execute(GROUP, digest_id, recipients_per_email, events_per_email) == "UPDATE 1"


async def email_ids(connection: Connection, digest_id: UUID, page: int) -> AsyncIterator[list[UUID]]:
    """The emails of a digest in pages, for digests with millions of them; inside a transaction."""
    cursor = await connection.cursor(EMAILS_OF, digest_id)
    while rows := await cursor.fetch(page):
        yield [row["id"] for row in rows]
