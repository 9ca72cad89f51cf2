"""Rate limits per key, one bucket each in this process: several processes let through several times as much."""

from __future__ import annotations

from uuid import UUID

from bellringer.edge.metrics import RATE_LIMITED
from bellringer.edge.model import Access
from bellringer.kernel.clock import Clock
from bellringer.kernel.errors import RateLimited


class RateLimiter:
    """A bucket of `burst` tokens per key; a request takes one, and `requests_per_second` of them come back.

    A bucket is one number, the time at which it will be full again: each token taken puts that off by the time one
    token needs to come back. A key that never came has a full bucket, so only limited keys take room here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full_at: dict[UUID, float] = {}

    def take(self, access: Access) -> None:
        """Take a token for a request of a key. Raises `RateLimited` when there is none."""
        limit = access.rate_limit
        if limit is None:
            return
        now = self._clock.monotonic()
        seconds_per_token = 1 / limit.requests_per_second
        full_at = max(now, self._full_at.get(access.key_id, 0.0))
        wait_seconds = full_at - now - (limit.burst - 1) * seconds_per_token
        if wait_seconds > 0:
            RATE_LIMITED.labels(key=str(access.key_id)).inc()
            raise RateLimited(
                f"the API key may make {limit.requests_per_second:g} requests per second", wait_seconds=wait_seconds
            )
        self._full_at[access.key_id] = full_at + seconds_per_token
