from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from bellringer.kernel.backoff import Backoff
from bellringer.kernel.service import Loop, Service, Supervisor

PATIENCE_SECONDS = 5
LONG_SECONDS = 3600.0


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Scripted(Loop):
    """Rounds that go as the script says: more to do, nothing more, or an error; then it rests."""

    def __init__(self, *script: bool | Exception, backoff: Backoff | None = None) -> None:
        super().__init__("scripted", interval_seconds=LONG_SECONDS, backoff=backoff)
        self.rounds = 0
        self.rested = asyncio.Event()
        self._script = script

    async def run_once(self) -> bool:
        self.rounds += 1
        if self.rounds >= len(self._script):
            self.rested.set()
        outcome = self._script[self.rounds - 1] if self.rounds <= len(self._script) else False
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class NotedBackoff(Backoff, frozen=True, kw_only=True):
    """Notes for which attempt a wait is asked, and lets it be as long as told."""

    attempts: list[int]
    seconds: float = 0.0

    def wait_seconds(self, attempt: int) -> float:
        self.attempts.append(attempt)
        return self.seconds


class Running:
    """A service that runs inside the block, and is stopped at its end."""

    def __init__(self, service: Service | Supervisor) -> None:
        self.stopping = asyncio.Event()
        self.task = asyncio.create_task(service.run(self.stopping))

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stopping.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.task


async def test_a_loop_goes_on_at_once_while_there_is_more_and_then_pauses() -> None:
    loop = Scripted(True, True, True, False)
    async with Running(loop):
        await loop.rested.wait()
        await let_others_run()
        assert loop.rounds == 4


async def test_a_loop_in_its_pause_is_woken() -> None:
    loop = Scripted(False)
    async with Running(loop):
        await loop.rested.wait()
        loop.rested.clear()
        loop.wake()
        await asyncio.wait_for(loop.rested.wait(), PATIENCE_SECONDS)
        await let_others_run()
        assert loop.rounds == 2


async def test_a_wake_in_the_middle_of_a_round_brings_another_round() -> None:
    class WokenInItsRound(Scripted):
        async def run_once(self) -> bool:
            more = await super().run_once()
            if self.rounds == 1:
                self.wake()
            return more

    loop = WokenInItsRound(False, False)
    async with Running(loop):
        await asyncio.wait_for(loop.rested.wait(), PATIENCE_SECONDS)


async def test_a_loop_pauses_for_its_interval() -> None:
    class Quick(Scripted):
        def __init__(self) -> None:
            super().__init__(False, False, False)
            self._interval_seconds = 0.01

    loop = Quick()
    began_at = time.monotonic()
    async with Running(loop):
        await asyncio.wait_for(loop.rested.wait(), PATIENCE_SECONDS)
    assert time.monotonic() - began_at >= 0.02


async def test_a_stop_ends_the_pause() -> None:
    loop = Scripted(False)
    async with Running(loop):
        await loop.rested.wait()
        await let_others_run()
    assert loop.rounds == 1


async def test_a_stop_lets_the_round_in_hand_finish() -> None:
    begun, finish, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(Loop):
        async def run_once(self) -> bool:
            begun.set()
            await finish.wait()
            finished.set()
            return True

    running = Running(Slow("slow", interval_seconds=LONG_SECONDS))
    await begun.wait()
    running.stopping.set()
    await let_others_run()
    assert not running.task.done()
    finish.set()
    await asyncio.wait_for(running.task, PATIENCE_SECONDS)
    assert finished.is_set()


async def test_a_loop_survives_errors_with_a_pause_for_each_in_a_row() -> None:
    backoff = NotedBackoff(attempts=[])
    error = OSError("the database restarts")
    loop = Scripted(error, error, error, True, error, False, backoff=backoff)
    failures_before = REGISTRY.get_sample_value("bellringer_loop_failures_total", {"loop": "scripted"}) or 0
    async with Running(loop):
        await asyncio.wait_for(loop.rested.wait(), PATIENCE_SECONDS)
    assert backoff.attempts == [1, 2, 3, 1]
    failures = REGISTRY.get_sample_value("bellringer_loop_failures_total", {"loop": "scripted"}) or 0
    assert failures - failures_before == 4


async def test_what_wakes_a_loop_does_not_hurry_one_that_fails() -> None:
    backoff = NotedBackoff(attempts=[], seconds=LONG_SECONDS)
    loop = Scripted(OSError(), backoff=backoff)
    async with Running(loop):
        await loop.rested.wait()
        for _ in range(10):
            loop.wake()
            await let_others_run()
        assert loop.rounds == 1


