"""The injected clock. Leases and due times use the database's clock instead, so that hosts need not agree."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from: the system, or a test that moves it by hand."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring spans."""
        ...


class SystemClock:
    """The time of this host."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The time that the test set."""
        return self._now

    def monotonic(self) -> float:
        """The seconds that the test let pass."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass; `seconds` may not be negative."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
