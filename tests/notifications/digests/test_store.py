"""Digests: who shares one, who closes it, and the fewest emails that tell everybody exactly their own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.pipeline import Email, add, check_exactly_once, emails_of, notification
from tests.support.postgres import Cluster
from tests.support.waiting import PATIENCE_SECONDS, until, until_sessions_wait

from bellringer.assembly import SUBSYSTEMS
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.database import Connection, Database, DatabaseConfig
from bellringer.kernel.migrations import migrate
from bellringer.notifications import store as notifications_store
from bellringer.notifications.digests import store
from bellringer.notifications.model import NewNotification

WINDOW_SECONDS = 300
LARGE = 100_000

READ_DIGESTS = """
SELECT id, environment_id, window_seconds, closed_at IS NOT NULL AS is_closed, notification_count,
    EXTRACT(epoch FROM closes_at - opened_at)::float8 AS lasts_seconds
FROM bellringer.digests ORDER BY opened_at
"""


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.connection() as opened:
        yield opened


@pytest.fixture
async def elsewhere(keys: Keys) -> Environment:
    return (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment


async def join(connection: Connection, environment: Environment, *new: NewNotification) -> list[UUID]:
    """Store events and let them join; return their ids."""
    ids = await add(connection, environment.id, *new)
    await store.join(connection, ids, WINDOW_SECONDS)
    return ids


async def digests_of(connection: Connection) -> list[dict[str, Any]]:
    return [dict(row) for row in await connection.fetch(READ_DIGESTS)]


async def members_of(connection: Connection) -> dict[UUID, UUID]:
    """The digest of each notification that has joined one."""
    rows = await connection.fetch("SELECT notification_id, digest_id FROM bellringer.digest_items")
    return {row["notification_id"]: row["digest_id"] for row in rows}


END_WINDOWS = """
WITH locked AS MATERIALIZED (
    SELECT id FROM bellringer.digests WHERE closed_at IS NULL ORDER BY environment_id, window_seconds FOR UPDATE
)
UPDATE bellringer.digests SET closes_at = now() WHERE id IN (SELECT id FROM locked) AND closed_at IS NULL
"""


async def end_windows(connection: Connection) -> None:
    """Let the window of every digest be over. Locks in the product's order."""
    await connection.execute(END_WINDOWS)


async def close(connection: Connection) -> UUID:
    """Close the only open digest; return its id."""
    await end_windows(connection)
    (digest_id,) = await store.close_due(connection, 10)
    return digest_id


async def test_notifications_of_one_window_share_a_digest(connection: Connection, environment: Environment) -> None:
    first = await join(connection, environment, notification("ann"), notification("bob"))
    later = await join(connection, environment, notification("ann", type="task.succeeded"))
    (digest,) = await digests_of(connection)
    assert set((await members_of(connection)).items()) == {(found, digest["id"]) for found in [*first, *later]}
    assert (digest["notification_count"], digest["is_closed"]) == (3, False)
    assert digest["lasts_seconds"] == pytest.approx(WINDOW_SECONDS, abs=0.1)


async def test_what_joins_later_does_not_move_the_end_of_the_window(
    connection: Connection, environment: Environment
) -> None:
    await join(connection, environment, notification("ann"))
    closes_at = await connection.fetchval("SELECT closes_at FROM bellringer.digests")
    await join(connection, environment, notification("ann"))
    assert await connection.fetchval("SELECT closes_at FROM bellringer.digests") == closes_at


async def test_types_with_the_same_window_share_a_digest_and_others_do_not(
    connection: Connection, environment: Environment, elsewhere: Environment
) -> None:
    for type_, seconds in (("hourly", 3600), ("also hourly", 3600), ("at once", 0), ("as by default", WINDOW_SECONDS)):
        await notifications_store.put_workflow(connection, environment.id, type_, seconds)
    await notifications_store.put_workflow(connection, elsewhere.id, "unknown", 60)
    types = ["hourly", "also hourly", "at once", "as by default", "unknown"]
    ids = await join(connection, environment, *(notification("ann", type=type_) for type_ in types))
    members = await members_of(connection)
    windows = {digest["id"]: digest["window_seconds"] for digest in await digests_of(connection)}
    assert [windows[members[found]] for found in ids] == [3600, 3600, 0, WINDOW_SECONDS, WINDOW_SECONDS]
    assert len(windows) == 3


