from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.kernel.database import Connection, Database
from bellringer.kernel.ids import uuid7
from bellringer.kernel.tally import Tallies, TallyFolder

PATIENCE_SECONDS = 10
OWNER, OTHER = UUID(int=1), UUID(int=2)

ADD = "INSERT INTO bellringer.tally_entries (owner, name, change) VALUES ($1, $2, $3)"


async def add(connection: Connection, owner: UUID, **changes: int) -> None:
    await connection.executemany(ADD, [(owner, name, change) for name, change in changes.items()])


async def add_alone(database: Database, owner: UUID, **changes: int) -> None:
    async with database.transaction() as connection:
        await add(connection, owner, **changes)


async def counts(database: Database, owner: UUID = OWNER) -> Mapping[str, int]:
    return (await Tallies(database).read([owner]))[owner]


async def entries_left(database: Database) -> int:
    async with database.connection() as connection:
        left: int = await connection.fetchval("SELECT count(*) FROM bellringer.tally_entries")
    return left


async def test_a_count_that_was_never_written_is_zero(database: Database) -> None:
    assert (await counts(database))["sent"] == 0


async def test_a_count_is_the_sum_of_its_entries_folded_or_not(database: Database) -> None:
    await add_alone(database, OWNER, sent=5, failed=1)
    assert await counts(database) == {"sent": 5, "failed": 1}
    await TallyFolder(database).run_once()
    assert await entries_left(database) == 0
    assert await counts(database) == {"sent": 5, "failed": 1}
    await add_alone(database, OWNER, sent=-2)
    assert await counts(database) == {"sent": 3, "failed": 1}
    await TallyFolder(database).run_once()
    assert await counts(database) == {"sent": 3, "failed": 1}


async def test_owners_are_counted_apart(database: Database) -> None:
    await add_alone(database, OWNER, sent=1)
    await add_alone(database, OTHER, sent=10)
    await TallyFolder(database).run_once()
    await add_alone(database, OTHER, sent=5)
    assert await Tallies(database).read([OWNER, OTHER]) == {OWNER: {"sent": 1}, OTHER: {"sent": 15}}


async def test_a_count_may_be_as_large_as_a_bigint(database: Database) -> None:
    await add_alone(database, OWNER, sent=2**62)
    await TallyFolder(database).run_once()
    await add_alone(database, OWNER, sent=2**62 - 1)
    assert await counts(database) == {"sent": 2**63 - 1}


async def test_what_is_rolled_back_is_not_counted(database: Database) -> None:
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await add(connection, OWNER, sent=1)
        await transaction.rollback()
    await TallyFolder(database).run_once()
    assert await counts(database) == {}


async def test_a_folder_has_more_to_do_after_a_full_batch(database: Database) -> None:
    async with database.connection() as connection:
        await connection.executemany(ADD, [(OWNER, "sent", 1)] * 5001)
    folder = TallyFolder(database)
    assert await folder.run_once() is True
    assert await entries_left(database) == 1
    assert await folder.run_once() is False
    assert await counts(database) == {"sent": 5001}


async def test_nobody_waits_for_a_transaction_that_stays_open(database: Database) -> None:
    async with database.transaction() as open_for_long:
        await add(open_for_long, OWNER, sent=100)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await add_alone(database, OWNER, sent=1)
            await TallyFolder(database).run_once()
            await add_alone(database, OWNER, sent=2)
            assert await counts(database) == {"sent": 3}
            assert await entries_left(database) == 1
    assert await counts(database) == {"sent": 103}
    await TallyFolder(database).run_once()
    assert await counts(database) == {"sent": 103}
    assert await entries_left(database) == 0


async def test_a_folder_that_is_held_up_holds_up_nobody(database: Database) -> None:
    """Another process's folder has taken entries and not committed: they are counted where they were."""
    await add_alone(database, OWNER, sent=1)
    async with database.transaction() as held_up:
        await held_up.execute("DELETE FROM bellringer.tally_entries")
        await add_alone(database, OWNER, sent=10)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await TallyFolder(database).run_once()
            assert await counts(database) == {"sent": 11}
        await held_up.execute(
            "INSERT INTO bellringer.tallies AS tally VALUES ($1, 'sent', 1)"
            " ON CONFLICT (owner, name) DO UPDATE SET value = tally.value + 1",
            OWNER,
        )
    assert await counts(database) == {"sent": 11}


async def test_counts_are_exact_at_every_moment_of_concurrent_adding_and_folding(database: Database) -> None:
    """Every transaction moves one from `waiting` to `done`, so that their sum is nothing whenever it is read."""
    done = asyncio.Event()
    sums: list[int] = []

    async def move(number: int) -> None:
        for _ in range(number):
            await add_alone(database, OWNER, waiting=-1, done=1)

    async def fold() -> None:
        while not done.is_set():
            await TallyFolder(database).run_once()

    async def read() -> None:
        seen = 0
        while not done.is_set():
            found = await counts(database)
            sums.append(found["waiting"] + found["done"])
            assert found["done"] >= seen
            seen = found["done"]

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for background in (fold(), fold(), fold(), read()):
            tasks.create_task(background)
        await asyncio.gather(*(move(100) for _ in range(4)))
        done.set()

    assert set(sums) == {0}
    assert await counts(database) == {"waiting": -400, "done": 400}
    await TallyFolder(database).run_once()
    assert await counts(database) == {"waiting": -400, "done": 400}
    assert await entries_left(database) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1]), st.sampled_from(["sent", "failed"]), st.integers(-(2**40), 2**40)),
        st.just("fold"),
    ),
    max_size=20,
)


@given(STEPS)
@settings(max_examples=20)
async def test_after_any_steps_a_count_is_the_sum_of_its_changes(
    database: Database, steps: list[tuple[int, str, int] | str]
) -> None:
    owners = [uuid7(), uuid7()]
    expected = {owner: Counter[str]() for owner in owners}
    for step in steps:
        if isinstance(step, str):
            await TallyFolder(database).run_once()
        else:
            owner, name, change = step
            await add_alone(database, owners[owner], **{name: change})
            expected[owners[owner]][name] += change
        assert await Tallies(database).read(owners) == expected
