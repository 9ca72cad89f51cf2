"""Does a pick cost more when millions of tasks are stored? The time to pick 1,000 due tasks, one picker, by depth.

The tasks below are due over the next year. Before each measurement 10,000 due ones are stored and the database is
given a checkpoint; each contestant picks them its way, batch by batch, until none is left, and half of the batches took
no longer than what is told. Procrastinate, which has no picker, claims jobs for its workers one by one, and APScheduler
claims a hundred: both are asked for less, at a tenth of the largest depth at most. The aim: flat at 10 million, which
`--tasks 10000000` says.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from bench.queue_contestants import ConnectArguments, connected
from bench.queue_work import Postgres, running_postgres
from bench.scheduler_apscheduler import ApScheduler
from bench.scheduler_bellringer import Bellringer
from bench.scheduler_contestants import BatchedSeed, Scheduler
from bench.scheduler_procrastinate import Procrastinate
from bench.support import print_table, scratch_directory

TASKS = 1_000_000
DUE = 10_000
LIMIT_SECONDS = 120.0
_DAY_SECONDS = 86400.0


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler, how many due tasks it picks in a measurement, and the part of the depth that it is asked for."""

    scheduler: Scheduler
    due: int = DUE
    part: float = 1.0


CONTESTANTS = (
    Contestant(scheduler=Bellringer()),
    Contestant(scheduler=BatchedSeed()),
    Contestant(scheduler=ApScheduler(), due=1000, part=0.1),
    Contestant(scheduler=Procrastinate(), due=100, part=0.1),
)


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds to pick 1,000 tasks and to find that none is due, above so many stored ones."""

    contestant: str
    stored: int
    pick: float
    look: float
    megabytes: float
    filled_seconds: float


async def pick_times(arguments: ConnectArguments, scheduler: Scheduler, due: int) -> tuple[float, float]:
    """The median milliseconds per 1,000 of a batch, and of the last look, that finds nothing."""
    times: list[float] = []
    deadline = time.perf_counter() + LIMIT_SECONDS
    async with scheduler.picker(arguments) as pick, connected(arguments) as connection:
        before = picked = await connection.fetchval(scheduler.picked)
        while picked < before + due and time.perf_counter() < deadline:
            started = time.perf_counter()
            await pick()
            elapsed = time.perf_counter() - started
            now_picked = await connection.fetchval(scheduler.picked)
            times.append(elapsed * 1e6 / max(now_picked - picked, 1))
            picked = now_picked
        looks = []
        for _ in range(20):
            started = time.perf_counter()
            if await pick():
                break
            looks.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), statistics.median(looks) if looks else math.nan


async def measure(postgres: Postgres, contestant: Contestant, depths: Sequence[int]) -> list[Depth]:
    measured = []
    scheduler = contestant.scheduler
    async with postgres.fresh_database(scheduler) as arguments:
        stored, filled_seconds = 0, 0.0
        for depth in [int(depth * contestant.part) for depth in depths]:
            if depth > stored:
                started = time.perf_counter()
                year = 365 * _DAY_SECONDS
                await scheduler.store(arguments, depth - stored, time.time() + _DAY_SECONDS + stored, year)
                filled_seconds += time.perf_counter() - started
                stored = depth
            await scheduler.store(arguments, contestant.due, time.time() - 1)
            await postgres.execute("CHECKPOINT")
            pick, look = await pick_times(arguments, scheduler, contestant.due)
            async with connected(arguments) as connection:
                size = await connection.fetchval("SELECT pg_database_size(current_database())")
            measured.append(
                Depth(
                    contestant=scheduler.name,
                    stored=stored,
                    pick=pick,
                    look=look,
                    megabytes=size / 1e6,
                    filled_seconds=filled_seconds,
                )
            )
    return measured


async def measure_all(depths: Sequence[int]) -> list[list[Depth]]:
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            return [await measure(postgres, contestant, depths) for contestant in CONTESTANTS]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    tasks = parser.parse_args(arguments).tasks
    measured = uvloop.run(measure_all([0, tasks // 10, tasks]))
    print_table(
        "Picks above so many tasks that are due later (median ms)",
        ["", "stored", "pick of 1,000", "of empty", "look at nothing due", "MB", "filled in s"],
        [
            [
                depth.contestant,
                f"{depth.stored:,}",
                f"{depth.pick:,.1f}",
                f"{depth.pick / of_one[0].pick:.2f}x",
                f"{depth.look:.2f}",
                f"{depth.megabytes:,.0f}",
                f"{depth.filled_seconds:.0f}",
            ]
            for of_one in measured
            for depth in of_one
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
