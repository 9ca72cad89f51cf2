"""Bellringer as a contestant: its own processes as `bellringer up` starts them, with their usual settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bellringer.assembly import SUBSYSTEMS
from bellringer.broker import Broker, BrokerConfig
from bellringer.edge.keys import Keys
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.migrations import migrate
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.picker import Dispatcher, Picker
from bellringer.scheduler.queues import calls_queue, functions_queue
from bench.queue_contestants import ConnectArguments, connected, opened_database
from bench.scheduler_contestants import EXECUTORS, Pick, Scheduler
from bench.scheduler_work import Job, url
from bench.support import bellringer, free_port


class Bellringer(Scheduler):
    """The product: a process that picks, two that execute; tasks call a Python function."""

    name = "Bellringer"
    due_seconds = 90.0
    picked = "SELECT count(*) FROM bellringer.occurrences"
    roles: Sequence[str] = ("picker", *["executor"] * EXECUTORS)
    call = '{"type": "function", "name": "no_op"}'
    unfinished = """
        SELECT (SELECT count(*) FROM bellringer.tasks)
            - (SELECT count(*) FROM bellringer.occurrences WHERE outcome = 'succeeded')
    """
    ended = "SELECT extract(epoch FROM max(ended_at))::float8 FROM bellringer.occurrences"
    recorded = "SELECT extract(epoch FROM started_at)::float8 FROM bellringer.occurrences"

    async def install(self, arguments: ConnectArguments) -> None:
        async with opened_database(arguments) as database:
            await migrate(database, SUBSYSTEMS)
            environment = await Keys(database, SystemClock()).ensure_environment("bench", "bench")
            broker = Broker(database, BrokerConfig())
            await calls_queue(broker)
            await functions_queue(broker, environment.id)

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float, spread_seconds: float = 0) -> None:
        async with connected(arguments) as connection:
            await connection.execute(
                """
                INSERT INTO bellringer.tasks (environment_id, name, queue, once_at, call, overlap, next_fire_at)
                SELECT environments.id, 'task-' || $2::bigint || '-' || task, queues.number, moment, $4, 'allow', moment
                FROM bellringer.environments, bellringer.queues, generate_series(0, $1 - 1) AS task,
                    to_timestamp($2::float8 + $3 * task) AS moment
                WHERE environments.name = 'bench' AND queues.name LIKE $5
                """,
                tasks,
                fire_at,
                spread_seconds / tasks,
                self.call,
                "scheduler.functions.%" if "function" in self.call else "scheduler.calls",
                timeout=3600,
            )
            await connection.execute("VACUUM ANALYZE bellringer.tasks", timeout=3600)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:  # noqa: ARG002
        application = ["--tasks", "bench.scheduler_application:scheduler"]
        return [bellringer("up", "--role", role, *application) for role in self.roles]

    def settings(self, job: Job) -> dict[str, str]:
        return {
            "BELLRINGER_DATABASE_URL": url(job.arguments),
            "BELLRINGER_ORGANISATION": "bench",
            "BELLRINGER_ENVIRONMENT": "bench",
            "BELLRINGER_PORT": str(free_port()),
            "BELLRINGER_LOG_LEVEL": "warning",
            "BENCH_MARKS": job.marks,
        }

    @asynccontextmanager
    async def picker(self, arguments: ConnectArguments) -> AsyncIterator[Pick]:
        async with opened_database(arguments) as database:
            dispatcher = Dispatcher(database, Broker(database, BrokerConfig()), SchedulerConfig())
            yield Picker(database, dispatcher, SchedulerConfig()).run_once


class BellringerMessages(Bellringer):
    """Tasks that publish a message; when they started is what the database says."""

    name = "Bellringer, messages"
    call = '{"type": "message", "queue": "bench"}'
    leaves_marks = False


class BellringerAlone(Bellringer):
    """One process that does everything, its HTTP server included."""

    name = "Bellringer, one process"
    roles = ("all",)


class BellringerDispatching(Bellringer):
    """Each picker beside a dispatcher, as in its process: what it picks is handed to the broker at once."""

    name = "Bellringer, dispatching"
    due_seconds = 0.0
    picked = "SELECT count(*) FROM bellringer.occurrences WHERE stage = 1"

    @asynccontextmanager
    async def picker(self, arguments: ConnectArguments) -> AsyncIterator[Pick]:
        async with opened_database(arguments) as database:
            dispatcher = Dispatcher(database, Broker(database, BrokerConfig()), SchedulerConfig())
            picker = Picker(database, dispatcher, SchedulerConfig())

            async def pick() -> bool:
                return any(await asyncio.gather(picker.run_once(), dispatcher.run_once()))

            yield pick
