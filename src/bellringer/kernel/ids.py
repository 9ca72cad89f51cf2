"""Time-ordered ids: UUIDv7 (RFC 9562, section 5.7), strictly increasing within a process."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid
from collections.abc import Iterator

_COUNTER_BITS = 12
_RANDOM_BITS = 62
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
