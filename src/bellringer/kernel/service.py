"""Long-lived things: one shape for a service, one for a background loop, and the order of start and shutdown.

A service exposes `run(stopping)` alone and returns soon after `stopping` is set. `Supervisor` starts services in the
order of its list and stops them in the opposite order, each before the next: what takes work in stands last in the
list and so stops first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from bellringer.kernel.backoff import Backoff
from bellringer.kernel.errors import Unavailable
from bellringer.kernel.logs import get_logger
from bellringer.kernel.metrics import LOOP_FAILURES

_log = get_logger(__name__)


class Service(Protocol):
    """Something that runs as long as the process."""

    @property
    def name(self) -> str:
        """What the logs call it."""
        ...

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set, then finish what is in hand and return."""
        ...


class Loop(ABC):
    """A service that repeats `run_once`, at once while there is more to do, else after a pause or a `wake`.

    A round that raises is logged and counted, and tried again after a growing pause: a loop survives a database that
    restarts.
    """

    def __init__(self, name: str, *, interval_seconds: float, backoff: Backoff | None = None) -> None:
        self.name = name
        self._interval_seconds = interval_seconds
        self._backoff = backoff or Backoff(first_seconds=0.2, cap_seconds=10.0)
        self._woken = asyncio.Event()

    @abstractmethod
    async def run_once(self) -> bool:
        """Do one round; return whether there may be more to do at once."""

    def wake(self) -> None:
        """End the pause now, if there is one."""
        self._woken.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Repeat rounds until `stopping` is set. The round in hand is finished first."""
        stopped = asyncio.create_task(stopping.wait())
        stopped.add_done_callback(lambda _task: self.wake())
        failures = 0
        try:
            while not stopping.is_set():
                self._woken.clear()
                try:
                    more = await self.run_once()
                    failures = 0
                except Exception as error:  # noqa: BLE001 - a loop outlives whatever one round meets
                    failures += 1
                    self._report(error, failures)
                    # Nothing but the end cuts this pause short: what wakes the loop may be what makes it fail.
                    await _wait(stopping, self._backoff.wait_seconds(failures))
                    continue
                if not more and not stopping.is_set():
                    await _wait(self._woken, self._interval_seconds)
        finally:
            stopped.cancel()

    def _report(self, error: Exception, failures: int) -> None:
        LOOP_FAILURES.labels(loop=self.name).inc()
        # A fault that stays is told once with its traceback and then in one line; an outage is no fault of the code.
        is_news = failures == 1 and not isinstance(error, Unavailable)
        _log.warning("round failed", loop=self.name, failures=failures, error=repr(error), exc_info=is_news)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class Supervisor:
    """Runs services together and ends them in order."""

    def __init__(self, services: Sequence[Service], *, stop_timeout_seconds: float = 20.0) -> None:
        self._services = services
        self._stop_timeout_seconds = stop_timeout_seconds
        self._running: list[tuple[Service, asyncio.Event, asyncio.Task[None]]] = []

    async def run(self, stopping: asyncio.Event) -> None:
        """Run every service until `stopping` is set or one of them ends; then stop all, the last one first.

        Raises what the service that ended early raised.
        """
        for service in self._services:
            service_stopping = asyncio.Event()
            task = asyncio.create_task(service.run(service_stopping), name=service.name)
            self._running.append((service, service_stopping, task))
        stopped = asyncio.create_task(stopping.wait())
        tasks = [task for _, _, task in self._running]
        early = []
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            early = [task for task in tasks if task.done()]
            for task in early:
                _log.error("service ended early", service=task.get_name())
        finally:
            stopped.cancel()
            for service, service_stopping, task in reversed(self._running):
                await self._stop(service, service_stopping, task)
        for task in early:
            task.result()

    async def _stop(self, service: Service, stopping: asyncio.Event, task: asyncio.Task[None]) -> None:
        stopping.set()
        _, pending = await asyncio.wait([task], timeout=self._stop_timeout_seconds)
        if pending:
            _log.warning("service did not stop in time", service=service.name)
            task.cancel()
            await asyncio.wait([task], timeout=self._stop_timeout_seconds)
        elif not task.cancelled() and (error := task.exception()):
            _log.error("service failed", service=service.name, error=repr(error), exc_info=error)
