"""What an executor runs: one caller per kind of call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from bellringer.kernel.database import Connection
from bellringer.scheduler.model import Invocation

Effect: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Something to do in the transaction that records the end of a run, as its last statements."""


class Caller(Protocol):
    """Runs the calls of one kind."""

    async def call(self, invocation: Invocation) -> Effect | None:
        """Return when the work is done, with what is to be done along with the record of that, if anything.

        Raises `CallFailed` for a failure that explains itself; any other exception is a failure too. A call that takes
        too long, or was cancelled, is cancelled.
        """
        ...
