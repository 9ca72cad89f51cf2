from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bellringer.broker import Queue, QueueCounts, QueueSettings
from bellringer.broker.model import QueueSample
from bellringer.console.depth import Period, plots_of
from bellringer.console.plot import Plot

NOW = datetime(2026, 11, 20, 12, 34, 30, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)


def sample(seconds_ago: float, *, pending: int = 0, published: int = 0, finished: int = 0) -> QueueSample:
    at = NOW - timedelta(seconds=seconds_ago)
    return QueueSample(at=at, pending=pending, in_flight=0, delayed=0, published=published, finished=finished)


def plots(
    *samples: QueueSample,
    pending: int = 0,
    published: int = 0,
    deleted: int = 0,
    period: Period = Period.HOUR,
    created_at: datetime = LONG_AGO,
    now: datetime = NOW,
) -> tuple[Plot, Plot]:
    queue = Queue(
        id=UUID(int=1),
        number=1,
        environment_id=UUID(int=2),
        name="orders",
        settings=QueueSettings(),
        paused=False,
        created_at=created_at,
        modified_at=created_at,
    )
    known = {"pending": pending, "published": published, "deleted": deleted}
    counts = QueueCounts(**(dict.fromkeys(QueueCounts.__struct_fields__, 0) | known))
    return plots_of(queue, samples, counts, period, now)


def values(plot: Plot, name: str) -> list[float | None]:
    return next(list(series.values) for series in plot.series if series.name == name)


def test_a_number_holds_until_the_next_sample() -> None:
    depth, pace = plots(sample(7200, pending=5), sample(1800, pending=9), pending=9)
    pending = values(depth, "pending")
    assert pending == [5.0] * 29 + [9.0] * 31
    assert set(values(pace, "published")) == {0.0}


def test_each_minute_shows_its_deepest_moment() -> None:
    depth, _ = plots(sample(7200), sample(95, pending=1000), sample(92, pending=10), pending=7)
    assert values(depth, "pending")[-4:] == [0, 1000, 10, 10]


def test_a_steady_flow_is_a_level_line_however_the_samples_fall() -> None:
    samples = [sample(ago, published=round(20_000 - 5 * ago)) for ago in range(3997, 0, -10)]
    _, pace = plots(*samples, published=20_000)
    assert values(pace, "published") == pytest.approx([300.0] * 60, rel=0.01)


def test_what_comes_after_a_silence_came_just_before_it_was_seen() -> None:
    _, pace = plots(sample(7200), sample(600, published=120, finished=60), published=120, deleted=60)
    assert sum(value or 0.0 for value in values(pace, "published")) == 120.0
    assert values(pace, "published")[60 - 11] == 120.0
    assert values(pace, "finished")[60 - 11] == 60.0


def test_a_young_queue_begins_empty() -> None:
    depth, pace = plots(
        sample(100, published=40, pending=40), published=40, pending=40, created_at=NOW - timedelta(minutes=2)
    )
    assert values(depth, "pending")[-3:] == [40, 40, 40]
    assert values(depth, "pending")[:57] == [None] * 57
    assert sum(value or 0.0 for value in values(pace, "published")) == 40.0


def test_a_burst_in_a_minute_that_is_not_over_is_not_made_larger() -> None:
    now = NOW.replace(second=6)
    depth, pace = plots(sample(7200), sample(26, published=40, pending=40), published=40, pending=40, now=now)
    assert values(pace, "published")[-1] == 40.0
    assert values(depth, "pending")[-2:] == [0, 40]


def test_a_day_has_quarters_of_an_hour() -> None:
    depth, pace = plots(sample(86_000, published=0), sample(3000, published=900), published=900, period=Period.DAY)
    assert len(depth.rows) == 96
    assert [label.text for label in depth.x_labels][:2] == ["15:00", "18:00"]
    assert sum((value or 0.0) * 15 for value in values(pace, "published")) == pytest.approx(900.0)


def test_before_the_first_sample_of_an_old_queue_nothing_is_known() -> None:
    depth, _ = plots(sample(120, pending=3), pending=3)
    assert values(depth, "pending") == [None] * 57 + [3, 3, 3]


def test_a_total_that_falls_is_no_negative_pace() -> None:
    _, pace = plots(sample(7200, finished=500), sample(600, finished=100), deleted=100)
    assert min(value for value in values(pace, "finished") if value is not None) == 0.0
