from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bellringer.kernel.clock import Clock, ManualClock, SystemClock

START = datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC)


def test_the_system_clock_tells_the_time_in_utc() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC)
    told = clock.now()
    assert told.tzinfo is UTC
    assert before <= told <= datetime.now(UTC)


def test_the_systems_monotonic_seconds_never_go_backwards() -> None:
    clock = SystemClock()
    seconds = [clock.monotonic() for _ in range(1000)]
    assert seconds == sorted(seconds)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(START)
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    assert (clock.now(), clock.monotonic()) == (START, 0.0)


def test_a_manual_clock_moves_the_time_of_day_and_the_seconds_together() -> None:
    clock = ManualClock(START)
    clock.advance(1.5)
    clock.advance(0)
    assert clock.now() == START + timedelta(seconds=1.5)
    assert clock.monotonic() == 1.5


def test_a_manual_clock_does_not_run_backwards() -> None:
    clock = ManualClock(START)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert clock.now() == START
