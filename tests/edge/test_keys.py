from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from bellringer.edge.keys import Keys, bearer_key, new_key
from bellringer.edge.model import RateLimit, Scope, SigningKey
from bellringer.kernel.clock import ManualClock
from bellringer.kernel.database import Connection, Database, DatabaseConfig
from bellringer.kernel.errors import InvalidInput, NotAllowed, NotAuthenticated, NotFound, Unavailable


class WatchedDatabase(Database):
    """The real database; it counts how often it was asked, and can be away."""

    asked = 0
    is_away = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        self.asked += 1
        if self.is_away:
            raise Unavailable
        async with super().connection() as connection:
            yield connection


@pytest.fixture
async def database(database_arguments: dict[str, Any]) -> AsyncIterator[WatchedDatabase]:
    opened = await WatchedDatabase.open(DatabaseConfig(pool_size=8), database_arguments)
    assert isinstance(opened, WatchedDatabase)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def keys(database: WatchedDatabase, clock: ManualClock) -> Keys:
    return Keys(database, clock)


async def test_a_key_opens_its_own_environment(keys: Keys) -> None:
    production = await keys.create("acme", "production", "billing")
    staging = await keys.create("acme", "staging", "billing")
    other = await keys.create("umbrella", "production", "billing")
    opened = [str((await keys.authenticate(key)).environment) for key in (production, staging, other)]
    assert opened == ["acme/production", "acme/staging", "umbrella/production"]


async def test_several_keys_open_one_environment(keys: Keys) -> None:
    first = await keys.create("acme", "production", "billing")
    second = await keys.create("acme", "production", "shipping")
    assert first != second
    accesses = [await keys.authenticate(key) for key in (first, second)]
    assert accesses[0].environment == accesses[1].environment
    assert [access.key_id for access in accesses] == [key.id for key in await keys.list_keys()]


async def test_an_environment_is_found_by_its_id(keys: Keys) -> None:
    environment = (await keys.authenticate(await keys.create("acme", "production", "billing"))).environment
    assert await keys.environment(environment.id) == environment
    with pytest.raises(NotFound):
        await keys.environment(UUID(int=5))


async def test_a_key_is_not_stored(keys: Keys, database: Database) -> None:
    key = await keys.create("acme", "production", "billing")
    async with database.connection() as connection:
        (row,) = await connection.fetch("SELECT key::text FROM bellringer.api_keys AS key")
    assert key not in row["key"]
    assert key.encode().hex() not in row["key"]
    (listed,) = await keys.list_keys()
    assert (listed.name, listed.hint, str(listed.environment)) == ("billing", key[-4:], "acme/production")


async def test_made_keys_are_long_and_never_the_same() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("bell_") and len(key) >= 48 for key in made)


async def test_keys_are_listed_in_the_order_of_their_making(keys: Keys) -> None:
    assert not await keys.exist()
    for name in ("one", "two", "three"):
        await keys.create("acme", "production", name)
    assert [key.name for key in await keys.list_keys()] == ["one", "two", "three"]
    assert await keys.exist()


async def test_an_unknown_key_opens_nothing(keys: Keys) -> None:
    await keys.create("acme", "production", "billing")
    for key in ("", "bell_unknown", "x" * 100_000, "ключ ключ ключ ключ", "a\0b"):
        with pytest.raises(NotAuthenticated):
            await keys.authenticate(key)


async def test_a_revoked_key_is_refused_within_a_second_everywhere(
    keys: Keys, database: Database, clock: ManualClock
) -> None:
    key = await keys.create("acme", "production", "billing")
    another_process = Keys(database, clock)
    await asyncio.gather(keys.authenticate(key), another_process.authenticate(key))
    (listed,) = await keys.list_keys()

    await keys.revoke(listed.id)
    clock.advance(1.0)

    for process in (keys, another_process):
        with pytest.raises(NotAuthenticated):
            await process.authenticate(key)
    assert await keys.exist()


async def test_a_key_stays_revoked_since_the_first_time(keys: Keys) -> None:
    key = await keys.create("acme", "production", "billing")
    (listed,) = await keys.list_keys()
    await keys.revoke(listed.id)
    (revoked,) = await keys.list_keys()
    await keys.revoke(listed.id)
    await keys.create("acme", "production", "again", key)
    assert revoked.revoked_at is not None
    assert await keys.list_keys() == [revoked]


async def test_revoking_a_key_that_does_not_exist_is_an_error(keys: Keys) -> None:
    with pytest.raises(NotFound):
        await keys.revoke(UUID(int=5))


