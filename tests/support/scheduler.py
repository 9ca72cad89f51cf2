"""The scheduler by hand: tasks straight into the table, and each step of their occurrences when a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from tests.support.waiting import until

from bellringer.broker import Broker, Queue
from bellringer.kernel.database import Database
from bellringer.scheduler import executor_store, occurrence_store
from bellringer.scheduler.caller import Effect
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.executor import Executor
from bellringer.scheduler.model import Invocation, Outcome, TaskNumber
from bellringer.scheduler.occurrence_store import AttemptEnd, Dispatch, Picked, Started, StartRequest

ALICE, BOB = UUID(int=0xA11CE), UUID(int=0xB0B)
"""Two executors."""

HOOK = '{"type": "http", "url": "https://acme.example/hook"}'

_INSERT_TASK = "INSERT INTO bellringer.tasks ({columns}) VALUES ({values}) RETURNING number"
_NOW = "SELECT date_trunc('milliseconds', clock_timestamp())"
_OCCURRENCES = "SELECT * FROM bellringer.occurrences WHERE task = $1 ORDER BY fire_at"
_INCIDENTS = "SELECT * FROM bellringer.incidents ORDER BY id"
_COUNTS = """
SELECT name, sum(change)::bigint AS total FROM bellringer.tally_entries
WHERE owner = $1 AND name LIKE 'tasks.%' GROUP BY name
"""
_DISPATCH = """
UPDATE bellringer.occurrences SET stage = 1, dispatched_at = clock_timestamp()
WHERE task = $1 AND fire_at = $2 AND stage = 0 RETURNING attempt, dispatched_at, due_at
"""
_MAKE_DUE = """
UPDATE bellringer.occurrences SET due_at = clock_timestamp() - make_interval(secs => $2) WHERE task = $1 AND stage = 0
"""
_LOSE = "UPDATE bellringer.executors SET seen_at = seen_at - interval '1 hour' WHERE id = $1"


class Stage:
    """What picker, dispatcher and executors do to occurrences, one step at a time."""

    def __init__(self, database: Database, broker: Broker, environment_id: UUID, queue: Queue) -> None:
        self.database = database
        self.broker = broker
        self.environment_id = environment_id
        self.queue = queue

    async def now(self) -> datetime:
        """The time of the database, in whole milliseconds."""
        now: datetime = (await self.fetch(_NOW))[0][0]
        return now

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """Run any statement."""
        async with self.database.connection() as connection:
            return await connection.fetch(statement, *arguments)

    async def add_task(self, name: str = "report", **columns: Any) -> TaskNumber:  # noqa: ANN401 - of each column
        """A task as its row: every hour and to be picked no more, unless `columns` say otherwise."""
        schedule = {} if columns.keys() & {"once_at", "cron"} else {"every_seconds": 3600.0}
        defaults = {"environment_id": self.environment_id, "name": name, "queue": self.queue.number, "call": HOOK}
        row = {**defaults, "overlap": "allow", **schedule, **columns}
        values = ", ".join(f"${place}" for place in range(1, len(row) + 1))
        statement = _INSERT_TASK.format(columns=", ".join(row), values=values)
        return TaskNumber((await self.fetch(statement, *row.values()))[0]["number"])

    async def change_task(self, task: TaskNumber, **columns: Any) -> None:  # noqa: ANN401 - of each column
        """Change columns of a task's row."""
        changes = ", ".join(f"{name} = ${place}" for place, name in enumerate(columns, 2))
        await self.fetch(f"UPDATE bellringer.tasks SET {changes} WHERE number = $1", task, *columns.values())

    async def task(self, task: TaskNumber) -> asyncpg.Record:
        """The row of a task."""
        return (await self.fetch("SELECT * FROM bellringer.tasks WHERE number = $1", task))[0]

    async def pick(self, task: TaskNumber, *fire_ats: datetime) -> None:
        """Make fire times occurrences, as a picker does."""
        picked = Picked(
            numbers=[task],
            next_fire_ats=[None],
            problems=[None],
            run_tasks=[task] * len(fire_ats),
            run_fire_ats=list(fire_ats),
        )
        async with self.database.transaction() as connection:
            await occurrence_store.pick(connection, picked)

    async def hand_over(self, task: TaskNumber, fire_at: datetime) -> Dispatch:
        """Dispatch an occurrence that was picked; the message goes to the test instead of the broker."""
        row = (await self.fetch(_DISPATCH, task, fire_at))[0]
        return Dispatch(task=task, fire_at=fire_at, **row)

    async def due(self, task: TaskNumber, *, ago: float = 0.0) -> Dispatch:
        """An occurrence that became due so many seconds ago, picked and dispatched."""
        fire_at = await self.now() - timedelta(seconds=ago)
        await self.pick(task, fire_at)
        return await self.hand_over(task, fire_at)

    async def several_due(self, task: TaskNumber, number: int) -> list[Dispatch]:
        """So many occurrences that became due a while ago, a millisecond apart, the latest first."""
        now = await self.now()
        fire_ats = [now - timedelta(milliseconds=100 + place) for place in range(number)]
        await self.pick(task, *fire_ats)
        return [await self.hand_over(task, fire_at) for fire_at in fire_ats]

    async def make_due(self, task: TaskNumber, *, ago: float = 0.0) -> None:
        """Let what a task has picked have become due so many seconds ago."""
        await self.fetch(_MAKE_DUE, task, ago)

    async def start(
        self,
        *dispatches: Dispatch,
        executor: UUID = ALICE,
        held: float = 0.0,
        ready: float = 0.0,
        promise: float = 30.0,
    ) -> list[Started]:
        """Let an executor ask to start these, in one batch."""
        requests = [StartRequest(dispatch=one, held_seconds=held, ready_seconds=ready) for one in dispatches]
        async with self.database.connection() as connection:
            return await occurrence_store.start(
                connection, executor, requests, promise_seconds=promise, lost_seconds=20.0
            )

    async def verdicts(self, *dispatches: Dispatch, executor: UUID = ALICE) -> list[str]:
        """Let an executor ask to start these; what it is told of each."""
        return [started.verdict for started in await self.start(*dispatches, executor=executor)]

    async def running(self, task: TaskNumber, *, ago: float = 0.0, executor: UUID = ALICE) -> Dispatch:
        """An occurrence that an executor runs, one that lives."""
        dispatch = await self.due(task, ago=ago)
        await self.beat(executor)
        assert await self.verdicts(dispatch, executor=executor) == ["run"]
        return dispatch

    async def end(
        self, *dispatches: Dispatch, outcome: Outcome = Outcome.SUCCEEDED, detail: str | None = None
    ) -> list[bool | None]:
        """Let an executor record how these ended; of each, whether it was news, or None if it must ask again."""
        ends = [AttemptEnd(dispatch=one, outcome=outcome, detail=detail) for one in dispatches]
        async with self.database.connection() as connection:
            return await occurrence_store.end(connection, ends)

    async def beat(self, executor: UUID = ALICE) -> None:
        """Let an executor be seen."""
        async with self.database.connection() as connection:
            await executor_store.beat(connection, executor, concurrency=10, environment_id=None, running=0, held=0)

    async def lose(self, executor: UUID = ALICE) -> None:
        """Let an executor have been silent for an hour."""
        await self.fetch(_LOSE, executor)

    async def occurrences(self, task: TaskNumber) -> list[asyncpg.Record]:
        """The rows of a task's occurrences, by fire time."""
        return await self.fetch(_OCCURRENCES, task)

    async def occurrence(self, dispatch: Dispatch) -> asyncpg.Record:
        """The row of an occurrence."""
        return next(row for row in await self.occurrences(dispatch.task) if row["fire_at"] == dispatch.fire_at)

    async def outcomes(self, task: TaskNumber) -> list[str | None]:
        """How the occurrences of a task ended, by fire time."""
        return [row["outcome"] for row in await self.occurrences(task)]

    async def incidents(self) -> list[asyncpg.Record]:
        """All incidents, in their order."""
        return await self.fetch(_INCIDENTS)

    async def kinds(self) -> list[str]:
        """The kinds of all incidents."""
        return [row["kind"] for row in await self.incidents()]

    async def counts(self) -> dict[str, int]:
        """The counts of the environment, those that are not zero, without their common prefix."""
        rows = await self.fetch(_COUNTS, self.environment_id)
        return {row["name"].removeprefix("tasks."): row["total"] for row in rows if row["total"]}

    async def post(self, *dispatches: Dispatch) -> None:
        """Give executors the messages of these dispatches."""
        async with self.database.transaction() as connection:
            await self.broker.publish(connection, self.queue, [msgspec.json.encode(one) for one in dispatches])
        self.broker.wakeups.wake(self.queue.id, len(dispatches))

    async def until_ended(self, task: TaskNumber, number: int = 1) -> list[asyncpg.Record]:
        """Wait until so many occurrences of a task are over; return all of them."""

        async def ended() -> list[asyncpg.Record]:
            rows = await self.occurrences(task)
            return rows if sum(row["ended_at"] is not None for row in rows) >= number else []

        return await until(ended)

    async def until_acknowledged(self) -> None:
        """Wait until the queue is empty."""

        async def is_empty() -> bool:
            counts = (await self.broker.counts([self.queue]))[self.queue.id]
            return counts.pending == counts.in_flight == counts.delayed == 0

        await until(is_empty)


