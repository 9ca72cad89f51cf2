"""Do claims get slower while somebody else leaves a transaction open? The p99 of a claim, window by window.

One client publishes, claims and acknowledges ten messages at a time, as fast as it can, while a transaction that
holds a snapshot, or a snapshot and a transaction id, stays open in the same database: no vacuum can remove a row that
died since. The aim: flat, the last window like the time before. `--minutes 30` keeps it open for that long (Bellringer
alone; pgmq's way is clear after the seconds of the short run).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import uvloop

from bench.queue_bellringer import BellringerAtOnce
from bench.queue_contestants import Contestant, Pgmq, QueueClient, connected
from bench.queue_work import Postgres, bodies, percentile, quantiles, running_postgres
from bench.support import print_table, scratch_directory

SHORT_SECONDS = 12.0
BEFORE_SECONDS = 3.0
WINDOWS = 4
BATCH = 10
LEFT_OPEN = {
    "snapshot": "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class",
    "snapshot and id": "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()",
}


async def claim_times(postgres: Postgres, contestant: Contestant, left_open: str, seconds: float) -> list[list[float]]:
    """The times of all claims in milliseconds: before the transaction opens, then in windows of equal length."""
    async with (
        postgres.fresh_database(contestant) as arguments,
        contestant.open(arguments, 1) as (client,),
        connected(arguments) as somebody_else,
    ):
        times = [await window(client, BEFORE_SECONDS)]
        await somebody_else.execute(left_open)
        times += [await window(client, seconds / WINDOWS) for _ in range(WINDOWS)]
    return times


async def window(client: QueueClient, seconds: float) -> list[float]:
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    for batch in bodies(BATCH):
        if time.perf_counter() > deadline:
            break
        await client.publish(batch)
        started = time.perf_counter()
        claimed = await client.claim(BATCH)
        times.append((time.perf_counter() - started) * 1000)
        await client.acknowledge(claimed)
    return times


async def measure_all(seconds: float) -> list[tuple[str, str, float, list[list[float]]]]:
    measured = []
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            for name, left_open in LEFT_OPEN.items():
                for contestant, duration in ((BellringerAtOnce(), seconds), (Pgmq(), SHORT_SECONDS)):
                    windows = await claim_times(postgres, contestant, left_open, duration)
                    measured.append((name, contestant.name, duration, windows))
    return measured


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=SHORT_SECONDS / 60)
    measured = uvloop.run(measure_all(parser.parse_args(arguments).minutes * 60))
    columns = ["left open", "", "seconds", "claims", "before", *(f"window {1 + index}" for index in range(WINDOWS))]
    print_table(
        f"A claim of {BATCH} messages while a transaction stays open, p50 / p99 in ms by window",
        [*columns, "p99 last/before"],
        [
            [
                name,
                contestant,
                f"{duration:,.0f}",
                f"{sum(map(len, windows)):,}",
                *map(quantiles, windows),
                f"{percentile(windows[-1], 0.99) / percentile(windows[0], 0.99):.2f}x",
            ]
            for name, contestant, duration, windows in measured
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
