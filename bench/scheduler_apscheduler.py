"""APScheduler 4 on PostgreSQL: its SQLAlchemy store over asyncpg, and its event broker over psycopg.

Its event broker over asyncpg, 4.0.0a6, fails with the anyio of today: its callback runs outside of any task.
One process schedules and two work, with the roles `scheduler` and `worker` as its documentation has it for several
nodes. The task may run without bound (by default once at a time); a worker runs up to 100 jobs at a time, the default,
over a pool of 20 connections. Results of jobs are not kept, the default; the clean-up is off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import uvloop
from apscheduler import AsyncScheduler, CoalescePolicy, Job, Schedule, ScheduleResult, SchedulerRole
from apscheduler.abc import EventBroker
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.local import LocalEventBroker
from apscheduler.eventbrokers.psycopg import PsycopgEventBroker
from apscheduler.triggers.date import DateTrigger
from sqlalchemy.ext.asyncio import create_async_engine

from bench import scheduler_work
from bench.queue_contestants import ConnectArguments, connected
from bench.scheduler_contestants import EXECUTORS, Pick, Scheduler
from bench.scheduler_work import Marks, command, job_of_this_process, url

_TASK = "no_op"


class ApScheduler(Scheduler):
    """One-time schedules (`DateTrigger`) of a task that is an async function."""

    name = "APScheduler 4"
    picked = "SELECT count(*) FROM jobs"
    unfinished = (
        "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM schedules WHERE next_fire_time IS NOT NULL)"
    )

    async def install(self, arguments: ConnectArguments) -> None:
        async with opened(arguments, LocalEventBroker()) as scheduler:
            await scheduler.configure_task(_TASK, func=idle, job_executor="async", max_running_jobs=None)

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float, spread_seconds: float = 0) -> None:
        trigger = DateTrigger(datetime.fromtimestamp(fire_at, UTC))
        trigger.next()
        schedule = Schedule(
            id="task",
            task_id=_TASK,
            trigger=trigger,
            next_fire_time=trigger.run_time,
            coalesce=CoalescePolicy.latest,
            job_executor="async",
            job_result_expiration_time=0,
        )
        async with opened(arguments, LocalEventBroker()) as scheduler, connected(arguments) as connection:
            row = schedule.marshal(scheduler.data_store.serializer)
            await connection.execute(
                "INSERT INTO schedules (id, task_id, trigger, args, kwargs, paused, coalesce, job_executor,"
                " job_result_expiration_time, metadata, next_fire_time)"
                " SELECT $2 || '-' || number, $3, $4, $5, $6, false, 'latest', 'async', interval '0', '{}',"
                " to_timestamp($7 + $8 * number) FROM generate_series(0, $1 - 1) number",
                tasks,
                str(int(fire_at)),
                *(row[column] for column in ("task_id", "trigger", "args", "kwargs")),
                fire_at,
                spread_seconds / tasks,
                timeout=3600,
            )
            await connection.execute("VACUUM ANALYZE schedules", timeout=3600)

    def commands(self, job: scheduler_work.Job) -> Sequence[Sequence[str]]:
        return [command(__name__, job.for_part(part)) for part in ["scheduler", *["worker"] * EXECUTORS]]

    @asynccontextmanager
    async def picker(self, arguments: ConnectArguments) -> AsyncIterator[Pick]:
        async with opened(arguments, LocalEventBroker()) as scheduler:
            yield lambda: pick_once(scheduler)


async def pick_once(scheduler: AsyncScheduler) -> int:
    """What its scheduler does in a round: claim a hundred schedules, add a job for each, release them."""
    store, identity = scheduler.data_store, scheduler.identity
    schedules = await store.acquire_schedules(identity, scheduler.lease_duration, 100)
    results = []
    for schedule in schedules:
        assert schedule.next_fire_time is not None
        await store.add_job(
            Job(
                task_id=schedule.task_id,
                schedule_id=schedule.id,
                scheduled_fire_time=schedule.next_fire_time,
                executor=schedule.job_executor,
                result_expiration_time=schedule.job_result_expiration_time,
            )
        )
        results.append(
            ScheduleResult(
                schedule_id=schedule.id,
                task_id=schedule.task_id,
                trigger=schedule.trigger,
                last_fire_time=schedule.next_fire_time,
                next_fire_time=schedule.trigger.next(),
            )
        )
    await store.release_schedules(identity, results)
    return len(schedules)


@asynccontextmanager
async def opened(
    arguments: ConnectArguments, broker: EventBroker, role: SchedulerRole = SchedulerRole.scheduler
) -> AsyncIterator[AsyncScheduler]:
    engine = create_async_engine(url(arguments, "postgresql+asyncpg"), pool_size=20)
    try:
        async with AsyncScheduler(SQLAlchemyDataStore(engine), broker, role=role, cleanup_interval=None) as scheduler:
            yield scheduler
    finally:
        await engine.dispose()


async def idle() -> None:
    """Stands for the task where it does not run."""


async def main(job: scheduler_work.Job) -> None:
    marks = Marks(job.marks)

    async def no_op() -> None:
        marks.add()

    broker = PsycopgEventBroker(url(job.arguments))
    async with opened(job.arguments, broker, SchedulerRole[job.part]) as scheduler:
        await scheduler.configure_task(_TASK, func=no_op, job_executor="async", max_running_jobs=None)
        await scheduler.run_until_stopped()


if __name__ == "__main__":
    uvloop.run(main(job_of_this_process()))