async def test_environments_never_share_a_digest(
    connection: Connection, environment: Environment, elsewhere: Environment
) -> None:
    ours = await add(connection, environment.id, notification("ann"))
    theirs = await add(connection, elsewhere.id, notification("ann"))
    await store.join(connection, [*ours, *theirs], WINDOW_SECONDS)
    digests = await digests_of(connection)
    assert {digest["environment_id"] for digest in digests} == {environment.id, elsewhere.id}
    assert [digest["notification_count"] for digest in digests] == [1, 1]


async def test_a_digest_closes_when_its_window_is_over_and_the_next_notification_opens_another(
    connection: Connection, environment: Environment
) -> None:
    first = await join(connection, environment, notification("ann"))
    assert await store.close_due(connection, 10) == []
    closed = await close(connection)
    assert await store.close_due(connection, 10) == []
    second = await join(connection, environment, notification("ann"))
    members = await members_of(connection)
    assert members[first[0]] == closed != members[second[0]]
    assert [digest["is_closed"] for digest in await digests_of(connection)] == [True, False]


async def test_the_longest_due_close_first_and_no_more_than_the_limit(
    connection: Connection, environment: Environment
) -> None:
    for seconds in range(5):
        await notifications_store.put_workflow(connection, environment.id, f"{seconds}", seconds)
    await join(connection, environment, *(notification("ann", type=f"{seconds}") for seconds in range(5)))
    await connection.execute("UPDATE bellringer.digests SET closes_at = now() - window_seconds * interval '1 min'")
    windows = {digest["id"]: digest["window_seconds"] for digest in await digests_of(connection)}
    closed = [await store.close_due(connection, 2) for _ in range(4)]
    assert [{windows[found] for found in batch} for batch in closed] == [{4, 3}, {2, 1}, {0}, set()]


async def test_joining_again_changes_nothing(connection: Connection, environment: Environment) -> None:
    ids = await join(connection, environment, notification("ann"), notification("bob"))
    members = await members_of(connection)
    await close(connection)
    (new,) = await add(connection, environment.id, notification("ann"))
    await store.join(connection, [*ids, new, *ids], WINDOW_SECONDS)
    joined = await members_of(connection)
    assert {found: joined[found] for found in ids} == members
    assert joined[new] not in members.values()
    assert [digest["notification_count"] for digest in await digests_of(connection)] == [2, 1]


async def test_a_notification_that_is_gone_joins_nothing(connection: Connection, environment: Environment) -> None:
    (known,) = await add(connection, environment.id, notification("ann"))
    await store.join(connection, [known, UUID(int=1)], WINDOW_SECONDS)
    assert list(await members_of(connection)) == [known]
    await store.join(connection, [UUID(int=1)], WINDOW_SECONDS)
    assert len(await digests_of(connection)) == 1


async def test_a_digest_that_is_just_being_joined_closes_afterwards_with_all_that_joined(
    database: Database, connection: Connection, environment: Environment
) -> None:
    first = await join(connection, environment, notification("ann"))
    await end_windows(connection)
    second = await add(connection, environment.id, notification("ann"))
    async with database.connection() as joiner:
        transaction = joiner.transaction()
        await transaction.start()
        await store.join(joiner, second, WINDOW_SECONDS)
        closing = asyncio.create_task(store.close_due(connection, 10))
        await until_sessions_wait(joiner)
        await transaction.commit()
    closed = await asyncio.wait_for(closing, PATIENCE_SECONDS)
    assert set((await members_of(connection)).items()) == {(found, closed[0]) for found in [*first, *second]}


