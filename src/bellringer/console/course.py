"""What is known of something over time: samples, each of which holds until the next one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from bellringer.console.plot import Buckets

# Samples are taken so far apart, and only when something has changed since the last one.
SAMPLING = timedelta(seconds=10)


class Sample(Protocol):
    """How something stood at one moment."""

    @property
    def at(self) -> datetime:
        """The moment."""
        ...


S = TypeVar("S", bound=Sample)


class Course(Generic[S]):
    """At least one sample, in the order of time; the last of them is of now."""

    def __init__(self, samples: Sequence[S]) -> None:
        self._samples = samples

    def held(self, begin: datetime, end: datetime) -> list[S]:
        """The samples that held at some time in a stretch."""
        first = max(0, bisect_right(self._samples, begin, key=_at) - 1)
        found = self._samples[first : bisect_right(self._samples, end, key=_at)]
        return [sample for sample in found if sample.at < end]

    def growth(self, total: Callable[[S], float], buckets: Buckets) -> list[float | None]:
        """By how much a total grew in each bucket; for the last, which is not over, in as long up to now."""
        length = timedelta(seconds=buckets.seconds)
        grown: list[float | None] = []
        for index in range(buckets.count):
            end = min(buckets.bounds(index)[1], self._samples[-1].at)
            is_known = end > self._samples[0].at
            grown.append(
                max(0.0, self._total_at(total, end) - self._total_at(total, end - length)) if is_known else None
            )
        return grown

    def _total_at(self, total: Callable[[S], float], moment: datetime) -> float:
        """A total between two samples: it stood still at first, for nobody wrote one, and grew up to the second."""
        index = bisect_right(self._samples, moment, key=_at)
        after = self._samples[min(index, len(self._samples) - 1)]
        before = self._samples[max(0, index - 1)]
        began_at = max(before.at, after.at - SAMPLING)
        low, high = total(before), total(after)
        if moment <= began_at or after.at <= began_at:
            return low
        return low + (high - low) * ((moment - began_at) / (after.at - began_at))


def _at(sample: Sample) -> datetime:
    return sample.at
