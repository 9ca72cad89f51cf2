"""How many due tasks per second do two pickers pick? Two processes, from a start that both know until none is left.

To pick is to make a task an occurrence (Bellringer), to mark it (the seed) or to make it a job (APScheduler);
"dispatching" and both seeds push it to a queue as well. Who is slower gets fewer tasks. `--tasks 20000` is a quick
look. The aim: 10,000 per second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.queue_contestants import connected
from bench.queue_work import Postgres, running_postgres
from bench.scheduler_contestants import Scheduler
from bench.scheduler_picker import CONTESTANTS
from bench.scheduler_work import Job, Marks, command, running
from bench.support import print_table, scratch_directory

PICKERS = 2
TASKS = 100_000
FEWER = {"seed": 10, "APScheduler 4": 20}
AIM = 10_000
_START_SECONDS = 4.0


class Picks(msgspec.Struct, frozen=True, kw_only=True):
    """What the pickers of one contestant did."""

    contestant: str
    tasks: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Tasks picked per second."""
        return self.tasks / self.seconds


async def measure(postgres: Postgres, contestant: Scheduler, tasks: int, directory: Path) -> Picks:
    async with postgres.fresh_database(contestant) as arguments:
        await contestant.store(arguments, tasks, time.time() + contestant.due_seconds)
        await postgres.execute("CHECKPOINT")
        start_at = time.time() + _START_SECONDS
        marks = Marks(str(directory / f"picks-{contestant.name}"))
        job = Job(part=contestant.name, arguments=arguments, marks=marks.path, fire_at=start_at, tasks=tasks)
        with running([command("bench.scheduler_picker", job)] * PICKERS, directory) as processes:
            for process in processes:
                if process.wait(300) != 0:
                    raise SystemExit(f"a picker failed:\n{(directory / 'processes.log').read_text()[-3000:]}")
        async with connected(arguments) as connection:
            picked = await connection.fetchval(contestant.picked)
        if picked != tasks:
            raise SystemExit(f"{contestant.name} picked {picked:,} of {tasks:,}")
    return Picks(contestant=contestant.name, tasks=tasks, seconds=max(marks.read()) - start_at)


async def measure_all(tasks: int) -> list[Picks]:
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            return [
                await measure(postgres, contestant, tasks // FEWER.get(contestant.name, 1), directory)
                for contestant in CONTESTANTS
            ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    measured = uvloop.run(measure_all(parser.parse_args(arguments).tasks))
    own = measured[0]
    print_table(
        f"Picks by {PICKERS} processes",
        ["", "tasks", "seconds", "picks/s", "ours is"],
        [
            [
                picks.contestant,
                f"{picks.tasks:,}",
                f"{picks.seconds:.2f}",
                f"{picks.per_second:,.0f}",
                f"{own.per_second / picks.per_second:.1f}x",
            ]
            for picks in measured
        ],
    )
    print(f"  {own.per_second / AIM:.2f}x the aim of {AIM:,} per second")


if __name__ == "__main__":
    main(sys.argv[1:])