async def test_who_joins_while_a_digest_closes_opens_another(
    database: Database, connection: Connection, environment: Environment
) -> None:
    first = await join(connection, environment, notification("ann"))
    await end_windows(connection)
    second = await add(connection, environment.id, notification("ann"))
    async with database.connection() as closer:
        transaction = closer.transaction()
        await transaction.start()
        (closed,) = await store.close_due(closer, 10)
        joining = asyncio.create_task(store.join(connection, second, WINDOW_SECONDS))
        await until_sessions_wait(closer)
        await transaction.commit()
    await asyncio.wait_for(joining, PATIENCE_SECONDS)
    members = await members_of(connection)
    assert members[first[0]] == closed != members[second[0]]


async def test_a_digest_that_could_not_be_closed_is_joined_again(
    database: Database, connection: Connection, environment: Environment
) -> None:
    first = await join(connection, environment, notification("ann"))
    await end_windows(connection)
    second = await add(connection, environment.id, notification("ann"))
    async with database.connection() as closer:
        transaction = closer.transaction()
        await transaction.start()
        await store.close_due(closer, 10)
        joining = asyncio.create_task(store.join(connection, second, WINDOW_SECONDS))
        await until_sessions_wait(closer)
        await transaction.rollback()
    await asyncio.wait_for(joining, PATIENCE_SECONDS)
    assert len({(await members_of(connection))[found] for found in [*first, *second]}) == 1


async def test_closing_races_with_joining_and_nothing_is_lost_or_told_twice(
    database: Database, environment: Environment, elsewhere: Environment
) -> None:
    """Four joiners of two environments and three windows, and two closers, all at once."""
    async with database.connection() as connection:
        for where in (environment, elsewhere):
            await notifications_store.put_workflow(connection, where.id, "at once", 0)
            await notifications_store.put_workflow(connection, where.id, "soon", 1)
        types = ["at once", "soon", "task.failed"]
        ids = []
        for _ in range(120):
            ours = await add(connection, environment.id, *(notification("ann", type=type_) for type_ in types))
            theirs = await add(connection, elsewhere.id, *(notification("ann", type=type_) for type_ in types))
            ids.append([*ours, *theirs])
    joined = asyncio.Event()

    async def join_some(number: int) -> None:
        for mine in ids[number::4]:
            async with database.transaction() as connection:
                await store.join(connection, mine, WINDOW_SECONDS)

    async def close_all() -> None:
        while True:
            last = joined.is_set()
            async with database.connection() as connection:
                await end_windows(connection)
                closed = await store.close_due(connection, 3)
            if last and not closed:
                return

    async with asyncio.timeout(PATIENCE_SECONDS):
        closing = [asyncio.create_task(close_all()) for _ in range(2)]
        await asyncio.gather(*(join_some(number) for number in range(4)))
        joined.set()
        await asyncio.gather(*closing)
    async with database.connection() as connection:
        members = await members_of(connection)
        digests = await digests_of(connection)
    assert members.keys() == {found for batch in ids for found in batch}
    sizes = defaultdict[UUID, int](int)
    for digest_id in members.values():
        sizes[digest_id] += 1
    assert {digest["id"]: digest["notification_count"] for digest in digests} == sizes
    assert all(digest["is_closed"] for digest in digests)


async def test_a_flood_does_not_keep_its_digest_open(database: Database, environment: Environment) -> None:
    """Several processes join the same digest without a pause: it closes all the same, soon after its window."""
    flooding = True

    async def flood() -> None:
        while flooding:
            async with database.transaction() as connection:
                await store.join(
                    connection, await add(connection, environment.id, *[notification("ann")] * 1), WINDOW_SECONDS
                )
                await connection.execute("SELECT pg_sleep(0.01)")

    floods = [asyncio.create_task(flood()) for _ in range(4)]
    closed: list[UUID] = []
    async with database.connection() as connection, asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: digests_of(connection))
        await end_windows(connection)
        for _ in range(3):
            closed = closed or await store.close_due(connection, 10)
    flooding = False
    await asyncio.gather(*floods)
    assert len(closed) == 1


# Grouping

Names = st.sampled_from("abcdefgh")
EventSets = st.lists(st.frozensets(Names, min_size=1), min_size=1, max_size=12)


