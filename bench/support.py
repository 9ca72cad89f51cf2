"""What the benchmarks share: a server in a process of its own, wrk as the load generator, and a table to print."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

API_KEY = "bench-key-0123456789"

_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_P99 = re.compile(r"99%\s+([\d.]+)(us|ms|s)")
_ERRORS = re.compile(r"Non-2xx or 3xx responses: (\d+)|Socket errors: (.*)")
_MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the load generator measured."""

    requests_per_second: float
    p99_milliseconds: float


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory for one run, on the disk of the working directory rather than in memory."""
    directory = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def process(command: Sequence[str], port: int, settings: dict[str, str], directory: Path) -> Iterator[float]:
    """A server process until it is not needed any more; yields the seconds that it took to be ready."""
    environment = {"PATH": "/usr/bin:/bin", "BELLRINGER_PORT": str(port), "BELLRINGER_API_KEY": API_KEY, **settings}
    with (directory / "server.log").open("ab") as log:
        started = time.perf_counter()
        server = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            _wait_until_ready(server, port, directory)
            yield time.perf_counter() - started
        finally:
            server.terminate()
            server.wait(60)


def bellringer(*arguments: str) -> list[str]:
    """The command line of Bellringer under this interpreter."""
    return [sys.executable, "-m", "bellringer", *arguments]


def wrk(url: str, connections: int, seconds: int, script: str, directory: Path) -> Load:
    """Load a URL of this machine and read what was measured. Fails when any request was refused."""
    if shutil.which("wrk") is None:
        raise SystemExit("this benchmark needs wrk: apt-get install wrk")
    file = directory / "load.lua"
    file.write_text(script)
    output = subprocess.check_output(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(file), url], text=True
    )
    if errors := _ERRORS.search(output):
        raise SystemExit(f"the server refused requests: {errors[0]}")
    rate, p99 = _RATE.search(output), _P99.search(output)
    if rate is None or p99 is None:
        raise SystemExit(f"wrk said something unexpected:\n{output}")
    return Load(requests_per_second=float(rate[1]), p99_milliseconds=float(p99[1]) * _MILLISECONDS[p99[2]])


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in columns."""
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    print(f"\n{title}")
    for row in [columns, *rows]:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended:\n{(directory / 'server.log').read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.01)
    raise SystemExit("the server did not get ready in 60 seconds")
