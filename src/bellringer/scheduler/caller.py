"""What an executor runs: one caller per kind of call."""

from __future__ import annotations

from typing import Protocol

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import Invocation


class Effect(Protocol):
    """Something to do in the transaction that records the end of a run: both happen, or neither."""

    async def apply(self, connection: Connection) -> None:
        """Do it, as the last statements of the transaction. What it raises makes the run a failure."""
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
