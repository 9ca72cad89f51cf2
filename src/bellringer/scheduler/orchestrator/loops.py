"""The orchestrator's round: look ahead, decide, order, write down. One process at a time has the lease."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection

from bellringer.kernel.database import Database
from bellringer.kernel.errors import Unavailable
from bellringer.kernel.lease import Lease
from bellringer.kernel.logs import get_logger
from bellringer.kernel.service import Loop
from bellringer.scheduler.orchestrator import store
from bellringer.scheduler.orchestrator.config import OrchestratorConfig
from bellringer.scheduler.orchestrator.drivers.driver import Driver, DriverFailed
from bellringer.scheduler.orchestrator.forecast import demand, loads
from bellringer.scheduler.orchestrator.scaling import Decision, Situation, decide, is_time

KEPT_SECONDS = 7 * 24 * 3600.0

# Renewed at every watch, of which one may be held up by a driver that is slow to answer, twice.
_LEASE_SECONDS = 60.0

_log = get_logger(__name__)


class Orchestrator(Loop):
    """Keeps as many executors as the next minutes need.

    A driver that fails is written down and asked again in the next round. What is in its hands stays as it is while
    the database is away: executors find it again by themselves.
    """

    def __init__(self, database: Database, driver: Driver, config: OrchestratorConfig) -> None:
        super().__init__("orchestrator", interval_seconds=min(config.watch_seconds, config.interval_seconds))
        self._database = database
        self._driver = driver
        self._config = config
        self._lease = Lease(database, "orchestrator", ttl_seconds=_LEASE_SECONDS)
        self._has_told = False
        self._looked_at = -math.inf

    async def run(self, stopping: asyncio.Event) -> None:
        """Do rounds until `stopping` is set; then let go of the executors, and of the lease."""
        try:
            await super().run(stopping)
        finally:
            await self._driver.close()
        try:
            await self._lease.release()
        except Unavailable as error:
            _log.warning("the lease was not released", error=str(error))

    async def run_once(self) -> bool:
        """Do a round, if it is time for one and nobody else does."""
        if await self._lease.hold() is None:
            self._has_told = False
            self._looked_at = -math.inf
            await self._driver.close()
            return False
        async with self._database.connection() as connection:
            waits_seconds = await store.oldest_wait_seconds(connection)
        now = asyncio.get_running_loop().time()
        if is_time(now - self._looked_at, waits_seconds, self._config):
            await self.look()
            self._looked_at = now
        return False

    async def look(self) -> None:
        """Look ahead, decide, order, write down."""
        config = self._config
        async with self._database.connection() as connection:
            standing = await store.read_standing(connection, config.look_ahead_seconds, config.default_duration_seconds)
            past = await store.read_past(connection, standing.now, config.quiet_seconds + 3 * config.interval_seconds)
            last = await store.last_desired(connection, self._driver.name)
        needs = await asyncio.to_thread(self._needs, standing)
        current, problem = None, None
        try:
            current = await self._driver.current()
        except DriverFailed as error:
            problem = str(error)
        known = current if current is not None else (standing.executors if last is None else last)
        decision = decide(
            Situation(
                at=standing.now.timestamp(),
                current=known,
                demand=needs,
                waiting=standing.waiting,
                oldest_wait_seconds=standing.oldest_wait_seconds,
                running=standing.running,
                past=past,
            ),
            config,
        )
        before = known if problem is None else None
        if problem is None:
            problem = await self._order(decision, known, standing.busy, is_asked=current is not None)
        self._tell(decision, known, problem)
        async with self._database.connection() as connection:
            await store.record(connection, standing, self._driver.name, before, decision, problem)
            await store.forget(connection, standing.now, KEPT_SECONDS)

    def _needs(self, standing: store.Standing) -> list[float]:
        """In a thread of its own: a hundred thousand schedules take a second."""
        seconds = self._config.look_ahead_seconds
        return demand(loads(standing.dues, standing.now, seconds), seconds, self._config.window_seconds)

    async def _order(self, decision: Decision, current: int, busy: Collection[int], *, is_asked: bool) -> str | None:
        """Ask the driver for what was decided; return what went wrong, if anything did.

        A driver that cannot be asked how many there are is told at the start too: it may have forgotten.
        """
        if decision.desired == current and (is_asked or self._has_told):
            return None
        try:
            await self._driver.scale_to(decision.desired, current=current, reason=decision.reason, busy=busy)
        except DriverFailed as error:
            return str(error)
        self._has_told = True
        return None

    def _tell(self, decision: Decision, current: int, problem: str | None) -> None:
        if problem is not None:
            _log.warning("executors were not scaled", desired=decision.desired, driver=self._driver.name, error=problem)
        elif decision.desired != current:
            _log.info("executors scaled", current=current, desired=decision.desired, reason=decision.reason)
