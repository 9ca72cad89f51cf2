"""How a queue stood over time, as two plots: how deep it was, and how much went in and out per minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from bellringer.broker import Queue, QueueCounts
from bellringer.broker.model import QueueSample
from bellringer.console.course import Course
from bellringer.console.plot import Buckets, Plot, Series, draw


class Period(StrEnum):
    """How far back a plot reaches."""

    HOUR = "1h"
    DAY = "24h"

    @property
    def words(self) -> str:
        """The period in words."""
        return "last hour" if self is Period.HOUR else "last 24 hours"

    @property
    def seconds(self) -> int:
        """Its length."""
        return 3600 if self is Period.HOUR else 86_400

    @property
    def label_seconds(self) -> int:
        """How far apart the times that a plot names are."""
        return 600 if self is Period.HOUR else 3 * 3600

    def buckets(self, now: datetime) -> Buckets:
        """The period up to now, in parts of a minute or a quarter of an hour."""
        seconds = 60 if self is Period.HOUR else 900
        return Buckets.until(now, seconds, self.seconds // seconds)


def plots_of(
    queue: Queue, samples: Sequence[QueueSample], counts: QueueCounts, period: Period, now: datetime
) -> tuple[Plot, Plot]:
    """Depth and pace of a queue over a period up to `now`, when it had these counts."""
    buckets = period.buckets(now)
    known = Course(_complete(queue, samples, counts, now))
    deepest = [_deepest(known, *buckets.bounds(index)) for index in range(buckets.count)]
    depth = draw(
        "Depth",
        "messages",
        buckets,
        [
            Series(kind="in-flight", name="in flight", values=_values(deepest, "in_flight")),
            Series(kind="pending", name="pending", values=_values(deepest, "pending")),
            Series(kind="delayed", name="delayed", values=_values(deepest, "delayed")),
        ],
        stacked=True,
        label_seconds=period.label_seconds,
    )
    pace = draw(
        "Pace",
        "messages a minute",
        buckets,
        [
            Series(kind="published", name="published", values=_per_minute(known, "published", buckets)),
            Series(kind="finished", name="finished", values=_per_minute(known, "finished", buckets)),
        ],
        stacked=False,
        label_seconds=period.label_seconds,
    )
    return depth, pace


def _complete(queue: Queue, samples: Sequence[QueueSample], counts: QueueCounts, now: datetime) -> list[QueueSample]:
    """The samples, from the empty queue at its beginning, if that is not long ago, to what it is now."""
    known = [sample for sample in samples if sample.at < now]
    if not known or queue.created_at < known[0].at:
        born = QueueSample(at=queue.created_at, pending=0, in_flight=0, delayed=0, published=0, finished=0)
        if now - queue.created_at < timedelta(seconds=Period.DAY.seconds):
            known.insert(0, born)
    current = QueueSample(
        at=now,
        pending=counts.pending,
        in_flight=counts.in_flight,
        delayed=counts.delayed,
        published=counts.published,
        finished=counts.deleted,
    )
    return [*known, current]


def _values(
    samples: Sequence[QueueSample | None], number: Literal["in_flight", "pending", "delayed"]
) -> list[float | None]:
    return [None if sample is None else getattr(sample, number) for sample in samples]


def _deepest(known: Course[QueueSample], begin: datetime, end: datetime) -> QueueSample | None:
    """Of the samples that held at some time in a bucket the one with the most messages."""
    return max(
        known.held(begin, end), key=lambda sample: sample.pending + sample.in_flight + sample.delayed, default=None
    )


def _per_minute(
    known: Course[QueueSample], total: Literal["published", "finished"], buckets: Buckets
) -> list[float | None]:
    grown = known.growth(lambda sample: getattr(sample, total), buckets)
    return [None if value is None else round(value * 60 / buckets.seconds, 2) for value in grown]
