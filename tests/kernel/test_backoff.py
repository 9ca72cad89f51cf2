from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.kernel.backoff import Backoff


def test_the_wait_doubles_up_to_the_cap() -> None:
    backoff = Backoff(first_seconds=1.0, cap_seconds=10.0)
    assert [backoff.ceiling_seconds(attempt) for attempt in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@given(
    first=st.floats(min_value=0.001, max_value=1000),
    factor=st.floats(min_value=1, max_value=1e6),
    attempt=st.integers(min_value=1, max_value=10**9),
)
def test_a_wait_lies_in_the_upper_half_below_its_ceiling(first: float, factor: float, attempt: int) -> None:
    backoff = Backoff(first_seconds=first, cap_seconds=first * factor)
    ceiling = backoff.ceiling_seconds(attempt)
    assert first <= ceiling <= first * factor
    assert ceiling / 2 <= backoff.wait_seconds(attempt) <= ceiling


def test_waits_of_callers_that_failed_together_differ() -> None:
    backoff = Backoff(first_seconds=1.0, cap_seconds=10.0)
    assert len({backoff.wait_seconds(3) for _ in range(100)}) > 1


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    with pytest.raises(ValueError, match="from 1"):
        Backoff().wait_seconds(attempt)


@pytest.mark.parametrize(("first", "cap"), [(0, 1), (-1, 1), (2, 1), (math.nan, 1), (1, math.nan)])
def test_a_backoff_without_a_sensible_span_is_refused(first: float, cap: float) -> None:
    with pytest.raises(ValueError, match="first_seconds"):
        Backoff(first_seconds=first, cap_seconds=cap)
