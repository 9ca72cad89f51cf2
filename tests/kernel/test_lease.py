from __future__ import annotations

import asyncio
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.kernel.database import Database
from bellringer.kernel.ids import uuid7
from bellringer.kernel.lease import Lease

ANN, BOB = UUID(int=1), UUID(int=2)


def lease(database: Database, holder: UUID, name: str = "sweep", ttl_seconds: float = 3600) -> Lease:
    return Lease(database, name, ttl_seconds=ttl_seconds, holder=holder)


async def let_it_run_out(database: Database, name: str = "sweep") -> None:
    """Move the end of a lease into the past of the database's own clock."""
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE bellringer.leases SET expires_at = clock_timestamp() - interval '1 microsecond' WHERE name = $1",
            name,
        )


async def remaining_seconds(database: Database) -> float:
    async with database.connection() as connection:
        remaining: float = await connection.fetchval(
            "SELECT EXTRACT(epoch FROM expires_at - clock_timestamp())::float8 FROM bellringer.leases"
        )
    return remaining


async def test_one_holds_a_lease_and_another_does_not(database: Database) -> None:
    assert await lease(database, ANN).hold() == 1
    assert await lease(database, BOB).hold() is None


async def test_leases_of_different_names_have_nothing_to_do_with_each_other(database: Database) -> None:
    assert await lease(database, ANN, "sweep").hold() == 1
    assert await lease(database, BOB, "purge").hold() == 1


async def test_a_holder_renews_its_lease_and_keeps_its_epoch(database: Database) -> None:
    await lease(database, ANN, ttl_seconds=60).hold()
    before = await remaining_seconds(database)
    assert await lease(database, ANN, ttl_seconds=7200).hold() == 1
    assert before <= 60
    assert 7100 < await remaining_seconds(database) <= 7200


async def test_a_lease_that_has_run_out_is_the_next_ones_with_a_higher_epoch(database: Database) -> None:
    await lease(database, ANN).hold()
    await let_it_run_out(database)
    assert await lease(database, BOB).hold() == 2
    assert await lease(database, ANN).hold() is None


async def test_a_lease_that_nobody_took_over_is_still_its_holders(database: Database) -> None:
    await lease(database, ANN).hold()
    await let_it_run_out(database)
    assert await lease(database, ANN).hold() == 1


async def test_a_released_lease_is_free_at_once(database: Database) -> None:
    await lease(database, ANN).hold()
    await lease(database, ANN).release()
    assert await lease(database, BOB).hold() == 2


async def test_a_late_release_does_not_take_the_lease_from_its_new_holder(database: Database) -> None:
    await lease(database, ANN).hold()
    await let_it_run_out(database)
    await lease(database, BOB).hold()
    await lease(database, ANN).release()
    assert await lease(database, ANN).hold() is None


async def test_releasing_what_nobody_holds_is_no_error(database: Database) -> None:
    await lease(database, ANN).release()
    assert await lease(database, BOB).hold() == 1


async def test_a_holder_without_a_name_is_told_apart_from_every_other(database: Database) -> None:
    assert await Lease(database, "sweep", ttl_seconds=3600).hold() == 1
    assert await Lease(database, "sweep", ttl_seconds=3600).hold() is None


async def test_of_many_that_ask_at_once_one_gets_the_lease(database: Database) -> None:
    for epoch in range(1, 6):
        asked = await asyncio.gather(*(lease(database, uuid7()).hold() for _ in range(20)))
        assert [granted for granted in asked if granted is not None] == [epoch]
        await let_it_run_out(database)


STEPS = st.lists(
    st.sampled_from(["ann holds", "bob holds", "ann releases", "bob releases", "time runs out"]), max_size=20
)


@given(STEPS)
@settings(max_examples=20)
async def test_after_any_steps_at_most_one_holds_and_every_new_holder_has_a_higher_epoch(
    database: Database, steps: list[str]
) -> None:
    name = str(uuid7())
    leases = {"ann": lease(database, ANN, name), "bob": lease(database, BOB, name)}
    holder, is_held, epoch = "", False, 0
    for step in steps:
        who, _, what = step.partition(" ")
        if what == "holds":
            granted = await leases[who].hold()
            if is_held and holder != who:
                assert granted is None
            else:
                epoch += holder != who
                assert granted == epoch
                holder, is_held = who, True
        elif what == "releases":
            await leases[who].release()
            is_held = is_held and holder != who
        else:
            await let_it_run_out(database, name)
            is_held = False
