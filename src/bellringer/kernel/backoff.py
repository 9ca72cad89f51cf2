"""How long to wait before the next try: exponential, capped, with jitter.

Jitter spreads the callers that failed together; the lower half of the span stays empty so that none retries at once.
See Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """A wait that doubles with each failed attempt up to a cap."""

    first_seconds: float = 1.0
    cap_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not 0 < self.first_seconds <= self.cap_seconds:
            raise ValueError("first_seconds must be above 0 and at most cap_seconds")

    def ceiling_seconds(self, attempt: int) -> float:
        """The longest wait after failed attempt number `attempt` (1 is the first)."""
        if attempt < 1:
            raise ValueError("attempts are counted from 1")
        # 2**64 is beyond every cap; without the bound a message retried for months would overflow a float.
        return min(self.cap_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 64))

    def wait_seconds(self, attempt: int) -> float:
        """A wait drawn between half the ceiling and the ceiling, so that nobody retries at once."""
        ceiling = self.ceiling_seconds(attempt)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreading load, not guarding a secret
