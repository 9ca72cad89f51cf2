"""Threads for functions that block: as many as there are calls at once, and none that the end of the process awaits.

A call that is cancelled is interrupted: an exception is raised in its thread, between two steps of the interpreter. So
an endless loop ends. What waits in the operating system does not notice until it returns; its thread is lost until
then, and the next call gets another.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Interrupted(BaseException):
    """Raised in a function in a thread when its run took too long or was cancelled."""


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
        self._function = function
        self._context = copy_context()
        self._loop = loop
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._is_over = False
        self._was_interrupted = False
        self._returned: list[R] = []
        self._raised: BaseException | None = None

    def do(self) -> None:
        """Call the function and say that it ended. In the thread."""
        try:
            try:
                self._open()
                self._returned.append(self._context.run(self._function))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the function's
                self._raised = error
            self._close()
        except Interrupted as error:  # it came late, when the function was through, and comes no second time
            self._raised = self._raised or error
            self._close()
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._end)

    def interrupt(self) -> None:
        """Raise `Interrupted` in the function, once, unless it is over. In the event loop."""
        with self._lock:
            if not self._is_over and not self._was_interrupted:
                self._was_interrupted = True
                if self._thread_id is not None:
                    _raise_in(self._thread_id, Interrupted)

    def result(self) -> R:
        """What came of it."""
        if self._raised is not None:
            raise self._raised
        return self._returned[0]

    def _open(self) -> None:
        """Let interruptions come; one may have come before."""
        with self._lock:
            self._thread_id = threading.get_ident()
            if self._was_interrupted:
                raise Interrupted

    def _close(self) -> None:
        """Let no interruption come any more; take back one that is on its way."""
        with self._lock:
            self._is_over = True
        if self._was_interrupted:
            _raise_in(threading.get_ident(), None)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _raise_in(thread_id: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if exception is None else ctypes.py_object(exception)
    )
