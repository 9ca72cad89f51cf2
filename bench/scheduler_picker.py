"""A process that picks: from a moment on, until nothing is due, and notes then when that was."""

from __future__ import annotations

import asyncio
import time

import uvloop

from bench.scheduler_apscheduler import ApScheduler
from bench.scheduler_bellringer import Bellringer, BellringerDispatching
from bench.scheduler_contestants import BatchedSeed, Scheduler, Seed
from bench.scheduler_work import Job, Marks, job_of_this_process

CONTESTANTS: tuple[Scheduler, ...] = (Bellringer(), BellringerDispatching(), Seed(), BatchedSeed(), ApScheduler())


async def main(job: Job) -> None:
    (contestant,) = (contestant for contestant in CONTESTANTS if contestant.name == job.part)
    async with contestant.picker(job.arguments) as pick:
        await asyncio.sleep(job.fire_at - time.time())
        while await pick():
            pass
    Marks(job.marks).add()


if __name__ == "__main__":
    uvloop.run(main(job_of_this_process()))
