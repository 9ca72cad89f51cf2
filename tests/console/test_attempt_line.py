from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.console.attempt_line import Axis, Line, Times, line_of
from bellringer.console.plot import WIDTH
from bellringer.scheduler.model import Outcome

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DUE = NOW - timedelta(hours=2)
SECONDS = st.floats(0, 90_000)


def times(
    *,
    picked: float | None = -120,
    dispatched: float | None = -5,
    started: float | None = 0.1,
    ran: float | None = 2,
    outcome: Outcome | None = Outcome.SUCCEEDED,
    due: datetime = DUE,
) -> Times:
    """An attempt by seconds from its due time."""

    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else due + timedelta(seconds=seconds)

    return Times(
        due_at=due,
        picked_at=at(picked),
        dispatched_at=at(dispatched),
        started_at=at(started),
        ended_at=at((started or 0) + ran) if ran is not None else None,
        outcome=outcome,
        is_waiting=started is None and outcome is None,
    )


def waiting(due: datetime, *, dispatched: float | None = -5) -> Times:
    return times(started=None, ran=None, outcome=None, dispatched=dispatched, due=due)


def draw(one: Times, *, promise: float = 30) -> Line:
    return line_of(one, Axis.over([one], promise, NOW), NOW)


def kinds(line: Line) -> list[str]:
    return [part.kind for part in line.parts]


def test_a_run_is_drawn_from_the_pick_to_its_end() -> None:
    line = draw(times())
    assert kinds(line) == ["ahead", "wait", "good"]
    ahead, wait, run = line.parts
    assert line.picked == ahead.x
    assert line.dispatched is not None
    assert line.picked < line.dispatched < wait.x
    assert ahead.x + ahead.width == pytest.approx(wait.x, abs=0.2)
    assert wait.x + wait.width == pytest.approx(run.x, abs=0.2)


def test_a_start_after_the_promise_is_drawn_as_late() -> None:
    assert kinds(draw(times(started=29.9))) == ["ahead", "wait", "good"]
    late = times(started=30.1)
    assert kinds(draw(late)) == ["ahead", "late", "good"]
    axis = Axis.over([late], 30, NOW)
    assert line_of(late, axis, NOW).parts[2].x >= axis.promise


def test_the_promise_is_that_of_the_settings() -> None:
    assert kinds(draw(times(started=3), promise=2)) == ["ahead", "late", "good"]
    assert "2 s" in [mark.text for mark in Axis.over([], 2, NOW).marks]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.FAILED, "bad"),
        (Outcome.TIMED_OUT, "bad"),
        (Outcome.CRASHED, "bad"),
        (Outcome.CANCELLED, "ended"),
        (Outcome.SUCCEEDED, "good"),
    ],
)
def test_the_colour_of_a_run_is_its_outcome(outcome: Outcome, kind: str) -> None:
    assert kinds(draw(times(outcome=outcome)))[-1] == kind


def test_what_goes_on_reaches_up_to_now() -> None:
    running = times(started=0, ran=None, outcome=None, due=NOW - timedelta(seconds=10))
    later = line_of(running, Axis.over([running], 30, NOW), NOW + timedelta(seconds=5))
    assert kinds(draw(running)) == ["ahead", "run"]
    assert later.parts[-1].width > draw(running).parts[-1].width
    assert draw(running).words.endswith("runs for 10 s")


def test_what_is_due_and_waits_is_drawn_up_to_now() -> None:
    assert kinds(draw(waiting(NOW - timedelta(seconds=10)))) == ["ahead", "wait"]
    assert kinds(draw(waiting(NOW - timedelta(seconds=40)))) == ["ahead", "late"]


def test_what_is_to_come_is_drawn_as_far_as_it_has_come() -> None:
    picked, dispatched = waiting(NOW + timedelta(seconds=30), dispatched=None), waiting(NOW + timedelta(seconds=3))
    assert draw(picked).parts == ()
    assert draw(picked).picked is not None
    line = draw(dispatched)
    assert kinds(line) == ["ahead"]
    assert line.parts[0].x + line.parts[0].width == line.dispatched


def test_a_line_changes_only_when_something_happens() -> None:
    coming = waiting(NOW + timedelta(seconds=30), dispatched=None)
    axis = Axis.over([coming], 30, NOW)
    assert line_of(coming, axis, NOW) == line_of(coming, axis, NOW + timedelta(seconds=9))


def test_what_was_skipped_did_not_wait() -> None:
    line = draw(times(picked=600, dispatched=None, started=None, ran=600, outcome=Outcome.SKIPPED))
    assert kinds(line) == []
    assert line.words == "picked 10 min after it was due, skipped"


def test_a_line_is_told_in_words() -> None:
    assert draw(times()).words == (
        "picked 2 min before it was due, dispatched 5 s before it was due, started 100 ms after it was due, ran 2 s, "
        "succeeded"
    )


def test_all_lines_of_a_page_share_an_axis_that_has_the_promise_on_it() -> None:
    short, long = times(ran=0.01), times(ran=7000)
    axis = Axis.over([short, long], 30, NOW)
    assert line_of(short, axis, NOW).parts[0] == line_of(long, axis, NOW).parts[0]
    assert axis.promise < WIDTH
    assert [mark.text for mark in axis.marks] == [
        "\N{MINUS SIGN}2 min",
        "\N{MINUS SIGN}5 s",
        "due",
        "1 s",
        "30 s",
        "10 min",
        "1 h",
    ]


@given(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), st.floats(0.1, 86_400))
def test_nothing_is_drawn_outside_the_line(seconds: tuple[float, float, float, float], promise: float) -> None:
    ahead, dispatched, lag, ran = seconds
    one = times(picked=-ahead, dispatched=dispatched - ahead, started=lag, ran=ran)
    axis = Axis.over([one], promise, NOW)
    line = line_of(one, axis, NOW)
    places = [part.x for part in line.parts] + [part.x + part.width for part in line.parts]
    assert all(0 <= place <= WIDTH + 4 for place in [*places, axis.due, axis.promise, line.picked or 0])
    assert all(0 <= mark.at <= 100 for mark in axis.marks)
    starts = [part.x for part in line.parts]
    assert starts == sorted(starts)
