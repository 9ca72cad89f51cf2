"""How fast do 100,000 notifications for 10,000 recipients leave as digests, and does memory grow with the batch?

Every recipient has ten events of their own, so nothing can be shared: 10,000 emails. Timed from the close of the
digest to the last message in the SMTP server's hands. Baseline: a bare loop that hands 10,000 messages of the same
size to the same server over as many connections. Memory: the peak of the server process against the same run with a
tenth of the batch.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiosmtplib
import msgspec

from bench.support import API_KEY, bellringer, free_port, print_table, process, scratch_directory

CONNECTIONS = 8
EVENTS_PER_RECIPIENT = 10
WINDOW_SECONDS = 3600
MESSAGE_BYTES = 27_000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    emails: int
    accepted_per_second: float
    close_seconds: float
    peak_megabytes: float


@contextmanager
def smtp_sink() -> Iterator[int]:
    port = free_port()
    sink = subprocess.Popen([sys.executable, "-m", "bench.smtp_sink", str(port)], cwd=Path(__file__).parent.parent)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield port
    finally:
        sink.terminate()
        sink.wait(10)


def counts(sink_port: int) -> tuple[int, int, float]:
    with socket.create_connection(("127.0.0.1", sink_port), 5) as connection, connection.makefile("rwb") as stream:
        stream.readline()
        stream.write(b"STAT\r\n")
        stream.flush()
        _, messages, recipients, last = stream.readline().split()
        return int(messages), int(recipients), float(last)


async def bare_loop(sink_port: int, messages: int) -> float:
    """Seconds to hand over as many messages with nothing around them."""
    content = b"Subject: x\r\n\r\n" + b"x" * 76 + b"\r\n" + (b"y" * 76 + b"\r\n") * (MESSAGE_BYTES // 78)
    remaining = iter(range(messages))

    async def hand_over() -> None:
        async with aiosmtplib.SMTP(hostname="127.0.0.1", port=sink_port) as client:
            for number in remaining:
                await client.sendmail("bench@localhost", [f"user{number}@acme.example"], content)

    started = time.perf_counter()
    await asyncio.gather(*(hand_over() for _ in range(CONNECTIONS)))
    return time.perf_counter() - started


def call(port: int, method: str, path: str, body: object = None) -> dict[str, int]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {API_KEY}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        decoded: dict[str, int] = json.load(answer)
        return decoded


def measure(recipients: int, directory: Path) -> Outcome:
    directory.mkdir()
    port = free_port()
    with smtp_sink() as sink_port:
        settings = {
            "BELLRINGER_SMTP_URL": f"smtp://127.0.0.1:{sink_port}",
            "BELLRINGER_SMTP_CONNECTIONS": str(CONNECTIONS),
            "BELLRINGER_DIGEST_WINDOW_SECONDS": str(WINDOW_SECONDS),
            "BELLRINGER_LOG_LEVEL": "warning",
        }
        with process(bellringer("up"), port, settings, directory):
            started = time.perf_counter()
            for batch in range(recipients * EVENTS_PER_RECIPIENT // 1000):
                call(port, "POST", "/v1/events", [event(batch * 1000 + index, recipients) for index in range(1000)])
            accepted_seconds = time.perf_counter() - started
            wait_until_joined(port, recipients * EVENTS_PER_RECIPIENT, directory)
            closed_at = time.time()
            sql(directory, "UPDATE bellringer.digests SET closes_at = clock_timestamp()")
            messages, last = wait_for_emails(sink_port, recipients)
            peak = peak_megabytes(directory)
    return Outcome(
        emails=messages,
        accepted_per_second=recipients * EVENTS_PER_RECIPIENT / accepted_seconds,
        close_seconds=last - closed_at,
        peak_megabytes=peak,
    )


def event(number: int, recipients: int) -> dict[str, object]:
    return {
        "type": ("task.failed", "task.succeeded")[number % 2],
        "recipients": [f"user{number % recipients}@acme.example"],
        "subject": f"nightly-import-{number}",
        "data": {"task": f"import-{number}", "attempt": 1, "error": "connection reset by the warehouse"},
    }


def wait_until_joined(port: int, number: int, directory: Path) -> None:
    deadline = time.monotonic() + 300
    while int(sql(directory, "SELECT COALESCE(sum(notification_count), 0) FROM bellringer.digests")) < number:
        if time.monotonic() > deadline:
            raise SystemExit("the notifications did not join in 300 seconds")
        time.sleep(0.2)
    if call(port, "GET", "/v1/overview")["events"] != number:
        raise SystemExit("the overview counts something else than was sent")


def wait_for_emails(sink_port: int, number: int) -> tuple[int, float]:
    deadline = time.monotonic() + 600
    while True:
        messages, recipients, last = counts(sink_port)
        if recipients >= number:
            return messages, last
        if time.monotonic() > deadline:
            raise SystemExit(f"{recipients} of {number} recipients were told in 600 seconds")
        time.sleep(0.2)


def sql(directory: Path, statement: str) -> str:
    """Run a statement on the embedded database of the server under test."""
    program = (
        "import asyncio, asyncpg, sys; from pathlib import Path;"
        "from bellringer.kernel.embedded_postgres import EmbeddedPostgresConfig, running_server;"
        "arguments = running_server(EmbeddedPostgresConfig(data_directory=Path('.bellringer')))\n"
        "async def main():\n"
        "    connection = await asyncpg.connect(**arguments)\n"
        "    print(await connection.fetchval(sys.argv[1]))\n"
        "asyncio.run(main())"
    )
    return subprocess.check_output([sys.executable, "-c", program, statement], cwd=directory, text=True).strip()


def peak_megabytes(directory: Path) -> float:
    pid = (directory / ".bellringer" / "lock").read_text().strip()
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes) / 1024


def main() -> None:
    with scratch_directory() as directory:
        tenth = measure(1_000, directory / "tenth")
        whole = measure(10_000, directory / "whole")
    with smtp_sink() as sink_port:
        bare = asyncio.run(bare_loop(sink_port, whole.emails))
    rows = [
        [
            f"{outcome.emails * EVENTS_PER_RECIPIENT:,}",
            f"{outcome.emails:,}",
            f"{outcome.accepted_per_second:,.0f}",
            f"{outcome.close_seconds:.1f}",
            f"{outcome.emails * EVENTS_PER_RECIPIENT / outcome.close_seconds:,.0f}",
            f"{outcome.emails / outcome.close_seconds:,.0f}",
            f"{outcome.peak_megabytes:.0f}",
        ]
        for outcome in (tenth, whole)
    ]
    print_table(
        "Digests, from the close to the last message in the SMTP server's hands",
        ["notifications", "emails", "accepted/s", "seconds", "notifications/s", "emails/s", "peak MB"],
        rows,
    )
    print(f"  bare loop over {CONNECTIONS} connections: {whole.emails / bare:,.0f} emails/s")
    print(f"  speed against the bare loop: {bare / whole.close_seconds:.2f}x")
    print(f"  peak memory against a tenth of the batch: {whole.peak_megabytes / tenth.peak_megabytes:.2f}x")


if __name__ == "__main__":
    main()
