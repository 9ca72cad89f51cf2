"""Background work of the scheduler beside picking: tells what went wrong, and forgets what is old."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from bellringer.broker import Broker, Queue
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, NotFound
from bellringer.kernel.lease import Lease
from bellringer.kernel.logs import get_logger
from bellringer.kernel.service import Loop
from bellringer.scheduler import executor_store, upkeep_store
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.events import EVENTS_QUEUE, EVENTS_SETTINGS
from bellringer.scheduler.fire_times import fire_times_of

_ANNOUNCE_BATCH = 500
_WATCH_BATCH = 500
_WATCH_SECONDS = 5.0
_COLLECT_BATCH = 5000
_COLLECT_SECONDS = 60.0
_EXECUTORS_KEPT_SECONDS = 3600.0

_REPLAN_SECONDS = 24 * 3600.0
_REPLAN_NUMBERS = 20_000
_AHEAD_OF_PICKERS_SECONDS = 60.0

_log = get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class Announcer(Loop):
    """Publishes incidents as events, each once: the mark on the incident and the message are one commit."""

    def __init__(self, database: Database, broker: Broker, *, interval_seconds: float = 1.0) -> None:
        super().__init__("incident announcer", interval_seconds=interval_seconds)
        self._database = database
        self._broker = broker

    async def run_once(self) -> bool:
        """Announce one batch."""
        async with self._database.transaction() as connection:
            events = await upkeep_store.take_incidents(connection, _ANNOUNCE_BATCH)
            bodies: defaultdict[UUID, list[bytes]] = defaultdict(list)
            for environment_id, event in events:
                bodies[environment_id].append(_encode(event))
            queues = {environment_id: await self._queue(environment_id) for environment_id in bodies}
            for queue in sorted(queues.values(), key=lambda queue: queue.number):
                try:
                    await self._broker.publish(connection, queue, bodies[queue.environment_id])
                except InvalidInput as error:  # as its owner has set it; others are to hear all the same
                    _log.warning("a queue does not take events", queue=str(queue.id), error=str(error))
        for queue in queues.values():
            self._broker.wakeups.wake(queue.id, len(bodies[queue.environment_id]))
        return len(events) == _ANNOUNCE_BATCH

    async def _queue(self, environment_id: UUID) -> Queue:
        try:
            return await self._broker.queue(environment_id, EVENTS_QUEUE)
        except NotFound:
            return await self._broker.create_queue(environment_id, EVENTS_QUEUE, EVENTS_SETTINGS)


class Watcher(Loop):
    """Reports what has not started within the promise, without waiting for its start: it may never come."""

    def __init__(self, database: Database, config: SchedulerConfig) -> None:
        super().__init__("start watcher", interval_seconds=_WATCH_SECONDS)
        self._database = database
        self._promise_seconds = config.start_promise_seconds

    async def run_once(self) -> bool:
        """Report one batch."""
        async with self._database.connection() as connection:
            reported = await upkeep_store.report_missed(
                connection, self._promise_seconds, self._promise_seconds + 12 * _WATCH_SECONDS, _WATCH_BATCH
            )
        return reported == _WATCH_BATCH


class Collector(Loop):
    """Removes what is past its retention, and executors long gone; in one process at a time."""

    def __init__(self, database: Database, config: SchedulerConfig) -> None:
        super().__init__("scheduler collector", interval_seconds=_COLLECT_SECONDS)
        self._database = database
        self._retention_seconds = config.retention_seconds
        self._lease = Lease(database, "scheduler collector", ttl_seconds=3 * _COLLECT_SECONDS)

    async def run_once(self) -> bool:
        """Remove one batch of each; say whether any batch was full."""
        if await self._lease.hold() is None:
            return False
        async with self._database.connection() as connection:
            removed = [
                await upkeep_store.forget_occurrences(connection, self._retention_seconds, _COLLECT_BATCH),
                await upkeep_store.forget_tasks(connection, self._retention_seconds, _COLLECT_BATCH),
                await upkeep_store.forget_incidents(connection, self._retention_seconds, _COLLECT_BATCH),
                await upkeep_store.forget_durations(connection, self._retention_seconds, _COLLECT_BATCH),
            ]
            await executor_store.forget_lost(connection, _EXECUTORS_KEPT_SECONDS)
        return max(removed) == _COLLECT_BATCH


class Replanner(Loop):
    """Computes anew when tasks are due next by the clocks of zones: the rules of zones change, with weeks of notice.

    Once when it starts, for that is when new rules are read, and once a day; in one process at a time.
    """

    def __init__(self, database: Database, config: SchedulerConfig) -> None:
        super().__init__("replanner", interval_seconds=_REPLAN_SECONDS)
        self._database = database
        self._ahead = timedelta(seconds=config.pick_ahead_seconds + _AHEAD_OF_PICKERS_SECONDS)
        self._lease = Lease(database, "replanner", ttl_seconds=60)
        self._number = 0

    async def run_once(self) -> bool:
        """Look at the tasks with the next so many numbers."""
        if await self._lease.hold() is None:
            return False
        async with self._database.connection() as connection:
            highest, tasks = await upkeep_store.zoned_tasks(connection, self._number, _REPLAN_NUMBERS)
            changed = [(task, moment) for task in tasks if (moment := self._changed(task)) is not None]
            await upkeep_store.move_fire_times(connection, changed)
        if changed:
            _log.info("fire times moved with the rules of their zones", tasks=len(changed))
        self._number += _REPLAN_NUMBERS
        if self._number <= highest:
            return True
        self._number = 0
        return False

    def _changed(self, task: upkeep_store.ZonedTask) -> datetime | None:
        """The next fire time, if it is another than is stored; not of what a picker may be about to take."""
        soon = task.now + self._ahead
        if task.next_fire_at <= soon:
            return None
        try:
            first = fire_times_of(task.schedule, created_at=task.now).after(soon)
        except InvalidInput as error:
            _log.error("the zone of a task is gone", number=task.number, error=str(error))
            return None
        return None if first == task.next_fire_at else first
