"""Background work of the broker: the sweep of due messages, and the purge of old ones."""

from __future__ import annotations

from bellringer.broker import store
from bellringer.broker.service import Broker
from bellringer.kernel.database import Database
from bellringer.kernel.lease import Lease
from bellringer.kernel.service import Loop

_SWEEP_BATCH = 1000
_PURGE_BATCH = 10_000


class Sweeper(Loop):
    """Returns messages whose visibility timeout or delay is over. Safe in every process at once."""

    def __init__(self, database: Database, broker: Broker) -> None:
        super().__init__("broker sweeper", interval_seconds=broker.config.sweep_interval_seconds)
        self._database = database
        self._broker = broker

    async def run_once(self) -> bool:
        """Return one batch of due messages and wake the claims that wait for them."""
        async with self._database.connection() as connection:
            returned = await store.sweep(connection, _SWEEP_BATCH)
        for queue_id, number in returned.items():
            self._broker.wakeups.wake(queue_id, number)
        return sum(returned.values()) == _SWEEP_BATCH


class Purger(Loop):
    """Removes deleted messages past their retention, in one process at a time."""

    def __init__(self, database: Database, broker: Broker) -> None:
        interval_seconds = broker.config.purge_interval_seconds
        super().__init__("broker purger", interval_seconds=interval_seconds)
        self._database = database
        self._lease = Lease(database, "broker purger", ttl_seconds=3 * interval_seconds)

    async def run_once(self) -> bool:
        """Remove one batch."""
        if await self._lease.hold() is None:
            return False
        async with self._database.connection() as connection:
            return await store.purge(connection, _PURGE_BATCH) == _PURGE_BATCH
