"""How many messages per second does PUT /v1/message/{queue} take, one of 100 bytes per request, answered after commit?

Baseline: the same server and handler with one transaction per request on a pool of 16 connections. Upper bound: a bare
server without authentication or queues that commits in groups (`bench.queue_server`). Load generator: wrk, on the same
machine. The workers are off on all sides; the last column has them on. The servers take turns, and each figure is the
median of three rounds. The aim: 12,000/s at 32 connections and 25,000/s at 256.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.support import API_KEY, Load, free_port, print_table, process, scratch_directory, wrk

CHECKOUT = Path(__file__).parent.parent
MODES = ("single", "group", "bare", "with workers")
ROUNDS = 3
SECONDS = 2
CONNECTIONS = (1, 32, 256)
AIMS = {32: 12_000, 256: 25_000}
# Bodies differ, for PostgreSQL compresses large values: alike bodies would flatter whoever stores many in one row.
SCRIPT = f"""
local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
local requests, number = {{}}, 0
init = function()
    local headers = {{["content-type"] = "application/json", ["authorization"] = "Bearer {API_KEY}"}}
    for index = 1, 2000 do
        local body = {{}}
        for place = 1, 100 do
            local letter = math.random(#letters)
            body[place] = letters:sub(letter, letter)
        end
        requests[index] = wrk.format("PUT", nil, headers, '{{"msg":"' .. table.concat(body) .. '"}}')
    end
end
request = function()
    number = number % 2000 + 1
    return requests[number]
end
"""


@contextmanager
def servers(directory: Path) -> Iterator[dict[str, str]]:
    """A server of each mode, ready and warmed up; yields the URL to load by mode."""
    urls = {}
    with ExitStack() as stack:
        for mode in MODES:
            port = free_port()
            home = directory / mode.replace(" ", "-")
            home.mkdir()
            command = [sys.executable, "-m", "bench.queue_server", mode]
            settings = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'src'}", "BELLRINGER_LOG_LEVEL": "warning"}
            stack.enter_context(process(command, port, settings, home))
            urls[mode] = f"http://127.0.0.1:{port}/v1/message/bench"
            wrk(urls[mode], 32, 1, SCRIPT, home)
        yield urls


def measure() -> dict[tuple[int, str], Load]:
    """The median of the rounds, by connections and mode. The servers take turns: whoever has none is idle."""
    loads: defaultdict[tuple[int, str], list[Load]] = defaultdict(list)
    with scratch_directory() as directory, servers(directory) as urls:
        for _ in range(ROUNDS):
            for connections in CONNECTIONS:
                for mode, url in urls.items():
                    loads[connections, mode].append(wrk(url, connections, SECONDS, SCRIPT, directory))
    return {point: middle(of_one) for point, of_one in loads.items()}


def middle(loads: Sequence[Load]) -> Load:
    """The load with the median speed."""
    return sorted(loads, key=lambda load: load.requests_per_second)[len(loads) // 2]


def row(connections: int, loads: dict[tuple[int, str], Load]) -> list[str]:
    one, group, bare, working = (loads[connections, mode] for mode in MODES)
    return [
        str(connections),
        f"{one.requests_per_second:,.0f}",
        f"{group.requests_per_second:,.0f}",
        f"{group.requests_per_second / one.requests_per_second:.1f}x",
        f"{bare.requests_per_second:,.0f}",
        f"{group.requests_per_second / bare.requests_per_second:.2f}x",
        f"{one.p99_milliseconds:.1f} / {group.p99_milliseconds:.1f} / {bare.p99_milliseconds:.1f}",
        f"{working.requests_per_second:,.0f}",
    ]


def main() -> None:
    loads = measure()
    columns = ["connections", "one each/s", "group commit/s", "ratio", "bare/s", "of bare", "p99 ms one / group / bare"]
    print_table(
        "PUT /v1/message/{queue}, one message of 100 bytes per request, durable answer",
        [*columns, "with workers/s"],
        [row(connections, loads) for connections in CONNECTIONS],
    )
    for connections, aim in AIMS.items():
        reached = loads[connections, "group"].requests_per_second
        print(f"  {connections} connections: {reached / aim:.2f} of the aim of {aim:,}/s")


if __name__ == "__main__":
    main()
