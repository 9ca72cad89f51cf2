"""How a queue stood over time, as two plots: how deep it was, and how much went in and out per minute."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from bellringer.broker import Queue, QueueCounts
from bellringer.broker.model import QueueSample
from bellringer.console.plot import Buckets, Plot, Series, draw

# Samples are taken so far apart, and only when something has changed since the last one.
_SAMPLING = timedelta(seconds=10)
_MINUTE = timedelta(minutes=1)


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


def plots_of(
    queue: Queue, samples: Sequence[QueueSample], counts: QueueCounts, period: Period, now: datetime
) -> tuple[Plot, Plot]:
    """Depth and pace of a queue over a period up to `now`, when it had these counts."""
    seconds, label_seconds = (60, 600) if period is Period.HOUR else (900, 3 * 3600)
    buckets = Buckets.until(now, seconds, period.seconds // seconds)
    known = _complete(queue, samples, counts, now)
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
        label_seconds=label_seconds,
    )
    pace = draw(
        "Pace",
        "messages a minute",
        buckets,
        [
            Series(kind="published", name="published", values=_per_minute(known, "published", buckets, now)),
            Series(kind="finished", name="finished", values=_per_minute(known, "finished", buckets, now)),
        ],
        stacked=False,
        label_seconds=label_seconds,
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


def _deepest(samples: Sequence[QueueSample], begin: datetime, end: datetime) -> QueueSample | None:
    """Of the samples that held at some time in a bucket the one with the most messages."""
    first = max(0, bisect_right(samples, begin, key=_at) - 1)
    held = [sample for sample in samples[first : bisect_right(samples, end, key=_at)] if sample.at < end]
    return max(held, key=lambda sample: sample.pending + sample.in_flight + sample.delayed, default=None)


def _per_minute(
    samples: Sequence[QueueSample], total: Literal["published", "finished"], buckets: Buckets, now: datetime
) -> list[float | None]:
    """By how much a total grew in each bucket, a minute; for the last, which is not over, in as long up to now."""
    length = timedelta(seconds=buckets.seconds)
    rates: list[float | None] = []
    for index in range(buckets.count):
        end = min(buckets.bounds(index)[1], now)
        if end <= samples[0].at:
            rates.append(None)
        else:
            grown = _total_at(samples, total, end) - _total_at(samples, total, end - length)
            rates.append(round(max(0.0, grown) / (length / _MINUTE), 2))
    return rates


def _total_at(samples: Sequence[QueueSample], total: Literal["published", "finished"], moment: datetime) -> float:
    """A total between two samples: it stood still at first, for nobody wrote a sample, and grew up to the second."""
    index = bisect_right(samples, moment, key=_at)
    after = samples[min(index, len(samples) - 1)]
    before = samples[max(0, index - 1)]
    began_at = max(before.at, after.at - _SAMPLING)
    low: int = getattr(before, total)
    high: int = getattr(after, total)
    if moment <= began_at or after.at <= began_at:
        return low
    return low + (high - low) * ((moment - began_at) / (after.at - began_at))


def _at(sample: QueueSample) -> datetime:
    return sample.at
