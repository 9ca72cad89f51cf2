"""The scheduler's metrics, read when they are asked for; none of them is the result of a scan of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import nan
from uuid import UUID

from prometheus_client import REGISTRY
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from bellringer.edge.app import Routes
from bellringer.scheduler.model import WAIT_BOUNDS_SECONDS
from bellringer.scheduler.samples import Figures, Samples

_BOUNDS = [f"{bound:g}" for bound in WAIT_BOUNDS_SECONDS] + ["+Inf"]


class _Collector(Collector):
    """Tells Prometheus the figures that were read last. The totals are the database's, so that every process agrees."""

    def __init__(self) -> None:
        self.figures: Mapping[UUID, Figures] = {}

    def collect(self) -> Iterator[Metric]:
        """All families, with a line for each environment."""
        yield from self._metrics_of_five()
        yield from self._totals()

    def _metrics_of_five(self) -> Iterator[Metric]:
        labels = ["environment"]
        pulled = GaugeMetricFamily(
            "bellringer_scheduler_pulled_per_minute", "Fire times that pickers took in the last minute", labels=labels
        )
        wait = HistogramMetricFamily("bellringer_scheduler_wait_seconds", "From due time to start", labels=labels)
        average_wait = GaugeMetricFamily(
            "bellringer_scheduler_average_wait_seconds", "From due time to start, in the last hour", labels=labels
        )
        run = SummaryMetricFamily("bellringer_scheduler_run_seconds", "From start to end", labels=labels)
        average_run = GaugeMetricFamily(
            "bellringer_scheduler_average_run_seconds", "From start to end, in the last hour", labels=labels
        )
        lag = GaugeMetricFamily(
            "bellringer_scheduler_picker_lag_seconds",
            "By how much pickers are behind with the oldest fire time that they should have taken",
            labels=labels,
        )
        depth = GaugeMetricFamily(
            "bellringer_scheduler_queue_depth", "Occurrences that are due and have not started", labels=labels
        )
        for environment, figures in self.figures.items():
            key, now = [str(environment)], figures.now
            pulled.add_metric(key, figures.pulled_per_minute)
            counts = zip(_BOUNDS, accumulate(now.waits), strict=True)
            wait.add_metric(key, list(counts), sum_value=now.wait_milliseconds / 1000)
            average_wait.add_metric(key, nan if figures.wait_seconds is None else figures.wait_seconds)
            run.add_metric(key, count_value=now.ended, sum_value=now.run_milliseconds / 1000)
            average_run.add_metric(key, nan if figures.completion_seconds is None else figures.completion_seconds)
            lag.add_metric(key, now.picker_lag_seconds)
            depth.add_metric(key, now.queue_depth)
        return iter((pulled, wait, average_wait, run, average_run, lag, depth))

    def _totals(self) -> Iterator[Metric]:
        occurrences = CounterMetricFamily(
            "bellringer_scheduler_occurrences", "What became of fire times so far", labels=["environment", "event"]
        )
        missed = CounterMetricFamily(
            "bellringer_scheduler_missed_starts",
            "Starts later than promised, by what made them late",
            labels=["environment", "cause"],
        )
        incidents = CounterMetricFamily(
            "bellringer_scheduler_incidents", "What did not go as planned, by its kind", labels=["environment", "kind"]
        )
        for environment, figures in self.figures.items():
            for event in ("picked", "started", "ended", "failed", "skipped", "missed"):
                occurrences.add_metric([str(environment), event], getattr(figures.now, event))
            for cause, count in figures.misses.items():
                missed.add_metric([str(environment), cause], count)
            for kind, count in figures.incidents.items():
                incidents.add_metric([str(environment), kind], count)
        return iter((occurrences, missed, incidents))


_COLLECTOR = _Collector()
REGISTRY.register(_COLLECTOR)


def scheduler_metrics(samples: Samples) -> Routes:
    """What the edge has to do before it tells the metrics."""
    return Routes(refresh_metrics=[lambda: refresh_scheduler_metrics(samples)])


async def refresh_scheduler_metrics(samples: Samples) -> None:
    """Read the figures of every environment that has tasks; those of others go."""
    _COLLECTOR.figures = await samples.figures(await samples.environments())
