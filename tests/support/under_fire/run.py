"""A run under fire: brokers, producers and consumers at work while faults strike, then quiet, then the verdict."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec
from tests.support.history.checker import Report, check
from tests.support.history.recorder import read_history, recorder_to_file
from tests.support.postgres import external_postgres
from tests.support.server import Server, serving
from tests.support.under_fire.faults import Faults
from tests.support.under_fire.processes import ConsumerProcess, ProducerProcess
from tests.support.under_fire.settings import API_KEY, QueueUnderFire, Settings

_BROKERS = 2
_TICK_SECONDS = 0.1
_LONGEST_DRAIN_SECONDS = 180.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has shown. `left` counts what the queues still had at the end: nothing, unless something is wrong."""

    report: Report
    struck: Counter[str]
    left: dict[str, int]
    seconds: float

    @property
    def is_correct(self) -> bool:
        """Whether every promise was kept."""
        return self.report.is_correct and not any(self.left.values())

    def __str__(self) -> str:
        struck = ", ".join(f"{fault} {times}x" for fault, times in sorted(self.struck.items()))
        return f"{self.report}\n{struck}; {self.seconds:.0f} s; left in the queues: {self.left}"


def run_under_fire(
    messages: int,
    *,
    seed: int,
    least_seconds: float,
    pause_seconds: tuple[float, float],
    tell: Callable[[str], None],
    kept_history: Path | None = None,
) -> Outcome:
    """Send so many messages, half of them in groups, and judge what became of them.

    The sending takes no less than `least_seconds`, and between two faults passes a pause of that range. To be called
    by the main thread. The history is thrown away unless it is told where to keep it.
    """
    queues = [
        QueueUnderFire(name="orders", messages=messages // 2),
        QueueUnderFire(name="steps", messages=messages - messages // 2, groups=300),
    ]
    began_at = time.monotonic()
    with ExitStack() as stack:
        history = kept_history or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bellringer-history-")))
        history.mkdir(parents=True, exist_ok=True)
        postgres = stack.enter_context(external_postgres())
        own = {"BELLRINGER_DATABASE_URL": postgres.url, "BELLRINGER_API_KEY": API_KEY}
        servers = [stack.enter_context(serving(own)) for _ in range(_BROKERS)]
        settings = Settings(
            urls=[server.url for server in servers],
            history=str(history),
            queues=queues,
            least_seconds=least_seconds,
            seed=seed,
        )
        for queue in queues:
            reply = servers[0].request("PUT", f"/v1/queues/{queue.name}", {"fifo": True} if queue.is_fifo else {})
            assert reply.status == 200, reply.body
        producers = [
            stack.enter_context(ProducerProcess(number, settings)) for number in range(1, settings.producers + 1)
        ]
        consumers = [
            stack.enter_context(ConsumerProcess(number, settings)) for number in range(1, settings.consumers + 1)
        ]
        random = Random(seed)
        longest_hold_seconds = max(settings.visibility_timeouts_seconds)
        faults = Faults(postgres, servers, consumers, random, pause_seconds=2 * longest_hold_seconds)
        while not (faults.round_is_over and all(producer.has_ended() for producer in producers)):
            _wait(random.uniform(*pause_seconds), faults)
            tell(faults.strike())
        faults.mend(everything=True)
        tell(f"everything is sent, {time.monotonic() - began_at:.0f} s after the beginning; no more faults")
        left = _drain(servers[0], consumers, queues)
        _record_the_end(settings, left)
        tell(f"judging, {time.monotonic() - began_at:.0f} s after the beginning")
        report = check(read_history(sorted(history.glob("*.jsonl"))))
        return Outcome(report=report, struck=faults.struck, left=left, seconds=time.monotonic() - began_at)


def _wait(seconds: float, faults: Faults) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(_TICK_SECONDS)
        faults.mend()


def _drain(server: Server, consumers: Sequence[ConsumerProcess], queues: Sequence[QueueUnderFire]) -> dict[str, int]:
    """Let the consumers finish everything, and end them; return how many messages are left in each queue."""
    for consumer in consumers:
        consumer.be_diligent()
    give_up_at = time.monotonic() + _LONGEST_DRAIN_SECONDS
    while any(_left(server, queue) for queue in queues) and time.monotonic() < give_up_at:
        time.sleep(_TICK_SECONDS)
        for consumer in consumers:
            consumer.check()
    for consumer in consumers:
        consumer.end()
    return {queue.name: _left(server, queue) for queue in queues}


def _left(server: Server, queue: QueueUnderFire) -> int:
    counts = server.get(f"/v1/queues/{queue.name}")["counts"]
    left: int = counts["pending"] + counts["in_flight"] + counts["delayed"]
    return left


def _record_the_end(settings: Settings, left: dict[str, int]) -> None:
    """Say which queues are empty for good; of one that is not, nobody can tell what is lost."""
    recorder = recorder_to_file("end", settings.file("end"))
    for queue in settings.queues:
        if not left[queue.name]:
            recorder.ended(queue.name, is_fifo=queue.is_fifo)
