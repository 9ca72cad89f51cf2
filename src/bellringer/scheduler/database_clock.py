"""The database's clock, read from here: hosts need not agree on the time, and nothing ever starts early by it."""

from __future__ import annotations

import asyncio
from datetime import datetime

from bellringer.kernel.database import Database
from bellringer.scheduler import occurrence_store


class DatabaseClock:
    """Tells when, by the event loop's clock, a moment of the database's clock comes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset_seconds: float | None = None

    async def synchronise(self) -> None:
        """Ask the database for its time. Raises `Unavailable`.

        The answer was true at some moment between question and answer: the middle is wrong by half of that at most.
        (Who is early by so little is told so when he wants to start, and waits for the rest.)
        """
        loop = asyncio.get_running_loop()
        async with self._database.connection() as connection:
            asked_at = loop.time()
            now = await occurrence_store.database_now(connection)
            answered_at = loop.time()
        self._offset_seconds = now.timestamp() - (asked_at + answered_at) / 2

    def loop_time(self, moment: datetime) -> float:
        """The event loop's time at a moment, once `synchronise` was called."""
        assert self._offset_seconds is not None  # noqa: S101 - an executor synchronises before it claims anything
        return moment.timestamp() - self._offset_seconds
