from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.scheduler.orchestrator.forecast import Due, Load, demand, loads, peak

NOW = datetime(2026, 11, 20, 8, 55, tzinfo=UTC)
LOOK_AHEAD, WINDOW = 600, 30


def slots_for(*given: Load) -> list[float]:
    return demand(given, LOOK_AHEAD, WINDOW)


def seconds_of(due: Due, now: datetime = NOW) -> list[int]:
    return [load.second for load in loads([due], now, LOOK_AHEAD)]


def latest_start(runs: Iterable[Load], slots: int) -> float:
    """How late the latest run starts when so many slots take the runs in the order in which they are due."""
    free = [0.0] * slots
    latest = 0.0
    for load in sorted(runs, key=lambda load: load.second):
        for _ in range(round(load.runs)):
            start = max(float(load.second), heapq.heappop(free))
            latest = max(latest, start - load.second)
            heapq.heappush(free, start + load.seconds)
    return latest


def test_ten_thousand_runs_of_a_second_share_the_slots_that_start_them_within_the_window() -> None:
    slots = slots_for(Load(second=300, runs=10_000, seconds=1))
    assert max(slots) == pytest.approx(10_000 / 30, abs=1e-3)
    assert slots[300] == max(slots)
    assert slots[271] == max(slots)  # a window that begins there still holds the burst
    assert slots[270] == slots[301] == 0


def test_a_long_run_keeps_a_slot_of_its_own_as_long_as_it_lasts() -> None:
    slots = slots_for(Load(second=100, runs=5, seconds=120))
    assert set(slots[100:220]) == {5}
    assert slots[99] == slots[220] == 0


@pytest.mark.parametrize("seconds", [3, 30, 300])
def test_a_steady_stream_needs_its_rate_times_its_duration(seconds: int) -> None:
    slots = slots_for(*(Load(second=second, runs=2, seconds=seconds) for second in range(601)))
    assert slots[400] == pytest.approx(2 * seconds)


def test_what_should_have_begun_already_is_needed_now() -> None:
    slots = demand(loads([Due(second=-1, tasks=90, seconds=10)], NOW, LOOK_AHEAD), LOOK_AHEAD, WINDOW)
    assert peak(slots, 0) == (30, 0)
    assert slots[1] == 0


def test_nothing_due_needs_nothing() -> None:
    assert slots_for() == [0.0] * 601
    assert slots_for(Load(second=601, runs=1, seconds=1)) == [0.0] * 601


def test_a_cron_task_counts_at_every_fire_time_of_the_look_ahead() -> None:
    due = Due(second=120, tasks=1, seconds=1, cron="*/3 * * * *")
    assert seconds_of(due) == [120, 300, 480]
    nine = Due(second=300, tasks=1, seconds=1, cron="0 9 * * *")
    assert seconds_of(nine) == [300]


def test_cron_counts_in_the_time_zone_of_the_task() -> None:
    due = Due(second=60, tasks=1, seconds=1, cron="56,58 14 * * *", time_zone="Asia/Kathmandu")
    assert seconds_of(due, datetime(2026, 11, 20, 9, 10, tzinfo=UTC)) == [60, 180]


def test_an_interval_counts_on_from_its_next_fire_time() -> None:
    assert seconds_of(Due(second=50, tasks=1, seconds=1, every_seconds=200)) == [50, 250, 450]
    behind = seconds_of(Due(second=-1, tasks=1, seconds=1, every_seconds=250))
    assert behind == [0, 249, 499]


def test_a_task_whose_runs_may_not_overlap_never_has_two() -> None:
    due = Due(second=0, tasks=1, seconds=25, every_seconds=10, may_overlap=False)
    assert seconds_of(due)[:4] == [0, 30, 60, 90]
    assert max(demand(loads([due], NOW, LOOK_AHEAD), LOOK_AHEAD, WINDOW)) <= 1


def test_a_cron_expression_whose_zone_is_gone_still_counts_once() -> None:
    assert seconds_of(Due(second=60, tasks=1, seconds=1, cron="* * * * *", time_zone="Mars/Olympus")) == [60]


def test_a_million_tasks_on_a_thousand_schedules_are_counted_in_a_moment() -> None:
    dues = [
        Due(second=60 * (number % 10), tasks=1000, seconds=2, cron=f"{number % 60} * * * *") for number in range(1000)
    ]
    total = sum(load.runs for load in loads(dues, NOW, LOOK_AHEAD))
    assert total >= 1_000_000


SHORT = st.builds(
    Load,
    second=st.integers(min_value=0, max_value=570),
    runs=st.integers(min_value=1, max_value=50),
    seconds=st.floats(min_value=0.01, max_value=29.9),
)
LONG = st.builds(
    Load,
    second=st.integers(min_value=0, max_value=570),
    runs=st.integers(min_value=1, max_value=20),
    seconds=st.floats(min_value=30, max_value=900),
)


@given(st.lists(st.one_of(SHORT, LONG), min_size=1, max_size=15), st.integers(min_value=0, max_value=500))
def test_the_forecast_slots_start_every_run_of_a_burst_within_the_window(runs: list[Load], second: int) -> None:
    burst = [Load(second=second, runs=load.runs, seconds=load.seconds) for load in runs]
    random.Random(len(runs)).shuffle(burst)
    slots = -(-max(slots_for(*burst)) // 1)
    assert latest_start(burst, int(slots)) <= WINDOW


@given(st.lists(SHORT, min_size=1, max_size=40))
def test_the_forecast_slots_start_any_short_runs_within_the_window_and_one_run_more(runs: list[Load]) -> None:
    slots = -(-max(slots_for(*runs)) // 1)
    assert latest_start(runs, int(slots)) <= WINDOW + max(load.seconds for load in runs)


@given(st.lists(st.one_of(SHORT, LONG), max_size=20), st.one_of(SHORT, LONG))
def test_more_runs_never_need_fewer_slots(runs: list[Load], more: Load) -> None:
    before, after = slots_for(*runs), slots_for(*runs, more)
    assert all(late >= early - 1e-6 for early, late in zip(before, after, strict=True))
