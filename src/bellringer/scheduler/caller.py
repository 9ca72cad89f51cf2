"""What an executor runs: one caller per kind of call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import Invocation


class Effect(Protocol):
    """Something to do in the transaction that records the end of a run: both happen, or neither."""

    @classmethod
    async def apply(cls, connection: Connection, effects: Sequence[Self]) -> None:
        """Do all of them, as the last statements of a transaction that records as many ends.

        Raises `InvalidInput`, `NotFound` or `Conflict` for one that makes its run a failure; the others come again.
        """
        ...

    def committed(self) -> None:
        """Learn that the transaction has committed. May not raise."""
        ...


class Caller(Protocol):
    """Runs the calls of one kind."""

    async def call(self, invocation: Invocation) -> Effect | None:
        """Return when the work is done, with what is to be done along with the record of that, if anything.

        Raises `CallFailed` for a failure that explains itself; any other exception is a failure too. A call that takes
        too long, or was cancelled, is cancelled.
        """
        ...
