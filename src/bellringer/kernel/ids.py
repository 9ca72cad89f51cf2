"""Time-ordered ids: UUIDv7 (RFC 9562, section 5.7), strictly increasing within a process."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_COUNTER_BITS = 12
_RANDOM_BITS = 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # counted from in integers: seconds as a float are off by one at times
_RANDOM_BYTES = 8
_IDS_PER_READ = 512  # one call to the kernel for many ids: a call for each was 6 % of the time to accept an event


class _Sequence:
    """Draws the parts of ids: milliseconds with a 12-bit counter (RFC 9562, section 6.2, method 1), and randomness.

    The same pair of milliseconds and counter is never handed out twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._random: Iterator[tuple[int]] = iter(())

    def next(self) -> tuple[int, int]:
        milliseconds = time.time_ns() // 1_000_000
        with self._lock:
            # A clock that stands still or steps back, and a full counter, all borrow from the next millisecond.
            self._last = max(self._last + 1, milliseconds << _COUNTER_BITS)
            return self._last, self._next_random()

    def _next_random(self) -> int:
        for drawn in self._random:
            return drawn[0]
        self._random = struct.iter_unpack(">Q", os.urandom(_RANDOM_BYTES * _IDS_PER_READ))
        return self._next_random()


_sequence = _Sequence()


def uuid7() -> uuid.UUID:
    """A new id that sorts after every id made before it in this process."""
    sequence, random = _sequence.next()
    milliseconds, counter = sequence >> _COUNTER_BITS, sequence & ((1 << _COUNTER_BITS) - 1)
    random &= (1 << _RANDOM_BITS) - 1
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | random)


def first_uuid7_at(moment: datetime) -> uuid.UUID:
    """The smallest UUIDv7 of a millisecond: every id made earlier sorts before it."""
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62)


def time_of_uuid7(value: uuid.UUID) -> datetime:
    """When an id was made, to the millisecond, in UTC."""
    return _EPOCH + timedelta(milliseconds=value.int >> 80)
