from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.kubernetes_api import TOKEN, KubernetesApi, kubernetes_api
from tests.support.scaling_decisions import ScalingDecision, scaling_decisions
from tests.support.scheduler_tasks import HOOK, insert_durations, insert_occurrences, insert_tasks
from tests.support.waiting import until

from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler.orchestrator import OrchestratorConfig, orchestrator_of
from bellringer.scheduler.orchestrator.config import KubernetesConfig, WebhookConfig
from bellringer.scheduler.orchestrator.drivers import driver_of
from bellringer.scheduler.orchestrator.loops import Orchestrator

CONFIG = OrchestratorConfig(concurrency=10, minimum=1, maximum=50)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    with kubernetes_api(tmp_path) as running:
        yield running


@pytest.fixture
def kubernetes(api: KubernetesApi, tmp_path: Path) -> OrchestratorConfig:
    (tmp_path / "token").write_text(TOKEN)
    settings = KubernetesConfig(
        deployment="executors",
        namespace="bellringer",
        url=api.url,
        token_file=str(tmp_path / "token"),
        ca_file=str(api.ca_file),
    )
    return msgspec.structs.replace(CONFIG, driver="kubernetes", kubernetes=settings)


def orchestrator(database: Database, config: OrchestratorConfig) -> Orchestrator:
    return Orchestrator(database, driver_of(config), config)


async def stop(service: Orchestrator) -> None:
    stopping = asyncio.Event()
    stopping.set()
    await service.run(stopping)


async def rounds(database: Database) -> list[ScalingDecision]:
    async with database.connection() as connection:
        return await scaling_decisions(connection)


async def let_time_pass(database: Database, seconds: int) -> None:
    """Move everything that was written down into the past."""
    async with database.connection() as connection:
        await connection.execute(
            "UPDATE bellringer.scaling_decisions SET at = at - make_interval(secs => $1)", float(seconds)
        )


async def plan_burst(database: Database, environment: Environment, *, in_seconds: int, copies: int) -> None:
    async with database.connection() as connection:
        await insert_tasks(connection, environment.id, f"at-{in_seconds}-", in_seconds=in_seconds, copies=copies)
        await insert_durations(connection, f"http {HOOK.url}", [3.0])


async def test_executors_are_ordered_before_a_burst_and_let_go_after_quiet_minutes(
    database: Database, environment: Environment, kubernetes: OrchestratorConfig, api: KubernetesApi
) -> None:
    await plan_burst(database, environment, in_seconds=120, copies=1000)
    service = orchestrator(database, kubernetes)
    await service.look()
    assert api.replicas == 11  # 1,000 runs of 3 s, the next step of 2 %, share 100.1 slots, ten of each executor

    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.tasks SET next_fire_at = NULL")
    for _ in range(4):
        await let_time_pass(database, 60)
        await service.look()
        assert api.replicas == 11
    await let_time_pass(database, 60)
    await service.look()
    assert api.replicas == 1

    first, *quiet, last = await rounds(database)
    assert (first.current, first.needed, first.desired, first.runs_due, first.problem) == (2, 11, 11, 1000, None)
    assert first.reason.startswith("100.1 slots")
    assert {line.reason for line in quiet[:4]} == {"what the last 300 s needed is not known yet"}
    assert (last.current, last.needed, last.desired) == (11, 1, 1)


async def test_a_driver_that_fails_is_written_down_and_asked_again(
    database: Database, environment: Environment, kubernetes: OrchestratorConfig, api: KubernetesApi
) -> None:
    await plan_burst(database, environment, in_seconds=120, copies=1000)
    service = orchestrator(database, kubernetes)
    api.token = "another"
    await service.look()
    api.token = TOKEN
    await service.look()
    refused, done = await rounds(database)
    assert refused.current is None
    assert refused.problem is not None
    assert refused.problem.endswith("401 Unauthorized")
    assert (done.problem, done.desired, api.replicas) == (None, 11, 11)


async def test_an_order_that_was_refused_is_given_again(
    database: Database, environment: Environment, kubernetes: OrchestratorConfig, api: KubernetesApi
) -> None:
    await plan_burst(database, environment, in_seconds=120, copies=1000)
    service = orchestrator(database, kubernetes)
    api.refused_patches = 1
    await service.look()
    assert api.replicas == 2
    await service.look()
    assert api.replicas == 11
    assert [line.problem is None for line in await rounds(database)] == [False, True]


async def test_runs_that_wait_bring_more_executors_than_the_forecast(
    database: Database, environment: Environment, kubernetes: OrchestratorConfig, api: KubernetesApi
) -> None:
    async with database.connection() as connection:
        tasks = await insert_tasks(connection, environment.id, "late", in_seconds=900, copies=5)
        await insert_occurrences(connection, tasks, in_seconds=-15, stage=1)
    await orchestrator(database, kubernetes).run_once()
    assert api.replicas == 3
    (line,) = await rounds(database)
    assert line.waiting == 5
    assert line.reason.startswith("5 runs wait, the oldest for 1")


async def test_a_dry_run_follows_what_it_would_have_done(database: Database, environment: Environment) -> None:
    await plan_burst(database, environment, in_seconds=120, copies=1000)
    before = orchestrator(database, CONFIG)
    await before.run_once()
    await stop(before)
    await orchestrator(database, CONFIG).run_once()
    first, second = await rounds(database)
    assert (first.driver, first.current, first.desired) == ("dry-run", 0, 11)
    assert (second.current, second.desired) == (11, 11)


async def test_only_one_of_several_processes_orders(database: Database) -> None:
    first, second = orchestrator(database, CONFIG), orchestrator(database, CONFIG)
    await first.run_once()
    await second.run_once()
    assert len(await rounds(database)) == 1
    await stop(first)
    await second.run_once()
    assert len(await rounds(database)) == 2


async def test_it_looks_ahead_every_minute_and_earlier_when_runs_wait(
    database: Database, environment: Environment
) -> None:
    service = orchestrator(database, CONFIG)
    for _ in range(3):
        await service.run_once()
    assert len(await rounds(database)) == 1
    async with database.connection() as connection:
        tasks = await insert_tasks(connection, environment.id, "late", in_seconds=900)
        await insert_occurrences(connection, tasks, in_seconds=-15, stage=1)
    await service.run_once()
    assert len(await rounds(database)) == 2


async def test_when_it_stops_another_takes_over_at_once(database: Database) -> None:
    stopping = asyncio.Event()
    service = orchestrator_of(database, CONFIG)
    running = asyncio.create_task(service.run(stopping))

    async def has_looked() -> bool:
        return len(await rounds(database)) == 1

    await until(has_looked)
    stopping.set()
    await running
    await orchestrator(database, CONFIG).run_once()
    assert len(await rounds(database)) == 2


async def test_a_webhook_that_nobody_answers_stops_nothing(database: Database) -> None:
    config = msgspec.structs.replace(CONFIG, driver="webhook", webhook=WebhookConfig(url="http://127.0.0.1:1/"))
    service = orchestrator(database, config)
    await service.look()
    await service.look()
    assert [line.problem is None for line in await rounds(database)] == [False, False]
