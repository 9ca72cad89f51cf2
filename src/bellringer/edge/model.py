"""Records of the edge."""

from __future__ import annotations

import re
from datetime import datetime
from uuid import UUID

import msgspec

from bellringer.kernel.errors import InvalidInput

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

SHORTEST_KEY = 16
LONGEST_KEY_NAME = 200


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An organisation and one of its environments: what a key opens and everything belongs to."""

    id: UUID
    organisation: str
    name: str

    def __str__(self) -> str:
        return f"{self.organisation}/{self.name}"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key after its creation: not the key."""

    id: UUID
    name: str
    environment: Environment
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
