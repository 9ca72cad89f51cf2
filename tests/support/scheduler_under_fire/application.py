"""The functions that the executors run. Each writes down that it begins and how it ends, in a file of its own account.

A line is one write to a file opened for appending, so the lines of many processes do not mix, and who is killed leaves
a true record. The moments are those of the machine's clock, also in a process whose own clock is set apart.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from tests.support.scheduler_history.records import Result
from tests.support.scheduler_under_fire.settings import RUNS_FILE

from bellringer.scheduler.callers.interruption import Interrupted
from bellringer.scheduler.functions import Scheduler, current

scheduler = Scheduler()


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """A function begins, for an attempt at a fire time of a task."""

    run: str
    task: str
    fire_at: int
    attempt: int
    at: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """It has ended."""

    run: str
    result: Result
    at: int


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# Asked of the library itself: what sets a clock apart stands between it and everybody else.
_clock_gettime = ctypes.CDLL("libc.so.6").clock_gettime
_clock_gettime.argtypes = (ctypes.c_int, ctypes.POINTER(_Time))
_encode = msgspec.json.Encoder().encode


def true_now() -> int:
    """The machine's time in microseconds."""
    found = _Time()
    if _clock_gettime(time.CLOCK_REALTIME, ctypes.byref(found)):
        raise OSError("the clock cannot be read")
    microseconds: int = found.seconds * 1_000_000 + found.nanoseconds // 1000
    return microseconds


class _Record:
    """The file; opened when the first function begins, so that others can read this module."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._number = 0

    def next_name(self) -> str:
        """A name for a run that no other has."""
        self._number += 1
        return f"{os.getpid()}-{time.monotonic_ns()}-{self._number}"

    def write(self, line: Begun | Ended) -> None:
        """Append a line."""
        if self._descriptor is None:
            self._descriptor = os.open(os.environ[RUNS_FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        text = _encode(line) + b"\n"
        if os.write(self._descriptor, text) != len(text):
            raise OSError("the file took only a part of a line: is the disk full?")


_record = _Record()


@contextmanager
def recorded() -> Iterator[int]:
    """Write down the beginning and the end of the run in which we are; gives the number of its attempt."""
    run = current()
    name = _record.next_name()
    moment = run.fire_at
    fire_at = round(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond
    _record.write(Begun(run=name, task=run.task, fire_at=fire_at, attempt=run.attempt, at=true_now()))
    result = Result.RAISED
    try:
        yield run.attempt
        result = Result.RETURNED
    except (asyncio.CancelledError, Interrupted):
        result = Result.CANCELLED
        raise
    finally:
        _record.write(Ended(run=name, result=result, at=true_now()))


@scheduler.task
async def succeed(seconds: float) -> None:
    """Take so long, and succeed."""
    with recorded():
        await asyncio.sleep(seconds)


@scheduler.task
def block(seconds: float) -> None:
    """Take so long in a thread, and succeed."""
    with recorded():
        until = time.monotonic() + seconds
        nothing = threading.Event()
        while time.monotonic() < until:
            nothing.wait(0.05)  # `sleep` fails where a clock that was set apart is behind


@scheduler.task
async def fail(seconds: float) -> None:
    """Take so long, and fail."""
    with recorded():
        await asyncio.sleep(seconds)
        raise RuntimeError("as it was told to")


@scheduler.task
async def recover(seconds: float) -> None:
    """Take so long, and fail the first time only."""
    with recorded() as attempt:
        await asyncio.sleep(seconds)
        if attempt == 1:
            raise RuntimeError("as it was told to, once")


@scheduler.task
async def crash(seconds: float) -> None:
    """Take so long, and take the executor down with it."""
    with recorded():
        await asyncio.sleep(seconds)
        os._exit(3)


@scheduler.task
async def crash_once(seconds: float) -> None:
    """Take so long, and take the executor down with it the first time."""
    with recorded() as attempt:
        await asyncio.sleep(seconds)
        if attempt == 1:
            os._exit(3)
