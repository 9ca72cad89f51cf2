"""Procrastinate: jobs deferred to a moment (`schedule_at`), and periodic tasks, one job each at that moment.

Two workers that run 20 jobs at a time over a pool of 20 connections, look for jobs every 50 ms (its default, 5 s, is
for jobs that somebody defers: at that it is told; nobody tells when a job becomes due), and delete none. Periodic
tasks are 10,000 registrations of one task with a cron of six fields, the sixth being the second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import procrastinate
import uvloop

from bench.queue_contestants import ConnectArguments, connected
from bench.scheduler_contestants import EXECUTORS, Pick, Scheduler
from bench.scheduler_work import Job, Marks, command, job_of_this_process

_TASK = "no_op"
_SLOTS = 20


class Procrastinate(Scheduler):
    """Jobs deferred to a moment."""

    name = "Procrastinate, deferred"
    part = "deferred"
    picked = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'doing'"
    unfinished = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
    ended = "SELECT extract(epoch FROM max(at))::float8 FROM procrastinate_events WHERE type = 'succeeded'"
    recorded = "SELECT extract(epoch FROM at)::float8 FROM procrastinate_events WHERE type = 'started'"

    async def install(self, arguments: ConnectArguments) -> None:
        async with app_of(arguments).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float, spread_seconds: float = 0) -> None:
        """Through the function that its own deferring calls."""
        async with connected(arguments) as connection:
            for first in range(0, tasks, 10_000):
                await connection.execute(
                    "SELECT procrastinate_defer_jobs_v1(array_agg(ROW('default', $1, 0, NULL, NULL, '{}',"
                    " to_timestamp($2 + $3 * number))::procrastinate_job_to_defer_v1))"
                    " FROM generate_series($4::integer, $5 - 1) number",
                    _TASK,
                    fire_at,
                    spread_seconds / tasks,
                    first,
                    min(first + 10_000, tasks),
                    timeout=600,
                )
            await connection.execute("VACUUM ANALYZE procrastinate_jobs", timeout=600)

    @asynccontextmanager
    async def picker(self, arguments: ConnectArguments) -> AsyncIterator[Pick]:
        async with app_of(arguments).open_async() as app:
            worker = await app.job_manager.register_worker()

            async def pick() -> int:
                return 0 if await app.job_manager.fetch_job(None, worker) is None else 1

            yield pick

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        return [command(__name__, job.for_part(self.part))] * EXECUTORS


class ProcrastinatePeriodic(Procrastinate):
    """As many periodic tasks, deferred by the workers when their moment has come."""

    name = "Procrastinate, periodic"
    part = "periodic"
    lead_seconds = 30.0

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float, spread_seconds: float = 0) -> None:
        """Periodic tasks are stored nowhere: the workers know them."""


def app_of(arguments: ConnectArguments) -> procrastinate.App:
    target = {("dbname" if key == "database" else key): value for key, value in arguments.items()}
    return procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs=target, min_size=_SLOTS, max_size=_SLOTS))


async def main(job: Job) -> None:
    marks = Marks(job.marks)
    app = app_of(job.arguments)

    async def no_op(**_: object) -> None:
        marks.add()

    task = app.task(name=_TASK)(no_op)
    if job.part == "periodic":
        moment = datetime.fromtimestamp(job.fire_at, UTC)
        cron = f"{moment.minute} {moment.hour} {moment.day} {moment.month} * {moment.second}"
        for number in range(job.tasks):
            app.periodic(cron=cron, periodic_id=str(number))(task)
    async with app.open_async():
        await app.run_worker_async(concurrency=_SLOTS, fetch_job_polling_interval=0.05)


if __name__ == "__main__":
    uvloop.run(main(job_of_this_process()))
