"""Which fire times run and which are skipped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.scheduler.cron import expression_of
from bellringer.scheduler.fire_times import Cron, FireTimes, Interval, Once
from bellringer.scheduler.model import Misfire, MisfirePolicy
from bellringer.scheduler.plan import Plan, plan
from bellringer.scheduler.zones import zone_of

NOW = datetime(2026, 3, 29, 0, 50, tzinfo=UTC)
GRACE_SECONDS = 30.0
MINUTE = timedelta(minutes=1)
SKIP = MisfirePolicy(policy=Misfire.SKIP)
LATEST = MisfirePolicy(policy=Misfire.LATEST)


class Counted(FireTimes):
    """Fire times that count how often they were asked."""

    def __init__(self, fire_times: FireTimes) -> None:
        self._fire_times = fire_times
        self.asked = 0

    def after(self, moment: datetime) -> datetime | None:
        self.asked += 1
        return self._fire_times.after(moment)


def cron(expression: str, zone: str = "UTC") -> Cron:
    return Cron(expression_of(expression), zone_of(zone))


def all_of(limit: int) -> MisfirePolicy:
    return MisfirePolicy(policy=Misfire.ALL, limit=limit)


def window_of(seconds: float) -> MisfirePolicy:
    return MisfirePolicy(policy=Misfire.WINDOW, window_seconds=seconds)


def make(fire_times: FireTimes, first: datetime, misfire: MisfirePolicy, *, limit: int = 1000) -> Plan:
    """A plan as a picker makes it: up to two minutes ahead."""
    return plan(
        fire_times,
        first,
        now=NOW,
        horizon=NOW + 2 * MINUTE,
        misfire=misfire,
        grace_seconds=GRACE_SECONDS,
        limit=limit,
    )


def make_in_pieces(fire_times: FireTimes, first: datetime, misfire: MisfirePolicy, *, limit: int) -> Plan:
    """The same, over as many plans as it takes."""
    runs: list[datetime] = []
    skips: list[datetime] = []
    following: datetime | None = first
    while following is not None and following <= NOW + 2 * MINUTE:
        piece = make(fire_times, following, misfire, limit=limit)
        assert 1 <= len(piece.runs) + len(piece.skips) <= limit
        runs += piece.runs
        skips += piece.skips
        following = piece.next_fire_at
    return Plan(runs=runs, skips=skips, next_fire_at=following)


def minutes(plan_: list[datetime]) -> list[float]:
    return [(fire_at - NOW) / MINUTE for fire_at in plan_]


@pytest.mark.parametrize(
    ("misfire", "missed_that_run"),
    [
        (SKIP, []),
        (LATEST, [-1]),
        (all_of(0), []),
        (all_of(1), [-1]),
        (all_of(3), [-3, -2, -1]),
        (all_of(1000), [-5, -4, -3, -2, -1]),
        (window_of(0), []),
        (window_of(119), [-1]),
        (window_of(120), [-2, -1]),
        (window_of(86_400), [-5, -4, -3, -2, -1]),
    ],
)
def test_a_policy_says_which_missed_fire_times_run(misfire: MisfirePolicy, missed_that_run: list[int]) -> None:
    made = make(cron("* * * * *"), NOW - 5 * MINUTE, misfire)
    assert minutes(made.runs) == [*missed_that_run, 0, 1, 2]
    assert minutes(made.skips) == [minute for minute in range(-5, 0) if minute not in missed_that_run]
    assert made.next_fire_at == NOW + 3 * MINUTE


def test_what_is_late_by_no_more_than_the_grace_is_not_missed() -> None:
    at_the_bound = NOW - timedelta(seconds=GRACE_SECONDS)
    assert make(Once(at_the_bound), at_the_bound, SKIP).runs == [at_the_bound]
    too_late = at_the_bound - timedelta.resolution
    assert make(Once(too_late), too_late, SKIP).skips == [too_late]
    assert make(Once(too_late), too_late, LATEST).runs == [too_late]


def test_a_task_without_another_fire_time_has_none_planned() -> None:
    assert make(Once(NOW), NOW, LATEST) == Plan(runs=[NOW], skips=[], next_fire_at=None)


def test_what_lies_beyond_the_horizon_is_left_for_later() -> None:
    later = NOW + 2 * MINUTE + timedelta.resolution
    assert make(Once(later), later, LATEST) == Plan(runs=[], skips=[], next_fire_at=later)


def test_the_rest_comes_with_the_next_plan() -> None:
    made = make(cron("* * * * *"), NOW - 5 * MINUTE, LATEST, limit=2)
    assert minutes(made.skips) == [-5, -4]
    assert (made.runs, made.next_fire_at) == ([], NOW - 3 * MINUTE)


MISFIRES = (
    st.sampled_from([SKIP, LATEST])
    | st.integers(0, 1000).map(all_of)
    | st.floats(0, 90_000, allow_nan=False).map(window_of)
)
RECURRING = st.sampled_from(
    [
        cron("* * * * *"),
        cron("*/15 * * * *", "Europe/Berlin"),
        cron("30 2 * * *", "Europe/Berlin"),
        cron("0,1,2,30 1-3 * * *", "America/New_York"),
        cron("* 1 * * 6,7", "Africa/Cairo"),
        cron("* 0 1 1 *", "Pacific/Apia"),
        cron("0 0 29 2 *"),
        cron("* * 29 2 *"),
    ]
) | st.builds(
    lambda every, start: Interval(NOW - timedelta(seconds=start), timedelta(milliseconds=every)),
    st.integers(20_000, 10_000_000),
    st.integers(0, 1_000_000),
)
DOWN_FOR = st.integers(0, 48 * 3600) | st.integers(0, 300)


@given(RECURRING, DOWN_FOR, MISFIRES, st.integers(1, 1000))
def test_every_fire_time_runs_or_is_skipped_or_is_yet_to_come(
    fire_times: FireTimes, down_seconds: int, misfire: MisfirePolicy, limit: int
) -> None:
    first = fire_times.first_from(NOW - timedelta(seconds=down_seconds))
    assert first is not None
    made = make_in_pieces(fire_times, first, misfire, limit=limit)
    due = list(
        takewhile(lambda fire_at: fire_at <= NOW + 2 * MINUTE, fire_times.upcoming(first - timedelta.resolution))
    )
    assert sorted([*made.runs, *made.skips]) == due
    assert made.next_fire_at == fire_times.after(due[-1] if due else first - timedelta.resolution)
    assert made.runs == sorted(made.runs)
    assert made.skips == sorted(made.skips)


@given(RECURRING, DOWN_FOR, MISFIRES, st.integers(1, 300))
def test_a_plan_in_pieces_is_the_plan_at_once(
    fire_times: FireTimes, down_seconds: int, misfire: MisfirePolicy, limit: int
) -> None:
    first = fire_times.first_from(NOW - timedelta(seconds=down_seconds))
    assert first is not None
    assert make_in_pieces(fire_times, first, misfire, limit=limit) == make(fire_times, first, misfire, limit=10**6)


@given(RECURRING, DOWN_FOR, MISFIRES)
def test_as_many_missed_fire_times_run_as_the_policy_says(
    fire_times: FireTimes, down_seconds: int, misfire: MisfirePolicy
) -> None:
    first = fire_times.first_from(NOW - timedelta(seconds=down_seconds))
    assert first is not None
    made = make(fire_times, first, misfire, limit=10**6)
    missed = [at for at in [*made.skips, *made.runs] if (NOW - at).total_seconds() > GRACE_SECONDS]
    recovered = [at for at in made.runs if at in set(missed)]
    match misfire.policy:
        case Misfire.SKIP:
            assert recovered == []
        case Misfire.LATEST:
            assert recovered == missed[-1:]
        case Misfire.ALL:
            assert recovered == (missed[-misfire.limit :] if misfire.limit else [])
        case Misfire.WINDOW:
            assert recovered == [at for at in missed if (NOW - at).total_seconds() <= misfire.window_seconds]


@pytest.mark.parametrize("misfire", [SKIP, LATEST, all_of(1), all_of(1000), window_of(86_400)])
@pytest.mark.parametrize(
    ("fire_times", "down_days"),
    [
        (cron("* * * * *", "Europe/Berlin"), 365),
        (Interval(NOW - timedelta(days=3650), timedelta(seconds=1)), 365),
        (cron("* * * 1 *"), 365),
        (cron("* * 29 2 *"), 3650),
        (cron("0 0 29 2 *"), 3650),
    ],
)
def test_a_piece_costs_no_more_however_long_nothing_was_planned(
    fire_times: FireTimes, down_days: int, misfire: MisfirePolicy
) -> None:
    first = fire_times.first_from(NOW - timedelta(days=down_days))
    assert first is not None
    counted = Counted(fire_times)
    made = make(counted, first, misfire, limit=1000)
    assert len(made.runs) + len(made.skips) > 0
    assert counted.asked < 8_000
