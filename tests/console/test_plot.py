from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.console.plot import HEIGHT, WIDTH, Buckets, Plot, Series, compact, draw

NOW = datetime(2026, 11, 20, 12, 34, 56, tzinfo=UTC)
VALUES = st.lists(st.none() | st.floats(0, 1e12), min_size=6, max_size=6)


def plot_of(*lines: list[float | None], stacked: bool = True) -> Plot:
    buckets = Buckets.until(NOW, 60, len(lines[0]))
    series = [Series(kind=f"kind-{index}", name=f"line {index}", values=values) for index, values in enumerate(lines)]
    return draw("Depth", "messages", buckets, series, stacked=stacked, label_seconds=120)


def points_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.e+-]+) ([\d.e+-]+)", path)]


def test_buckets_begin_at_round_moments_and_the_last_is_under_way() -> None:
    buckets = Buckets.until(NOW, 900, 96)
    assert buckets.first == datetime(2026, 11, 19, 12, 45, tzinfo=UTC)
    begin, end = buckets.bounds(95)
    assert begin <= NOW < end
    assert (begin.minute, end.minute) == (30, 45)


@given(st.lists(VALUES, min_size=1, max_size=3), st.booleans())
def test_nothing_is_drawn_outside_the_plot(lines: list[list[float | None]], stacked: bool) -> None:
    drawn = plot_of(*lines, stacked=stacked)
    for shape in drawn.shapes:
        for x, y in points_of(shape.fill) + points_of(shape.stroke):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
    assert all(0 <= label.at <= HEIGHT for label in drawn.y_labels)
    assert all(0 <= label.at <= 100 for label in drawn.x_labels)
    assert 2 <= len(drawn.y_labels) <= 6


def test_areas_stand_on_each_other() -> None:
    lower, upper = plot_of([10.0, 10.0], [30.0, 30.0]).shapes
    (height_of_10,) = {y for _, y in points_of(lower.stroke)}
    (height_of_40,) = {y for _, y in points_of(upper.stroke)}
    assert HEIGHT - height_of_40 == pytest.approx(4 * (HEIGHT - height_of_10), abs=0.5)
    assert {y for _, y in points_of(upper.fill)} == {height_of_10, height_of_40}


def test_lines_stand_on_the_ground() -> None:
    first, second = plot_of([10.0, 10.0], [10.0, 10.0], stacked=False).shapes
    assert first.stroke == second.stroke
    assert first.fill == ""


def test_a_gap_is_a_gap() -> None:
    drawn = plot_of([1.0, None, 3.0, 3.0])
    assert drawn.shapes[0].stroke.count("M") == 2
    assert [row.is_known for row in drawn.rows] == [True, False, True, True]
    assert [row.values for row in drawn.known] == [(3.0,), (3.0,), (1.0,)]
    assert drawn.most == 3.0


def test_without_values_there_is_an_axis_and_no_line() -> None:
    drawn = plot_of([None, None])
    assert drawn.shapes[0].stroke == ""
    assert [label.text for label in drawn.y_labels] == ["0", "1"]
    assert drawn.known == []


@pytest.mark.parametrize(
    ("most", "marks"),
    [
        (0.0, ["0", "1"]),
        (3.0, ["0", "1", "2", "3"]),
        (9.0, ["0", "5", "10"]),
        (1_700.0, ["0", "500", "1k", "1.5k", "2k"]),
        (4_200_000.0, ["0", "2M", "4M", "6M"]),
    ],
)
def test_the_marks_of_an_axis_are_round(most: float, marks: list[str]) -> None:
    assert [label.text for label in plot_of([most]).y_labels] == marks


def test_times_are_marked_in_utc() -> None:
    drawn = plot_of([1.0] * 6)
    assert [(label.text, label.at) for label in drawn.x_labels] == [("12:30", 16.67), ("12:32", 50.0), ("12:34", 83.33)]


def test_large_numbers_are_short() -> None:
    assert [compact(value) for value in (0, 20, 1500, 2e6, 3e9)] == ["0", "20", "1.5k", "2M", "3G"]