class Noted:
    """A service that notes its start and its stop, and may end or fail by itself."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.ending = asyncio.Event()
        self.error: BaseException | None = None
        self.error_at_stop: Exception | None = None
        self._notes = notes

    async def run(self, stopping: asyncio.Event) -> None:
        self._notes.append(f"{self.name} starts")
        ends = [asyncio.create_task(event.wait()) for event in (stopping, self.ending)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if self.error is not None:
            raise self.error
        await let_others_run()  # a stop takes its time
        self._notes.append(f"{self.name} stops")
        if self.error_at_stop is not None:
            raise self.error_at_stop


class Ensemble:
    """Three services under one supervisor, in a list that ends with what takes work in."""

    def __init__(self, stop_timeout_seconds: float = PATIENCE_SECONDS) -> None:
        self.notes: list[str] = []
        self.pool, self.worker, self.server = (Noted(name, self.notes) for name in ("pool", "worker", "server"))
        self.supervisor = Supervisor([self.pool, self.worker, self.server], stop_timeout_seconds=stop_timeout_seconds)

    async def until_started(self) -> None:
        await let_others_run()
        assert self.notes == ["pool starts", "worker starts", "server starts"]
        self.notes.clear()


@pytest.fixture
def ensemble() -> Ensemble:
    return Ensemble()


async def test_services_start_in_the_order_of_the_list_and_stop_in_the_opposite_one(ensemble: Ensemble) -> None:
    async with Running(ensemble.supervisor):
        await ensemble.until_started()
    assert ensemble.notes == ["server stops", "worker stops", "pool stops"]


async def test_when_one_service_dies_the_others_are_stopped_and_its_error_is_told(ensemble: Ensemble) -> None:
    ensemble.worker.error = KeyError("worker")
    running = Running(ensemble.supervisor)
    await ensemble.until_started()
    ensemble.worker.ending.set()
    with pytest.raises(KeyError, match="worker"):
        await asyncio.wait_for(running.task, PATIENCE_SECONDS)
    assert ensemble.notes == ["server stops", "pool stops"]


async def test_when_one_service_ends_the_others_are_stopped(ensemble: Ensemble) -> None:
    running = Running(ensemble.supervisor)
    await ensemble.until_started()
    ensemble.server.ending.set()
    await asyncio.wait_for(running.task, PATIENCE_SECONDS)
    assert ensemble.notes == ["server stops", "worker stops", "pool stops"]


async def test_when_one_service_is_cancelled_from_within_the_others_are_stopped(ensemble: Ensemble) -> None:
    ensemble.worker.error = asyncio.CancelledError()
    running = Running(ensemble.supervisor)
    await ensemble.until_started()
    ensemble.worker.ending.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running.task, PATIENCE_SECONDS)
    assert ensemble.notes == ["server stops", "pool stops"]


async def test_an_error_at_the_stop_of_one_service_does_not_keep_the_others_running(ensemble: Ensemble) -> None:
    ensemble.server.error_at_stop = KeyError("server")
    async with Running(ensemble.supervisor):
        await ensemble.until_started()
    assert ensemble.notes == ["server stops", "worker stops", "pool stops"]


async def test_a_supervisor_that_is_cancelled_stops_its_services_in_order(ensemble: Ensemble) -> None:
    running = Running(ensemble.supervisor)
    await ensemble.until_started()
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running.task, PATIENCE_SECONDS)
    assert ensemble.notes == ["server stops", "worker stops", "pool stops"]


class Deaf:
    """A service that does not listen: not to `stopping`, and perhaps not even to being cancelled."""

    name = "deaf"

    def __init__(self, *, heeds_cancelling: bool) -> None:
        self.heard: list[str] = []
        self.released = asyncio.Event()
        self._heeds_cancelling = heeds_cancelling

    async def run(self, stopping: asyncio.Event) -> None:  # noqa: ARG002 - that is what it does not listen to
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.heard.append("cancelled")
                if self._heeds_cancelling:
                    raise


@pytest.mark.parametrize("heeds_cancelling", [True, False])
async def test_a_service_that_does_not_stop_in_time_is_cancelled_and_does_not_hold_up_the_others(
    heeds_cancelling: bool,
) -> None:
    notes: list[str] = []
    deaf = Deaf(heeds_cancelling=heeds_cancelling)
    async with Running(Supervisor([Noted("pool", notes), deaf], stop_timeout_seconds=0.02)):
        await let_others_run()
    assert deaf.heard == ["cancelled"]
    assert notes == ["pool starts", "pool stops"]
    deaf.released.set()
    await let_others_run()


@pytest.mark.parametrize("make", [lambda: Scripted(False), lambda: Noted("noted", [])])
async def test_a_service_that_is_told_to_stop_before_its_start_ends_at_once(make: Callable[[], Service]) -> None:
    running = Running(make())
    running.stopping.set()
    await asyncio.wait_for(running.task, PATIENCE_SECONDS)
