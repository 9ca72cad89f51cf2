"""What becomes of an occurrence that is due while another of its task runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.scheduler import BOB, Stage

from bellringer.scheduler.model import Outcome
from bellringer.scheduler.occurrence_store import Dispatch

EXCLUSIVE = ["skip", "queue", "replace"]


async def next_of(stage: Stage, dispatch: Dispatch) -> Dispatch:
    """What waited for the end of another, dispatched again."""
    return await stage.hand_over(dispatch.task, dispatch.fire_at)


async def test_allow_lets_occurrences_run_side_by_side(stage: Stage) -> None:
    task = await stage.add_task(overlap="allow")
    assert await stage.verdicts(await stage.due(task, ago=1), await stage.due(task)) == ["run", "run"]


@pytest.mark.parametrize("overlap", EXCLUSIVE)
async def test_one_after_the_other_is_no_overlap(stage: Stage, overlap: str) -> None:
    task = await stage.add_task(overlap=overlap)
    await stage.end(await stage.running(task, ago=1))
    assert await stage.verdicts(await stage.due(task)) == ["run"]
    assert await stage.incidents() == []


@pytest.mark.parametrize("overlap", EXCLUSIVE)
async def test_of_two_that_start_in_one_batch_one_runs(stage: Stage, overlap: str) -> None:
    task = await stage.add_task(overlap=overlap)
    assert await stage.verdicts(await stage.due(task, ago=1), await stage.due(task)) == ["run", "gone"]


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_what_comes_due_in_the_batch_that_finds_the_other_dead_waits_for_nobody(
    stage: Stage, overlap: str
) -> None:
    task = await stage.add_task(overlap=overlap)
    dead = await stage.running(task, ago=1, executor=BOB)
    await stage.lose(BOB)
    second = await stage.due(task)
    assert await stage.verdicts(dead, second) == ["wait", "gone"]
    assert (await stage.occurrence(dead))["outcome"] == "crashed"
    assert await stage.verdicts(await next_of(stage, second)) == ["run"]


async def test_what_is_skipped_in_the_batch_that_finds_the_other_dead_is_skipped_before_that_ends(
    stage: Stage,
) -> None:
    task = await stage.add_task(overlap="skip")
    dead = await stage.running(task, ago=1, executor=BOB)
    await stage.lose(BOB)
    await stage.start(dead, await stage.due(task))
    crashed, skipped = await stage.occurrences(task)
    assert (crashed["outcome"], skipped["outcome"]) == ("crashed", "skipped")
    assert skipped["ended_at"] <= crashed["ended_at"]


async def test_what_was_skipped_in_one_batch_was_skipped_after_the_other_had_started(stage: Stage) -> None:
    task = await stage.add_task(overlap="skip")
    await stage.start(await stage.due(task, ago=1), await stage.due(task))
    runs, skipped = await stage.occurrences(task)
    assert (runs["outcome"], skipped["outcome"]) == (None, "skipped")
    assert runs["started_at"] <= skipped["ended_at"]


@pytest.mark.parametrize("overlap", EXCLUSIVE)
async def test_of_two_that_start_in_one_batch_the_earlier_runs_whatever_their_order(stage: Stage, overlap: str) -> None:
    task = await stage.add_task(overlap=overlap)
    first, second = await stage.due(task, ago=1), await stage.due(task)
    assert await stage.verdicts(second, first) == ["gone", "run"]


async def test_skip_skips_what_is_due_while_another_runs(stage: Stage) -> None:
    task = await stage.add_task(overlap="skip")
    await stage.running(task, ago=1)
    second = await stage.due(task)
    assert await stage.verdicts(second) == ["gone"]
    row = await stage.occurrence(second)
    assert (row["outcome"], row["detail"]) == ("skipped", "another occurrence was still running")
    (incident,) = await stage.incidents()
    assert (incident["kind"], incident["cause"], incident["fire_at"]) == ("skipped", "overlap", second.fire_at)
    assert (await stage.counts())["skipped"] == 1


async def test_queue_lets_one_wait_for_the_end_of_the_other(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    assert await stage.verdicts(second) == ["gone"]
    assert (await stage.occurrence(second))["stage"] == 3
    before = await stage.now()
    await stage.end(first)
    again = await next_of(stage, second)
    assert again.due_at >= before, "it is due from the end of the other on"
    assert await stage.verdicts(again) == ["run"]


async def test_the_first_message_of_one_that_waits_starts_nothing(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    await stage.verdicts(second)
    assert await stage.verdicts(second) == ["gone"]
    await stage.end(first)
    assert await stage.verdicts(second) == ["gone"]
    again = await next_of(stage, second)
    assert await stage.verdicts(second) == ["gone"]
    assert await stage.verdicts(again) == ["run"]


async def test_queue_skips_what_is_due_while_one_waits(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    await stage.running(task, ago=2)
    await stage.verdicts(await stage.due(task, ago=1), await stage.due(task))
    assert [row["stage"] for row in await stage.occurrences(task)] == [2, 3, 2]
    assert await stage.outcomes(task) == [None, None, "skipped"]
    assert [row["detail"] for row in await stage.incidents()] == ["another occurrence was waiting already"]


async def test_queued_occurrences_follow_one_another(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    running = await stage.running(task, ago=5)
    for ago in (4, 3, 2):
        waiting = await stage.due(task, ago=ago)
        await stage.verdicts(waiting)
        await stage.end(running)
        running = await next_of(stage, waiting)
        assert await stage.verdicts(running) == ["run"]
    await stage.end(running)
    assert await stage.outcomes(task) == ["succeeded"] * 4
    row = await stage.task(task)
    assert (row["running_fire_at"], row["waiting_fire_at"]) == (None, None)


async def test_replace_cancels_what_runs_and_waits_for_its_end(stage: Stage) -> None:
    task = await stage.add_task(overlap="replace")
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    assert await stage.verdicts(second) == ["gone"]
    assert (await stage.occurrence(first))["cancel_requested"]
    await stage.end(first, outcome=Outcome.CANCELLED)
    assert await stage.verdicts(await next_of(stage, second)) == ["run"]
    assert await stage.kinds() == []


async def test_replace_lets_the_latest_wait(stage: Stage) -> None:
    task = await stage.add_task(overlap="replace")
    first = await stage.running(task, ago=2)
    second, third = await stage.due(task, ago=1), await stage.due(task)
    await stage.verdicts(second)
    await stage.verdicts(third)
    assert [row["detail"] for row in await stage.incidents()] == ["a later occurrence took its place"]
    await stage.end(first, outcome=Outcome.CANCELLED)
    assert await stage.verdicts(await next_of(stage, third)) == ["run"]
    assert await stage.outcomes(task) == ["cancelled", "skipped", None]


async def test_an_earlier_occurrence_that_is_tried_again_replaces_no_later_one(stage: Stage) -> None:
    task = await stage.add_task(overlap="replace", max_retries=1)
    first = await stage.running(task, ago=2)
    await stage.end(first, outcome=Outcome.FAILED)
    second = await stage.running(task, ago=1)
    await stage.make_due(task)
    assert await stage.verdicts(await next_of(stage, first)) == ["gone"]
    assert await stage.outcomes(task) == ["skipped", None]
    assert not (await stage.occurrence(second))["cancel_requested"]
    assert [row["detail"] for row in await stage.incidents()] == ["a later occurrence took its place"]


async def test_an_earlier_occurrence_that_is_tried_again_replaces_no_later_one_that_waits(stage: Stage) -> None:
    task = await stage.add_task(overlap="replace", max_retries=1)
    first = await stage.running(task, ago=3)
    await stage.end(first, outcome=Outcome.FAILED)
    await stage.running(task, ago=2)
    third = await stage.due(task)
    await stage.verdicts(third)
    await stage.make_due(task)
    assert await stage.verdicts(await next_of(stage, first)) == ["gone"]
    assert await stage.outcomes(task) == ["skipped", None, None]
    assert (await stage.occurrence(third))["stage"] == 3


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_what_waits_starts_when_the_other_crashed(stage: Stage, overlap: str) -> None:
    task = await stage.add_task(overlap=overlap)
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    await stage.verdicts(second, executor=BOB)
    await stage.lose()
    await stage.verdicts(first, executor=BOB)
    assert await stage.verdicts(await next_of(stage, second), executor=BOB) == ["run"]


async def test_what_waits_starts_while_the_other_waits_to_be_tried_again(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue", max_retries=1)
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    await stage.verdicts(second)
    await stage.end(first, outcome=Outcome.FAILED)
    assert await stage.verdicts(await next_of(stage, second)) == ["run"]


@pytest.mark.parametrize("overlap", EXCLUSIVE)
async def test_an_attempt_after_a_failure_runs_when_nothing_else_does(stage: Stage, overlap: str) -> None:
    task = await stage.add_task(overlap=overlap, max_retries=1)
    first = await stage.running(task)
    await stage.end(first, outcome=Outcome.FAILED)
    await stage.make_due(task)
    assert await stage.verdicts(await next_of(stage, first)) == ["run"]


async def test_what_waits_starts_though_its_task_allows_overlaps_by_now(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    await stage.verdicts(second)
    await stage.change_task(task, overlap="allow")
    await stage.end(first)
    assert await stage.verdicts(await next_of(stage, second)) == ["run"]


async def test_one_that_was_cancelled_while_it_waited_does_not_start(stage: Stage) -> None:
    task = await stage.add_task(overlap="queue")
    first = await stage.running(task, ago=1)
    second = await stage.due(task)
    await stage.verdicts(second)
    await stage.fetch("SELECT bellringer.cancel_occurrence($1, $2)", task, second.fire_at)
    await stage.end(first)
    assert await stage.outcomes(task) == ["succeeded", "cancelled"]
    third = await stage.due(task)
    assert await stage.verdicts(third) == ["run"]


async def test_tasks_do_not_stand_in_each_others_way(stage: Stage) -> None:
    for name in ("one", "two"):
        await stage.running(await stage.add_task(name, overlap="skip"))
    assert await stage.incidents() == []


async def test_a_manual_run_is_an_occurrence_like_any_other(stage: Stage) -> None:
    task = await stage.add_task(overlap="skip")
    await stage.running(task, ago=1)
    fire_at = (await stage.fetch("SELECT * FROM bellringer.run_task($1)", task))[0]["moment"]
    assert await stage.verdicts(await stage.hand_over(task, fire_at)) == ["gone"]
    assert await stage.outcomes(task) == [None, "skipped"]


async def test_a_manual_run_while_nothing_runs_starts(stage: Stage) -> None:
    task = await stage.add_task(overlap="skip")
    fire_at = (await stage.fetch("SELECT * FROM bellringer.run_task($1)", task))[0]["moment"]
    assert fire_at - await stage.now() < timedelta(seconds=1)
    assert await stage.verdicts(await stage.hand_over(task, fire_at)) == ["run"]
