"""Executors share what is due: none sits on it while another has a free slot."""

from __future__ import annotations

import pytest
from tests.support.scheduler import Recorder, Stage, executing
from tests.support.waiting import until

from bellringer.broker import Broker
from bellringer.scheduler import executor as executor_module
from bellringer.scheduler.executor import Executor


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "_LONG_RUN_SECONDS", 0.1)


async def dispatch(stage: Stage, number: int) -> None:
    """So many occurrences that are due, on their queue."""
    await stage.post(*[await stage.due(await stage.add_task(f"task{index}")) for index in range(number)])


async def test_what_waits_behind_long_runs_goes_to_an_executor_with_free_slots(stage: Stage) -> None:
    await dispatch(stage, 6)
    first, second = Recorder(), Recorder()
    first.is_open.clear()
    async with executing(stage, first, concurrency=2):
        await first.next()
        await first.next()
        async with executing(stage, second, broker=Broker(stage.database), concurrency=2):
            helped = {(await second.next()).task for _ in range(4)}
    assert len(first.invocations) == 2
    assert helped == {f"task{index}" for index in range(6)} - {run.task for run in first.invocations}


async def gave_back(executor: Executor) -> bool:
    """Whether it has nothing but what runs."""
    return executor.standing() == (2, 0)


async def test_an_executor_alone_with_long_runs_comes_back_to_what_waited(stage: Stage) -> None:
    await dispatch(stage, 6)
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller, concurrency=2) as executor:
        await caller.next()
        await caller.next()
        await until(lambda: gave_back(executor))
        caller.is_open.set()
        for _ in range(4):
            await caller.next()
    assert sorted(run.task for run in caller.invocations) == [f"task{index}" for index in range(6)]
