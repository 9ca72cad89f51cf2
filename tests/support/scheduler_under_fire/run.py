"""One run: a plan, two pickers and two executors whose clocks are set apart, faults, and the verdict."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import msgspec
from tests.support.postgres import external_postgres
from tests.support.scheduler_history.checker import Report, check
from tests.support.scheduler_history.records import Request
from tests.support.scheduler_under_fire.driver import drive, prepare
from tests.support.scheduler_under_fire.faults import Faults
from tests.support.scheduler_under_fire.plan import PlannedTask, plan
from tests.support.scheduler_under_fire.reading import count_open, read_history, read_runs
from tests.support.scheduler_under_fire.settings import CLOCKS_APART_SECONDS, LIBRARY, RUNS_FILE, SCHEDULER, Size
from tests.support.server import Server, serving

_ROOT = Path(__file__).parents[3]
_TICK_SECONDS = 0.1
_LONGEST_DRAIN_SECONDS = 120.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has shown. `left` counts what was still open at the end: nothing, unless something is wrong."""

    report: Report
    struck: Counter[str]
    left: int
    seconds: float

    @property
    def is_correct(self) -> bool:
        """Whether every promise was kept."""
        return self.report.is_correct and not self.left

    def __str__(self) -> str:
        struck = ", ".join(f"{fault} {times}x" for fault, times in sorted(self.struck.items()))
        return f"{self.report}\n{struck}; {self.seconds:.0f} s; left open: {self.left}"


class _Driving(threading.Thread):
    """What is planned, done beside the faults."""

    def __init__(self, url: str, planned: Sequence[PlannedTask]) -> None:
        super().__init__(daemon=True)
        self.requests: list[Request] = []
        self._url = url
        self._planned = planned
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self.requests = asyncio.run(drive(self._url, self._planned))
        except BaseException as error:  # noqa: BLE001 - raised again where it is seen
            self._error = error

    def has_ended(self) -> bool:
        """Whether everything was asked; raises what made it fail."""
        if self._error is not None:
            raise self._error
        return not self.is_alive()


def run_under_fire(
    size: Size,
    *,
    seed: int,
    pause_seconds: tuple[float, float],
    tell: Callable[[str], None],
    kept_history: Path | None = None,
) -> Result:
    """Make, use and run tasks, and judge what became of them. Between two faults passes a pause of that range.

    To be called by the main thread. The history is thrown away unless it is told where to keep it.
    """
    began_at = time.monotonic()
    with ExitStack() as stack:
        folder = kept_history or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bellringer-history-")))
        folder.mkdir(parents=True, exist_ok=True)
        runs = folder / "runs.jsonl"
        runs.unlink(missing_ok=True)
        postgres = stack.enter_context(external_postgres())
        asyncio.run(prepare(postgres.url))
        pickers = [
            stack.enter_context(_serving("picker", postgres.url, runs, apart)) for apart in (0, CLOCKS_APART_SECONDS)
        ]
        executors = [
            stack.enter_context(_serving("executor", postgres.url, runs, apart)) for apart in (0, -CLOCKS_APART_SECONDS)
        ]
        random = Random(seed)
        driving = _Driving(postgres.url, list(plan(size, random)))
        faults = Faults(postgres, pickers, executors, random)
        driving.start()
        ends_at = time.monotonic() + size.seconds
        while time.monotonic() < ends_at or not faults.have_all_struck:
            _wait(random.uniform(*pause_seconds), faults)
            tell(faults.strike())
        faults.mend(everything=True)
        tell("no more faults")
        while not driving.has_ended():
            _wait(_TICK_SECONDS, faults)
        tell("everything was asked")
        left = _drain(postgres.url, faults)
        tell("everything is over" if not left else f"{left} are still open")
        for number, server in enumerate([*pickers, *executors], 1):
            server.terminate()
            (folder / f"{server.role}-{number}.log").write_text(server.log())
        history = asyncio.run(read_history(postgres.url, driving.requests, read_runs(runs.read_bytes().splitlines())))
        (folder / "history.json").write_bytes(msgspec.json.encode(history))
        tell("judging")
        report = check(history)
        return Result(report=report, struck=faults.struck, left=left, seconds=time.monotonic() - began_at)


def _wait(seconds: float, faults: Faults) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(_TICK_SECONDS)
        faults.mend()


def _drain(url: str, faults: Faults) -> int:
    """Wait until nothing is open any more; return how much is, if it takes too long."""
    give_up_at = time.monotonic() + _LONGEST_DRAIN_SECONDS
    while (left := asyncio.run(count_open(url))) and time.monotonic() < give_up_at:
        _wait(10 * _TICK_SECONDS, faults)
    return left


@contextmanager
def _serving(role: str, url: str, runs: Path, apart_seconds: int) -> Iterator[Server]:
    """A process of that role whose clock is so far from the machine's."""
    settings = {"BELLRINGER_DATABASE_URL": url, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'src'}", RUNS_FILE: str(runs)}
    with serving({**settings, **_clock(apart_seconds)}, role=role, started=False) as server:
        fields = msgspec.structs.asdict(SCHEDULER)
        lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in fields.items()]
        (server.directory / "bellringer.toml").write_text("\n".join(["[scheduler]", *lines]))
        server.spawn()
        yield server


def _clock(apart_seconds: int) -> Mapping[str, str]:
    if not apart_seconds:
        return {}
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"{apart_seconds:+d}",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",  # or every start would compile the sources anew
    }
