"""The application of the benchmarks' executors: a function that notes when it ran, and does nothing else."""

import os

from bellringer.scheduler.functions import Scheduler
from bench.scheduler_work import Marks

scheduler = Scheduler()
_marks = Marks(os.environ["BENCH_MARKS"])


@scheduler.task
async def no_op() -> None:
    """Note the time."""
    _marks.add()
