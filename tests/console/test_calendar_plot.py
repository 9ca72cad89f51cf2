from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bellringer.console.calendar_plot import LEVEL_WORDS, calendar_of, level_of
from bellringer.scheduler.calendar import MinuteLoad

NOW = datetime(2026, 11, 20, 12, 34, 56, tzinfo=UTC)
BEGIN = NOW.replace(second=0)


def load(minutes: float, fire_times: int = 1, *tasks: str) -> MinuteLoad:
    """What comes in so many minutes."""
    return MinuteLoad(
        minute=BEGIN + timedelta(minutes=minutes), fire_times=fire_times, tasks=list(tasks or ("report",))
    )


def test_the_hours_go_by_the_clock_and_hold_24_hours_together() -> None:
    calendar = calendar_of([], NOW)
    assert [hour.begin.hour for hour in calendar.hours] == [*range(12, 24), *range(13)]
    assert sum(hour.end - hour.first for hour in calendar.hours) == 24 * 60
    assert (calendar.hours[0].first, calendar.hours[0].end) == (34, 60)
    assert (calendar.hours[-1].first, calendar.hours[-1].end) == (0, 34)


def test_at_the_full_hour_there_are_24_whole_hours() -> None:
    calendar = calendar_of([], NOW.replace(minute=0))
    assert len(calendar.hours) == 24
    assert {(hour.first, hour.end) for hour in calendar.hours} == {(0, 60)}


def test_a_minute_stands_in_its_hour() -> None:
    calendar = calendar_of([load(0), load(26, 5, "a", "b"), load(24 * 60 - 1)], NOW)
    first, second, last = calendar.hours[0], calendar.hours[1], calendar.hours[-1]
    assert [cell.x for cell in first.cells] == [34]
    assert [(cell.x, cell.words) for cell in second.cells] == [(0, "13:00 UTC, 5: a, b")]
    assert [cell.x for cell in last.cells] == [33]
    assert (first.fire_times, second.fire_times) == (1, 5)


def test_what_lies_outside_of_the_24_hours_is_left_out() -> None:
    calendar = calendar_of([load(-1), load(24 * 60)], NOW)
    assert calendar.fire_times == 0
    assert calendar.busiest is None


def test_the_busiest_minute_is_told() -> None:
    calendar = calendar_of([load(5, 3), load(90, 1200), load(100, 7)], NOW)
    assert (calendar.fire_times, calendar.busiest, calendar.busiest_fire_times) == (
        1210,
        BEGIN + timedelta(minutes=90),
        1200,
    )


@pytest.mark.parametrize(
    ("fire_times", "level", "words"),
    [
        (1, 1, "1 to 2"),
        (2, 1, "1 to 2"),
        (3, 2, "3 to 9"),
        (10, 3, "10 to 29"),
        (99, 4, "30 to 99"),
        (299, 5, "100 to 299"),
        (300, 6, "300 to 999"),
        (10**6, 7, "1,000 or more"),
    ],
)
def test_the_more_comes_the_darker_it_is(fire_times: int, level: int, words: str) -> None:
    assert level_of(fire_times) == level
    assert LEVEL_WORDS[level - 1] == words


def test_names_are_told_in_short() -> None:
    (cell,) = calendar_of([load(26, 9, "x" * 128, "b", "c", "d")], NOW).hours[1].cells
    assert cell.words == f"13:00 UTC, 9: {'x' * 31}…, b, c and more"
