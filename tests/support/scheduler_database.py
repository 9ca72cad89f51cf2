"""A database that goes away when a test says so, as its client sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import Unavailable


class Interrupted(Database):
    """Nothing reaches it while `is_down`; while it `loses_answers`, all is done and nobody hears of it."""

    is_down = False
    loses_answers = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        if self.is_down:
            raise Unavailable
        async with super().connection() as connection:
            yield connection
        if self.loses_answers:
            raise Unavailable

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as connection, connection.transaction():
            yield connection