Act = Callable[[Invocation], Awaitable[Effect | None]]


class Recorder:
    """A caller that records what it was asked to run, and does what a test says by the name of the task."""

    def __init__(self, acts: Mapping[str, Act] | None = None) -> None:
        self.invocations: list[Invocation] = []
        self.running = 0
        self.most_running = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._acts = acts or {}
        self._called: asyncio.Queue[Invocation] = asyncio.Queue()

    async def call(self, invocation: Invocation) -> Effect | None:
        """Run it: wait while `is_open` is not set, then do what there is to do for its task, nothing by default."""
        self.invocations.append(invocation)
        self._called.put_nowait(invocation)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.is_open.wait()
            act = self._acts.get(invocation.task)
            return await act(invocation) if act is not None else None
        finally:
            self.running -= 1

    async def next(self) -> Invocation:
        """The next run that begins, or has begun since the last call."""
        async with asyncio.timeout(20):
            return await self._called.get()


@asynccontextmanager
async def executing(
    stage: Stage, caller: Recorder, *, database: Database | None = None, broker: Broker | None = None, **settings: float
) -> AsyncIterator[Executor]:
    """An executor at work, to the end of the block; `settings` are of `SchedulerConfig`. It stops soon."""
    config = SchedulerConfig(**{"finish_seconds": 0.1, **settings})  # type: ignore[arg-type]
    executor = Executor(database or stage.database, broker or stage.broker, [stage.queue], {"http": caller}, config)
    stopping = asyncio.Event()
    running = asyncio.create_task(executor.run(stopping))
    try:
        yield executor
    finally:
        stopping.set()
        await running
