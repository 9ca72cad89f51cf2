"""`make prove`: a million messages through several brokers on one PostgreSQL, while everything around them breaks.

    python -m tests.support.under_fire --messages 1000000 --seed 7 --keep-history .history

Ends with 1 when a promise was broken, and tells which, to which message, and the requests that prove it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.support.under_fire.run import run_under_fire


def main() -> int:
    """Run, and print the verdict."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.under_fire", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--least-seconds", type=float, default=0.0, help="let the sending take at least that long")
    parser.add_argument("--pause", type=float, nargs=2, default=(1.0, 6.0), help="range of the pauses between faults")
    parser.add_argument("--keep-history", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    began_at = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began_at:7.1f} s  {line}", flush=True)  # noqa: T201 - that is what it is for

    tell(f"{arguments.messages:,} messages, seed {arguments.seed}")
    outcome = run_under_fire(
        arguments.messages,
        seed=arguments.seed,
        least_seconds=arguments.least_seconds,
        pause_seconds=tuple(arguments.pause),
        tell=tell,
        kept_history=arguments.keep_history,
    )
    tell(str(outcome))
    return 0 if outcome.is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
