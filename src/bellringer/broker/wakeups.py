"""Wakes the claims that wait for a message: within the process at once, across processes by a look at the database.

No NOTIFY: it takes a lock that all commits of the database share. One cheap query every 200 ms per process asks for
all queues on which anybody waits; while nobody waits, nothing is asked.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from bellringer.broker import queue_store
from bellringer.kernel.database import Database
from bellringer.kernel.service import Loop


class Wakeups:
    """The claims that wait, per queue, first come first woken."""

    def __init__(self) -> None:
        self._waiting: defaultdict[UUID, deque[asyncio.Event]] = defaultdict(deque)
        self._closed = False

    @contextmanager
    def waiter(self, queue_id: UUID) -> Iterator[asyncio.Event]:
        """An event that the next wake of the queue sets. Stand in line before looking, or a message slips between."""
        woken = asyncio.Event()
        if self._closed:
            woken.set()
        line = self._waiting[queue_id]
        line.append(woken)
        try:
            yield woken
        finally:
            with suppress(ValueError):  # a wake has taken it out of the line already
                line.remove(woken)
            if not self._waiting[queue_id]:  # not `line`: a later claim may have begun another
                del self._waiting[queue_id]

    def wake(self, queue_id: UUID, number: int = 1) -> None:
        """Wake as many waiting claims as messages arrived."""
        line = self._waiting.get(queue_id)
        while line and number > 0:
            line.popleft().set()
            number -= 1

    def queues(self) -> list[UUID]:
        """The queues on which a claim waits."""
        return list(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether waiting is over for good."""
        return self._closed

    def close(self) -> None:
        """End every wait now, and every later one at once: the process stops."""
        self._closed = True
        for queue_id, line in list(self._waiting.items()):
            self.wake(queue_id, len(line))


class PendingWatcher(Loop):
    """Wakes a claim when another process has put a message into its queue."""

    def __init__(self, database: Database, wakeups: Wakeups, *, interval_seconds: float = 0.2) -> None:
        super().__init__("pending watcher", interval_seconds=interval_seconds)
        self._database = database
        self._wakeups = wakeups

    async def run_once(self) -> bool:
        """Look once at the queues on which a claim waits."""
        if queues := self._wakeups.queues():
            async with self._database.connection() as connection:
                for queue_id in await queue_store.queues_with_pending(connection, queues):
                    self._wakeups.wake(queue_id)
        return False