async def test_a_key_that_was_given_is_stored_once(keys: Keys) -> None:
    for _ in range(2):
        assert await keys.create("acme", "production", "from outside", "0123456789abcdef") == "0123456789abcdef"
    assert str((await keys.authenticate("0123456789abcdef")).environment) == "acme/production"
    assert len(await keys.list_keys()) == 1


BAD_KEYS = ["0123456789abcde", "with spaces in it", "with\ttabs in it too", "schlüssel-schlüssel", "a" * 16 + "\0"]
BAD_NAMES = [
    ("", "production", "billing", "organisation"),
    ("-acme", "production", "billing", "organisation"),
    ("acme corp", "production", "billing", "organisation"),
    ("acme", "a" * 64, "billing", "environment"),
    ("acme", "prod\n", "billing", "environment"),
    ("acme", "production", "", "name"),
    ("acme", "production", "a" * 201, "name"),
    ("acme", "production", "nul \0", "name"),
    ("acme", "production", "half a \udcff surrogate", "name"),
]


async def test_a_key_that_cannot_stand_in_a_header_is_refused(keys: Keys) -> None:
    for key in BAD_KEYS:
        with pytest.raises(InvalidInput) as raised:
            await keys.create("acme", "production", "from outside", key)
        assert raised.value.field == "api_key"
        assert key not in str(raised.value)
    assert not await keys.exist()


async def test_names_that_cannot_be_shown_are_refused(keys: Keys) -> None:
    for organisation, environment, name, field in BAD_NAMES:
        with pytest.raises(InvalidInput) as raised:
            await keys.create(organisation, environment, name)
        assert raised.value.field == field
    assert not await keys.exist()


async def test_processes_that_start_together_make_one_environment(keys: Keys) -> None:
    made = await asyncio.gather(*(keys.create("acme", "production", f"process {number}") for number in range(8)))
    opened = {(await keys.authenticate(key)).environment.id for key in made}
    assert len(opened) == 1


async def test_a_key_is_an_admin_s_without_a_limit_unless_it_is_made_for_less(keys: Keys) -> None:
    limit = RateLimit(requests_per_second=2.5, burst=10)
    admin = await keys.authenticate(await keys.create("acme", "production", "admin"))
    worker = await keys.authenticate(
        await keys.create("acme", "production", "worker", scopes=[Scope.PUBLISH, Scope.CONSUME], rate_limit=limit)
    )
    assert (admin.scopes, admin.rate_limit) == ({Scope.ADMIN}, None)
    assert (worker.scopes, worker.rate_limit) == ({Scope.PUBLISH, Scope.CONSUME}, limit)
    assert [(key.scopes, key.rate_limit) for key in await keys.list_keys()] == [
        ({Scope.ADMIN}, None),
        ({Scope.PUBLISH, Scope.CONSUME}, limit),
    ]


async def test_a_key_that_is_stored_again_with_other_scopes_keeps_those_that_it_has(keys: Keys) -> None:
    key = await keys.create("acme", "production", "worker", scopes=[Scope.CONSUME])
    pair = await keys.signing_pair(key)
    await keys.create("acme", "production", "worker", key)
    assert (await keys.authenticate(key)).scopes == {Scope.CONSUME}
    assert await keys.signing_pair(key) == pair


async def test_a_key_without_a_scope_is_refused(keys: Keys) -> None:
    with pytest.raises(InvalidInput, match="a key needs a scope"):
        await keys.create("acme", "production", "useless", scopes=[])
    assert not await keys.exist()


async def test_a_key_does_what_its_scopes_allow_and_an_admin_everything(keys: Keys) -> None:
    for scopes in [{Scope.PUBLISH}, {Scope.CONSUME}, {Scope.PUBLISH, Scope.CONSUME}, {Scope.ADMIN}]:
        access = await keys.authenticate(await keys.create("acme", "production", "test", scopes=scopes))
        for scope in Scope:
            if scope in scopes or Scope.ADMIN in scopes:
                keys.admit(access, scope)
            else:
                with pytest.raises(NotAllowed, match=f"^the API key lacks the scope {scope}$"):
                    keys.admit(access, scope)


async def test_what_several_scopes_open_needs_one_of_them(keys: Keys) -> None:
    consumer = await keys.authenticate(await keys.create("acme", "production", "test", scopes=[Scope.CONSUME]))
    keys.admit(consumer, Scope.PUBLISH, Scope.CONSUME)
    with pytest.raises(NotAllowed, match=r"^the API key lacks the scope publish or admin$"):
        keys.admit(consumer, Scope.PUBLISH, Scope.ADMIN)


