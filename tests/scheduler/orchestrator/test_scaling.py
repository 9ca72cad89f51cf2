from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.scheduler.orchestrator.config import OrchestratorConfig
from bellringer.scheduler.orchestrator.forecast import Load, demand
from bellringer.scheduler.orchestrator.scaling import Decision, PastRound, Situation, decide

CONFIG = OrchestratorConfig(concurrency=10, minimum=2, maximum=50)


def needs(*loads: Load) -> list[float]:
    return demand(loads, CONFIG.look_ahead_seconds, CONFIG.window_seconds)


def burst_in(seconds: int, runs: int = 3000) -> list[float]:
    return needs(Load(second=seconds, runs=runs, seconds=1))


def quiet_past(minutes: int, needed: int, current: int) -> list[PastRound]:
    """Rounds of the minutes before 0 that changed nothing."""
    return [
        PastRound(at=-60.0 * minute, needed=needed, current=current, desired=current)
        for minute in range(minutes, 0, -1)
    ]


class Line(msgspec.Struct, frozen=True):
    """A round of a story."""

    at: float
    before: int
    decision: Decision


def live_through(
    loads: list[Load],
    minutes: int,
    config: OrchestratorConfig,
    current: int,
    waiting: Callable[[float], int] = lambda _: 0,
) -> list[Line]:
    """Rounds from second 0 on, a minute apart, of which each sees the loads to come and obeys."""
    past: list[PastRound] = []
    lines = []
    for at in range(0, minutes * 60, config.interval_seconds):
        ahead = [Load(second=load.second - at, runs=load.runs, seconds=load.seconds) for load in loads]
        decision = decide(
            Situation(
                at=at,
                current=current,
                demand=demand(ahead, config.look_ahead_seconds, config.window_seconds),
                waiting=waiting(at),
                oldest_wait_seconds=15.0,
                past=past,
            ),
            config,
        )
        past = [*past, PastRound(at=at, needed=decision.needed, current=current, desired=decision.desired)][-20:]
        lines.append(Line(at, current, decision))
        current = decision.desired
    return lines


def test_a_burst_is_ordered_when_executors_just_have_the_time_to_come_up() -> None:
    early = decide(Situation(at=0, current=2, demand=burst_in(400)), CONFIG)
    assert early.desired == 2
    in_time = decide(Situation(at=0, current=2, demand=burst_in(150)), CONFIG)
    assert in_time.desired == 10
    assert in_time.reason == "100.0 slots are needed in 121 s"


def test_the_limit_holds_and_is_named() -> None:
    decision = decide(Situation(at=0, current=2, demand=burst_in(100, runs=30_000)), CONFIG)
    assert decision.desired == 50
    assert "50 is the limit" in decision.reason


def test_nothing_is_taken_away_while_the_past_is_not_known() -> None:
    for past in ([], quiet_past(3, 2, 10), [quiet_past(10, 2, 10)[0], *quiet_past(3, 2, 10)]):
        decision = decide(Situation(at=0, current=10, demand=needs(), past=past), CONFIG)
        assert decision.desired == 10
        assert decision.reason == "what the last 300 s needed is not known yet"


def test_after_five_quiet_minutes_it_goes_down_to_what_was_needed() -> None:
    assert decide(Situation(at=0, current=10, demand=needs(), past=quiet_past(6, 2, 10)), CONFIG).desired == 2
    four = [*quiet_past(6, 2, 10)[:-1], PastRound(at=-60, needed=4, current=10, desired=10)]
    decision = decide(Situation(at=0, current=10, demand=needs(), past=four), CONFIG)
    assert (decision.desired, decision.reason) == (4, "the last 300 s needed 4")


def test_it_does_not_go_down_to_come_up_again_soon() -> None:
    decision = decide(Situation(at=0, current=10, demand=burst_in(440), past=quiet_past(6, 2, 10)), CONFIG)
    assert (decision.desired, decision.reason) == (10, "100.0 slots will be needed in 411 s")


def test_it_does_not_go_down_soon_after_a_change() -> None:
    past = [*quiet_past(6, 2, 12)[:-1], PastRound(at=-30, needed=2, current=12, desired=10)]
    decision = decide(Situation(at=0, current=10, demand=needs(), past=past), CONFIG)
    assert (decision.desired, decision.reason) == (10, "the last change is less than 60 s ago")


def test_executors_that_run_something_are_kept() -> None:
    situation = Situation(at=0, current=10, demand=needs(), running=65, past=quiet_past(6, 2, 10))
    assert decide(situation, CONFIG).desired == 7
    assert decide(situation, CONFIG).reason == "65 runs go on"


def test_runs_that_wait_although_enough_was_ordered_bring_half_as_many_again() -> None:
    situation = Situation(at=0, current=10, demand=needs(), waiting=40, oldest_wait_seconds=12)
    assert decide(situation, CONFIG).desired == 15
    assert decide(situation, CONFIG).reason == "40 runs wait, the oldest for 12 s"
    just_now = msgspec.structs.replace(situation, oldest_wait_seconds=3)
    assert decide(just_now, CONFIG).desired == 10


