"""The transitions of an occurrence in the database: picked, dispatched, started, ended, tried again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest
from tests.support.scheduler import ALICE, BOB, HOOK, Stage

from bellringer.scheduler import history_store, occurrence_store
from bellringer.scheduler.model import Outcome
from bellringer.scheduler.occurrence_store import Dispatch

FAILURES = [Outcome.FAILED, Outcome.TIMED_OUT]


# Start


async def test_what_is_due_runs_with_what_its_task_says(stage: Stage) -> None:
    task = await stage.add_task("report", payload='{"a": 1}', time_limit_seconds=7.5)
    (started,) = await stage.start(await stage.due(task))
    assert (started.verdict, started.name, started.environment_id) == ("run", "report", stage.environment_id)
    assert (msgspec.json.decode(started.call), started.payload) == (msgspec.json.decode(HOOK), '{"a": 1}')
    assert (started.time_limit_seconds, started.is_recurring) == (7.5, True)


async def test_a_one_time_task_is_not_recurring(stage: Stage) -> None:
    task = await stage.add_task(once_at=await stage.now())
    assert not (await stage.start(await stage.due(task)))[0].is_recurring


async def test_a_start_is_recorded_with_its_executor(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.due(task)
    before = await stage.now()
    await stage.start(dispatch, executor=BOB)
    row = await stage.occurrence(dispatch)
    assert (row["stage"], row["executor"], row["ended_at"]) == (2, BOB, None)
    assert before <= row["started_at"]


async def test_nothing_starts_before_it_is_due(stage: Stage) -> None:
    task = await stage.add_task()
    fire_at = await stage.now() + timedelta(seconds=3)
    await stage.pick(task, fire_at)
    dispatch = await stage.hand_over(task, fire_at)
    (started,) = await stage.start(dispatch)
    assert started.verdict == "wait"
    assert started.wait_seconds == pytest.approx(3, abs=1)
    assert (await stage.occurrence(dispatch))["started_at"] is None


async def test_an_attempt_starts_once(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task, executor=ALICE)
    assert await stage.verdicts(dispatch, executor=BOB) == ["elsewhere"]


async def test_an_attempt_starts_once_in_one_batch(stage: Stage) -> None:
    dispatch = await stage.due(await stage.add_task())
    assert sorted(await stage.verdicts(dispatch, dispatch)) == ["gone", "run"]
    assert (await stage.counts())["started"] == 1


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_an_attempt_starts_once_however_many_executors_ask_at_a_time(stage: Stage, overlap: str) -> None:
    dispatch = await stage.due(await stage.add_task(overlap=overlap))
    await stage.beat(ALICE)
    await stage.beat(BOB)
    verdicts = await asyncio.gather(*(stage.verdicts(dispatch, executor=one) for one in (ALICE, BOB) * 3))
    assert sum(verdict == ["run"] for verdict in verdicts) == 1


async def test_what_has_ended_does_not_start_again(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task)
    await stage.end(dispatch)
    assert await stage.verdicts(dispatch, executor=BOB) == ["gone"]


async def test_a_message_of_an_earlier_dispatch_starts_nothing(stage: Stage) -> None:
    task = await stage.add_task()
    old = await stage.due(task)
    await stage.fetch("DELETE FROM bellringer.occurrences")  # taken back
    await stage.pick(task, old.fire_at)  # and picked again
    assert await stage.verdicts(old) == ["gone"]
    new = await stage.hand_over(task, old.fire_at)
    assert await stage.verdicts(old) == ["gone"]
    assert await stage.verdicts(new) == ["run"]


async def test_a_message_of_an_earlier_attempt_starts_nothing(stage: Stage) -> None:
    task = await stage.add_task(max_retries=1)
    first = await stage.running(task)
    await stage.end(first, outcome=Outcome.FAILED)
    await stage.make_due(task)
    second = await stage.hand_over(task, first.fire_at)
    assert await stage.verdicts(first) == ["gone"]
    assert await stage.verdicts(second) == ["run"]


async def test_of_a_task_that_is_gone_nothing_starts(stage: Stage) -> None:
    dispatch = await stage.due(await stage.add_task())
    await stage.fetch("DELETE FROM bellringer.tasks")
    assert await stage.verdicts(dispatch) == ["gone"]


async def test_each_of_a_batch_gets_its_own_verdict(stage: Stage) -> None:
    await stage.beat(BOB)
    task = await stage.add_task()
    fire_at = await stage.now() + timedelta(minutes=1)
    await stage.pick(task, fire_at)
    early = await stage.hand_over(task, fire_at)
    elsewhere = await stage.running(task, ago=2, executor=BOB)
    gone = Dispatch(
        task=task, fire_at=early.due_at - timedelta(days=1), attempt=1, dispatched_at=fire_at, due_at=fire_at
    )
    due = await stage.due(task, ago=1)
    started = await stage.start(gone, early, elsewhere, due)
    assert [one.verdict for one in started] == ["gone", "wait", "elsewhere", "run"]
    assert [bool(one.wait_seconds) for one in started] == [False, True, False, False]


async def test_starts_are_counted_by_how_late_they_are(stage: Stage) -> None:
    task = await stage.add_task()
    for ago in (0.0, 0.3, 0.7, 2.0, 7.0, 20.0, 40.0):
        await stage.start(await stage.due(task, ago=ago))
    counts = await stage.counts()
    assert counts["started"] == 7
    waits = [counts.get(f"wait_{place}", 0) for place in range(7)]
    assert sum(waits[:3]) == 3  # a busy machine makes the first ones later than they should be
    assert waits[3:] == [1] * 4
    assert counts["wait_ms"] == pytest.approx(70_000, abs=4000)


async def test_who_did_not_hear_that_he_may_start_is_told_so_when_he_asks_again(stage: Stage) -> None:
    dispatch = await stage.running(await stage.add_task("report"), executor=ALICE)
    (started,) = await stage.start(dispatch, executor=ALICE)
    assert (started.verdict, started.name, started.payload) == ("here", "report", "null")
    assert (await stage.counts())["started"] == 1


# End


async def test_an_end_is_recorded_once(stage: Stage) -> None:
    dispatch = await stage.running(await stage.add_task())
    assert await stage.end(dispatch) == [True]
    assert await stage.end(dispatch, outcome=Outcome.FAILED) == [False]
    row = await stage.occurrence(dispatch)
    assert row["outcome"] == "succeeded"
    assert row["ended_at"] >= row["started_at"]


async def test_an_end_is_recorded_once_in_one_batch(stage: Stage) -> None:
    dispatch = await stage.running(await stage.add_task())
    assert {*await stage.end(dispatch, dispatch)} == {False, True}
    assert (await stage.counts())["ended"] == 1


async def test_what_did_not_start_cannot_end(stage: Stage) -> None:
    dispatch = await stage.due(await stage.add_task())
    assert await stage.end(dispatch) == [False]
    assert (await stage.occurrence(dispatch))["outcome"] is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED])
async def test_a_failure_is_an_incident_and_counts(stage: Stage, outcome: Outcome) -> None:
    dispatch = await stage.running(await stage.add_task("report"))
    await stage.end(dispatch, outcome=outcome, detail="no disk")
    (incident,) = await stage.incidents()
    assert (incident["kind"], incident["task_name"], incident["detail"]) == (outcome, "report", "no disk")
    assert (incident["fire_at"], incident["attempt"], incident["environment_id"]) == (
        dispatch.fire_at,
        1,
        stage.environment_id,
    )
    counts = await stage.counts()
    assert (counts["ended"], counts["failed"]) == (1, 1)


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED])
async def test_what_ends_well_or_as_somebody_wanted_is_no_incident(stage: Stage, outcome: Outcome) -> None:
    await stage.end(await stage.running(await stage.add_task()), outcome=outcome)
    assert await stage.incidents() == []
    assert "failed" not in await stage.counts()


async def test_the_time_that_runs_took_is_counted(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task)
    await stage.fetch("UPDATE bellringer.occurrences SET started_at = started_at - interval '5 s'")
    await stage.end(dispatch)
    assert (await stage.counts())["run_ms"] == pytest.approx(5000, abs=500)


# Retries


@pytest.mark.parametrize("outcome", FAILURES)
async def test_a_failed_run_is_tried_again_as_often_as_its_task_says(stage: Stage, outcome: Outcome) -> None:
    task = await stage.add_task(max_retries=2)
    dispatch = await stage.running(task)
    for attempt in (2, 3):
        assert await stage.end(dispatch, outcome=outcome) == [True]
        assert await stage.kinds() == []
        await stage.make_due(task)
        dispatch = await stage.hand_over(task, dispatch.fire_at)
        assert dispatch.attempt == attempt
        assert await stage.verdicts(dispatch) == ["run"]
    await stage.end(dispatch, outcome=outcome)
    assert await stage.outcomes(task) == [outcome]
    assert await stage.kinds() == [outcome]


async def test_an_attempt_that_failed_is_kept(stage: Stage) -> None:
    task = await stage.add_task(max_retries=1)
    dispatch = await stage.running(task)
    started = await stage.occurrence(dispatch)
    await stage.end(dispatch, outcome=Outcome.FAILED, detail="no disk")
    async with stage.database.connection() as connection:
        (attempt,) = await history_store.past_attempts(connection, task, dispatch.fire_at)
    assert (attempt.attempt, attempt.outcome, attempt.detail) == (1, Outcome.FAILED, "no disk")
    assert (attempt.started_at, attempt.executor) == (started["started_at"], ALICE)


async def test_retries_wait_twice_as_long_each_time_up_to_a_cap(stage: Stage) -> None:
    task = await stage.add_task(max_retries=3, retry_first_seconds=10.0, retry_cap_seconds=25.0)
    dispatch = await stage.running(task)
    for ceiling in (10.0, 20.0, 25.0):
        await stage.end(dispatch, outcome=Outcome.FAILED)
        row = await stage.occurrence(dispatch)
        waits = (row["due_at"] - await stage.now()).total_seconds()
        assert ceiling / 2 - 1 < waits <= ceiling + 0.001
        await stage.make_due(task)
        dispatch = await stage.hand_over(task, dispatch.fire_at)
        await stage.start(dispatch)


async def test_an_end_of_an_earlier_attempt_changes_nothing(stage: Stage) -> None:
    task = await stage.add_task(max_retries=1)
    first = await stage.running(task)
    await stage.end(first, outcome=Outcome.FAILED)
    await stage.make_due(task)
    second = await stage.hand_over(task, first.fire_at)
    await stage.start(second, executor=BOB)
    assert await stage.end(first) == [False]
    assert (await stage.occurrence(second))["outcome"] is None
    assert await stage.end(second) == [True]


async def test_what_was_cancelled_is_not_tried_again(stage: Stage) -> None:
    task = await stage.add_task(max_retries=5)
    await stage.end(await stage.running(task), outcome=Outcome.CANCELLED)
    assert await stage.outcomes(task) == ["cancelled"]


async def test_of_a_cancelled_task_nothing_is_tried_again(stage: Stage) -> None:
    task = await stage.add_task(max_retries=5, rerun_after_crash=True)
    failing, crashing = await stage.running(task, ago=1), await stage.running(task)
    await stage.change_task(task, state="cancelled")
    await stage.end(failing, outcome=Outcome.FAILED)
    await stage.end(crashing, outcome=Outcome.CRASHED)
    assert await stage.outcomes(task) == ["failed", "crashed"]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CRASHED])
async def test_a_run_that_somebody_asked_to_end_is_not_tried_again(stage: Stage, outcome: Outcome) -> None:
    task = await stage.add_task(max_retries=5, rerun_after_crash=True)
    dispatch = await stage.running(task)
    async with stage.database.connection() as connection:
        assert await history_store.cancel(connection, task, dispatch.fire_at) == "done"
    await stage.end(dispatch, outcome=outcome)
    assert await stage.outcomes(task) == [outcome]


async def test_failures_and_successes_end_in_one_batch(stage: Stage) -> None:
    once = await stage.running(await stage.add_task("once"))
    retried = await stage.running(await stage.add_task("retried", max_retries=1))
    assert await stage.end(once, retried, outcome=Outcome.FAILED) == [True, True]
    assert (await stage.occurrence(once))["outcome"] == "failed"
    assert (await stage.occurrence(retried))["stage"] == 0


# Crashes


async def test_a_run_whose_executor_died_is_recorded_as_crashed(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task, executor=ALICE)
    await stage.lose(ALICE)
    assert await stage.verdicts(dispatch, executor=BOB) == ["wait"]
    assert await stage.verdicts(dispatch, executor=BOB) == ["gone"]
    assert await stage.outcomes(task) == ["crashed"]
    assert await stage.kinds() == ["crashed"]


async def test_a_run_whose_executor_signed_off_is_recorded_as_crashed(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task, executor=ALICE)
    await stage.fetch("DELETE FROM bellringer.executors")
    await stage.verdicts(dispatch, executor=BOB)
    assert await stage.outcomes(task) == ["crashed"]


async def test_a_run_that_crashed_runs_again_at_once_if_its_task_says_so(stage: Stage) -> None:
    task = await stage.add_task(rerun_after_crash=True)
    dispatch = await stage.running(task)
    await stage.lose()
    await stage.verdicts(dispatch, executor=BOB)
    again = await stage.hand_over(task, dispatch.fire_at)
    assert again.attempt == 2
    assert await stage.verdicts(again, executor=BOB) == ["run"]
    (incident,) = await stage.incidents()  # told all the same, and nobody has to do anything about it
    assert (incident["kind"], incident["attempt"]) == ("crashed", 1)
    assert incident["resolved_at"] is not None


async def test_a_run_that_takes_its_executors_down_runs_three_times(stage: Stage) -> None:
    task = await stage.add_task(rerun_after_crash=True)
    dispatch = await stage.running(task)
    for _ in range(2):
        await stage.end(dispatch, outcome=Outcome.CRASHED)
        dispatch = await stage.hand_over(task, dispatch.fire_at)
        assert await stage.verdicts(dispatch) == ["run"]
    await stage.end(dispatch, outcome=Outcome.CRASHED)
    assert await stage.outcomes(task) == ["crashed"]
    assert (await stage.occurrence(dispatch))["attempt"] == 3


async def test_a_message_that_came_twice_is_one_crash(stage: Stage) -> None:
    dispatch = await stage.running(await stage.add_task(rerun_after_crash=True))
    other = await stage.due(await stage.add_task("other"))
    await stage.lose()
    assert await stage.verdicts(dispatch, other, dispatch, executor=BOB) == ["wait", "run", "wait"]
    assert len(await stage.fetch("SELECT FROM bellringer.past_attempts")) == 1


async def test_the_end_of_a_run_that_was_given_up_for_dead_comes_too_late(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task)
    await stage.lose()
    await stage.verdicts(dispatch, executor=BOB)
    assert await stage.end(dispatch) == [False]
    assert await stage.outcomes(task) == ["crashed"]


# Cancelling


async def test_who_asks_which_runs_are_to_be_ended_learns_what_was_cancelled_or_given_up(stage: Stage) -> None:
    task = await stage.add_task()
    asked, other, ended = await stage.running(task, ago=2), await stage.running(task, ago=1), await stage.running(task)
    await stage.fetch("UPDATE bellringer.occurrences SET cancel_requested = fire_at <> $1", other.fire_at)
    await stage.end(ended)
    earlier = msgspec.structs.replace(asked, attempt=0)
    async with stage.database.connection() as connection:
        found = await occurrence_store.cancelled(connection, [other, earlier, ended, asked])
    assert found == [earlier, ended, asked]
