"""How many events per second does POST /v1/events take, one per request, each answered after its commit?

Baseline: the same server and handler with one transaction per request on a pool of 16 connections. The workers that
carry events on are off on both sides; the last column has them on. Load generator: wrk, on the same machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.support import API_KEY, Load, free_port, print_table, process, scratch_directory, wrk

SECONDS = 6
CONNECTIONS = (1, 32, 256)
SCRIPT = f"""
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer {API_KEY}"
wrk.body = '{{"type":"task.failed","recipients":["bob@acme.example","sarah@acme.example"],"data":{{"task":"import"}}}}'
"""


def measure(mode: str, directory: Path) -> list[Load]:
    port = free_port()
    command = [sys.executable, "-m", "bench.event_server", mode]
    settings = {"PYTHONPATH": str(Path(__file__).parent.parent), "BELLRINGER_LOG_LEVEL": "warning"}
    with process(command, port, settings, directory):
        url = f"http://127.0.0.1:{port}/v1/events"
        wrk(url, 32, 1, SCRIPT, directory)
        return [wrk(url, connections, SECONDS, SCRIPT, directory) for connections in CONNECTIONS]


def main() -> None:
    with scratch_directory() as directory:
        single = measure("single", directory)
        batched = measure("batched", directory)
        working = measure("with workers", directory)
    rows = [
        [
            str(connections),
            f"{one.requests_per_second:,.0f}",
            f"{many.requests_per_second:,.0f}",
            f"{many.requests_per_second / one.requests_per_second:.1f}x",
            f"{one.p99_milliseconds:.1f}",
            f"{many.p99_milliseconds:.1f}",
            f"{full.requests_per_second:,.0f}",
        ]
        for connections, one, many, full in zip(CONNECTIONS, single, batched, working, strict=True)
    ]
    print_table(
        "POST /v1/events, one event per request, durable answer",
        ["connections", "one each/s", "group commit/s", "ratio", "p99 ms (one)", "p99 ms (group)", "with workers/s"],
        rows,
    )


if __name__ == "__main__":
    main()
