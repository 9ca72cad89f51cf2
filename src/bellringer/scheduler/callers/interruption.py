"""An exception raised from outside in code that does not end by itself."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


class Interrupted(BaseException):
    """Raised in a function that runs when it may not, between two steps of the interpreter."""


class Interruption:
    """One call of a function that another thread may interrupt; never what comes before or after it.

    What waits in the operating system or in other people's C does not notice before it returns from there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._is_over = False
        self._was_asked_for = False

    def guard(self, function: Callable[[], R]) -> R:
        """Call the function. Raises what it raises, or `Interrupted`.

        A child that the function forked ends here: it must not go on as a second executor, with the event loop, the
        connections and the listening sockets of the first.
        """
        process = os.getpid()
        try:
            try:
                self._open()
                return function()
            finally:
                self._close()
        except Interrupted:  # it may have come in `_close`; it comes no second time
            self._close()
            raise
        finally:
            if os.getpid() != process:
                os._exit(0)

    def interrupt(self) -> None:
        """Raise `Interrupted` in the function, once, if it is not over; if it has not begun, in its stead."""
        with self._lock:
            if not self._is_over and not self._was_asked_for:
                self._was_asked_for = True
                if self._thread_id is not None:
                    _raise_in(self._thread_id, Interrupted)

    def _open(self) -> None:
        with self._lock:
            self._thread_id = threading.get_ident()
            if self._was_asked_for:
                raise Interrupted

    def _close(self) -> None:
        """Let no interruption come any more; take back one that is on its way."""
        with self._lock:
            self._is_over = True
        if self._was_asked_for:
            _raise_in(threading.get_ident(), None)


def _raise_in(thread_id: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if exception is None else ctypes.py_object(exception)
    )
