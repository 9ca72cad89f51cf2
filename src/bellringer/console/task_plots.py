"""The scheduler's five metrics over time, as plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bellringer.console.course import SAMPLING, Course
from bellringer.console.depth import Period
from bellringer.console.plot import Buckets, Plot, Series, draw
from bellringer.scheduler.model import WAIT_BOUNDS_SECONDS
from bellringer.scheduler.samples import SchedulerSample

_SHORT_SECONDS = 2.0  # what never takes longer is told in milliseconds
_PROMPT, _PROMISED = WAIT_BOUNDS_SECONDS.index(1.0) + 1, WAIT_BOUNDS_SECONDS.index(30.0) + 1

Total = Callable[[SchedulerSample], float]


def task_plots(samples: Sequence[SchedulerSample], current: SchedulerSample, period: Period) -> tuple[Plot, ...]:
    """Pulled, wait time, time to completion, picker lag and queue depth, and starts by their wait.

    Over a period up to `current`.
    """
    buckets = period.buckets(current.at)
    course = Course(_complete(samples, current, period))

    def lines(name: str, unit: str, *series: Series, stacked: bool = False) -> Plot:
        return draw(name, unit, buckets, series, stacked=stacked, label_seconds=period.label_seconds)

    def seconds(name: str, kind: str, series_name: str, values: list[float | None]) -> Plot:
        is_short = all(value is None or value < _SHORT_SECONDS for value in values)
        shown = [None if value is None else value * 1000 for value in values] if is_short else values
        return lines(name, "milliseconds" if is_short else "seconds", Series(kind=kind, name=series_name, values=shown))

    def per_minute(kind: str, name: str, total: Total) -> Series:
        return Series(kind=kind, name=name, values=_per_minute(course, total, buckets))

    return (
        lines(
            "Tasks pulled",
            "a minute",
            per_minute("published", "pulled", lambda sample: sample.picked),
            per_minute("finished", "ended", lambda sample: sample.ended),
            per_minute("failed", "failed", lambda sample: sample.failed),
        ),
        lines(
            "Starts by wait",
            "a minute",
            per_minute("finished", "up to 1 s", lambda sample: sum(sample.waits[:_PROMPT])),
            per_minute("published", "up to 30 s", lambda sample: sum(sample.waits[_PROMPT:_PROMISED])),
            per_minute("failed", "later", lambda sample: sum(sample.waits[_PROMISED:])),
            stacked=True,
        ),
        seconds("Wait time", "published", "from due time to start, on average", _wait(course, buckets)),
        seconds("Time to completion", "finished", "from start to end, on average", _completion(course, buckets)),
        lines("Picker lag", "seconds", _highest("delayed", "behind", course, buckets, _lag)),
        lines("Queue depth", "tasks", _highest("in-flight", "due and not started", course, buckets, _depth)),
    )


def _lag(sample: SchedulerSample) -> float:
    return sample.picker_lag_seconds


def _depth(sample: SchedulerSample) -> float:
    return sample.queue_depth


def _complete(samples: Sequence[SchedulerSample], current: SchedulerSample, period: Period) -> list[SchedulerSample]:
    """The samples, from nothing, where they begin within the period, to what is now."""
    known = [sample for sample in samples if sample.at < current.at] + [current]
    if (current.at - known[0].at).total_seconds() < period.seconds:
        known.insert(0, SchedulerSample(at=known[0].at - SAMPLING))
    return known


def _per_minute(course: Course[SchedulerSample], total: Total, buckets: Buckets) -> list[float | None]:
    return [
        None if value is None else round(value * 60 / buckets.seconds, 2) for value in course.growth(total, buckets)
    ]


def _wait(course: Course[SchedulerSample], buckets: Buckets) -> list[float | None]:
    waited = course.growth(lambda sample: sample.wait_milliseconds, buckets)
    return _quotients(waited, course.growth(lambda sample: sample.started, buckets))


def _completion(course: Course[SchedulerSample], buckets: Buckets) -> list[float | None]:
    ran = course.growth(lambda sample: sample.run_milliseconds, buckets)
    return _quotients(ran, course.growth(lambda sample: sample.ended, buckets))


def _quotients(milliseconds: Sequence[float | None], counts: Sequence[float | None]) -> list[float | None]:
    """Seconds each, where there were any."""
    return [
        round(time / 1000 / count, 3) if time is not None and count else None
        for time, count in zip(milliseconds, counts, strict=True)
    ]


def _highest(kind: str, name: str, course: Course[SchedulerSample], buckets: Buckets, value: Total) -> Series:
    held = [course.held(*buckets.bounds(index)) for index in range(buckets.count)]
    return Series(kind=kind, name=name, values=[max(map(value, samples), default=None) for samples in held])
