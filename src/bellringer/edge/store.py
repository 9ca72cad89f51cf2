"""All SQL of the edge: environments and API keys."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from bellringer.edge.model import Access, ApiKey, Environment, RateLimit, Scope, SigningKey, SigningPair
from bellringer.kernel.database import Connection
from bellringer.kernel.ids import uuid7

# Two processes that start together must get the same row: the second insert finds the first one's.
ENSURE_ENVIRONMENT = """
WITH created AS (
    INSERT INTO bellringer.environments (id, organisation, name) VALUES ($1, $2, $3)
    ON CONFLICT (organisation, name) DO NOTHING
    RETURNING id, organisation, name
)
SELECT id, organisation, name FROM created
UNION ALL
SELECT id, organisation, name FROM bellringer.environments WHERE organisation = $2 AND name = $3
LIMIT 1
"""
FIND_ENVIRONMENT = "SELECT id, organisation, name FROM bellringer.environments WHERE id = $1"
ADD_KEY = """
INSERT INTO bellringer.api_keys
    (id, environment_id, name, hint, hash, scopes, requests_per_second, burst, access_key_id, signing_secret)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (hash) DO NOTHING
"""
# Index: api_keys_hash_key.
FIND_BY_HASH = """
SELECT key.id, key.scopes, key.requests_per_second, key.burst,
    environment.id AS environment_id, environment.organisation, environment.name AS environment_name
FROM bellringer.api_keys AS key
JOIN bellringer.environments AS environment ON environment.id = key.environment_id
WHERE key.hash = $1 AND key.revoked_at IS NULL
"""
# Index: api_keys_access_key_id_key.
FIND_BY_ACCESS_KEY_ID = """
SELECT key.id, key.scopes, key.requests_per_second, key.burst, key.signing_secret,
    environment.id AS environment_id, environment.organisation, environment.name AS environment_name
FROM bellringer.api_keys AS key
JOIN bellringer.environments AS environment ON environment.id = key.environment_id
WHERE key.access_key_id = $1 AND key.revoked_at IS NULL
"""
# Index: api_keys_hash_key.
FIND_ACCESS_KEY_ID = "SELECT access_key_id FROM bellringer.api_keys WHERE hash = $1"
LIST_KEYS = """
SELECT key.id, key.name, key.hint, key.scopes, key.requests_per_second, key.burst, key.access_key_id,
    key.created_at, key.revoked_at,
    environment.id AS environment_id, environment.organisation, environment.name AS environment_name
FROM bellringer.api_keys AS key
JOIN bellringer.environments AS environment ON environment.id = key.environment_id
ORDER BY key.id
"""
REVOKE_KEY = """
UPDATE bellringer.api_keys SET revoked_at = COALESCE(revoked_at, clock_timestamp()) WHERE id = $1 RETURNING id
"""
COUNT_KEYS = "SELECT count(*) FROM bellringer.api_keys"


async def ensure_environment(connection: Connection, organisation: str, name: str) -> Environment:
    """The environment of that name, made if it is new."""
    row = await connection.fetchrow(ENSURE_ENVIRONMENT, uuid7(), organisation, name)
    if row is None:  # another process inserted it after this statement took its snapshot
        row = await connection.fetchrow(ENSURE_ENVIRONMENT, uuid7(), organisation, name)
    assert row is not None  # noqa: S101 - the first call waited for that insert, so the second sees it
    return _environment(row)


async def find_environment(connection: Connection, environment_id: UUID) -> Environment | None:
    """The environment with that id."""
    row = await connection.fetchrow(FIND_ENVIRONMENT, environment_id)
    return None if row is None else _environment(row)


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key to store: what tells it again, and what it opens."""

    environment_id: UUID
    name: str
    hint: str
    hash: bytes
    scopes: frozenset[Scope]
    rate_limit: RateLimit | None
    pair: SigningPair


async def add_key(connection: Connection, key: NewKey) -> None:
    """Store a key; one whose hash is stored already stays as it is, revoked or not."""
    limit = key.rate_limit
    await connection.execute(
        ADD_KEY,
        uuid7(),
        key.environment_id,
        key.name,
        key.hint,
        key.hash,
        sorted(key.scopes),
        limit.requests_per_second if limit else None,
        limit.burst if limit else None,
        key.pair.access_key_id,
        key.pair.secret_access_key,
    )


async def find_by_hash(connection: Connection, key_hash: bytes) -> Access | None:
    """What a key opens, or None for a key that is unknown or revoked."""
    row = await connection.fetchrow(FIND_BY_HASH, key_hash)
    return None if row is None else _access(row)


async def find_by_access_key_id(connection: Connection, access_key_id: str) -> SigningKey | None:
    """The key with that id, or None when it is unknown or revoked."""
    row = await connection.fetchrow(FIND_BY_ACCESS_KEY_ID, access_key_id)
    return None if row is None else SigningKey(secret=row["signing_secret"], access=_access(row))


async def find_access_key_id(connection: Connection, key_hash: bytes) -> str | None:
    """The access key id of a key, or None for a key that is unknown or has none."""
    access_key_id: str | None = await connection.fetchval(FIND_ACCESS_KEY_ID, key_hash)
    return access_key_id


async def list_keys(connection: Connection) -> list[ApiKey]:
    """Every key, oldest first."""
    return [
        ApiKey(
            id=row["id"],
            name=row["name"],
            environment=_environment_of(row),
            scopes=_scopes(row),
            rate_limit=_rate_limit(row),
            access_key_id=row["access_key_id"],
            hint=row["hint"],
            created_at=row["created_at"],
            revoked_at=row["revoked_at"],
        )
        for row in await connection.fetch(LIST_KEYS)
    ]


async def revoke_key(connection: Connection, key_id: UUID) -> bool:
    """Revoke a key, once and for all; return whether it exists."""
    return await connection.fetchval(REVOKE_KEY, key_id) is not None


async def count_keys(connection: Connection) -> int:
    """How many keys were ever made, revoked ones included."""
    count: int = await connection.fetchval(COUNT_KEYS)
    return count


def _environment(row: asyncpg.Record) -> Environment:
    return Environment(id=row["id"], organisation=row["organisation"], name=row["name"])


def _access(row: asyncpg.Record) -> Access:
    return Access(key_id=row["id"], environment=_environment_of(row), scopes=_scopes(row), rate_limit=_rate_limit(row))


def _environment_of(row: asyncpg.Record) -> Environment:
    return Environment(id=row["environment_id"], organisation=row["organisation"], name=row["environment_name"])


def _scopes(row: asyncpg.Record) -> frozenset[Scope]:
    return frozenset(map(Scope, row["scopes"]))


def _rate_limit(row: asyncpg.Record) -> RateLimit | None:
    rate = row["requests_per_second"]
    return None if rate is None else RateLimit(requests_per_second=rate, burst=row["burst"])
