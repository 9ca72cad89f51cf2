"""Leases: one process at a time does a job, and another takes over when it dies.

States: free -> held (epoch n) -> expired or released -> held (epoch n + 1). The database's clock decides, so hosts
need not agree on the time.
"""

from __future__ import annotations

from uuid import UUID

from bellringer.kernel.database import Database
from bellringer.kernel.ids import uuid7

# One statement for take and renew: the row is taken when it is ours already or when its time is over.
HOLD = """
INSERT INTO bellringer.leases AS lease (name, holder, epoch, expires_at)
VALUES ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE SET
    holder = excluded.holder,
    epoch = lease.epoch + (lease.holder <> excluded.holder)::integer,
    expires_at = excluded.expires_at
WHERE lease.holder = excluded.holder OR lease.expires_at <= clock_timestamp()
RETURNING epoch
"""
RELEASE = "UPDATE bellringer.leases SET expires_at = '-infinity' WHERE name = $1 AND holder = $2"


class Lease:
    """The right to do one named job, for `ttl_seconds` at a time."""

    def __init__(self, database: Database, name: str, *, ttl_seconds: float, holder: UUID | None = None) -> None:
        self._database = database
        self._name = name
        self._ttl_seconds = ttl_seconds
        self._holder = holder or uuid7()

    async def hold(self) -> int | None:
        """Take the lease or renew it; return its epoch, or None while another process holds it."""
        async with self._database.connection() as connection:
            epoch: int | None = await connection.fetchval(HOLD, self._name, self._holder, self._ttl_seconds)
        return epoch

    async def release(self) -> None:
        """Give the lease back, so that the next holder need not wait for its end."""
        async with self._database.connection() as connection:
            await connection.execute(RELEASE, self._name, self._holder)
