"""`make prove-scheduler`: thousands of tasks, while pickers, executors and PostgreSQL break, their clocks apart.

    python -m tests.support.scheduler_under_fire --seconds 600 --seed 7 --keep-history .history

Ends with 1 when a promise was broken, and tells which, at which fire time, and the records that prove it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from pathlib import Path

from tests.support.scheduler_under_fire.run import run_under_fire
from tests.support.scheduler_under_fire.settings import LIBRARY, Size

from bellringer.kernel.logs import configure_logs


def main() -> int:
    """Run, and print the verdict."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.scheduler_under_fire", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long tasks are made and used")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--pause", type=float, nargs=2, default=(4.0, 15.0), help="range of the pauses between faults")
    parser.add_argument("--keep-history", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if not LIBRARY.exists():
        parser.error("needs Debian's libfaketime, which sets clocks apart: apt-get install libfaketime")
    size = Size(
        seconds=arguments.seconds,
        one_time_tasks=round(6 * arguments.seconds),
        recurring_tasks=80,
        crashing_tasks=round(arguments.seconds / 15),
    )
    configure_logs("error", "text")
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # it speaks of every connection that it cannot open
    began_at = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began_at:7.1f} s  {line}", flush=True)  # noqa: T201 - that is what it is for

    tell(f"{size}, seed {arguments.seed}")
    result = run_under_fire(
        size,
        seed=arguments.seed,
        pause_seconds=tuple(arguments.pause),
        tell=tell,
        kept_history=arguments.keep_history,
    )
    tell(str(result))
    return 0 if result.is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
