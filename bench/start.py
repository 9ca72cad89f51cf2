"""How long does `bellringer up` take to be ready on an existing data directory? The aim is under 3 seconds.

Baseline: starting and stopping the embedded PostgreSQL alone, in the same run, with the interpreter's own start.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.support import bellringer, free_port, print_table, process, scratch_directory

RUNS = 5
ALONE = """
import asyncio
from pathlib import Path
from bellringer.kernel.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresConfig

async def main():
    server = EmbeddedPostgres(EmbeddedPostgresConfig(data_directory=Path(".bellringer")))
    await server.start()
    print("ready", flush=True)
    await server.stop()

asyncio.run(main())
"""


def database_alone(directory: Path) -> float:
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", ALONE], cwd=directory, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            raise SystemExit("the database did not start")
        return time.perf_counter() - started


def whole(directory: Path) -> float:
    port = free_port()
    with process(bellringer("up"), port, {"BELLRINGER_LOG_LEVEL": "warning"}, directory) as seconds:
        return seconds


def main() -> None:
    with scratch_directory() as directory:
        first = whole(directory)
        again = statistics.median(whole(directory) for _ in range(RUNS))
        alone = statistics.median(database_alone(directory) for _ in range(RUNS))
    print_table(
        f"From the command to /readyz, median of {RUNS}",
        ["", "seconds", "against the database alone"],
        [
            ["first start, empty directory", f"{first:.2f}", f"{first / alone:.1f}x"],
            ["existing data directory", f"{again:.2f}", f"{again / alone:.1f}x"],
            ["PostgreSQL alone", f"{alone:.2f}", "1.0x"],
        ],
    )


if __name__ == "__main__":
    main()
