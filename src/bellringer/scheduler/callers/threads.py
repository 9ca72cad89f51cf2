"""Threads for functions that block: as many as there are calls at once, and none that the end of the process awaits.

A call that is cancelled is interrupted, so an endless loop ends. The thread of one that waits in the operating system
is lost until it returns from there, and the next call gets another.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from bellringer.scheduler.callers.interruption import Interruption

R = TypeVar("R")


class Threads:
    """Runs functions in threads of its own. For one event loop."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    async def run(self, function: Callable[[], R]) -> R:
        """What the function returns or raises, in the context of the caller.

        When this is cancelled the function is interrupted; it returns or raises all the same, when the thread is done.
        """
        job = _Job(function, asyncio.get_running_loop())
        worker = self._idle.pop() if self._idle else _Worker()
        job.ended.add_done_callback(lambda _: self._idle.append(worker))
        worker.take(job)
        while not job.ended.done():
            try:
                await asyncio.wait({job.ended})
            except asyncio.CancelledError:
                job.interrupt()
        return job.result()

    def close(self) -> None:
        """Let the threads that have nothing to do end."""
        while self._idle:
            self._idle.pop().take(None)


class _Worker:
    """A thread that does one job after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="bellringer function", daemon=True).start()

    def take(self, job: _Job[Any] | None) -> None:
        """Do a job next; None is the last."""
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()


class _Job(Generic[R]):
    """One call of a function in a thread, and its end in the event loop."""

    def __init__(self, function: Callable[[], R], loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self._function = partial(copy_context().run, function)
        self._loop = loop
        self._interruption = Interruption()
        self._returned: list[R] = []
        self._raised: BaseException | None = None

    def do(self) -> None:
        """Call the function and say that it ended. In the thread."""
        try:
            self._returned.append(self._interruption.guard(self._function))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the function's
            self._raised = error
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._end)

    def interrupt(self) -> None:
        """Interrupt the function if it is not over."""
        self._interruption.interrupt()

    def result(self) -> R:
        """What came of it."""
        if self._raised is not None:
            raise self._raised
        return self._returned[0]

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
