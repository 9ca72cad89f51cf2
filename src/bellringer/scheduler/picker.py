"""Picking and dispatching, in any number of processes at once: what one has locked, the others skip.

A picker plans the fire times of the next two minutes and makes each of them an occurrence. A dispatcher hands
occurrences to the broker a few seconds before they are due; until then they can be taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, Queue
from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import InvalidInput
from bellringer.kernel.logs import get_logger
from bellringer.kernel.service import Loop
from bellringer.scheduler import occurrence_store, task_store
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.definition import check_definition
from bellringer.scheduler.fire_times import fire_times_of
from bellringer.scheduler.model import TaskNumber
from bellringer.scheduler.occurrence_store import Dispatch, DueTask, Picked
from bellringer.scheduler.plan import Plan, plan

# After a long time without pickers a thousand tasks have a million fire times to make up for. Planned all at once they
# would block this process, and the transaction would be ended for idling.
_MOST_FIRE_TIMES = 5_000
_NOTHING = Plan(runs=[], skips=[], next_fire_at=None)

_log = get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class Dispatcher(Loop):
    """Hands occurrences that are due soon to the broker, those due first."""

    def __init__(self, database: Database, broker: Broker, config: SchedulerConfig) -> None:
        super().__init__("dispatcher", interval_seconds=config.poll_seconds)
        self._database = database
        self._broker = broker
        self._config = config
        self._queues: dict[int, Queue] = {}

    async def run_once(self) -> bool:
        """Hand over one batch."""
        async with self._database.transaction() as connection:
            dispatches = await occurrence_store.dispatch(
                connection, self._config.dispatch_ahead_seconds, self._config.batch
            )
            bodies: defaultdict[int, list[bytes]] = defaultdict(list)
            for number, dispatched in sorted(dispatches, key=_by_queue_and_time):
                bodies[number].append(_encode(dispatched))
            # The order of the numbers keeps two dispatchers from waiting for each other.
            for number in sorted(bodies):
                await self._broker.publish(connection, await self._queue(number), bodies[number])
        for number, published in bodies.items():
            self._broker.wakeups.wake(self._queues[number].id, len(published))
        return len(dispatches) == self._config.batch

    async def _queue(self, number: int) -> Queue:
        if number not in self._queues:
            self._queues = {queue.number: queue for queue in await self._broker.list_queues([SYSTEM_ENVIRONMENT])}
        return self._queues[number]


class Picker(Loop):
    """Makes the fire times of the next two minutes occurrences, and records those that were missed."""

    def __init__(self, database: Database, dispatcher: Dispatcher, config: SchedulerConfig) -> None:
        super().__init__("picker", interval_seconds=config.poll_seconds)
        self._database = database
        self._dispatcher = dispatcher
        self._config = config

    async def run_once(self) -> bool:
        """Plan one batch of tasks."""
        async with self._database.transaction() as connection:
            tasks = await occurrence_store.due_tasks(connection, self._config.pick_ahead_seconds, self._config.batch)
            if not tasks:
                return False
            horizon = tasks[0].now + timedelta(seconds=self._config.pick_ahead_seconds)
            problems = await find_problems(connection, [task.number for task in tasks if not task.is_planned])
            picked = Picked()
            for task in tasks:
                if len(picked.run_tasks) + len(picked.skip_tasks) >= _MOST_FIRE_TIMES:
                    break
                add_plan(picked, task, horizon, self._config.start_promise_seconds, problems.get(task.number))
            await occurrence_store.pick(connection, picked)
        self._dispatcher.wake()
        is_behind = any(moment is not None and moment <= horizon for moment in picked.next_fire_ats)
        return is_behind or len(picked.numbers) < len(tasks) or len(tasks) == self._config.batch

    def wake(self) -> None:
        """End the pause now: of the dispatcher too, for what was picked by hand."""
        super().wake()
        self._dispatcher.wake()


async def find_problems(connection: Connection, numbers: Sequence[TaskNumber]) -> dict[TaskNumber, str]:
    """What is wrong with tasks that were scheduled in SQL, which does not check everything."""
    if not numbers:
        return {}
    try:
        tasks = await task_store.read_tasks(connection, numbers)
    except msgspec.MsgspecError as error:  # a row that no function of ours has written
        if len(numbers) == 1:
            return {numbers[0]: f"call: {error}"}
        middle = len(numbers) // 2
        return await find_problems(connection, numbers[:middle]) | await find_problems(connection, numbers[middle:])
    problems = {}
    for task in tasks:
        try:
            # What it names was to come when it was made; by now it may have passed.
            check_definition(task.definition, now=task.created_at)
        except InvalidInput as error:
            problems[task.number] = f"{error.field}: {error}"
    return problems


def add_plan(picked: Picked, task: DueTask, horizon: datetime, grace_seconds: float, problem: str | None) -> None:
    """Plan a task up to the horizon, and add that to what is picked. What cannot be planned is refused."""
    planned = _NOTHING
    if problem is None:
        try:
            planned = _plan(task, horizon, grace_seconds)
        except Exception as error:  # noqa: BLE001 - one task that cannot be planned must not hold up all others
            _log.error("task cannot be planned", number=task.number, exc_info=error)
            problem = f"it cannot be planned: {error}"
    picked.numbers.append(task.number)
    picked.next_fire_ats.append(planned.next_fire_at)
    picked.problems.append(problem)
    picked.run_tasks += [task.number] * len(planned.runs)
    picked.run_fire_ats += planned.runs
    picked.skip_tasks += [task.number] * len(planned.skips)
    picked.skip_fire_ats += planned.skips


def _plan(task: DueTask, horizon: datetime, grace_seconds: float) -> Plan:
    if (
        task.schedule.at is not None
        and task.is_planned
        and task.next_fire_at > task.now - timedelta(seconds=grace_seconds)
    ):
        return Plan(runs=[task.next_fire_at], skips=[], next_fire_at=None)  # most tasks: nothing to compute
    fire_times = fire_times_of(task.schedule, created_at=task.created_at)
    first = task.next_fire_at if task.is_planned else fire_times.first_from(task.next_fire_at)
    if first is None or first > horizon:
        return Plan(runs=[], skips=[], next_fire_at=first)
    return plan(fire_times, first, now=task.now, horizon=horizon, misfire=task.misfire, grace_seconds=grace_seconds)


def _by_queue_and_time(dispatched: tuple[int, Dispatch]) -> tuple[int, datetime]:
    return dispatched[0], dispatched[1].due_at
