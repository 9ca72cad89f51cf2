"""Asks of the scheduler what is planned, again and again until it is answered, and keeps a record of that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec
from tests.support.scheduler_history import records
from tests.support.scheduler_history.records import Once, Request, Verb
from tests.support.scheduler_under_fire.plan import PlannedTask, Step, microseconds_of

from bellringer.assembly import SUBSYSTEMS
from bellringer.broker import Broker
from bellringer.config import Config
from bellringer.edge.keys import Keys
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.database import Database, DatabaseConfig
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.kernel.migrations import migrate
from bellringer.scheduler.model import Outcome
from bellringer.scheduler.service import Tasks

T = TypeVar("T")

_PAUSE_SECONDS = 0.1  # after a request that nobody answered
_RETRIED = {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.SKIPPED}


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for between these moments, in so many tries; no result when the answer was a refusal."""

    begun_at: int
    answered_at: int
    tries: int
    result: object
    is_done: bool


class Driver:
    """Does what is planned, each task for itself, and each step at its time."""

    def __init__(self, tasks: Tasks, environment_id: UUID) -> None:
        self.requests: list[Request] = []
        self._tasks = tasks
        self._environment_id = environment_id

    async def run(self, planned: Sequence[PlannedTask]) -> None:
        """Return when everything has been asked and answered."""
        began_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for task in planned:
                group.create_task(self._live(task, began_at))

    async def _live(self, task: PlannedTask, began_at: float) -> None:
        for step in task.steps:
            await asyncio.sleep(began_at + step.seconds - time.monotonic())
            if step.verb is Verb.CREATE:
                if not await self._create(task):
                    return
            elif step.verb is Verb.RETRY:
                await self._retry(task)
            else:
                await self._ask(task, step)

    async def _create(self, task: PlannedTask) -> bool:
        """Make a task. Its time may have passed when the scheduler can be reached again: then it refuses, rightly."""
        schedule = task.schedule
        if isinstance(schedule, Once):
            schedule = Once(at=_now() + schedule.at)
        definition = task.definition(schedule)
        answer = await self._insist(lambda: self._tasks.create(self._environment_id, task.name, definition))
        if answer.is_done:
            self._write(task, Verb.CREATE, answer, schedule=schedule)
        return answer.is_done

    async def _ask(self, task: PlannedTask, step: Step) -> None:
        match step.verb:
            case Verb.CHANGE:
                assert step.schedule is not None
                definition = task.definition(step.schedule)
                answer = await self._insist(lambda: self._tasks.put(self._environment_id, task.name, definition))
            case Verb.RUN:
                answer = await self._insist(lambda: self._tasks.run_now(self._environment_id, task.name))
            case _:
                ask = {
                    Verb.PAUSE: self._tasks.pause,
                    Verb.RESUME: self._tasks.resume,
                    Verb.CANCEL: self._tasks.cancel,
                }[step.verb]
                answer = await self._insist(lambda: ask(self._environment_id, task.name))
        assert answer.is_done, f"{step.verb} {task.name}: {answer.result!r}"
        fire_at = getattr(answer.result, "fire_at", None)
        self._write(
            task,
            step.verb,
            answer,
            schedule=step.schedule,
            fire_at=None if fire_at is None else microseconds_of(fire_at),
        )

    async def _retry(self, task: PlannedTask) -> None:
        """Try the newest occurrence again that did not succeed, if there is one."""
        found = await self._insist(lambda: self._tasks.occurrences(self._environment_id, task.name, limit=100))
        assert isinstance(found.result, list)
        over = [one.fire_at for one in found.result if one.outcome in _RETRIED]
        if not over:
            return
        answer = await self._insist(lambda: self._tasks.retry(self._environment_id, task.name, over[0]))
        if answer.is_done or answer.tries > 1:
            self._write(task, Verb.RETRY, answer, fire_at=microseconds_of(over[0]))

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> _Answer:
        begun_at = _now()
        tries = 0
        while True:
            tries += 1
            try:
                result: object = await work()
                is_done = True
            except Unavailable:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except (Conflict, InvalidInput, NotFound) as error:
                result, is_done = error, False
            return _Answer(begun_at=begun_at, answered_at=_now() + 1, tries=tries, result=result, is_done=is_done)

    def _write(
        self,
        task: PlannedTask,
        verb: Verb,
        answer: _Answer,
        *,
        schedule: records.Schedule | None = None,
        fire_at: int | None = None,
    ) -> None:
        request = Request(
            task=task.name,
            verb=verb,
            begun_at=answer.begun_at,
            answered_at=answer.answered_at,
            schedule=schedule,
            policy=task.policy if verb is Verb.CREATE else None,
            fire_at=fire_at,
            tries=answer.tries,
        )
        self.requests.append(request)


async def drive(url: str, planned: Sequence[PlannedTask]) -> list[Request]:
    """Do everything that is planned with the scheduler of a database; return what was asked."""
    config = Config()
    database = await Database.open(DatabaseConfig(url=url))
    try:
        broker = Broker(database, config.broker)
        environment = await Keys(database, SystemClock()).ensure_environment(config.organisation, config.environment)
        driver = Driver(Tasks(database, broker), environment.id)
        await driver.run(planned)
        return driver.requests
    finally:
        await database.close()


async def prepare(url: str) -> None:
    """Make the tables, and the environment whose functions the executors have."""
    config = Config()
    database = await Database.open(DatabaseConfig(url=url))
    try:
        await migrate(database, SUBSYSTEMS)
        await Keys(database, SystemClock()).ensure_environment(config.organisation, config.environment)
    finally:
        await database.close()


def _now() -> int:
    return time.time_ns() // 1000