async def test_a_key_comes_with_a_pair_for_clients_of_aws(keys: Keys) -> None:
    key, other = [await keys.create("acme", "production", "billing") for _ in range(2)]
    pair, others = await keys.signing_pair(key), await keys.signing_pair(other)
    assert re.fullmatch("BELL[A-Z2-7]{16}", pair.access_key_id)
    assert re.fullmatch("[A-Za-z0-9_-]{40}", pair.secret_access_key)
    assert pair.access_key_id != others.access_key_id
    assert pair.secret_access_key != others.secret_access_key
    found = await keys.find_by_access_key_id(pair.access_key_id)
    assert found == SigningKey(secret=pair.secret_access_key, access=await keys.authenticate(key))


@pytest.mark.parametrize("access_key_id", ["", "BELL", "BELL" + "A" * 16, "B" * 100_000, "a\0b", "ключ", "'; --"])
async def test_an_unknown_access_key_id_opens_nothing(keys: Keys, access_key_id: str) -> None:
    with pytest.raises(NotAuthenticated):
        await keys.find_by_access_key_id(access_key_id)


async def test_a_revoked_key_takes_its_pair_along(keys: Keys, clock: ManualClock) -> None:
    pair = await keys.signing_pair(await keys.create("acme", "production", "billing"))
    await keys.find_by_access_key_id(pair.access_key_id)
    (listed,) = await keys.list_keys()
    await keys.revoke(listed.id)
    clock.advance(1.0)
    with pytest.raises(NotAuthenticated):
        await keys.find_by_access_key_id(pair.access_key_id)


async def test_a_busy_access_key_id_costs_one_question_a_second(
    keys: Keys, database: WatchedDatabase, clock: ManualClock
) -> None:
    pair = await keys.signing_pair(await keys.create("acme", "production", "billing"))
    before = database.asked
    for second in range(1, 4):
        await asyncio.gather(*(keys.find_by_access_key_id(pair.access_key_id) for _ in range(50)))
        assert database.asked - before == second
        clock.advance(1.0)


async def test_a_key_from_before_there_were_pairs_works_and_has_none(keys: Keys, database: Database) -> None:
    key = await keys.create("acme", "production", "old")
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE bellringer.api_keys SET scopes = DEFAULT, access_key_id = NULL, signing_secret = NULL"
        )
    assert (await keys.authenticate(key)).scopes == {Scope.ADMIN}
    assert [listed.access_key_id for listed in await keys.list_keys()] == [None]
    with pytest.raises(NotFound):
        await keys.signing_pair(key)


@pytest.mark.parametrize("is_right", [True, False])
async def test_a_busy_key_costs_one_question_a_second_right_or_wrong(
    keys: Keys, database: WatchedDatabase, clock: ManualClock, is_right: bool
) -> None:
    key = await keys.create("acme", "production", "billing")
    key = key if is_right else "bell_wrong"
    before = database.asked
    for second in range(1, 4):
        asked = await asyncio.gather(*(keys.authenticate(key) for _ in range(50)), return_exceptions=True)
        asked += await asyncio.gather(*(keys.authenticate(key) for _ in range(50)), return_exceptions=True)
        assert {isinstance(answer, NotAuthenticated) for answer in asked} == {not is_right}
        assert database.asked - before == second
        clock.advance(1.0)


async def test_what_a_database_that_is_away_said_is_not_remembered(keys: Keys, database: WatchedDatabase) -> None:
    key = await keys.create("acme", "production", "billing")
    database.is_away = True
    asked = await asyncio.gather(*(keys.authenticate(key) for _ in range(5)), return_exceptions=True)
    assert [type(answer) for answer in asked] == [Unavailable] * 5
    database.is_away = False
    assert str((await keys.authenticate(key)).environment) == "acme/production"


async def test_a_caller_that_goes_away_does_not_break_off_the_look_up_of_others(keys: Keys) -> None:
    key = await keys.create("acme", "production", "billing")
    gone, stayed = (asyncio.create_task(keys.authenticate(key)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert str((await stayed).environment) == "acme/production"


@pytest.mark.parametrize(
    "header", ["Bearer bell_1", "bearer bell_1", "BEARER bell_1", "Bearer   bell_1", "Bearer bell_1  "]
)
def test_the_key_stands_behind_the_word_bearer(header: str) -> None:
    assert bearer_key(header) == "bell_1"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer  ", "bell_1", "Basic bell_1", "Bearerbell_1"]
)
def test_a_header_of_another_shape_holds_no_key(header: str | None) -> None:
    with pytest.raises(NotAuthenticated, match="Authorization: Bearer <key>"):
        bearer_key(header)
