"""How late do 10,000 tasks start that are due at the same moment? Start lag of a no-op, against other schedulers.

Two processes execute on each side; the no-op of every contestant notes the time, and that is when a task started (but
for tasks that publish a message: those started when the database says, which is a little earlier). The tasks are stored
beforehand; what is not over 120 seconds after the moment is not waited for. `--tasks 500` is a quick look. The aim: p99
under one second, the promise being 30, and none early.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.queue_contestants import connected
from bench.queue_work import Postgres, percentile, running_postgres
from bench.scheduler_apscheduler import ApScheduler
from bench.scheduler_bellringer import Bellringer, BellringerAlone, BellringerMessages
from bench.scheduler_contestants import BatchedSeed, Scheduler, Seed
from bench.scheduler_procrastinate import Procrastinate, ProcrastinatePeriodic
from bench.scheduler_work import Job, Marks, check_alive, running, wait_for_count
from bench.support import print_table, scratch_directory

TASKS = 10_000
BOUND_SECONDS = 120.0
PROMISE_SECONDS = 30.0
START_SECONDS = 10.0
CONTESTANTS: tuple[Scheduler, ...] = (
    Bellringer(),
    BellringerMessages(),
    BellringerAlone(),
    Seed(),
    BatchedSeed(),
    Procrastinate(),
    ProcrastinatePeriodic(),
    ApScheduler(),
)


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """What one contestant did: seconds after the moment of every start, as its code and as its tables have it, and of
    the last end, if all ended.
    """

    contestant: str
    tasks: int
    lags: list[float]
    recorded: list[float]
    ended_after: float | None

    @property
    def early(self) -> int:
        """Tasks that started before their moment."""
        return max(sum(lag < 0 for lag in lags) for lags in (self.lags, self.recorded))

    @property
    def kept(self) -> int:
        """Tasks that started within the promise."""
        return sum(0 <= lag <= PROMISE_SECONDS for lag in self.lags)

    def lag(self, share: float) -> float:
        """The lag of which that share of all tasks stays below; infinite when it is one that did not start."""
        lags = self.lags + [math.inf] * (self.tasks - len(self.lags))
        return percentile(lags, share)


async def measure(postgres: Postgres, contestant: Scheduler, tasks: int, directory: Path) -> Starts:
    async with postgres.fresh_database(contestant) as arguments:
        marks = Marks(str(directory / f"marks-{contestant.name}"))
        fire_at = math.ceil(time.time() + contestant.lead_seconds)
        await contestant.store(arguments, tasks, fire_at)
        await postgres.execute("CHECKPOINT")
        if time.time() > fire_at - START_SECONDS:
            raise SystemExit(f"{contestant.name} has too little time to start before its tasks are due")
        job = Job(part="", arguments=arguments, marks=marks.path, fire_at=fire_at, tasks=tasks)
        with running(contestant.commands(job), directory, contestant.settings(job)) as processes:
            while contestant.leaves_marks and marks.count() < tasks and time.time() < fire_at + BOUND_SECONDS:
                check_alive(processes, directory)
                await asyncio.sleep(0.1)
            unfinished = await wait_for_count(arguments, contestant.unfinished, 0, fire_at + BOUND_SECONDS)
            ended_at = time.time()
        recorded: list[float] = []
        async with connected(arguments) as connection:
            if contestant.recorded is not None:
                recorded = [moment - fire_at for (moment,) in await connection.fetch(contestant.recorded)]
            if contestant.ended is not None and not unfinished:
                ended_at = await connection.fetchval(contestant.ended)
    return Starts(
        contestant=contestant.name,
        tasks=tasks,
        lags=[moment - fire_at for moment in marks.read()] if contestant.leaves_marks else recorded,
        recorded=recorded,
        ended_after=None if unfinished else ended_at - fire_at,
    )


async def measure_all(tasks: int, names: Sequence[str]) -> list[Starts]:
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            return [
                await measure(postgres, contestant, tasks, directory)
                for contestant in CONTESTANTS
                if not names or contestant.name in names
            ]


def seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.3f}"


def row(starts: Starts, own: Starts) -> list[str]:
    return [
        starts.contestant,
        f"{len(starts.lags):,}",
        f"{starts.early:,}",
        f"{starts.kept / starts.tasks:.1%}",
        *(seconds(starts.lag(share)) for share in (0.5, 0.99, 1)),
        seconds(percentile(starts.recorded, 0.99)) if len(starts.recorded) == starts.tasks else "-",
        "-" if math.isinf(starts.lag(0.99)) else f"{starts.lag(0.99) / own.lag(0.99):.1f}x",
        "never" if starts.ended_after is None else f"{starts.ended_after:.2f}",
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--only", nargs="*", default=[], help="names of contestants")
    options = parser.parse_args(arguments)
    measured = uvloop.run(measure_all(options.tasks, options.only))
    print_table(
        f"{options.tasks:,} tasks due at one moment, {BOUND_SECONDS:.0f} s at most (start lag in seconds)",
        ["", "started", "early", "in 30 s", "p50", "p99", "max", "p99 in its tables", "p99 to ours", "all ended"],
        [row(starts, measured[0]) for starts in measured],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
