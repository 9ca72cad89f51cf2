"""How many messages per second go through a queue, published, claimed and acknowledged, against pgmq and others?

Bodies of 100 random bytes, `synchronous_commit` on, batches of 1, 100 and 1,000, one and four pairs of a producer and
a consumer at work at the same time. Each figure is the median of three rounds in which the contestants take turns.
The aim: at least twice pgmq's messages per second at every batch size, and at most a third of its WAL per message.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence

import uvloop

from bench.queue_bellringer import Bellringer
from bench.queue_contestants import Contestant, Pgmq, PgQueuer, Procrastinate, Seed
from bench.queue_work import Outcome, measure, percentile, running_postgres
from bench.support import print_table, scratch_directory

BATCHES = (1, 100, 1000)
PAIRS = (1, 4)
SECONDS = 1.0
CONTESTANTS: tuple[Contestant, ...] = (Bellringer(), Pgmq(), PgQueuer(), Procrastinate(), Seed())

Point = tuple[int, int, str]
"""Batch, pairs and contestant."""


async def measure_all(rounds: int) -> dict[Point, list[Outcome]]:
    outcomes: defaultdict[Point, list[Outcome]] = defaultdict(list)
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            for number, batch, pairs, contestant in itertools.product(range(rounds), BATCHES, PAIRS, CONTESTANTS):
                # Who claims one at a time takes a minute to work off what it publishes in a second: once is enough.
                if number == 0 or contestant.largest_claim >= batch:
                    outcomes[batch, pairs, contestant.name].append(
                        await measure(postgres, contestant, batch=batch, pairs=pairs, seconds=SECONDS)
                    )
    return outcomes


def speed(outcomes: Sequence[Outcome]) -> float:
    return statistics.median(outcome.messages_per_second for outcome in outcomes)


def wal(outcomes: Sequence[Outcome]) -> float:
    return statistics.median(outcome.wal_bytes_per_message for outcome in outcomes)


def times(outcomes: Sequence[Outcome], verb: str) -> str:
    """p50 and p99 of a verb, in milliseconds: the medians of the rounds."""
    return " / ".join(
        f"{statistics.median(percentile(outcome.verbs[verb], share) for outcome in outcomes):.2f}"
        for share in (0.5, 0.99)
    )


def row(point: Point, outcomes: dict[Point, list[Outcome]]) -> list[str]:
    batch, pairs, name = point
    own, pgmq = outcomes[point], outcomes[batch, pairs, "pgmq"]
    dead = statistics.median(outcome.dead_tuples_per_message for outcome in own)
    return [
        f"{batch:,}",
        str(pairs),
        name,
        f"{speed(own):,.0f}",
        f"{speed(own) / speed(pgmq):.2f}x",
        *(times(own, verb) for verb in ("publish", "claim", "acknowledge")),
        f"{wal(own):,.0f}",
        f"{wal(own) / wal(pgmq):.2f}x",
        f"{dead:.2f}",
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    outcomes = uvloop.run(measure_all(parser.parse_args(arguments).rounds))
    columns = ["batch", "pairs", "", "msg/s", "of pgmq", "publish ms", "claim ms", "acknowledge ms"]
    print_table(
        "Publish, claim and acknowledge 100 bytes (times: p50 / p99 of a call; dead tuples: made per message)",
        [*columns, "WAL B/msg", "of pgmq", "dead tuples"],
        [
            row((batch, pairs, contestant.name), outcomes)
            for batch in BATCHES
            for pairs in PAIRS
            for contestant in CONTESTANTS
        ],
    )
    for batch in BATCHES:
        ratios = [
            (
                speed(outcomes[batch, pairs, "Bellringer"]) / speed(outcomes[batch, pairs, "pgmq"]),
                wal(outcomes[batch, pairs, "Bellringer"]) / wal(outcomes[batch, pairs, "pgmq"]),
            )
            for pairs in PAIRS
        ]
        print(
            f"  batches of {batch:,}: {min(ratio for ratio, _ in ratios):.2f}x pgmq's speed or more (aim: 2x),"
            f" {max(ratio for _, ratio in ratios):.2f}x its WAL or less (aim: 0.33x)"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
