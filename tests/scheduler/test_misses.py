"""A start later than promised is an incident, and says what made it late."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.scheduler import Stage

from bellringer.scheduler.model import MissCause, Outcome

TIMES = """
UPDATE bellringer.occurrences SET due_at = clock_timestamp() - interval '60 s',
    picked_at = clock_timestamp() - make_interval(secs => $1),
    dispatched_at = clock_timestamp() - make_interval(secs => $2)
RETURNING attempt, dispatched_at, due_at
"""


@pytest.mark.parametrize(
    ("picked", "dispatched", "held", "ready", "cause"),
    [
        (8.0, 6.0, 4.0, 2.0, MissCause.PICKER_LATE),
        (70.0, 8.0, 4.0, 2.0, MissCause.PICKER_LATE),
        (70.0, 65.0, 4.0, 2.0, MissCause.QUEUE_FULL),
        (70.0, 65.0, 63.0, 2.0, MissCause.EXECUTOR_BUSY),
        (70.0, 65.0, 63.0, 59.0, MissCause.DATABASE_SLOW),
    ],
)
async def test_the_stage_that_took_longest_is_the_cause(
    stage: Stage, picked: float, dispatched: float, held: float, ready: float, cause: MissCause
) -> None:
    dispatch = await stage.due(await stage.add_task())
    (row,) = await stage.fetch(TIMES, picked, dispatched)
    late = type(dispatch)(task=dispatch.task, fire_at=dispatch.fire_at, **row)
    await stage.start(late, held=held, ready=ready)
    assert (await stage.occurrence(late))["missed_cause"] == cause
    (incident,) = await stage.incidents()
    assert (incident["kind"], incident["cause"]) == ("missed", cause)
    assert incident["detail"].startswith("started 60.")
    assert (await stage.counts())["missed"] == 1


async def test_a_start_within_the_promise_is_no_miss(stage: Stage) -> None:
    dispatch = await stage.due(await stage.add_task(), ago=29)
    await stage.start(dispatch)
    assert (await stage.occurrence(dispatch))["missed_cause"] is None
    assert await stage.incidents() == []


async def test_the_promise_is_a_setting(stage: Stage) -> None:
    await stage.start(await stage.due(await stage.add_task(), ago=3), promise=2.0)
    assert await stage.kinds() == ["missed"]


async def test_a_miss_is_reported_once(stage: Stage) -> None:
    dispatch = await stage.due(await stage.add_task(), ago=60)
    await stage.fetch("UPDATE bellringer.occurrences SET missed_cause = 'queue full'")  # by the watcher
    await stage.start(dispatch)
    assert (await stage.occurrence(dispatch))["missed_cause"] == "queue full"
    assert await stage.incidents() == []
    assert "missed" not in await stage.counts()


async def test_the_next_attempt_has_a_promise_of_its_own(stage: Stage) -> None:
    task = await stage.add_task(max_retries=1)
    first = await stage.due(task, ago=60)
    await stage.start(first)
    await stage.end(first, outcome=Outcome.FAILED)
    await stage.make_due(task)
    second = await stage.hand_over(task, first.fire_at)
    await stage.start(second)
    assert (await stage.occurrence(second))["missed_cause"] is None
    assert await stage.kinds() == ["missed"]


async def test_what_waited_for_the_end_of_another_is_not_late(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    first = await stage.due(task, ago=20)
    await stage.verdicts(first)
    second = await stage.due(task)
    await stage.verdicts(second)
    await stage.fetch(
        "UPDATE bellringer.occurrences SET due_at = due_at - interval '1 hour' WHERE fire_at = $1", second.fire_at
    )
    await stage.end(first)
    again = await stage.hand_over(task, second.fire_at)
    assert again.due_at > second.due_at - timedelta(seconds=1)
    await stage.start(again)
    assert await stage.incidents() == []
