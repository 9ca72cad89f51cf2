from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from tests.support.pipeline import Pipeline, notification, opened_pipeline

from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.notifications import loops
from bellringer.notifications.channels import store as channels_store
from bellringer.notifications.channels.model import Outcome
from bellringer.notifications.loops import Expirer
from bellringer.notifications.model import NewNotification, Submission
from bellringer.notifications.service import NotificationsConfig

DAY = 24 * 3600
CONFIG = NotificationsConfig(idempotency_seconds=DAY, retention_seconds=30 * DAY)
TABLES = ("notifications", "digest_items", "digests", "emails", "deliveries", "idempotency_keys", "captured_mail")


@pytest.fixture
async def pipeline(database: Database, keys: Keys) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys) as opened:
        yield opened


async def accept(
    pipeline: Pipeline, environment: Environment, *new: NewNotification, key: str | None = None
) -> list[UUID]:
    submission = Submission(notifications=new, idempotency_key=key, fingerprint=None if key is None else b"body")
    return await pipeline.notifications.accept(environment.id, (submission,))


async def deliver_all(database: Database) -> None:
    """Let every recipient have been sent to."""
    async with database.transaction() as connection:
        waiting = await connection.fetch("SELECT email_id, address FROM bellringer.deliveries WHERE state = 'pending'")
        outcomes = [(row["email_id"], Outcome(address=row["address"], state="sent", reply="250")) for row in waiting]
        await channels_store.record(connection, outcomes)


async def let_pass(database: Database, seconds: float) -> None:
    async with database.connection() as connection:
        for column, table in (
            ("created_at", "idempotency_keys"),
            ("closed_at", "digests"),
            ("received_at", "captured_mail"),
        ):
            await connection.execute(
                f"UPDATE bellringer.{table} SET {column} = {column} - make_interval(secs => $1)", seconds
            )


async def left(database: Database) -> dict[str, int]:
    async with database.connection() as connection:
        return {table: await connection.fetchval(f"SELECT count(*) FROM bellringer.{table}") for table in TABLES}


async def capture(pipeline: Pipeline, number: int) -> None:
    async with pipeline.database.connection() as connection:
        email_id = await connection.fetchval("SELECT id FROM bellringer.emails LIMIT 1")
        for _ in range(number):
            assert await channels_store.capture(connection, email_id, "a@acme.example", [], "subject", b"message")


async def test_everything_goes_with_its_digest_and_not_before(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann", "bob"), notification("bob"), key="k")
    await pipeline.group_all()
    await deliver_all(database)
    await capture(pipeline, 2)
    await accept(pipeline, environment, notification("ann"))
    await pipeline.joins.run_once()
    expirer = Expirer(database, CONFIG)
    before = await left(database)
    assert await expirer.run_once() is False
    assert await left(database) == before

    await let_pass(database, DAY + 60)
    await expirer.run_once()
    assert await left(database) == before | {"idempotency_keys": 0}

    await let_pass(database, 29 * DAY)
    await expirer.run_once()
    assert await left(database) == {
        "notifications": 1,
        "digest_items": 1,
        "digests": 1,
        "emails": 0,
        "deliveries": 0,
        "idempotency_keys": 0,
        "captured_mail": 0,
    }


async def test_a_digest_stays_while_one_of_its_recipients_waits(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann"), notification("bob"))
    await pipeline.group_all()
    async with database.connection() as connection:
        email_id = await connection.fetchval("SELECT email_id FROM bellringer.deliveries ORDER BY address LIMIT 1")
        outcome = Outcome(address="ann@acme.example", state="failed", reply="550 nobody")
        await channels_store.record(connection, [(email_id, outcome)])
    await let_pass(database, 31 * DAY)
    await Expirer(database, CONFIG).run_once()
    assert (await left(database))["digests"] == 1
    await deliver_all(database)
    await Expirer(
        database,
        CONFIG,
    ).run_once()
    assert (await left(database))["digests"] == 1  # the lease is the first one's
    await end_lease(database)
    await Expirer(database, CONFIG).run_once()
    assert (await left(database))["notifications"] == 0


async def test_a_digest_that_was_never_grouped_stays(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    await accept(pipeline, environment, notification("ann"))
    await pipeline.joins.run_once()
    await pipeline.end_windows()
    await pipeline.closer.run_once()
    await let_pass(database, 31 * DAY)
    await Expirer(database, CONFIG).run_once()
    assert (await left(database))["digests"] == 1


async def test_a_key_that_was_forgotten_is_free(
    pipeline: Pipeline, database: Database, environment: Environment
) -> None:
    first = await accept(pipeline, environment, notification("ann"), key="k")
    assert await accept(pipeline, environment, notification("ann"), key="k") == first
    await let_pass(database, DAY + 60)
    await Expirer(database, CONFIG).run_once()
    assert await accept(pipeline, environment, notification("ann"), key="k") != first


async def test_the_round_goes_on_at_once_while_a_batch_is_full(
    pipeline: Pipeline, database: Database, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in ("_KEY_BATCH", "_DIGEST_BATCH", "_MAIL_BATCH"):
        monkeypatch.setattr(loops, batch, 2)
    for number in range(5):
        await accept(pipeline, environment, notification("ann"), key=f"k{number}")
    for number in range(3):
        await pipeline.notifications.put_workflow(environment.id, f"{number}", number)
        await accept(pipeline, environment, notification("ann", type=f"{number}"))
    await pipeline.group_all()
    await deliver_all(database)
    await capture(pipeline, 3)
    await let_pass(database, 31 * DAY)
    expirer = Expirer(database, CONFIG)
    assert [await expirer.run_once() for _ in range(3)] == [True, True, False]
    assert set((await left(database)).values()) == {0}


async def end_lease(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.leases SET expires_at = now() - interval '1 s'")
