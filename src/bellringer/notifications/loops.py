"""Background work of notifications: forgets what is past its retention, in one process at a time."""

from __future__ import annotations

from bellringer.kernel.database import Database
from bellringer.kernel.lease import Lease
from bellringer.kernel.service import Loop
from bellringer.notifications import store
from bellringer.notifications.channels import store as channels_store
from bellringer.notifications.service import NotificationsConfig

_KEY_BATCH = 5000
_DIGEST_BATCH = 20
_MAIL_BATCH = 500
_INTERVAL_SECONDS = 60.0


class Expirer(Loop):
    """Removes old idempotency keys, digests with all that hangs on them, and captured mail."""

    def __init__(self, database: Database, config: NotificationsConfig) -> None:
        super().__init__("notifications expirer", interval_seconds=_INTERVAL_SECONDS)
        self._database = database
        self._config = config
        self._lease = Lease(database, "notifications expirer", ttl_seconds=3 * _INTERVAL_SECONDS)

    async def run_once(self) -> bool:
        """Remove one batch of each; say whether any batch was full."""
        if await self._lease.hold() is None:
            return False
        retention_seconds = self._config.retention_seconds
        async with self._database.connection() as connection:
            keys = await store.expire_keys(connection, self._config.idempotency_seconds, _KEY_BATCH)
            digests = await store.expire_digests(connection, retention_seconds, _DIGEST_BATCH)
            mail = await channels_store.expire_captured(connection, retention_seconds, _MAIL_BATCH)
        return keys == _KEY_BATCH or digests == _DIGEST_BATCH or mail == _MAIL_BATCH
