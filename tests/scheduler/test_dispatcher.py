"""The dispatcher: what is due soon becomes a message, each attempt one."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest
from tests.support.scheduler import Stage

from bellringer.broker import Queue
from bellringer.kernel.errors import Unavailable
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.model import Outcome
from bellringer.scheduler.occurrence_store import Dispatch
from bellringer.scheduler.picker import Dispatcher
from bellringer.scheduler.queues import functions_queue


@pytest.fixture
def dispatcher(stage: Stage) -> Dispatcher:
    return Dispatcher(stage.database, stage.broker, SchedulerConfig())


async def dispatches_in(stage: Stage, queue: Queue) -> list[Dispatch]:
    messages = await stage.broker.claim(queue, 1000, wait_seconds=0)
    return [msgspec.json.decode(message.body, type=Dispatch) for message in messages]


async def test_what_is_due_soon_is_handed_over(stage: Stage, dispatcher: Dispatcher) -> None:
    task = await stage.add_task()
    now = await stage.now()
    soon, later = now + timedelta(seconds=4), now + timedelta(seconds=60)
    await stage.pick(task, soon, later)
    assert not await dispatcher.run_once()
    (dispatch,) = await dispatches_in(stage, stage.queue)
    first, second = await stage.occurrences(task)
    assert (dispatch.task, dispatch.fire_at, dispatch.attempt, dispatch.due_at) == (task, soon, 1, soon)
    assert (first["stage"], first["dispatched_at"]) == (1, dispatch.dispatched_at)
    assert (second["stage"], second["dispatched_at"]) == (0, None)


async def test_a_message_names_its_dispatch_to_the_microsecond(stage: Stage, dispatcher: Dispatcher) -> None:
    task = await stage.add_task()
    await stage.pick(task, await stage.now() - timedelta(microseconds=123_457))
    await dispatcher.run_once()
    (dispatch,) = await dispatches_in(stage, stage.queue)
    assert await stage.verdicts(dispatch) == ["run"]


async def test_what_is_due_first_is_handed_over_first(stage: Stage, dispatcher: Dispatcher) -> None:
    now = await stage.now()
    tasks = [await stage.add_task(f"task{number}") for number in range(3)]
    fire_ats = [now + timedelta(seconds=seconds) for seconds in (2, 0, 1)]
    for task, fire_at in zip(tasks, fire_ats, strict=True):
        await stage.pick(task, fire_at)
    await dispatcher.run_once()
    assert [one.fire_at for one in await dispatches_in(stage, stage.queue)] == sorted(fire_ats)


async def test_each_attempt_is_one_message(stage: Stage, dispatcher: Dispatcher) -> None:
    task = await stage.add_task(max_retries=1)
    await stage.pick(task, await stage.now())
    await dispatcher.run_once()
    await dispatcher.run_once()
    (first,) = await dispatches_in(stage, stage.queue)
    await stage.start(first)
    await stage.end(first, outcome=Outcome.FAILED)
    await stage.make_due(task)
    await dispatcher.run_once()
    (second,) = await dispatches_in(stage, stage.queue)
    assert (second.fire_at, second.attempt) == (first.fire_at, 2)


async def test_every_task_has_its_queue(stage: Stage, dispatcher: Dispatcher) -> None:
    await stage.pick(await stage.add_task("call"), await stage.now())
    await dispatcher.run_once()
    functions = await functions_queue(stage.broker, stage.environment_id)  # made after the dispatcher had looked
    function = await stage.add_task("function", queue=functions.number)
    await stage.pick(function, await stage.now())
    await dispatcher.run_once()
    assert [one.task for one in await dispatches_in(stage, functions)] == [function]
    assert len(await dispatches_in(stage, stage.queue)) == 1


async def test_a_full_batch_is_followed_by_another(stage: Stage) -> None:
    dispatcher = Dispatcher(stage.database, stage.broker, SchedulerConfig(batch=2))
    now = await stage.now()
    await stage.pick(await stage.add_task(), *(now - timedelta(seconds=ago) for ago in range(5)))
    assert [await dispatcher.run_once() for _ in range(3)] == [True, True, False]
    assert len(await dispatches_in(stage, stage.queue)) == 5


async def test_several_dispatchers_hand_over_everything_once(stage: Stage) -> None:
    now = await stage.now()
    await stage.pick(await stage.add_task(), *(now - timedelta(seconds=ago) for ago in range(50)))
    dispatchers = [Dispatcher(stage.database, stage.broker, SchedulerConfig(batch=7)) for _ in range(4)]

    async def hand_over_all(one: Dispatcher) -> None:
        while await one.run_once():
            pass

    await asyncio.gather(*map(hand_over_all, dispatchers))
    await hand_over_all(dispatchers[0])
    found = await dispatches_in(stage, stage.queue)
    assert len(found) == len(set(found)) == 50


async def test_a_message_that_could_not_be_published_was_not_handed_over(
    stage: Stage, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Unavailable

    task = await stage.add_task()
    await stage.pick(task, await stage.now())
    with monkeypatch.context() as patched:
        patched.setattr(stage.broker, "publish", fail)
        with pytest.raises(Unavailable):
            await dispatcher.run_once()
    assert [row["stage"] for row in await stage.occurrences(task)] == [0]
    await dispatcher.run_once()
    assert len(await dispatches_in(stage, stage.queue)) == 1


async def test_what_is_cancelled_before_its_time_is_not_handed_over(stage: Stage, dispatcher: Dispatcher) -> None:
    task = await stage.add_task()
    fire_at = await stage.now() + timedelta(seconds=2)
    await stage.pick(task, fire_at)
    await stage.fetch("SELECT bellringer.cancel_occurrence($1, $2)", task, fire_at)
    await dispatcher.run_once()
    assert await dispatches_in(stage, stage.queue) == []
