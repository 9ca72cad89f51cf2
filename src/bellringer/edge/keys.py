"""API keys: made, listed, revoked, and checked on every request."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from uuid import UUID

from bellringer.edge import store
from bellringer.edge.model import LONGEST_KEY_NAME, ApiKey, Environment, check_key, check_name
from bellringer.kernel.clock import Clock
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, NotAuthenticated, NotFound

_CACHE_SECONDS = 1.0  # a revoked key works for at most this long
_CACHE_ENTRIES = 10_000


class Keys:
    """Opens environments to the holders of keys.

    What the database said of a key is remembered for one second: a busy key costs one look-up a second, and so does
    a wrong one.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        # By hash, not by key: keys stay out of memory, and a long wrong one takes no more room than a right one.
        self._known: dict[bytes, tuple[float, asyncio.Task[Environment | None]]] = {}

    async def create(self, organisation: str, environment: str, name: str, key: str | None = None) -> str:
        """Make a key, or store the one given, and return it: it cannot be read again.

        Raises `InvalidInput` for a name that is not allowed or a key of fewer than 16 characters.
        """
        check_name(organisation, "organisation")
        check_name(environment, "environment")
        if not 1 <= len(name) <= LONGEST_KEY_NAME or not name.isprintable():
            raise InvalidInput(f"the name of a key has 1 to {LONGEST_KEY_NAME} printable characters", field="name")
        key = check_key(key or new_key())
        async with self._database.transaction() as connection:
            opened = await store.ensure_environment(connection, organisation, environment)
            await store.add_key(connection, opened.id, name, key[-4:], _hash(key))
        return key

    async def list_keys(self) -> list[ApiKey]:
        """Every key, oldest first."""
        async with self._database.connection() as connection:
            return await store.list_keys(connection)

    async def exist(self) -> bool:
        """Whether any key was ever made."""
        async with self._database.connection() as connection:
            return await store.count_keys(connection) > 0

    async def revoke(self, key_id: UUID) -> None:
        """End a key; within a second no process takes it. Raises `NotFound`."""
        async with self._database.connection() as connection:
            if not await store.revoke_key(connection, key_id):
                raise NotFound(f"there is no API key {key_id}")

    async def environment(self, environment_id: UUID) -> Environment:
        """The environment with that id. Raises `NotFound`."""
        async with self._database.connection() as connection:
            found = await store.find_environment(connection, environment_id)
        if found is None:
            raise NotFound(f"there is no environment {environment_id}")
        return found

    async def authenticate(self, key: str) -> Environment:
        """The environment that a key opens. Raises `NotAuthenticated`, or `Unavailable` without a database."""
        now = self._clock.monotonic()
        key_hash = _hash(key)
        known = self._known.get(key_hash)
        if known is None or known[0] <= now:
            if len(self._known) >= _CACHE_ENTRIES:
                self._known.clear()
            # Requests that come while the look-up runs wait for the same one.
            known = (now + _CACHE_SECONDS, asyncio.create_task(self._look_up(key_hash)))
            self._known[key_hash] = known
        try:
            environment = known[1].result() if known[1].done() else await asyncio.shield(known[1])
        except Exception:
            self._known.pop(key_hash, None)
            raise
        if environment is None:
            raise NotAuthenticated("the API key is unknown or revoked")
        return environment

    async def _look_up(self, key_hash: bytes) -> Environment | None:
        async with self._database.connection() as connection:
            return await store.find_by_hash(connection, key_hash)


def new_key() -> str:
    """A key that nobody can guess."""
    return f"bell_{secrets.token_urlsafe(32)}"


def bearer_key(authorization: str | None) -> str:
    """The key in an `Authorization: Bearer …` header (RFC 6750). Raises `NotAuthenticated`."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise NotAuthenticated("send the API key as: Authorization: Bearer <key>")
    return key.strip()


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
