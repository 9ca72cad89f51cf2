"""The checker of schedulers: it accepts what a correct one can have done, and finds every fault seeded into that."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.support.scheduler_history.checker import check
from tests.support.scheduler_history.expected import fire_times
from tests.support.scheduler_history.faults import FAULTS, Fault, NotApplicable
from tests.support.scheduler_history.records import (
    MINUTE,
    SECOND,
    Attempt,
    History,
    Interval,
    MalformedHistory,
    Minutes,
    Occurrence,
    Once,
    Outcome,
    Overlap,
    Policy,
    Request,
    Result,
    Run,
    StoredTask,
    Verb,
)
from tests.support.scheduler_history.reference import Simulation
from tests.support.scheduler_history.violations import Kind

CHOICES = st.randoms(use_true_random=False)
# A seed, not a source of choices: a fault needs a story that has a place for it, and few of those that shrink do.
SEEDS = st.integers(min_value=0, max_value=2**32)
TASKS = st.integers(min_value=1, max_value=6)


@settings(max_examples=100)
@given(random=CHOICES, tasks=TASKS)
def test_what_a_correct_scheduler_did_is_accepted(random: Random, tasks: int) -> None:
    report = check(Simulation(random).run(tasks))
    assert report.is_correct, str(report)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind, faults in FAULTS.items() for fault in faults],
    ids=lambda value: "" if isinstance(value, Kind) else value.__name__.strip("_"),
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture])
@given(seed=SEEDS)
def test_every_fault_is_found(kind: Kind, fault: Fault, seed: int) -> None:
    random = Random(seed)
    history = Simulation(random).run(8)
    try:
        fault(history, random)
    except NotApplicable:
        assume(False)
    report = check(history)
    assert kind in report.broken, str(report)
    assert all(violation.facts for violation in report.violations)


def test_every_promise_has_faults_that_break_it() -> None:
    assert set(FAULTS) == set(Kind)


MADE = 1_000 * MINUTE
TASK = StoredTask(name="report", created_at=MADE)


def made(policy: Policy | None = None, *, until: int = 60 * SECOND) -> list[Request]:
    """A task that fires every ten seconds from a minute after 0 on, and is paused `until` so long after that."""
    first = MADE + MINUTE
    return [
        Request(
            task="report",
            verb=Verb.CREATE,
            begun_at=MADE - 1,
            answered_at=MADE + 1,
            schedule=Interval(every=10 * SECOND, anchor=first),
            policy=policy or Policy(),
        ),
        Request(task="report", verb=Verb.PAUSE, begun_at=first + until, answered_at=first + until + SECOND),
    ]


def succeeded(seconds: float, *, started_at: float | None = None, took: float = 1.0) -> tuple[Occurrence, Run]:
    fire_at = MADE + MINUTE + round(seconds * SECOND)
    start = fire_at if started_at is None else MADE + MINUTE + round(started_at * SECOND)
    end = start + round(took * SECOND)
    attempt = Attempt(number=1, due_at=fire_at, started_at=start, ended_at=end, outcome=Outcome.SUCCEEDED)
    run = Run(
        task="report",
        fire_at=fire_at,
        attempt=1,
        process="1",
        begun_at=start,
        ended_at=end,
        result=Result.RETURNED,
    )
    return Occurrence(task="report", fire_at=fire_at, picked_at=MADE + 1, attempts=[attempt]), run


def kinds(requests: list[Request], *done: tuple[Occurrence, Run]) -> set[Kind]:
    history = History(
        requests=requests,
        runs=[run for _, run in done],
        tasks=[TASK],
        occurrences=[occurrence for occurrence, _ in done],
        incidents=[],
    )
    return set(check(history).broken)


def test_a_fire_time_beside_a_request_may_take_place_or_not() -> None:
    before = [succeeded(seconds) for seconds in (0, 10, 20)]
    # Asked to pause from 30 to 31 s after the first one: the one at 30 s may have been before that or after.
    assert kinds(made(until=30 * SECOND), *before) == set()
    assert kinds(made(until=30 * SECOND), *before, succeeded(30)) == set()
    assert kinds(made(until=30 * SECOND), *before, succeeded(40)) == {Kind.UNCALLED}
    assert kinds(made(until=31 * SECOND), *before) == {Kind.MISSING}


def test_nothing_may_begin_a_microsecond_before_its_time() -> None:
    assert kinds(made(until=1), succeeded(0, started_at=0)) == set()
    assert kinds(made(until=1), succeeded(0, started_at=-0.000001)) == {Kind.EARLY}


def test_runs_may_touch_but_not_overlap() -> None:
    policy = Policy(overlap=Overlap.QUEUE)
    assert kinds(made(policy, until=11 * SECOND), succeeded(0, took=12), succeeded(10, started_at=12)) == set()
    assert kinds(made(policy, until=11 * SECOND), succeeded(0, took=12), succeeded(10, started_at=11.9)) == {
        Kind.OVERLAP
    }
    assert kinds(made(until=11 * SECOND), succeeded(0, took=12), succeeded(10, started_at=11.9)) == set()


def test_a_run_that_was_given_up_for_dead_does_not_count_any_more() -> None:
    policy = Policy(overlap=Overlap.SKIP)
    lost, run = succeeded(0, took=15)
    given_up = MADE + MINUTE + 9 * SECOND
    attempt = Attempt(
        number=1, due_at=lost.fire_at, started_at=lost.fire_at, ended_at=given_up, outcome=Outcome.CRASHED
    )
    crashed = Occurrence(task="report", fire_at=lost.fire_at, picked_at=MADE + 1, attempts=[attempt])
    assert kinds(made(policy, until=11 * SECOND), (crashed, run), succeeded(10)) == {Kind.UNREPORTED}
    assert kinds(made(policy, until=11 * SECOND), (lost, run), succeeded(10)) == {Kind.OVERLAP}


def test_minutes_count_on_the_clock_of_the_zone() -> None:
    kathmandu = Minutes(step=2, zone="Asia/Kathmandu", ahead_minutes=345)
    # 00:01 UTC is 05:46 there.
    assert list(fire_times(kathmandu, TASK, 0, 4 * MINUTE)) == [MINUTE, 3 * MINUTE]
    assert list(fire_times(Minutes(step=1, zone="UTC", ahead_minutes=0), TASK, 1, 2 * MINUTE)) == [MINUTE, 2 * MINUTE]


def test_intervals_count_from_their_anchor_or_from_when_the_task_was_made() -> None:
    seven = 7 * SECOND
    assert list(fire_times(Interval(every=seven, anchor=MADE), TASK, MADE - 1, MADE + 15 * SECOND)) == [
        MADE,
        MADE + seven,
        MADE + 2 * seven,
    ]
    assert list(fire_times(Interval(every=seven, anchor=0), TASK, 15 * SECOND, 28 * SECOND)) == [
        21 * SECOND,
        28 * SECOND,
    ]
    assert list(fire_times(Interval(every=seven), TASK, MADE - seven, MADE + seven)) == [MADE + seven]


def test_a_violation_tells_what_proves_it() -> None:
    history = History(requests=made(until=1), runs=[], tasks=[TASK], occurrences=[], incidents=[])
    (violation,) = check(history).violations
    assert (violation.kind, violation.task, violation.fire_at) == (Kind.MISSING, "report", MADE + MINUTE)
    assert "16:41:00.000000 has no occurrence" in str(violation)
    assert "verb=pause" in str(violation)


def test_a_record_that_contradicts_itself_says_nothing_about_the_scheduler() -> None:
    occurrence, run = succeeded(0)
    forever = made()[:1]
    for history in (
        History(requests=made(), runs=[], tasks=[], occurrences=[], incidents=[]),
        History(requests=[], runs=[], tasks=[TASK], occurrences=[], incidents=[]),
        History(requests=forever, runs=[run], tasks=[TASK], occurrences=[occurrence], incidents=[]),
    ):
        with pytest.raises(MalformedHistory):
            check(history)


def test_a_task_with_one_fire_time_need_not_be_ended() -> None:
    request = Request(
        task="report",
        verb=Verb.CREATE,
        begun_at=MADE - 1,
        answered_at=MADE + 1,
        schedule=Once(at=MADE + MINUTE),
        policy=Policy(),
    )
    assert kinds([request], succeeded(0)) == set()
    assert kinds([request]) == {Kind.MISSING}
