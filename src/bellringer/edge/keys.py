"""API keys: made, listed, revoked, and checked on every request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Generic, TypeVar
from uuid import UUID

from bellringer.edge import store
from bellringer.edge.limits import RateLimiter
from bellringer.edge.model import (
    LONGEST_KEY_NAME,
    Access,
    ApiKey,
    Environment,
    RateLimit,
    Scope,
    SigningKey,
    SigningPair,
    check_key,
    check_name,
)
from bellringer.kernel.clock import Clock
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, NotAuthenticated, NotFound

_CACHE_SECONDS = 1.0  # a revoked key works for at most this long
_CACHE_ENTRIES = 10_000
_SIGNING_LABEL = b"bellringer signing secret 1"
_LONGEST_ACCESS_KEY_ID = 128  # what AWS allows; a longer one is not looked for

K = TypeVar("K")
T = TypeVar("T")


class Keys:
    """Opens environments to the holders of keys.

    What the database said of a key is remembered for one second: a busy key costs one look-up a second, and so does
    a wrong one.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._limiter = RateLimiter(clock)
        # By hash, not by key: keys stay out of memory, and a long wrong one takes no more room than a right one.
        self._by_hash = _Remembered(clock, self._find_by_hash)
        self._by_access_key_id = _Remembered(clock, self._find_by_access_key_id)

    async def create(
        self,
        organisation: str,
        environment: str,
        name: str,
        key: str | None = None,
        *,
        scopes: Collection[Scope] = (Scope.ADMIN,),
        rate_limit: RateLimit | None = None,
    ) -> str:
        """Make a key, or store the one given, and return it: it cannot be read again.

        A key that is stored already stays as it is. Raises `InvalidInput` for a name that is not allowed, a key of
        fewer than 16 characters or no scope.
        """
        check_name(organisation, "organisation")
        check_name(environment, "environment")
        if not 1 <= len(name) <= LONGEST_KEY_NAME or not name.isprintable():
            raise InvalidInput(f"the name of a key has 1 to {LONGEST_KEY_NAME} printable characters", field="name")
        if not scopes:
            raise InvalidInput("a key needs a scope", field="scopes")
        key = check_key(key or new_key())
        async with self._database.transaction() as connection:
            opened = await store.ensure_environment(connection, organisation, environment)
            new = store.NewKey(
                environment_id=opened.id,
                name=name,
                hint=key[-4:],
                hash=_hash(key),
                scopes=frozenset(scopes),
                rate_limit=rate_limit,
                pair=SigningPair(access_key_id=_new_access_key_id(), secret_access_key=_signing_secret(key)),
            )
            await store.add_key(connection, new)
        return key

    async def signing_pair(self, key: str) -> SigningPair:
        """The pair of a stored key, for who holds the key. Raises `NotFound`."""
        async with self._database.connection() as connection:
            access_key_id = await store.find_access_key_id(connection, _hash(key))
        if access_key_id is None:
            raise NotFound("this API key is not stored here, or was made before keys had pairs")
        return SigningPair(access_key_id=access_key_id, secret_access_key=_signing_secret(key))

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

    async def ensure_environment(self, organisation: str, name: str) -> Environment:
        """The environment of that name, made if it is new. Raises `InvalidInput` for a name that is not allowed."""
        check_name(organisation, "organisation")
        check_name(name, "environment")
        async with self._database.connection() as connection:
            return await store.ensure_environment(connection, organisation, name)

    async def environment(self, environment_id: UUID) -> Environment:
        """The environment with that id. Raises `NotFound`."""
        async with self._database.connection() as connection:
            found = await store.find_environment(connection, environment_id)
        if found is None:
            raise NotFound(f"there is no environment {environment_id}")
        return found

    async def authenticate(self, key: str) -> Access:
        """What a key opens. Raises `NotAuthenticated`, or `Unavailable` without a database."""
        access = await self._by_hash.get(_hash(key))
        if access is None:
            raise NotAuthenticated("the API key is unknown or revoked")
        return access

    async def find_by_access_key_id(self, access_key_id: str) -> SigningKey:
        """What to check a signature with. Raises `NotAuthenticated`, or `Unavailable` without a database."""
        is_one = access_key_id.isascii() and access_key_id.isalnum() and len(access_key_id) <= _LONGEST_ACCESS_KEY_ID
        signing_key = await self._by_access_key_id.get(access_key_id) if is_one else None
        if signing_key is None:
            raise NotAuthenticated("the access key id is unknown or revoked")
        return signing_key

    def admit(self, access: Access, *scopes: Scope) -> None:
        """Let a request in that needs one of these scopes; it counts towards the limit of its key.

        Raises `RateLimited`, `NotAllowed`.
        """
        if access.rate_limit is not None:
            self._limiter.take(access)
        access.require(*scopes)

    async def _find_by_hash(self, key_hash: bytes) -> Access | None:
        async with self._database.connection() as connection:
            return await store.find_by_hash(connection, key_hash)

    async def _find_by_access_key_id(self, access_key_id: str) -> SigningKey | None:
        async with self._database.connection() as connection:
            return await store.find_by_access_key_id(connection, access_key_id)


class _Remembered(Generic[K, T]):
    """Answers of the database, each kept for a second: also that there is nothing to be found."""

    def __init__(self, clock: Clock, look_up: Callable[[K], Coroutine[Any, Any, T | None]]) -> None:
        self._clock = clock
        self._look_up = look_up
        self._known: dict[K, tuple[float, asyncio.Task[T | None]]] = {}

    async def get(self, key: K) -> T | None:
        """The answer for a key. Raises what the look-up raised, which is not kept."""
        now = self._clock.monotonic()
        known = self._known.get(key)
        if known is None or known[0] <= now:
            if len(self._known) >= _CACHE_ENTRIES:
                self._known.clear()
            # Requests that come while the look-up runs wait for the same one.
            known = (now + _CACHE_SECONDS, asyncio.create_task(self._look_up(key)))
            self._known[key] = known
        try:
            return known[1].result() if known[1].done() else await asyncio.shield(known[1])
        except Exception:
            self._known.pop(key, None)
            raise


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


def _new_access_key_id() -> str:
    return "BELL" + base64.b32encode(secrets.token_bytes(10)).decode()


def _signing_secret(key: str) -> str:
    """The secret access key of an API key: 40 characters, like those of AWS, that may stand in a URL as they are."""
    return base64.urlsafe_b64encode(hmac.digest(key.encode(), _SIGNING_LABEL, "sha256")[:30]).decode()
