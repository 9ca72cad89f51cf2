"""Does a claim cost more when millions of messages wait? The median of a claim on a full queue against an empty one.

One client publishes, claims and acknowledges ten messages at a time, first on a queue that holds nothing else, then
with a million pending, or as many as `--messages 10000000` says; every claim goes to the database. The first claim of
a process that has just come up and the memory of the process at that depth are told too. The aim: at ten million
within 1.5 times of the empty queue.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.queue_bellringer import BellringerAtOnce
from bench.queue_contestants import Pgmq, QueueClient
from bench.queue_work import Postgres, bodies, percentile, running_postgres
from bench.support import print_table, scratch_directory

BATCH = 10
ROUNDS = 1000


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """Times of claims in milliseconds, resident memory in megabytes."""

    contestant: str
    empty: list[float]
    deep: list[float]
    first: float
    fill_seconds: float
    megabytes_empty: float
    megabytes_deep: float


async def claim_times(client: QueueClient, rounds: int) -> list[float]:
    times = []
    for _, batch in zip(range(rounds), bodies(BATCH), strict=False):
        await client.publish(batch)
        started = time.perf_counter()
        claimed = await client.claim(BATCH)
        times.append((time.perf_counter() - started) * 1000)
        await client.acknowledge(claimed)
    return times


async def measure(postgres: Postgres, contestant: BellringerAtOnce | Pgmq, messages: int) -> Depth:
    async with postgres.fresh_database(contestant) as arguments:
        async with contestant.open(arguments, 1) as (client,):
            await claim_times(client, 50)
            empty = await claim_times(client, ROUNDS)
            megabytes_empty, started = resident_megabytes(), time.perf_counter()
            await contestant.fill(arguments, messages)
            fill_seconds = time.perf_counter() - started
            await postgres.execute("CHECKPOINT")
            deep = await claim_times(client, ROUNDS)
            megabytes_deep = resident_megabytes()
        async with contestant.open(arguments, 1) as (newcomer,):
            (first,) = await claim_times(newcomer, 1)
    return Depth(
        contestant=contestant.name,
        empty=empty,
        deep=deep,
        first=first,
        fill_seconds=fill_seconds,
        megabytes_empty=megabytes_empty,
        megabytes_deep=megabytes_deep,
    )


def resident_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) / 1024


async def measure_all(messages: int) -> list[Depth]:
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            return [await measure(postgres, contestant, messages) for contestant in (BellringerAtOnce(), Pgmq())]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    messages = parser.parse_args(arguments).messages
    print_table(
        f"A claim of {BATCH} messages with {messages:,} pending (p50 / p99 in ms)",
        ["", "empty", "deep", "p50 deep/empty", "first of a process", "filled in s", "MB empty", "MB deep"],
        [
            [
                depth.contestant,
                *(
                    f"{percentile(times, 0.5):.2f} / {percentile(times, 0.99):.2f}"
                    for times in (depth.empty, depth.deep)
                ),
                f"{percentile(depth.deep, 0.5) / percentile(depth.empty, 0.5):.2f}x",
                f"{depth.first:.1f}",
                f"{depth.fill_seconds:.0f}",
                f"{depth.megabytes_empty:.0f}",
                f"{depth.megabytes_deep:.0f}",
            ]
            for depth in uvloop.run(measure_all(messages))
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
