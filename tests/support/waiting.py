"""Waiting in tests: for a condition, up to a deadline, and never blindly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bellringer.kernel.database import Connection

PATIENCE_SECONDS = 20.0
"""How long anything may take before a test gives up: the machine may be busy. What goes well takes a moment."""

T = TypeVar("T")


async def until(condition: Callable[[], Awaitable[T]]) -> T:
    """Ask again and again, and return the first answer that is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if answer := await condition():
                return answer
            await asyncio.sleep(0.005)


async def until_sessions_wait(connection: Connection, number: int = 1) -> None:
    """Return when that many sessions of the server wait for a lock."""

    async def waiting() -> bool:
        # Not pg_stat_activity, which stands still inside a transaction.
        found: int = await connection.fetchval("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return found >= number

    await until(waiting)
