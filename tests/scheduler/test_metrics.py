from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from tests.support.scheduler_rows import add_task, count, report

from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler.metrics import refresh_scheduler_metrics
from bellringer.scheduler.samples import Samples


@pytest.fixture
async def told(database: Database, environment: Environment) -> list[str]:
    """What Prometheus reads of an environment with four starts, two ends and three incidents."""
    await add_task(database, environment.id, "soon", fires_in=100)
    await count(
        database,
        environment.id,
        {
            "tasks.picked": 6,
            "tasks.started": 4,
            "tasks.wait_ms": 42_000,
            "tasks.wait_0": 2,
            "tasks.wait_3": 1,
            "tasks.wait_6": 1,
            "tasks.ended": 2,
            "tasks.run_ms": 3_000,
            "tasks.failed": 1,
        },
    )
    await report(database, environment.id, "missed", cause="executor busy")
    await report(database, environment.id, "timed_out")
    await report(database, environment.id, "skipped", cause="misfire", fire_times=9)
    await refresh_scheduler_metrics(Samples(database))
    label = f'environment="{environment.id}"'
    lines = generate_latest().decode().splitlines()
    return [
        line.replace(label, "").replace("{,", "{").replace(",}", "}").replace("{}", "")
        for line in lines
        if label in line
    ]


async def test_the_five_metrics_are_told(told: list[str]) -> None:
    assert "bellringer_scheduler_pulled_per_minute 6.0" in told
    assert "bellringer_scheduler_average_wait_seconds 10.5" in told
    assert "bellringer_scheduler_average_run_seconds 1.5" in told
    assert any(line.startswith("bellringer_scheduler_picker_lag_seconds 2") for line in told)
    assert "bellringer_scheduler_queue_depth 0.0" in told


async def test_waits_are_a_histogram(told: list[str]) -> None:
    buckets = [line.partition("_bucket")[2] for line in told if "wait_seconds_bucket" in line]
    assert buckets == [
        '{le="0.1"} 2.0',
        '{le="0.5"} 2.0',
        '{le="1"} 2.0',
        '{le="5"} 3.0',
        '{le="10"} 3.0',
        '{le="30"} 3.0',
        '{le="+Inf"} 4.0',
    ]
    assert "bellringer_scheduler_wait_seconds_sum 42.0" in told
    assert "bellringer_scheduler_wait_seconds_count 4.0" in told
    assert "bellringer_scheduler_run_seconds_count 2.0" in told


async def test_misses_are_told_by_cause_and_incidents_by_kind(told: list[str]) -> None:
    assert 'bellringer_scheduler_missed_starts_total{cause="executor busy"} 1.0' in told
    assert 'bellringer_scheduler_missed_starts_total{cause="picker late"} 0.0' in told
    assert 'bellringer_scheduler_incidents_total{kind="timed_out"} 1.0' in told
    assert 'bellringer_scheduler_incidents_total{kind="skipped"} 9.0' in told
    assert 'bellringer_scheduler_occurrences_total{event="failed"} 1.0' in told


async def test_an_environment_without_tasks_is_not_told(database: Database, told: list[str]) -> None:
    assert told
    async with database.connection() as connection:
        await connection.execute("DELETE FROM bellringer.tasks")
    await refresh_scheduler_metrics(Samples(database))
    assert "bellringer_scheduler_queue_depth{" not in generate_latest().decode()
