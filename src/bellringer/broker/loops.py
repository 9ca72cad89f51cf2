"""Background work of the broker, safe in every process at once: the database's locks let one at a time through."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from bellringer.broker import queue_store, store
from bellringer.broker.service import Broker
from bellringer.kernel.database import Database
from bellringer.kernel.lease import Lease
from bellringer.kernel.service import Loop

_INBOX_BATCH = 1000
_INBOX_BATCH_BYTES = 8 * 1024 * 1024
_SWEEP_BATCH = 500
_COLLECT_BATCH = 1000
_FULL_LOOK_SECONDS = 60.0
_ALL_TIMES_SECONDS = 100 * 366 * 86400.0


class InboxMover(Loop):
    """Moves to their queues what was published inside transactions.

    It looks at ids above the highest below which every transaction is over, so it need not walk over what it removed
    long ago, and yet sees a low id that is committed late. (An id is drawn a moment before its transaction gets a
    number; should that moment ever be longer than a round, a look from the very beginning finds the row, once a
    minute.)
    """

    def __init__(self, database: Database, broker: Broker) -> None:
        super().__init__("inbox mover", interval_seconds=broker.config.inbox_interval_seconds)
        self._database = database
        self._wakeups = broker.wakeups
        self._settled = 0
        self._highest = 0
        self._marks: deque[tuple[int, int]] = deque()
        self._look_at_all_after = 0.0

    async def run_once(self) -> bool:
        """Move one batch and wake the claims that wait for it."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_at_all_after:
            self._look_at_all_after = now + _FULL_LOOK_SECONDS
            self._settled = 0
        async with self._database.connection() as connection:
            drained = await store.drain_inbox(connection, self._settled, _INBOX_BATCH, _INBOX_BATCH_BYTES)
        # A batch that was full may have left ids behind below the mark: not below its own highest.
        looked_to = math.inf if drained.highest is None else drained.highest
        while self._marks and self._marks[0][1] <= drained.all_over_before and self._marks[0][0] <= looked_to:
            self._settled = self._marks.popleft()[0]
        if drained.highest is not None and drained.highest > self._highest:
            self._highest = drained.highest
            self._marks.append((drained.highest, drained.next_transaction))
        for queue_id in drained.queue_ids:
            self._wakeups.wake(queue_id, drained.moved)
        return drained.moved > 0


class Sweeper(Loop):
    """Returns messages whose visibility timeout or delay is over.

    It looks at the last minute, and once a minute at all times: what was locked by a transaction, or was over while
    nothing ran.
    """

    def __init__(self, database: Database, broker: Broker) -> None:
        super().__init__("broker sweeper", interval_seconds=broker.config.sweep_interval_seconds)
        self._database = database
        self._wakeups = broker.wakeups
        self._look_at_all_after = 0.0

    async def run_once(self) -> bool:
        """End what is over in each queue, one batch, and wake the claims that wait for it."""
        now = asyncio.get_running_loop().time()
        is_full = now >= self._look_at_all_after
        seconds = _ALL_TIMES_SECONDS if is_full else 2 * _FULL_LOOK_SECONDS
        more = False
        async with self._database.connection() as connection:
            for number, queue_id in await store.due_queues(connection, seconds):
                swept = await store.sweep(connection, number, _SWEEP_BATCH, seconds)
                self._wakeups.wake(queue_id, swept)
                more = more or swept >= _SWEEP_BATCH
        if is_full and not more:
            self._look_at_all_after = now + _FULL_LOOK_SECONDS
        return more


class Collector(Loop):
    """Removes messages past their retention, and the rows of deleted queues; in one process at a time."""

    def __init__(self, database: Database, broker: Broker) -> None:
        interval_seconds = broker.config.collect_interval_seconds
        super().__init__("broker collector", interval_seconds=interval_seconds)
        self._database = database
        self._lease = Lease(database, "broker collector", ttl_seconds=3 * interval_seconds)

    async def run_once(self) -> bool:
        """Remove what is past its retention, and one batch of what is left of deleted queues."""
        if await self._lease.hold() is None:
            return False
        more = False
        async with self._database.connection() as connection:
            for queue in await queue_store.list_queues(connection, None):
                start: int | None = 0
                while start is not None:
                    start, _ = await store.collect(connection, queue.number, start, _COLLECT_BATCH)
            for number in await queue_store.deleted_queues(connection):
                more = await queue_store.remove_rows(connection, number, _COLLECT_BATCH) or more
            return await store.forget_deduplications(connection, _COLLECT_BATCH) == _COLLECT_BATCH or more
