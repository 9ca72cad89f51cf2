"""What became of tasks is looked at, tried again and cancelled."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from tests.support.scheduler_definitions import AT_ONCE, DAILY, EVERY_20_SECONDS, task
from tests.support.scheduler_engine import Engine

from bellringer.kernel.database import Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound
from bellringer.scheduler.model import IncidentKind, Occurrence, OccurrenceState, Outcome, Overlap, TaskState
from bellringer.scheduler.service import Tasks

ADD_INCIDENT = """
INSERT INTO bellringer.incidents (environment_id, task, task_name, kind) VALUES ($1, 1, 'report', $2) RETURNING id
"""


async def ended(tasks: Tasks, engine: Engine, home: UUID, outcome: Outcome) -> Occurrence:
    """The one occurrence of the task `mail`, which has ended so."""
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    await engine.run(outcome, "the server said no")
    (occurrence,) = await tasks.occurrences(home, "mail")
    return occurrence


# Runs by hand


async def test_a_task_runs_by_hand_beside_its_schedule(tasks: Tasks, engine: Engine, home: UUID) -> None:
    made, _ = await tasks.create(home, "mail", task(DAILY))
    occurrence = await tasks.run_now(home, "mail")
    assert (occurrence.is_manual, occurrence.state, occurrence.attempt) == (True, OccurrenceState.PICKED, 1)
    assert [dispatch.fire_at for dispatch in await engine.run()] == [occurrence.fire_at]
    after = await tasks.read(home, "mail")
    assert (after.next_fire_at, after.state) == (made.next_fire_at, TaskState.ACTIVE)
    assert after.last is not None
    assert (after.last.fire_at, after.last.outcome) == (occurrence.fire_at, Outcome.SUCCEEDED)


async def test_runs_at_the_same_time_are_occurrences_of_their_own(tasks: Tasks, home: UUID) -> None:
    await tasks.create(home, "mail", task(DAILY))
    occurrences = await asyncio.gather(*(tasks.run_now(home, "mail") for _ in range(20)))
    assert len({occurrence.fire_at for occurrence in occurrences}) == 20


async def test_a_run_finds_the_next_microsecond_where_one_is_taken(
    tasks: Tasks, home: UUID, database: Database
) -> None:
    made, _ = await tasks.create(home, "mail", task(DAILY))
    async with database.transaction() as connection:
        # Every microsecond of a second in which the run must come.
        await connection.execute(
            "INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at) "
            "SELECT $1, moment, 0, moment, moment FROM (SELECT clock_timestamp() AS began) AS start, "
            "generate_series(0, 200000) AS step, LATERAL (SELECT began + step * interval '1 us' AS moment) AS place",
            made.number,
        )
        verdict, moment = await connection.fetchrow("SELECT * FROM bellringer.run_task($1)", made.number)
        assert verdict == "done"
        assert await connection.fetchval(
            "SELECT is_manual FROM bellringer.occurrences WHERE task = $1 AND fire_at = $2", made.number, moment
        )


async def test_a_finished_task_runs_by_hand_and_is_finished_again(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await ended(tasks, engine, home, Outcome.SUCCEEDED)
    await tasks.run_now(home, "mail")
    assert (await tasks.read(home, "mail")).state is TaskState.ACTIVE
    await engine.run()
    assert (await tasks.read(home, "mail")).state is TaskState.FINISHED


# Trying again


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED])
async def test_what_failed_is_tried_again_as_another_attempt(
    tasks: Tasks, engine: Engine, home: UUID, outcome: Outcome
) -> None:
    before = await ended(tasks, engine, home, outcome)
    (incident,) = await tasks.incidents(home, unresolved=True)
    again = await tasks.retry(home, "mail", before.fire_at)
    assert (again.state, again.attempt, again.outcome) == (OccurrenceState.PICKED, 2, None)
    assert await tasks.incidents(home, unresolved=True) == []
    assert [(one.id, one.resolved_at is None) for one in await tasks.incidents(home)] == [(incident.id, False)]
    (ran,) = await engine.run()
    assert (ran.fire_at, ran.attempt) == (before.fire_at, 2)
    now, (past,) = await tasks.occurrence(home, "mail", before.fire_at)
    assert (now.outcome, now.attempt, now.detail) == (Outcome.SUCCEEDED, 2, None)
    assert (past.outcome, past.attempt, past.detail) == (outcome, 1, "the server said no")
    assert (past.due_at, past.started_at, past.ended_at) == (before.due_at, before.started_at, before.ended_at)


async def test_what_succeeded_or_is_not_over_is_not_tried_again(tasks: Tasks, engine: Engine, home: UUID) -> None:
    occurrence = await ended(tasks, engine, home, Outcome.SUCCEEDED)
    with pytest.raises(Conflict, match="succeeded"):
        await tasks.retry(home, "mail", occurrence.fire_at)
    by_hand = await tasks.run_now(home, "mail")
    for _ in range(2):  # before it starts, and while it runs
        with pytest.raises(Conflict, match="not over"):
            await tasks.retry(home, "mail", by_hand.fire_at)
        await engine.start(await engine.dispatch())
    for name, fire_at in (("mail", occurrence.fire_at - timedelta(microseconds=1)), ("other", occurrence.fire_at)):
        with pytest.raises(NotFound):
            await tasks.retry(home, name, fire_at)
    with pytest.raises(InvalidInput):
        await tasks.retry(home, "mail", datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


async def test_two_retries_at_once_are_one_attempt(tasks: Tasks, engine: Engine, home: UUID) -> None:
    occurrence = await ended(tasks, engine, home, Outcome.FAILED)
    answers = await asyncio.gather(
        *(tasks.retry(home, "mail", occurrence.fire_at) for _ in range(5)), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict"] * 4 + ["Occurrence"]
    assert [dispatch.attempt for dispatch in await engine.run()] == [2]


async def test_what_was_skipped_is_made_up_for_by_hand(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    first, second = await tasks.run_now(home, "poll"), await tasks.run_now(home, "poll")
    assert await engine.start(await engine.dispatch()) == ["run", "gone"]
    (skipped, _) = await tasks.occurrence(home, "poll", second.fire_at)
    assert (skipped.outcome, first.fire_at < second.fire_at) == (Outcome.SKIPPED, True)
    assert (await tasks.retry(home, "poll", second.fire_at)).attempt == 2
    assert [incident.resolved_at is None for incident in await tasks.incidents(home)] == [False]


# Cancelling one


async def test_an_occurrence_is_cancelled_before_it_starts(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    *_, second, first = await tasks.occurrences(home, "poll")
    for _ in range(2):
        cancelled = await tasks.cancel_occurrence(home, "poll", first.fire_at)
        assert (cancelled.outcome, cancelled.started_at) == (Outcome.CANCELLED, None)
    await engine.make_due("poll", first.fire_at)
    await engine.make_due("poll", second.fire_at)
    assert [dispatch.fire_at for dispatch in await engine.run()] == [second.fire_at]
    with pytest.raises(Conflict, match="succeeded"):
        await tasks.cancel_occurrence(home, "poll", second.fire_at)
    with pytest.raises(NotFound):
        await tasks.cancel_occurrence(home, "poll", first.fire_at + timedelta(days=1))


async def test_an_occurrence_that_runs_is_asked_to_end(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "mail", task(AT_ONCE))
    await engine.pick()
    (dispatch,) = await engine.dispatch()
    await engine.start([dispatch])
    asked = await tasks.cancel_occurrence(home, "mail", dispatch.fire_at)
    assert (asked.state, asked.cancel_requested) == (OccurrenceState.STARTED, True)
    await engine.end(dispatch, Outcome.CANCELLED)
    again = await tasks.retry(home, "mail", dispatch.fire_at)
    assert not again.cancel_requested


async def test_one_that_waits_for_another_to_end_is_cancelled(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS, overlap=Overlap.QUEUE))
    first, second = await tasks.run_now(home, "poll"), await tasks.run_now(home, "poll")
    dispatches = await engine.dispatch()
    assert await engine.start(dispatches) == ["run", "gone"]
    assert (await tasks.occurrence(home, "poll", second.fire_at))[0].state is OccurrenceState.WAITING
    await tasks.cancel_occurrence(home, "poll", second.fire_at)
    third = await tasks.run_now(home, "poll")
    assert await engine.start(await engine.dispatch()) == ["gone"]
    assert (await tasks.occurrence(home, "poll", third.fire_at))[0].state is OccurrenceState.WAITING
    await engine.end(dispatches[0])
    assert first.fire_at == dispatches[0].fire_at
    assert [dispatch.fire_at for dispatch in await engine.run()] == [third.fire_at]


async def test_one_that_waits_goes_with_a_pause(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "mail", task(AT_ONCE, overlap=Overlap.QUEUE))
    by_hand = await tasks.run_now(home, "mail")
    await engine.pick()
    dispatches = await engine.dispatch()
    running, waiting = sorted(dispatches, key=lambda dispatch: dispatch.fire_at != by_hand.fire_at)
    assert await engine.start([running]) == ["run"]
    assert await engine.start([waiting]) == ["gone"]
    await tasks.pause(home, "mail")
    assert (await tasks.occurrence(home, "mail", waiting.fire_at))[0].outcome is Outcome.CANCELLED
    await engine.end(running)
    assert await engine.run() == []


# Looking


async def test_occurrences_are_listed_the_newest_first(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    found = await tasks.occurrences(home, "poll")
    assert [one.fire_at for one in found] == sorted((one.fire_at for one in found), reverse=True)
    assert await tasks.occurrences(home, "poll", limit=2) == found[:2]
    assert await tasks.occurrences(home, "poll", before=found[1].fire_at, limit=2) == found[2:4]
    with pytest.raises(InvalidInput):
        await tasks.occurrences(home, "poll", limit=1001)
    with pytest.raises(NotFound):
        await tasks.occurrences(home, "other")


async def test_the_last_occurrence_of_a_task_is_one_that_was_due(tasks: Tasks, engine: Engine, home: UUID) -> None:
    await tasks.create(home, "poll", task(EVERY_20_SECONDS))
    await engine.pick()
    assert (await tasks.read(home, "poll")).last is None
    by_hand = await tasks.run_now(home, "poll")
    last = (await tasks.read(home, "poll")).last
    assert last is not None
    assert last.fire_at == by_hand.fire_at


async def test_incidents_are_told_by_kind(tasks: Tasks, home: UUID, database: Database) -> None:
    kinds = ["missed", "failed", "crashed", "skipped", "failed", "refused", "timed_out"]
    async with database.connection() as connection:
        ids = [await connection.fetchval(ADD_INCIDENT, home, kind) for kind in kinds]
        await connection.execute("UPDATE bellringer.incidents SET resolved_at = now() WHERE id = $1", ids[1])

    async def told(**filters: object) -> list[int]:
        found = await tasks.incidents(home, **filters)  # type: ignore[arg-type]
        return [ids.index(incident.id) for incident in found]

    assert await told() == [6, 5, 4, 3, 2, 1, 0]
    assert await told(before=ids[4], limit=2) == [3, 2]
    assert await told(kinds=[IncidentKind.FAILED, IncidentKind.MISSED, IncidentKind.FAILED]) == [4, 1, 0]
    assert await told(kinds=[IncidentKind.FAILED, IncidentKind.MISSED], before=ids[4]) == [1, 0]
    assert await told(unresolved=True) == [6, 4, 2]
    assert await told(unresolved=True, kinds=[IncidentKind.FAILED, IncidentKind.SKIPPED]) == [4]
    assert await tasks.incidents(UUID(int=5)) == []
    with pytest.raises(InvalidInput):
        await told(limit=0)


async def test_executors_and_functions_are_told(tasks: Tasks, engine: Engine, home: UUID, database: Database) -> None:
    await engine.start([])
    async with database.connection() as connection:
        await connection.execute(
            """
            INSERT INTO bellringer.functions
            VALUES ($1, 'b', '[{"name": "x", "required": true}]'), ($1, 'a', '[]'), ($2, 'c', '[]')
            """,
            home,
            UUID(int=5),
        )
    assert [(one.id, one.running, one.concurrency) for one in await tasks.executors()] == [(engine.executor, 0, 10)]
    named = [(one.name, [parameter.name for parameter in one.parameters]) for one in await tasks.functions(home)]
    assert named == [("a", []), ("b", ["x"])]


async def test_the_time_is_that_of_the_database(tasks: Tasks) -> None:
    assert abs(await tasks.now() - datetime.now(UTC)) < timedelta(minutes=5)