def test_runs_that_wait_for_executors_on_their_way_bring_no_more() -> None:
    ordered = PastRound(at=-60, needed=10, current=5, desired=10)
    situation = Situation(at=0, current=10, demand=needs(), waiting=40, oldest_wait_seconds=12, past=[ordered])
    assert decide(situation, CONFIG).desired == 10
    later = msgspec.structs.replace(situation, at=40)
    assert decide(later, CONFIG).desired == 15


def test_an_order_that_failed_is_no_order() -> None:
    failed = PastRound(at=-60, needed=10, current=5, desired=None)
    situation = Situation(at=0, current=5, demand=needs(), waiting=40, oldest_wait_seconds=12, past=[failed])
    assert decide(situation, CONFIG).desired == 7


def test_a_lower_limit_is_obeyed_at_once() -> None:
    assert decide(Situation(at=0, current=80, demand=needs()), CONFIG).desired == 50


CONFIGS = st.builds(
    lambda minimum, more, concurrency, quiet, provisioning: OrchestratorConfig(
        minimum=minimum,
        maximum=minimum + more,
        concurrency=concurrency,
        quiet_seconds=quiet,
        provisioning_seconds=provisioning,
    ),
    st.integers(min_value=0, max_value=5),
    st.integers(min_value=0, max_value=60),
    st.integers(min_value=1, max_value=30),
    st.sampled_from([120, 300, 420]),
    st.sampled_from([30, 60, 90]),
)
LOADS = st.lists(
    st.builds(
        Load,
        second=st.integers(min_value=0, max_value=3000),
        runs=st.integers(min_value=1, max_value=2000),
        seconds=st.floats(min_value=0.1, max_value=90),
    ),
    max_size=12,
)


@given(LOADS, CONFIGS, st.integers(min_value=0, max_value=80), st.lists(st.integers(0, 100), min_size=60, max_size=60))
def test_it_is_never_outside_the_limits(
    loads: list[Load], config: OrchestratorConfig, current: int, waiting: list[int]
) -> None:
    for line in live_through(loads, 60, config, current, lambda at: waiting[int(at // 60)]):
        assert config.minimum <= line.decision.desired <= config.maximum


@given(LOADS, CONFIGS)
def test_it_never_goes_below_what_the_quiet_time_needed(loads: list[Load], config: OrchestratorConfig) -> None:
    lines = live_through(loads, 60, config, config.minimum)
    for line in lines:
        if line.decision.desired < line.before:
            recent = [other for other in lines if line.at - config.quiet_seconds < other.at <= line.at]
            assert line.decision.desired >= max(other.decision.needed for other in recent)
            assert line.at >= config.quiet_seconds


@given(LOADS, CONFIGS)
def test_whatever_is_known_in_time_finds_enough_executors_ready(loads: list[Load], config: OrchestratorConfig) -> None:
    known = [msgspec.structs.replace(load, second=load.second + 600) for load in loads]
    lines = live_through(known, 70, config, config.minimum)
    for load in known:
        ready = [line for line in lines if line.at <= load.second - config.provisioning_seconds]
        since = [line for line in lines if load.second - config.provisioning_seconds < line.at <= load.second]
        needed = demand(known, 3600, config.window_seconds)[min(load.second, 3600)]
        enough = min(config.maximum, -(-round(needed, 3) // config.concurrency))
        assert min(line.decision.desired for line in [ready[-1], *since]) >= enough


@given(LOADS, CONFIGS)
def test_it_does_not_flap(loads: list[Load], config: OrchestratorConfig) -> None:
    """What goes down does not come up again within the quiet time, when all is known in time."""
    known = [msgspec.structs.replace(load, second=load.second + 600) for load in loads]
    lines = live_through(known, 70, config, config.minimum)
    horizon = config.look_ahead_seconds - config.lead_seconds
    for line in lines:
        if line.decision.desired < line.before:
            soon = [other for other in lines if 0 < other.at - line.at < min(config.quiet_seconds, horizon)]
            assert all(other.decision.desired <= line.decision.desired for other in soon)


def test_a_day_of_hourly_bursts_is_one_rise_and_one_fall_each() -> None:
    loads = [Load(second=3600 * hour + 1800, runs=3000, seconds=1) for hour in range(24)]
    lines = live_through(loads, 24 * 60, CONFIG, 2)
    rises = [line for line in lines if line.decision.desired > line.before]
    falls = [line for line in lines if line.decision.desired < line.before]
    assert (len(rises), len(falls)) == (24, 24)
    minutes = sum(line.decision.desired for line in lines)
    assert minutes < 24 * (10 * 9 + 2 * 51)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"minimum": 5, "maximum": 4}, "minimum must not be above maximum"),
        ({"look_ahead_seconds": 100}, "look_ahead_seconds must be at least"),
        ({"driver": "kubernetes"}, "needs kubernetes.deployment"),
        ({"driver": "webhook"}, "needs webhook.url"),
        ({"webhook": {"url": "nonsense"}}, "url must begin with https:// or http://"),
        ({"kubernetes": {"url": "http://plain"}}, "url must begin with https://"),
        ({"driver": "swarm"}, "Invalid enum value 'swarm'"),
        ({"maximim": 5}, "unknown field `maximim`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=named):
        msgspec.convert(settings, OrchestratorConfig)
