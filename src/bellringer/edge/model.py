"""Records of the edge."""

from __future__ import annotations

import math
import re
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from bellringer.kernel.errors import InvalidInput, NotAllowed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

SHORTEST_KEY = 16
LONGEST_KEY_NAME = 200
FASTEST_LIMIT = 1_000_000


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An organisation and one of its environments: what a key opens and everything belongs to."""

    id: UUID
    organisation: str
    name: str

    def __str__(self) -> str:
        return f"{self.organisation}/{self.name}"


class Scope(StrEnum):
    """What a key may do in its environment."""

    PUBLISH = "publish"
    """Hand in: messages and events."""
    CONSUME = "consume"
    """Claim messages, hold them longer, hand them back and complete them."""
    ADMIN = "admin"
    """Everything, the other scopes included."""


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests a key may make per second, and how many at once after a pause."""

    requests_per_second: float
    burst: int

    def __str__(self) -> str:
        return f"{self.requests_per_second:g}/s, burst {self.burst}"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a key opens, and how far."""

    key_id: UUID
    environment: Environment
    scopes: frozenset[Scope]
    rate_limit: RateLimit | None = None

    def require(self, *scopes: Scope) -> None:
        """Raise `NotAllowed` unless the key has one of these scopes, or is an admin's."""
        if self.scopes.isdisjoint(scopes) and Scope.ADMIN not in self.scopes:
            raise NotAllowed(f"the API key lacks the scope {' or '.join(scopes)}")


class SigningPair(msgspec.Struct, frozen=True, kw_only=True):
    """The two halves of a key as clients of AWS hold them. The secret is shown once, like the key."""

    access_key_id: str
    secret_access_key: str


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a request signed under an access key id is checked with, and what it opens if the signature is right."""

    secret: str
    access: Access


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key after its creation: not the key. Keys of older versions have no access key id."""

    id: UUID
    name: str
    environment: Environment
    scopes: frozenset[Scope]
    rate_limit: RateLimit | None
    access_key_id: str | None
    hint: str
    created_at: datetime
    revoked_at: datetime | None


def check_name(value: str, field: str) -> str:
    """Return the name of an organisation or environment; raise `InvalidInput` when it is not one."""
    if not _NAME.fullmatch(value):
        raise InvalidInput(
            f"{field} must be 1 to 63 letters, digits, dots, dashes or underscores, and start with a letter or digit",
            field=field,
        )
    return value


def check_key(key: str) -> str:
    """Return an API key; raise `InvalidInput` when it is too short or cannot stand in a header."""
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInput(
            f"an API key needs at least {SHORTEST_KEY} printable ASCII characters without spaces", field="api_key"
        )
    return key


def rate_limit_of(requests_per_second: float | None, burst: int | None) -> RateLimit | None:
    """The limit that was asked for; without a burst it is what the rate gives in one second. Raises `InvalidInput`."""
    if requests_per_second is None:
        if burst is not None:
            raise InvalidInput("a burst needs a rate", field="burst")
        return None
    if not 0.001 <= requests_per_second <= FASTEST_LIMIT:
        raise InvalidInput(f"a rate is 0.001 to {FASTEST_LIMIT} requests per second", field="rate")
    if burst is None:
        burst = math.ceil(requests_per_second)
    if not 1 <= burst <= FASTEST_LIMIT:
        raise InvalidInput(f"a burst is 1 to {FASTEST_LIMIT} requests", field="burst")
    return RateLimit(requests_per_second=requests_per_second, burst=burst)
