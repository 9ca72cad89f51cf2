"""The statements of notifications walk the indexes named beside them, and read what they need and not a table.

With the planner's statistics as they should be, without any, and with those of the empty tables of an hour ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.plans import MODES, PlanMode, scans_of
from tests.support.postgres import Cluster

from bellringer.notifications import store
from bellringer.notifications.channels import store as channels_store
from bellringer.notifications.digests import store as digests_store

DIGESTS, ITEMS, READERS = 2000, 10, 5
EVENTS = DIGESTS * ITEMS
NEW = 100  # events that wait to join
BATCH = 20
OURS, THEIRS, SILENT = UUID(int=1), UUID(int=2), UUID(int=3)  # the last had the oldest tenth, and none since

# Ids are numbers: event n is in digest n / ITEMS, whose one email has the same id and READERS deliveries. Of the last
# two digests, one is closed and not grouped, and one is open.
FILL = f"""
CREATE FUNCTION id_of(number bigint) RETURNS uuid LANGUAGE sql IMMUTABLE
    RETURN ('00000000-0000-7000-8000-' || lpad(number::text, 12, '0'))::uuid;
INSERT INTO bellringer.notifications (id, environment_id, type, data, recipients, audience, occurred_at, accepted_at)
SELECT id_of(number), CASE WHEN number < {EVENTS // 10} THEN $3::uuid WHEN number % 10 = 0 THEN $1 ELSE $2 END,
    'task.failed', '{{}}',
    ARRAY['a@acme.example', 'b@acme.example'], decode(md5((number % 3)::text), 'hex'), now(), now()
FROM generate_series(0, {EVENTS + NEW - 1}) AS number;
INSERT INTO bellringer.digests (id, environment_id, window_seconds, opened_at, closes_at, closed_at,
    notification_count, email_count)
SELECT id_of(number), $1, number, at - interval '1 min', at, CASE WHEN number < {DIGESTS - 1} THEN at END, {ITEMS},
    CASE WHEN number < {DIGESTS - 2} THEN 1 END
FROM (SELECT number, now() - make_interval(mins => {DIGESTS}::integer - number) AS at
    FROM generate_series(0, {DIGESTS - 1}) AS number) AS new;
INSERT INTO bellringer.digest_items (notification_id, digest_id, audience)
SELECT id, id_of(number / {ITEMS}), audience
FROM (SELECT id, audience, row_number() OVER (ORDER BY id) - 1 AS number FROM bellringer.notifications) AS new
WHERE number < {EVENTS};
INSERT INTO bellringer.emails (id, environment_id, digest_id, audiences, part, parts, event_count)
SELECT id, environment_id, id, ARRAY(SELECT decode(md5(n::text), 'hex') FROM generate_series(0, 2) AS n), 1, 1, {ITEMS}
FROM bellringer.digests WHERE email_count IS NOT NULL;
INSERT INTO bellringer.deliveries (email_id, address, state)
SELECT id, number || '@acme.example',
    CASE WHEN id < id_of(1000) THEN 'sent' ELSE 'pending' END::bellringer.delivery_state
FROM bellringer.emails CROSS JOIN generate_series(1, {READERS}) AS number;
INSERT INTO bellringer.idempotency_keys (environment_id, key, notification_ids, created_at)
SELECT $1, number::text, '{{}}', now() - make_interval(secs => 10000 - number) FROM generate_series(1, 10000) AS number;
INSERT INTO bellringer.captured_mail (id, environment_id, sender, recipients, subject, message, received_at)
SELECT id_of(number), $1, 's', '{{}}', 's', 'm', now() - make_interval(secs => 5000 - number)
FROM generate_series(1, 5000) AS number;
INSERT INTO bellringer.workflows (environment_id, type, digest_window_seconds)
SELECT $2, 'type ' || number, 60 FROM generate_series(1, 1000) AS number;
"""
TABLES = ("notifications", "digests", "digest_items", "emails", "deliveries", "idempotency_keys", "captured_mail")


def id_of(number: int) -> UUID:
    return UUID(f"00000000-0000-7000-8000-{number:012}")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with arguments, indexes that it must walk, and how many rows of each table it may read."""

    statement: str
    arguments: tuple[object, ...]
    indexes: tuple[str, ...]
    rows: dict[str, int]


LAST_EVENT, LAST_EMAIL = EVENTS - 1, DIGESTS - 3
CASES = {
    "join": Case(
        statement=digests_store.JOIN,
        arguments=([id_of(EVENTS + number) for number in range(NEW)], 300),
        indexes=("notifications_pkey",),
        rows={"notifications": NEW, "digests": 1, "digest_items": NEW, "workflows": 1000},
    ),
    "close": Case(
        statement=digests_store.CLOSE, arguments=(BATCH,), indexes=("digests_due", "digests_pkey"), rows={"digests": 3}
    ),
    "group": Case(
        statement=digests_store.GROUP,
        arguments=(id_of(DIGESTS - 2), 100, 30),
        indexes=("digest_items_audience", "notifications_pkey"),
        rows={"digest_items": 2 * ITEMS, "notifications": 3, "digests": 2},
    ),
    "emails of a digest": Case(
        statement=digests_store.EMAILS_OF, arguments=(id_of(7),), indexes=("emails_digest",), rows={"emails": 1}
    ),
    "load an email": Case(
        statement=channels_store.LOAD_EMAIL,
        arguments=(id_of(LAST_EMAIL),),
        indexes=("emails_pkey", "deliveries_pkey"),
        rows={"emails": 1, "deliveries": READERS},
    ),
    "load events": Case(
        statement=channels_store.LOAD_EVENTS,
        arguments=(
            id_of(7),
            [b"\xcf\xcd\x20\x84\x95\xd5\x65\xef\x66\xe7\xdf\xf9\xf9\x87\x64\xda"],
            None,
            None,
            200,
            65536,
        ),
        indexes=("digest_items_audience", "notifications_pkey"),
        rows={"digest_items": ITEMS, "notifications": ITEMS},
    ),
    "record": Case(
        statement=channels_store.RECORD,
        arguments=(
            [id_of(LAST_EMAIL - number) for number in range(BATCH)],
            ["1@acme.example"] * BATCH,
            ["sent"] * BATCH,
            ["250"] * BATCH,
        ),
        indexes=("deliveries_pkey",),
        rows={"deliveries": BATCH, "emails": DIGESTS},
    ),
    "list": Case(
        statement=store.LIST,
        arguments=(OURS, None, BATCH),
        indexes=("notifications_environment",),
        rows={"notifications": BATCH},
    ),
    "list, far back": Case(
        statement=store.LIST,
        arguments=(OURS, id_of(3000), BATCH),
        indexes=("notifications_environment",),
        rows={"notifications": BATCH},
    ),
    "list, of an environment long silent": Case(
        statement=store.LIST,
        arguments=(SILENT, None, BATCH),
        indexes=("notifications_environment",),
        rows={"notifications": BATCH},
    ),
    "list in brief, far back": Case(
        statement=store.LIST_SUMMARIES,
        arguments=(OURS, id_of(3000), BATCH),
        indexes=("notifications_environment", "digest_items_pkey"),
        rows={"notifications": BATCH + 1, "digest_items": BATCH + 1, "digests": DIGESTS},
    ),
    "find": Case(statement=store.FIND, arguments=(OURS, id_of(2070)), indexes=(), rows={"notifications": 1}),
    "timeline": Case(
        statement=store.TIMELINE,
        arguments=(id_of(1234), ["1@acme.example", "2@acme.example"]),
        indexes=("digest_items_pkey", "digests_pkey", "emails_digest", "deliveries_pkey"),
        rows={"digest_items": 1, "digests": 1, "emails": 1, "deliveries": READERS},
    ),
    "take keys": Case(
        statement=store.TAKE_KEYS,
        arguments=([OURS] * BATCH, [f"{number}" for number in range(BATCH)], [None] * BATCH, [""] * BATCH),
        indexes=(),
        rows={"idempotency_keys": 0},
    ),
    "read keys": Case(
        statement=store.READ_KEYS,
        arguments=([OURS] * BATCH, [f"{number}" for number in range(BATCH)]),
        indexes=("idempotency_keys_pkey",),
        rows={"idempotency_keys": BATCH},
    ),
    "count open digests": Case(statement=store.COUNT_OPEN_DIGESTS, arguments=(OURS,), indexes=(), rows={"digests": 1}),
    "expire keys": Case(
        statement=store.EXPIRE_KEYS,
        arguments=(9900.0, 1000),
        indexes=("idempotency_keys_created_at",),
        rows={"idempotency_keys": 2 * 101},
    ),
    "expire no keys": Case(
        statement=store.EXPIRE_KEYS,
        arguments=(86_400.0, 1000),
        indexes=("idempotency_keys_created_at",),
        rows={"idempotency_keys": 0},
    ),
    "expire digests": Case(
        statement=store.EXPIRE_DIGESTS,
        arguments=(60.0 * (DIGESTS - 10), 5),
        indexes=("digests_closed", "emails_digest", "deliveries_pkey", "digest_items_audience", "notifications_pkey"),
        rows={
            "digests": 11 + 5,
            "emails": 11,
            "deliveries": 11 * READERS,
            "digest_items": 5 * ITEMS,
            "notifications": 5 * ITEMS,
        },
    ),
    "expire no digests": Case(
        statement=store.EXPIRE_DIGESTS,
        arguments=(1_000_000.0, 5),
        indexes=("digests_closed",),
        rows=dict.fromkeys(TABLES, 0),
    ),
    "list captured mail, far back": Case(
        statement=channels_store.LIST_CAPTURED,
        arguments=(OURS, id_of(1000), BATCH),
        indexes=("captured_mail_environment",),
        rows={"captured_mail": BATCH},
    ),
    "find captured mail": Case(
        statement=channels_store.FIND_CAPTURED,
        arguments=(OURS, id_of(1000)),
        indexes=(),
        rows={"captured_mail": 1},
    ),
    "expire captured mail": Case(
        statement=channels_store.EXPIRE_CAPTURED,
        arguments=(4900.0, 1000),
        indexes=("captured_mail_received_at", "captured_mail_pkey"),
        rows={"captured_mail": 2 * 101},
    ),
}


@pytest.fixture(scope="module", params=["no statistics", "of empty tables", "of what is there"])
async def connection(
    request: pytest.FixtureRequest, cluster: Cluster
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to a database with many notifications, and with the statistics named."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE plans_of_notifications")
    arguments = cluster.arguments("plans_of_notifications")
    opened = await asyncpg.connect(**arguments, server_settings={"jit": "off"})
    for table in TABLES:
        await opened.execute(f"ALTER TABLE bellringer.{table} SET (autovacuum_enabled = off)")
    if request.param == "of empty tables":
        await opened.execute("ANALYZE")
    fill = FILL.replace("$1", f"'{OURS}'::uuid").replace("$2", f"'{THEIRS}'::uuid").replace("$3", f"'{SILENT}'")
    await opened.execute(fill)
    if request.param == "of what is there":
        await opened.execute("ANALYZE")
    yield opened
    await opened.close()
    await admin.execute("DROP DATABASE plans_of_notifications WITH (FORCE)")
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_walks_its_indexes_and_reads_only_what_it_needs(
    connection: asyncpg.Connection[asyncpg.Record], name: str, mode: PlanMode
) -> None:
    case = CASES[name]
    scans = await scans_of(connection, case.statement, case.arguments, mode)
    read = Counter[str]()
    for scan in scans:
        read[scan.table] += round(scan.rows)
    assert set(case.indexes) <= {scan.index for scan in scans}, f"walks others: {scans}"
    too_much = {table: rows for table, rows in read.items() if rows > case.rows.get(table, 0)}
    assert not too_much, f"reads too much: {scans}"
