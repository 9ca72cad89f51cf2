"""How many messages per second does PUT /v1/message/{queue} take, one of 100 bytes per request, answered after commit?

Baseline: the same server and handler with one transaction per request on a pool of 16 connections. Upper bound: a bare
server without authentication or queues that commits in groups (`bench.queue_server`). Load generator: wrk, on the same
machine. The workers are off on all sides; the last column has them on. The aim: 12,000/s at 32 connections and
25,000/s at 256.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.support import API_KEY, Load, free_port, print_table, process, scratch_directory, wrk

CHECKOUT = Path(__file__).parent.parent
SECONDS = 6
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


def measure(mode: str, directory: Path) -> list[Load]:
    port = free_port()
    command = [sys.executable, "-m", "bench.queue_server", mode]
    settings = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'src'}", "BELLRINGER_LOG_LEVEL": "warning"}
    directory = directory / mode.replace(" ", "-")
    directory.mkdir()
    with process(command, port, settings, directory):
        url = f"http://127.0.0.1:{port}/v1/message/bench"
        wrk(url, 32, 1, SCRIPT, directory)
        return [wrk(url, connections, SECONDS, SCRIPT, directory) for connections in CONNECTIONS]


def main() -> None:
    with scratch_directory() as directory:
        modes = {mode: measure(mode, directory) for mode in ("single", "group", "bare", "with workers")}
    print_table(
        "PUT /v1/message/{queue}, one message of 100 bytes per request, durable answer",
        [
            "connections",
            "one each/s",
            "group commit/s",
            "ratio",
            "bare/s",
            "of bare",
            "p99 ms one / group / bare",
            "with workers/s",
        ],
        [
            [
                str(connections),
                f"{one.requests_per_second:,.0f}",
                f"{group.requests_per_second:,.0f}",
                f"{group.requests_per_second / one.requests_per_second:.1f}x",
                f"{bare.requests_per_second:,.0f}",
                f"{group.requests_per_second / bare.requests_per_second:.2f}x",
                f"{one.p99_milliseconds:.1f} / {group.p99_milliseconds:.1f} / {bare.p99_milliseconds:.1f}",
                f"{working.requests_per_second:,.0f}",
            ]
            for connections, one, group, bare, working in zip(CONNECTIONS, *modes.values(), strict=True)
        ],
    )
    for connections, group in zip(CONNECTIONS, modes["group"], strict=True):
        if aim := AIMS.get(connections):
            print(f"  {connections} connections: {group.requests_per_second / aim:.2f} of the aim of {aim:,}/s")


if __name__ == "__main__":
    main()
