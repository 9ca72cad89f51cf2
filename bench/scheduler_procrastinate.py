"""Procrastinate: jobs deferred to a moment (`schedule_at`), and periodic tasks, one job each at that moment.

Two workers that run 20 jobs at a time over a pool of 20 connections, look for jobs every 50 ms (its default, 5 s, is
for jobs that somebody defers: at that it is told; nobody tells when a job becomes due), and delete none. Periodic
tasks are 10,000 registrations of one task with a cron of six fields, the sixth being the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import procrastinate
import uvloop

from bench.queue_contestants import ConnectArguments, connected
from bench.scheduler_contestants import EXECUTORS, Scheduler
from bench.scheduler_work import Job, Marks, command, job_of_this_process

_TASK = "no_op"
_SLOTS = 20


class Procrastinate(Scheduler):
    """Jobs deferred to a moment."""

    name = "Procrastinate, deferred"
    part = "deferred"
    unfinished = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
    ended = "SELECT extract(epoch FROM max(at))::float8 FROM procrastinate_events WHERE type = 'succeeded'"

    async def install(self, arguments: ConnectArguments) -> None:
        async with app_of(arguments).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float) -> None:
        moment = datetime.fromtimestamp(fire_at, UTC)
        async with app_of(arguments).open_async() as app, connected(arguments) as connection:
            deferrer = app.configure_task(_TASK, schedule_at=moment)
            for first in range(0, tasks, 1000):
                await deferrer.batch_defer_async(*[{}] * min(1000, tasks - first))
            await connection.execute("VACUUM ANALYZE procrastinate_jobs", timeout=600)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        return [command(__name__, job.for_part(self.part))] * EXECUTORS


class ProcrastinatePeriodic(Procrastinate):
    """As many periodic tasks, deferred by the workers when their moment has come."""

    name = "Procrastinate, periodic"
    part = "periodic"
    lead_seconds = 30.0

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float) -> None:
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
