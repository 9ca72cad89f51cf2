from __future__ import annotations

from uuid import UUID

import pytest
from tests.support.scheduler_rows import add_occurrence, add_task, count, move_samples_back, report

from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler.model import IncidentKind, MissCause
from bellringer.scheduler.samples import Figures, Sampler, Samples, SchedulerSample

DAY_SECONDS = 24 * 3600.0


@pytest.fixture
def samples(database: Database) -> Samples:
    return Samples(database)


@pytest.fixture
def sampler(database: Database, samples: Samples) -> Sampler:
    return Sampler(database, samples)


@pytest.fixture
async def other(keys: Keys) -> Environment:
    """Another environment."""
    return (await keys.authenticate(await keys.create("acme", "staging", "test"))).environment


async def now(samples: Samples, environment: Environment) -> SchedulerSample:
    return (await samples.now([environment.id]))[environment.id]


async def figures(samples: Samples, environment: Environment) -> Figures:
    return (await samples.figures([environment.id]))[environment.id]


# What is known now


async def test_totals_are_those_of_the_environment_alone(
    database: Database, samples: Samples, environment: Environment, other: Environment
) -> None:
    await count(database, environment.id, {"tasks.picked": 5, "tasks.started": 3, "tasks.wait_ms": 40})
    await count(database, environment.id, {"tasks.picked": 2, "tasks.wait_0": 2, "tasks.wait_6": 1})
    await count(database, other.id, {"tasks.picked": 100})
    found = await now(samples, environment)
    assert (found.picked, found.started, found.ended, found.wait_milliseconds) == (7, 3, 0, 40)
    assert found.waits == (2, 0, 0, 0, 0, 0, 1)
    assert (await now(samples, other)).picked == 100


async def test_without_tasks_everything_is_nothing(samples: Samples) -> None:
    unknown = UUID(int=7)
    found = (await samples.figures([unknown]))[unknown]
    assert (found.pulled_per_minute, found.wait_seconds, found.completion_seconds) == (0, None, None)
    assert (found.now.picker_lag_seconds, found.now.queue_depth) == (0, 0)


async def test_pickers_are_behind_with_what_they_should_have_taken_two_minutes_ahead(
    database: Database, samples: Samples, environment: Environment, other: Environment
) -> None:
    await add_task(database, environment.id, "later", fires_in=600)
    assert (await now(samples, environment)).picker_lag_seconds == 0
    await add_task(database, environment.id, "soon", fires_in=100)
    assert (await now(samples, environment)).picker_lag_seconds == pytest.approx(20, abs=2)
    await add_task(database, environment.id, "over", fires_in=-30)
    assert (await now(samples, environment)).picker_lag_seconds == pytest.approx(150, abs=2)
    assert (await now(samples, other)).picker_lag_seconds == 0


async def test_nobody_is_behind_with_a_task_before_it_was_made(
    database: Database, samples: Samples, environment: Environment
) -> None:
    await add_task(database, environment.id, "at once", fires_in=1, modified_ago=3)
    assert (await now(samples, environment)).picker_lag_seconds == pytest.approx(3, abs=2)


async def test_the_depth_counts_what_is_due_and_has_not_started(
    database: Database, samples: Samples, environment: Environment, other: Environment
) -> None:
    task = await add_task(database, environment.id, "report")
    for stage, due_in in ((0, -2), (1, -3), (1, -4), (1, 5), (2, -6), (3, -7)):
        await add_occurrence(database, task, stage=stage, due_in=due_in)
    await add_occurrence(database, await add_task(database, other.id, "report"), stage=1, due_in=-1)
    assert (await now(samples, environment)).queue_depth == 3
    assert (await now(samples, other)).queue_depth == 1


async def test_figures_are_of_the_last_minute_and_the_last_hour(
    database: Database, samples: Samples, sampler: Sampler, environment: Environment
) -> None:
    await add_task(database, environment.id, "report")
    await count(database, environment.id, {"tasks.picked": 100, "tasks.started": 100, "tasks.wait_ms": 900_000})
    await sampler.run_once()
    await move_samples_back(database, 3500)
    await count(database, environment.id, {"tasks.picked": 10, "tasks.started": 10, "tasks.wait_ms": 500})
    await count(database, environment.id, {"tasks.ended": 4, "tasks.run_ms": 10_000})
    await sampler.run_once()
    await move_samples_back(database, 110)
    await count(database, environment.id, {"tasks.picked": 7})
    found = await figures(samples, environment)
    assert found.pulled_per_minute == 7
    assert found.wait_seconds == 0.05
    assert found.completion_seconds == 2.5


async def test_incidents_are_counted_by_kind_and_misses_by_cause(
    database: Database, samples: Samples, environment: Environment
) -> None:
    await report(database, environment.id, "missed", cause="queue full")
    await report(database, environment.id, "missed", cause="queue full")
    await report(database, environment.id, "missed", cause="picker late")
    await report(database, environment.id, "skipped", cause="misfire", fire_times=40)
    await report(database, environment.id, "failed")
    found = await figures(samples, environment)
    assert found.misses[MissCause.QUEUE_FULL] == 2
    assert found.misses[MissCause.PICKER_LATE] == 1
    assert found.misses[MissCause.DATABASE_SLOW] == 0
    assert found.incidents[IncidentKind.MISSED] == 3
    assert found.incidents[IncidentKind.SKIPPED] == 40
    assert found.incidents[IncidentKind.FAILED] == 1


# What is kept


async def test_a_sample_is_kept_when_something_has_changed(
    database: Database, samples: Samples, sampler: Sampler, environment: Environment, other: Environment
) -> None:
    await add_task(database, environment.id, "report")
    await sampler.run_once()
    await sampler.run_once()
    assert len(await samples.over(environment.id, DAY_SECONDS)) == 1
    await count(database, environment.id, {"tasks.picked": 1, "tasks.wait_2": 1})
    await sampler.run_once()
    first, second = await samples.over(environment.id, DAY_SECONDS)
    assert (first.picked, second.picked) == (0, 1)
    assert second.waits == (0, 0, 1, 0, 0, 0, 0)
    assert await samples.over(other.id, DAY_SECONDS) == []


async def test_the_sample_that_held_at_the_beginning_is_read_and_kept(
    database: Database, samples: Samples, sampler: Sampler, environment: Environment
) -> None:
    await add_task(database, environment.id, "report")
    for _ in range(3):
        await count(database, environment.id, {"tasks.picked": 1})
        await sampler.run_once()
        await move_samples_back(database, 13 * 3600)
    assert [sample.picked for sample in await samples.over(environment.id, DAY_SECONDS)] == [2, 3]
    assert [sample.picked for sample in await samples.over(environment.id, 3600)] == [3]
    await sampler.run_once()
    assert [sample.picked for sample in await samples.over(environment.id, 100 * DAY_SECONDS)] == [2, 3]


async def test_one_process_samples(database: Database, samples: Samples, environment: Environment) -> None:
    await add_task(database, environment.id, "report")
    first, second = Sampler(database, samples), Sampler(database, samples)
    await first.run_once()
    await count(database, environment.id, {"tasks.picked": 1})
    await second.run_once()
    assert len(await samples.over(environment.id, DAY_SECONDS)) == 1
