"""What a run under fire is made of, told to every process of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

API_KEY = "a-key-that-the-tests-set"


class QueueUnderFire(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and how many messages are sent to it, spread over groups if it is a FIFO queue."""

    name: str
    messages: int
    groups: int = 0

    @property
    def is_fifo(self) -> bool:
        """Whether the order within groups is strict."""
        return self.groups > 0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the brokers, the queues, and who uses them. The history is a folder with one file per client.

    Clients send no faster than lets the sending last `least_seconds`, so that faults strike in the middle of it.
    """

    urls: list[str]
    history: str
    queues: list[QueueUnderFire]
    producers: int = 2
    consumers: int = 3
    least_seconds: float = 0.0
    visibility_timeouts_seconds: tuple[float, ...] = (2.0, 3.0)
    seed: int = 0

    def file(self, client: str) -> Path:
        """Where a client writes its history."""
        return Path(self.history) / f"{client}.jsonl"

    def log(self, client: str) -> Path:
        """Where what a client says on its standard output goes."""
        return Path(self.history) / f"{client}.log"
