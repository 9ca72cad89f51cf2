from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from bellringer.console.depth import Period
from bellringer.console.plot import Plot
from bellringer.console.task_plots import task_plots
from bellringer.scheduler.samples import SchedulerSample

NOW = datetime(2026, 11, 20, 12, 34, 30, tzinfo=UTC)


def sample(seconds_ago: float, **numbers: object) -> SchedulerSample:
    return msgspec.structs.replace(SchedulerSample(at=NOW - timedelta(seconds=seconds_ago)), **numbers)


def plots(*samples: SchedulerSample, period: Period = Period.HOUR) -> dict[str, Plot]:
    """The plots when the last sample still holds."""
    current = msgspec.structs.replace(samples[-1], at=NOW)
    return {plot.name: plot for plot in task_plots(samples, current, period)}


def values(plot: Plot, place: int = 0) -> list[float | None]:
    return list(plot.series[place].values)


def test_the_five_metrics_are_plotted() -> None:
    assert list(plots(sample(60))) == [
        "Tasks pulled",
        "Starts by wait",
        "Wait time",
        "Time to completion",
        "Picker lag",
        "Queue depth",
    ]


def test_totals_become_numbers_a_minute() -> None:
    drawn = plots(sample(7200), sample(600, picked=120, ended=60, failed=6))["Tasks pulled"]
    assert [series.name for series in drawn.series] == ["pulled", "ended", "failed"]
    assert [sum(value or 0 for value in values(drawn, place)) for place in range(3)] == [120, 60, 6]
    assert values(drawn)[60 - 11] == 120


def test_averages_are_those_of_each_minute_and_unknown_where_nothing_was() -> None:
    drawn = plots(
        sample(7200, started=10, wait_milliseconds=90_000),
        sample(615, started=14, wait_milliseconds=90_200),
        sample(300, started=15, wait_milliseconds=91_700),
    )["Wait time"]
    assert drawn.unit == "milliseconds"
    assert [value for value in values(drawn) if value is not None] == pytest.approx([50, 1500])


def test_what_takes_longer_is_told_in_seconds() -> None:
    drawn = plots(sample(7200), sample(600, ended=2, run_milliseconds=90_000))["Time to completion"]
    assert drawn.unit == "seconds"
    assert [value for value in values(drawn) if value is not None] == [45]


def test_starts_are_told_apart_by_how_late_they_were() -> None:
    drawn = plots(sample(7200), sample(600, waits=(5, 2, 1, 3, 0, 1, 2)))["Starts by wait"]
    assert [series.name for series in drawn.series] == ["up to 1 s", "up to 30 s", "later"]
    assert [sum(value or 0 for value in values(drawn, place)) for place in range(3)] == [8, 4, 2]


def test_lag_and_depth_show_the_worst_of_each_minute() -> None:
    drawn = plots(sample(7200), sample(95, queue_depth=80, picker_lag_seconds=7.0), sample(92, queue_depth=2))
    assert values(drawn["Queue depth"])[-4:] == [0, 80, 2, 2]
    assert values(drawn["Picker lag"])[-4:] == [0, 7, 0, 0]


def test_an_environment_that_is_new_begins_with_nothing() -> None:
    drawn = plots(sample(100, picked=40))["Tasks pulled"]
    assert sum(value or 0 for value in values(drawn)) == 40
    assert values(drawn)[:57] == [None] * 57


def test_a_day_has_quarters_of_an_hour() -> None:
    drawn = plots(sample(90_000), sample(3000, picked=900), period=Period.DAY)["Tasks pulled"]
    assert len(drawn.rows) == 96
    assert sum((value or 0) * 15 for value in values(drawn)) == pytest.approx(900)
