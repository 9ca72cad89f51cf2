from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from bellringer.edge.limits import RateLimiter
from bellringer.edge.model import Access, Environment, RateLimit, Scope, rate_limit_of
from bellringer.kernel.clock import ManualClock
from bellringer.kernel.errors import InvalidInput, RateLimited


class Caller:
    """Somebody who makes requests with keys, and hears how each went."""

    def __init__(self) -> None:
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self._limiter = RateLimiter(self.clock)

    def ask(self, access: Access) -> int | None:
        """Make a request: None when it got through, else the seconds to wait."""
        try:
            self._limiter.take(access)
        except RateLimited as refused:
            return refused.retry_after_seconds
        return None


@pytest.fixture
def caller() -> Caller:
    return Caller()


def key(number: int, limit: RateLimit | None) -> Access:
    environment = Environment(id=UUID(int=1), organisation="acme", name="production")
    return Access(key_id=UUID(int=number), environment=environment, scopes=frozenset(Scope), rate_limit=limit)


def limited(requests_per_second: float, burst: int, number: int = 1) -> Access:
    return key(number, RateLimit(requests_per_second=requests_per_second, burst=burst))


def test_a_key_without_a_limit_is_never_stopped(caller: Caller) -> None:
    assert [caller.ask(key(1, None)) for _ in range(1000)] == [None] * 1000


def test_a_burst_gets_through_and_no_more(caller: Caller) -> None:
    assert [caller.ask(limited(2, burst=5)) for _ in range(7)] == [None] * 5 + [1, 1]


def test_what_was_used_comes_back_at_the_rate(caller: Caller) -> None:
    access = limited(4, burst=2)
    for _ in range(2):
        caller.ask(access)
    for _ in range(8):
        caller.clock.advance(0.25)
        assert [caller.ask(access), caller.ask(access)] == [None, 1]


def test_a_pause_earns_a_burst_and_not_more(caller: Caller) -> None:
    access = limited(10, burst=3)
    caller.ask(access)
    caller.clock.advance(3600)
    assert [caller.ask(access) for _ in range(4)] == [None] * 3 + [1]


def test_a_slow_key_is_told_how_long_to_wait_and_asking_does_not_put_it_off(caller: Caller) -> None:
    access = limited(0.125, burst=1)
    assert caller.ask(access) is None
    assert [caller.ask(access) for _ in range(3)] == [8, 8, 8]
    caller.clock.advance(6.5)
    assert caller.ask(access) == 2
    caller.clock.advance(1.5)
    assert caller.ask(access) is None


def test_each_key_has_a_bucket_of_its_own(caller: Caller) -> None:
    one, other = limited(1, burst=1, number=1), limited(1, burst=1, number=2)
    assert [caller.ask(one), caller.ask(one), caller.ask(other), caller.ask(other)] == [None, 1, None, 1]


def test_refusals_are_counted_by_key(caller: Caller) -> None:
    access = limited(1, burst=1, number=77)
    for _ in range(3):
        caller.ask(access)
    labels = {"key": str(UUID(int=77))}
    assert REGISTRY.get_sample_value("bellringer_http_rate_limited_total", labels) == 2


@given(
    st.floats(0.5, 1000),
    st.integers(1, 50),
    st.lists(st.floats(0, 5), min_size=1, max_size=100),
)
def test_no_span_lets_through_more_than_the_burst_and_the_rate(rate: float, burst: int, pauses: list[float]) -> None:
    caller, access = Caller(), limited(rate, burst)
    let_through: list[float] = []
    for pause in pauses:
        caller.clock.advance(pause)
        let_through += [caller.clock.monotonic() for _ in range(3) if caller.ask(access) is None]
    for first, began_at in enumerate(let_through):
        for last in range(first, len(let_through)):
            assert last - first + 1 <= burst + (let_through[last] - began_at) * rate + 1e-6


def test_a_limit_without_a_burst_allows_one_second_at_once() -> None:
    assert rate_limit_of(100, None) == RateLimit(requests_per_second=100, burst=100)
    assert rate_limit_of(0.5, None) == RateLimit(requests_per_second=0.5, burst=1)
    assert rate_limit_of(2.5, 40) == RateLimit(requests_per_second=2.5, burst=40)
    assert rate_limit_of(None, None) is None


@pytest.mark.parametrize(
    ("rate", "burst", "field"),
    [
        (0, None, "rate"),
        (-1, None, "rate"),
        (0.0001, None, "rate"),
        (1_000_001, None, "rate"),
        (float("nan"), None, "rate"),
        (float("inf"), None, "rate"),
        (1, 0, "burst"),
        (1, -1, "burst"),
        (1, 1_000_001, "burst"),
        (None, 5, "burst"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(rate: float | None, burst: int | None, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        rate_limit_of(rate, burst)
    assert raised.value.field == field
