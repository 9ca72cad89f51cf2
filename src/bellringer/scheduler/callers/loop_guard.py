"""Async functions that hold up the event loop: each would stop all others, and the executor with them.

Between two awaits a function has the loop for itself. A thread watches how long, and interrupts one that has it for too
long. One that waits in the operating system cannot be helped: the thread says which it is, and whoever watches the
executors finds this one dead.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from bellringer.kernel.logs import get_logger
from bellringer.scheduler.callers.interruption import Interrupted, Interruption
from bellringer.scheduler.model import CallFailed

_LOOKS = 10
"""How often the thread looks before it interrupts. It counts looks and not time: a process that was stopped for a while
finds everything as it was, and nobody is to blame.
"""

_log = get_logger(__name__)


class LoopGuard:
    """Interrupts async functions that go on for `most_seconds` without an await that waits."""

    def __init__(self, *, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._step: _Step | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def guard(self, coroutine: Coroutine[Any, Any, Any], name: str) -> Awaitable[Any]:
        """The same work, watched. Raises `CallFailed` in place of what it raises when it is interrupted."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="bellringer loop guard", daemon=True)
            self._thread.start()
        return _Guarded(coroutine, partial(self._take, name))

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _take(self, name: str, step: Callable[[], Any]) -> Any:  # noqa: ANN401 - what a coroutine gives to its loop
        interruption = Interruption()
        self._step = _Step(interruption, name)
        try:
            return interruption.guard(step)
        except Interrupted:
            raise CallFailed(
                f"it held up all others for {self._most_seconds:g} s: a function that blocks must not be async"
            ) from None
        finally:
            self._step = None

    def _watch(self) -> None:
        seen, looks = None, 0
        while not self._closed.wait(self._most_seconds / _LOOKS):
            looks = looks + 1 if self._step is seen else 0
            seen = self._step
            if seen is not None and looks == _LOOKS:
                _log.error("function holds up the event loop", function=seen.name)
                seen.interruption.interrupt()


class _Step:
    """What a function does between two awaits."""

    def __init__(self, interruption: Interruption, name: str) -> None:
        self.interruption = interruption
        self.name = name


class _Guarded:
    """A coroutine whose steps are taken by somebody else."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], take: Callable[[Callable[[], Any]], Any]) -> None:
        self._coroutine = coroutine
        self._take = take

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                waits_for = self._take(step)
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - for the function to deal with
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