async def grouped(
    connection: Connection,
    environment: Environment,
    recipients: Sequence[frozenset[str] | set[str]],
    *,
    recipients_per_email: int = LARGE,
    events_per_email: int = LARGE,
) -> tuple[UUID, list[Email], set[tuple[str, UUID]]]:
    """Take events with these recipients through a digest: its id, its emails, and the pairs that they are to hold."""
    new = [notification(*names) for names in recipients]
    await join(connection, environment, *new)
    digest_id = await close(connection)
    assert await store.group(connection, digest_id, recipients_per_email, events_per_email)
    wanted = {(address, event.id) for event in new for address in event.recipients}
    return digest_id, await emails_of(connection, digest_id), wanted


async def test_the_example_of_the_seed(connection: Connection, environment: Environment) -> None:
    _, emails, wanted = await grouped(connection, environment, [{"bob", "sarah", "john"}, {"bob"}, {"sarah", "john"}])
    check_exactly_once(emails, wanted)
    assert sorted(email.addresses for email in emails) == [
        ["bob@acme.example"],
        ["john@acme.example", "sarah@acme.example"],
    ]
    assert {(email.part, email.parts) for email in emails} == {(1, 1)}


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
@settings(max_examples=100)
@given(recipients=EventSets)
async def test_there_are_as_many_emails_as_there_are_different_sets_of_events(
    connection: Connection, environment: Environment, recipients: list[frozenset[str]]
) -> None:
    _, emails, wanted = await grouped(connection, environment, recipients)
    check_exactly_once(emails, wanted)
    events_of = defaultdict[str, set[UUID]](set)
    for address, event in wanted:
        events_of[address].add(event)
    assert len(emails) == len({frozenset(events) for events in events_of.values()})


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
@settings(max_examples=100)
@given(recipients=EventSets, recipients_per_email=st.integers(1, 4), events_per_email=st.integers(1, 4))
@example(recipients=[frozenset("a")] * 7, recipients_per_email=1, events_per_email=3)
async def test_small_emails_still_tell_everything_exactly_once(
    connection: Connection,
    environment: Environment,
    recipients: list[frozenset[str]],
    recipients_per_email: int,
    events_per_email: int,
) -> None:
    _, emails, wanted = await grouped(
        connection,
        environment,
        recipients,
        recipients_per_email=recipients_per_email,
        events_per_email=events_per_email,
    )
    check_exactly_once(emails, wanted)
    assert max(len(email.addresses) for email in emails) <= recipients_per_email
    assert max(len(email.events) for email in emails) <= events_per_email
    readers = defaultdict[frozenset[UUID], set[str]](set)
    for address in {address for address, _ in wanted}:
        readers[frozenset(event for reader, event in wanted if reader == address)].add(address)
    fewest = sum(
        -(-len(addresses) // recipients_per_email) * -(-len(events) // events_per_email)
        for events, addresses in readers.items()
    )
    assert len(emails) == fewest
    for email in emails:
        of_one_reader = [other for other in emails if other.addresses == email.addresses]
        assert sorted(other.part for other in of_one_reader) == list(range(1, email.parts + 1))
        in_order = sorted(of_one_reader, key=lambda other: other.part)
        assert [event for other in in_order for event in other.events] == sorted(
            event for other in of_one_reader for event in other.events
        )


async def test_grouping_again_does_nothing_more(connection: Connection, environment: Environment) -> None:
    digest_id, emails, wanted = await grouped(connection, environment, [{"ann", "bob"}, {"bob"}])
    tallies = await connection.fetch("SELECT name, change FROM bellringer.tally_entries")
    assert not await store.group(connection, digest_id, LARGE, LARGE)
    assert not await store.group(connection, digest_id, 1, 1)
    assert await emails_of(connection, digest_id) == emails
    check_exactly_once(emails, wanted)
    assert await connection.fetch("SELECT name, change FROM bellringer.tally_entries") == tallies


async def test_a_digest_is_grouped_once_by_processes_that_try_at_the_same_moment(
    database: Database, connection: Connection, environment: Environment
) -> None:
    await join(connection, environment, notification("ann"), notification("ann", "bob"))
    digest_id = await close(connection)

    async def group() -> bool:
        async with database.transaction() as other:
            return await store.group(other, digest_id, LARGE, LARGE)

    assert sorted(await asyncio.gather(*(group() for _ in range(4)))) == [False, False, False, True]
    assert len(await emails_of(connection, digest_id)) == 2


async def test_an_open_digest_and_one_that_does_not_exist_are_not_grouped(
    connection: Connection, environment: Environment
) -> None:
    await join(connection, environment, notification("ann"))
    (digest,) = await digests_of(connection)
    assert not await store.group(connection, digest["id"], LARGE, LARGE)
    assert not await store.group(connection, UUID(int=1), LARGE, LARGE)
    assert await emails_of(connection, digest["id"]) == []


async def test_a_digest_is_counted_and_so_are_its_emails(connection: Connection, environment: Environment) -> None:
    digest_id, emails, _ = await grouped(connection, environment, [{"ann", "bob"}, {"bob"}])
    await join(connection, environment, notification("ann"))
    counted = await connection.fetch(
        "SELECT name, sum(change)::integer AS number FROM bellringer.tally_entries WHERE owner = $1 GROUP BY name",
        environment.id,
    )
    numbers = {row["name"]: row["number"] for row in counted}
    assert (numbers["digests"], numbers["emails"]) == (2, 2)
    assert await connection.fetchval("SELECT email_count FROM bellringer.digests WHERE id = $1", digest_id) == 2
    assert len(emails) == 2


async def test_the_emails_of_a_digest_come_in_pages(database: Database, environment: Environment) -> None:
    async with database.transaction() as connection:
        digest_id, emails, _ = await grouped(connection, environment, [{f"reader-{number}"} for number in range(25)])
        pages = [page async for page in store.email_ids(connection, digest_id, 10)]
    assert list(map(len, pages)) == [10, 10, 5]
    assert {found for page in pages for found in page} == {email.id for email in emails}


async def test_a_large_flood_to_many_is_grouped_in_good_time(connection: Connection, environment: Environment) -> None:
    crowd = {f"reader-{number}" for number in range(500)}
    flood = [notification(*crowd) for _ in range(1000)]
    await join(connection, environment, *flood)
    digest_id = await close(connection)
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        await store.group(connection, digest_id, 100, 250)
    emails = await emails_of(connection, digest_id)
    assert len(emails) == 5 * 4
    assert {(len(email.addresses), len(email.events)) for email in emails} == {(100, 250)}


@pytest.mark.parametrize("cluster", ["postgres15"], indirect=True)
async def test_a_database_whose_language_sorts_aa_behind_z_cuts_a_digest_into_the_same_parts(cluster: Cluster) -> None:
    """The server of the wheel knows no other languages, so this is for a database of one's own."""
    admin = await asyncpg.connect(**cluster.arguments("postgres"))
    await admin.execute("CREATE DATABASE danish TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'da'")
    database = await Database.open(DatabaseConfig(pool_size=4), cluster.arguments("danish"))
    await migrate(database, SUBSYSTEMS)
    keys = Keys(database, SystemClock())
    environment = (await keys.authenticate(await keys.create("acme", "production", "test"))).environment
    ids = [UUID(f"00000000-0000-7000-8000-{tail:>012}") for tail in ("a", "aa", "ab", "aaa", "b", "ba")]
    async with database.connection() as connection:
        for found in ids:
            (drawn,) = await add(connection, environment.id, notification("ann"))
            await connection.execute("UPDATE bellringer.notifications SET id = $1 WHERE id = $2", found, drawn)
        await store.join(connection, ids, WINDOW_SECONDS)
        digest_id = await close(connection)
        await store.group(connection, digest_id, LARGE, 2)
        emails = await emails_of(connection, digest_id)
    await database.close()
    await admin.execute("DROP DATABASE danish WITH (FORCE)")
    await admin.close()
    check_exactly_once(emails, {("ann@acme.example", found) for found in ids})
    assert [len(email.events) for email in emails] == [2, 2, 2]
