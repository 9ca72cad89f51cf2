"""What do order by group and delays cost? Messages per second through a FIFO and a delaying queue, against a plain one.

The plain queue keeps messages in chunks; those of the others have a row each. Batches of 100, four pairs of a producer
and a consumer. The FIFO queue has 1,000 groups in turn, and a group is held while a message of it is. A delayed
message waits a fifth of a second. Each figure is the median of three rounds in which the queues take turns.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict

import uvloop

from bellringer.broker import Broker, Publication, Queue, QueueSettings
from bench.queue_bellringer import Bellringer, BellringerClient
from bench.queue_work import Outcome, measure, percentile, running_postgres
from bench.support import print_table, scratch_directory

BATCH = 100
PAIRS = 4
ROUNDS = 3
SECONDS = 2.0
GROUPS = 1000
DELAY_SECONDS = 0.2


class GroupedClient(BellringerClient):
    def __init__(self, broker: Broker, queue: Queue) -> None:
        super().__init__(broker, queue)
        self._groups = itertools.cycle(f"group-{number}" for number in range(GROUPS))

    def publication(self, body: bytes) -> Publication:
        return Publication(body=body, group=next(self._groups))


class FifoBellringer(Bellringer):
    """A FIFO queue with many groups."""

    name = "FIFO, 1,000 groups"
    settings = QueueSettings(fifo=True)
    client = GroupedClient


class DelayingBellringer(Bellringer):
    """A queue whose messages wait before they can be claimed; enough are under way to fill the wait."""

    name = "delay of 0.2 s"
    settings = QueueSettings(delay_seconds=DELAY_SECONDS)
    most_ahead = 20_000


QUEUES = (Bellringer(), FifoBellringer(), DelayingBellringer())


async def measure_all() -> dict[str, list[Outcome]]:
    outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres:
            for _ in range(ROUNDS):
                for queue in QUEUES:
                    outcomes[queue.name].append(
                        await measure(postgres, queue, batch=BATCH, pairs=PAIRS, seconds=SECONDS)
                    )
    return outcomes


def main() -> None:
    outcomes = uvloop.run(measure_all())
    speeds = {
        name: statistics.median(outcome.messages_per_second for outcome in of_one) for name, of_one in outcomes.items()
    }
    print_table(
        f"Kinds of queues: publish, claim and acknowledge in batches of {BATCH}, {PAIRS} pairs",
        ["", "msg/s", "of plain", "claim p99 ms", "WAL B/msg", "dead tuples/msg"],
        [
            [
                name,
                f"{speeds[name]:,.0f}",
                f"{speeds[name] / speeds[Bellringer.name]:.2f}x",
                f"{statistics.median(percentile(outcome.verbs['claim'], 0.99) for outcome in of_one):.1f}",
                f"{statistics.median(outcome.wal_bytes_per_message for outcome in of_one):,.0f}",
                f"{statistics.median(outcome.dead_tuples_per_message for outcome in of_one):.2f}",
            ]
            for name, of_one in outcomes.items()
        ],
    )


if __name__ == "__main__":
    main()
