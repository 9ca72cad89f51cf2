"""Bellringer as a contestant: one process picks and dispatches, two execute, or one does all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import uvloop

from bellringer.assembly import SUBSYSTEMS
from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, BrokerConfig, QueueSettings
from bellringer.broker.loops import Collector, InboxMover, Sweeper
from bellringer.broker.wakeups import PendingWatcher
from bellringer.kernel.migrations import migrate
from bellringer.kernel.service import Service, Supervisor
from bellringer.kernel.tally import TallyFolder
from bellringer.scheduler.caller import Effect
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.executor import Executor
from bellringer.scheduler.model import Invocation
from bellringer.scheduler.picker import Dispatcher, Picker
from bench.queue_contestants import ConnectArguments, connected, opened_database
from bench.scheduler_contestants import EXECUTORS, Scheduler
from bench.scheduler_work import Job, Marks, command, job_of_this_process

ENVIRONMENT = UUID(int=1)
FUNCTIONS = f"scheduler.functions.{ENVIRONMENT}"


class Bellringer(Scheduler):
    """The product: a process that picks, two that execute."""

    name = "Bellringer"
    parts: Sequence[str] = ("pick", *["execute"] * EXECUTORS)
    unfinished = """
        SELECT (SELECT count(*) FROM bellringer.tasks)
            - (SELECT count(*) FROM bellringer.occurrences WHERE ended_at IS NOT NULL)
    """
    ended = "SELECT extract(epoch FROM max(ended_at))::float8 FROM bellringer.occurrences"

    async def install(self, arguments: ConnectArguments) -> None:
        async with opened_database(arguments) as database:
            await migrate(database, SUBSYSTEMS)
            await Broker(database, BrokerConfig()).create_queue(SYSTEM_ENVIRONMENT, FUNCTIONS, QueueSettings())
            async with database.connection() as connection:
                await connection.execute(
                    "INSERT INTO bellringer.environments (id, organisation, name) VALUES ($1, 'bench', 'bench')",
                    ENVIRONMENT,
                )

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float) -> None:
        await store_tasks(arguments, tasks, fire_at)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        return [command(__name__, job.for_part(part)) for part in self.parts]


class BellringerAlone(Bellringer):
    """One process that does all."""

    name = "Bellringer, one process"
    parts = ("all",)


async def store_tasks(arguments: ConnectArguments, tasks: int, fire_at: float) -> None:
    """Store tasks of one moment that call a function."""
    async with connected(arguments) as connection:
        await connection.execute(
            """
            INSERT INTO bellringer.tasks (environment_id, name, queue, once_at, call, overlap, next_fire_at)
            SELECT $2, 'task-' || $3 || '-' || task, queues.number, $4,
                '{"type": "function", "name": "no_op"}', 'allow', $4
            FROM generate_series(1, $1) AS task, bellringer.queues WHERE queues.name = $5
            """,
            tasks,
            ENVIRONMENT,
            str(fire_at),
            datetime.fromtimestamp(fire_at, UTC),
            FUNCTIONS,
            timeout=3600,
        )
        await connection.execute("VACUUM ANALYZE bellringer.tasks", timeout=3600)


class NoOp:
    """The caller of a function that only leaves a mark."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    async def call(self, invocation: Invocation) -> Effect | None:  # noqa: ARG002
        self._marks.add()
        return None


async def run(job: Job) -> None:
    """Work until told to stop."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with opened_database(job.arguments) as database:
        broker = Broker(database, BrokerConfig())
        services: list[Service] = [TallyFolder(database), PendingWatcher(database, broker.wakeups)]
        if job.part != "pick":
            queue = await broker.queue(SYSTEM_ENVIRONMENT, FUNCTIONS)
            callers = {"function": NoOp(Marks(job.marks))}
            services.append(Executor(database, broker, [queue], callers, SchedulerConfig()))
        if job.part != "execute":
            dispatcher = Dispatcher(database, broker, SchedulerConfig())
            picker = Picker(database, dispatcher, SchedulerConfig())
            services += [InboxMover(database, broker), Sweeper(database, broker), Collector(database, broker)]
            services += [dispatcher, picker]
        await Supervisor(services).run(stopping)
        await broker.drain()


if __name__ == "__main__":
    uvloop.run(run(job_of_this_process()))
