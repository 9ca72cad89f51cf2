"""The executor: what is claimed runs at its moment, once, and what became of it is on record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn, Self

import asyncpg
import msgspec
import psycopg
import pytest
from tests.support.scheduler import BOB, Recorder, Stage, executing
from tests.support.waiting import PATIENCE_SECONDS, until, until_sessions_wait

from bellringer.broker import Queue
from bellringer.kernel.database import Connection
from bellringer.kernel.errors import NotFound, Unavailable
from bellringer.scheduler import executor as executor_module
from bellringer.scheduler import run as run_module
from bellringer.scheduler.database_clock import DatabaseClock
from bellringer.scheduler.model import CallFailed, Invocation, Outcome
from bellringer.scheduler.occurrence_store import Dispatch


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done every second or so is done a hundred times as often."""
    monkeypatch.setattr(executor_module, "_LOOK_FOR_CANCELLED_SECONDS", 0.01)
    monkeypatch.setattr(executor_module, "_ELSEWHERE_SECONDS", 0.05)
    monkeypatch.setattr(run_module, "GRACE_SECONDS", 0.05)


async def in_a_moment(stage: Stage, seconds: float = 0.3) -> Dispatch:
    """An occurrence of a new task that is due so soon, handed over."""
    task = await stage.add_task()
    fire_at = await stage.now() + timedelta(seconds=seconds)
    await stage.pick(task, fire_at)
    return await stage.hand_over(task, fire_at)


async def fail(invocation: Invocation) -> NoReturn:
    raise ValueError(f"no disk for {invocation.task}")


async def fail_in_words(_invocation: Invocation) -> NoReturn:
    raise CallFailed("the other side said 503")


async def forever(_invocation: Invocation) -> None:
    await asyncio.Event().wait()


class Publishing:
    """An effect that leaves a mark, and goes wrong first as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.commits = 0

    @classmethod
    async def apply(cls, connection: Connection, effects: Sequence[Self]) -> None:
        for effect in effects:
            await connection.execute(
                "INSERT INTO bellringer.run_durations VALUES ('mark', '{1}')"
                " ON CONFLICT (subject) DO UPDATE SET seconds = run_durations.seconds || EXCLUDED.seconds"
            )
            if effect.errors:
                raise effect.errors.pop()

    def committed(self) -> None:
        self.commits += 1


TOGETHER = """
SELECT mark.xmin::text = ended.xmin::text AS together
FROM bellringer.run_durations AS mark, bellringer.occurrences AS ended WHERE subject = 'mark'
"""


async def marks(stage: Stage) -> int:
    return len(await stage.fetch("SELECT FROM bellringer.run_durations WHERE subject = 'mark'"))


# Runs


async def test_what_is_due_runs_and_its_end_is_recorded(stage: Stage) -> None:
    task = await stage.add_task("report", payload='{"a":  1}', time_limit_seconds=7.5)
    dispatch = await stage.due(task)
    await stage.post(dispatch)
    caller = Recorder()
    async with executing(stage, caller) as executor:
        (row,) = await stage.until_ended(task)
        await stage.until_acknowledged()
    assert (row["outcome"], row["executor"], row["attempt"]) == ("succeeded", executor.id, 1)
    (invocation,) = caller.invocations
    assert (invocation.task, invocation.number, invocation.fire_at) == ("report", task, dispatch.fire_at)
    assert (invocation.payload, invocation.time_limit_seconds) == (b'{"a":  1}', 7.5)
    assert (invocation.environment_id, invocation.attempt) == (stage.environment_id, 1)


async def test_nothing_runs_before_it_is_due(stage: Stage) -> None:
    dispatch = await in_a_moment(stage)
    await stage.post(dispatch)
    async with executing(stage, Recorder()):
        (row,) = await stage.until_ended(dispatch.task)
    assert timedelta() <= row["started_at"] - row["due_at"] < timedelta(seconds=5)


async def test_nothing_runs_early_on_a_host_whose_clock_is_ahead(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    dispatch = await in_a_moment(stage)
    await stage.post(dispatch)
    async with executing(stage, Recorder()):
        (row,) = await stage.until_ended(dispatch.task)
    assert timedelta() <= row["started_at"] - row["due_at"] < timedelta(seconds=5)


@pytest.mark.parametrize("wrong_seconds", [-0.2, 0.2])
async def test_a_wrong_idea_of_the_databases_clock_lets_nothing_run_early(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, wrong_seconds: float
) -> None:
    right = DatabaseClock.loop_time
    monkeypatch.setattr(DatabaseClock, "loop_time", lambda clock, moment: right(clock, moment) + wrong_seconds)
    dispatch = await in_a_moment(stage)
    await stage.post(dispatch)
    async with executing(stage, Recorder()):
        (row,) = await stage.until_ended(dispatch.task)
    assert timedelta() <= row["started_at"] - row["due_at"] < timedelta(seconds=5)


async def test_no_more_run_at_a_time_than_there_are_slots(stage: Stage) -> None:
    task = await stage.add_task()
    await stage.post(*await stage.several_due(task, 12))
    caller = Recorder()
    caller.is_open.clear()
    async with executing(stage, caller, concurrency=3):
        for _ in range(3):
            await caller.next()
        caller.is_open.set()
        await stage.until_ended(task, 12)
    assert caller.most_running == 3
    assert len(caller.invocations) == 12


async def test_what_is_due_first_runs_first(stage: Stage) -> None:
    task = await stage.add_task()
    await stage.post(*await stage.several_due(task, 5))
    caller = Recorder()
    async with executing(stage, caller, concurrency=1):
        await stage.until_ended(task, 5)
    fire_ats = [invocation.fire_at for invocation in caller.invocations]
    assert fire_ats == sorted(fire_ats)


async def test_a_slot_is_free_again_when_a_run_fails(stage: Stage) -> None:
    task = await stage.add_task("failing")
    await stage.post(*await stage.several_due(task, 4))
    async with executing(stage, Recorder({"failing": fail}), concurrency=1) as executor:
        await stage.until_ended(task, 4)
        await stage.until_acknowledged()
        assert executor.standing() == (0, 0)


# Outcomes


async def test_a_failure_is_recorded_with_its_text(stage: Stage) -> None:
    task = await stage.add_task("failing")
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"failing": fail})):
        (row,) = await stage.until_ended(task)
    assert (row["outcome"], row["detail"]) == ("failed", "ValueError: no disk for failing")


async def test_a_failure_that_explains_itself_is_recorded_in_its_words(stage: Stage) -> None:
    task = await stage.add_task("failing")
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"failing": fail_in_words})):
        (row,) = await stage.until_ended(task)
    assert (row["outcome"], row["detail"]) == ("failed", "the other side said 503")


async def test_a_run_ends_at_its_time_limit(stage: Stage) -> None:
    task = await stage.add_task("slow", time_limit_seconds=0.05)
    await stage.post(await stage.due(task))
    caller = Recorder({"slow": forever})
    async with executing(stage, caller):
        (row,) = await stage.until_ended(task)
        assert caller.running == 0
    assert (row["outcome"], row["detail"]) == ("timed_out", "it took longer than its 0.05 s")


async def test_a_call_that_ignores_its_end_blocks_no_slot(stage: Stage) -> None:
    over = asyncio.Event()

    async def ignore(_invocation: Invocation) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    deaf = await stage.add_task("deaf", time_limit_seconds=0.05)
    other = await stage.add_task("other")
    await stage.post(await stage.due(deaf, ago=1), await stage.due(other))
    async with executing(stage, Recorder({"deaf": ignore}), concurrency=1):
        (row,) = await stage.until_ended(deaf)
        await stage.until_ended(other)
    assert row["outcome"] == "timed_out"
    over.set()


async def test_a_run_that_somebody_cancels_ends(stage: Stage) -> None:
    task = await stage.add_task("slow")
    dispatch = await stage.due(task)
    await stage.post(dispatch)
    caller = Recorder({"slow": forever})
    async with executing(stage, caller):
        await caller.next()
        await stage.fetch("SELECT bellringer.cancel_occurrence($1, $2)", task, dispatch.fire_at)
        (row,) = await stage.until_ended(task)
    assert (row["outcome"], row["detail"]) == ("cancelled", "it was cancelled while it ran")


async def test_a_later_occurrence_replaces_one_that_runs(stage: Stage) -> None:
    task = await stage.add_task("slow", overlap="replace")
    await stage.post(await stage.due(task, ago=1))
    caller = Recorder({"slow": forever})
    async with executing(stage, caller):
        await caller.next()
        await stage.post(await stage.due(task))
        first, second = await stage.until_ended(task)
    assert (first["outcome"], second["stage"]) == ("cancelled", 0)


async def test_a_failed_run_is_put_back_for_its_next_attempt(stage: Stage) -> None:
    task = await stage.add_task("failing", max_retries=1)
    await stage.post(await stage.due(task))
    caller = Recorder({"failing": fail})
    async with executing(stage, caller):
        await caller.next()
        await stage.until_acknowledged()
        (row,) = await stage.occurrences(task)
    assert (row["stage"], row["attempt"]) == (0, 2)


@pytest.mark.parametrize(
    "call", ['{"type": "http", "address": 1}', '{"type": "fax"}', '{"type": "function", "name": "f"}']
)
async def test_a_call_that_nobody_here_can_run_is_a_failure(stage: Stage, call: str) -> None:
    task = await stage.add_task(call=call)
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder()):
        (row,) = await stage.until_ended(task)
    assert row["outcome"] == "failed"
    assert row["detail"].startswith("this is no call that can be run")


# Effects


async def test_an_effect_and_the_end_are_one_commit(stage: Stage) -> None:
    effect = Publishing()

    async def publish(_invocation: Invocation) -> Publishing:
        return effect

    task = await stage.add_task("publishing")
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"publishing": publish})):
        (row,) = await stage.until_ended(task)
        await stage.until_acknowledged()
    (mark,) = await stage.fetch(TOGETHER)
    assert (row["outcome"], mark["together"], effect.commits) == ("succeeded", True, 1)


async def test_what_an_effect_raises_makes_the_run_a_failure_without_it(stage: Stage) -> None:
    effect = Publishing(NotFound("there is no queue orders"))

    async def publish(_invocation: Invocation) -> Publishing:
        return effect

    task = await stage.add_task("publishing")
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"publishing": publish})):
        (row,) = await stage.until_ended(task)
    assert (row["outcome"], row["detail"]) == ("failed", "NotFound: there is no queue orders")
    assert (await marks(stage), effect.commits) == (0, 0)


async def test_an_effect_that_could_not_be_for_now_is_tried_again(stage: Stage) -> None:
    effect = Publishing(Unavailable())

    async def publish(_invocation: Invocation) -> Publishing:
        return effect

    task = await stage.add_task("publishing")
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"publishing": publish})):
        (row,) = await stage.until_ended(task)
        await stage.until_acknowledged()
    assert (row["outcome"], await marks(stage), effect.commits) == ("succeeded", 1, 1)


async def test_an_effect_that_is_at_fault_leaves_those_alone_that_share_its_commit(stage: Stage) -> None:
    always = [NotFound("there is no queue orders")] * 10
    effects = {"first": Publishing(), "bad": Publishing(*always), "last": Publishing()}
    all_run = asyncio.Barrier(len(effects))

    async def publish(invocation: Invocation) -> Publishing:
        await all_run.wait()
        return effects[invocation.task]

    tasks = [await stage.add_task(name) for name in effects]
    for task in tasks:
        await stage.post(await stage.due(task))
    async with executing(stage, Recorder(dict.fromkeys(effects, publish))):
        ended = [await stage.until_ended(task) for task in tasks]
    assert [row["outcome"] for (row,) in ended] == ["succeeded", "failed", "succeeded"]
    assert [effect.commits for effect in effects.values()] == [1, 0, 1]


async def test_a_run_that_was_given_up_for_dead_has_no_effect(stage: Stage) -> None:
    effect = Publishing()
    task = await stage.add_task("publishing")

    async def publish(_invocation: Invocation) -> Publishing:
        await stage.fetch("UPDATE bellringer.occurrences SET ended_at = clock_timestamp(), outcome = 'crashed'")
        return effect

    await stage.post(await stage.due(task))
    async with executing(stage, Recorder({"publishing": publish})):
        await stage.until_ended(task)
        await stage.until_acknowledged()
    assert (await stage.outcomes(task), await marks(stage), effect.commits) == (["crashed"], 0, 0)


# Messages that are not what they should be


async def test_messages_that_cannot_be_read_hold_up_nothing(stage: Stage) -> None:
    naive = msgspec.json.encode([1, "2026-01-01T00:00:00", 1, "2026-01-01T00:00:00", "2026-01-01T00:00:00"])
    async with stage.database.transaction() as connection:
        await stage.broker.publish(connection, stage.queue, [b"", b"{}", b"[1]", b"\xff", naive])
    task = await stage.add_task()
    await stage.post(await stage.due(task))
    async with executing(stage, Recorder()):
        await stage.until_ended(task)
        await stage.until_acknowledged()


async def test_one_request_that_the_database_refuses_fails_alone(stage: Stage) -> None:
    good = await stage.due(await stage.add_task())
    bad = msgspec.structs.replace(good, task=2**70)
    await stage.post(bad, good)
    async with executing(stage, Recorder()):
        await stage.until_ended(good.task)


async def test_what_is_over_is_acknowledged(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task, executor=BOB)
    await stage.end(dispatch)
    await stage.post(dispatch)
    caller = Recorder()
    async with executing(stage, caller):
        await stage.until_acknowledged()
    assert caller.invocations == []


async def test_what_another_runs_is_looked_at_again_later(stage: Stage) -> None:
    dispatch = await stage.running(await stage.add_task(), executor=BOB)
    await stage.post(dispatch)
    caller = Recorder()
    async with executing(stage, caller) as executor:
        counts = await until(lambda: delayed(stage, stage.queue))
        assert executor.standing() == (0, 0)
    assert (counts, caller.invocations) == (1, [])
    assert (await stage.occurrence(dispatch))["outcome"] is None


async def delayed(stage: Stage, queue: Queue) -> int:
    return (await stage.broker.counts([queue]))[queue.id].delayed


async def test_the_message_of_a_dead_executor_is_a_crash(stage: Stage) -> None:
    task = await stage.add_task()
    dispatch = await stage.running(task, executor=BOB)
    await stage.lose(BOB)
    await stage.post(dispatch)
    caller = Recorder()
    async with executing(stage, caller):
        (row,) = await stage.until_ended(task)
        await stage.until_acknowledged()
    assert (row["outcome"], caller.invocations) == ("crashed", [])


async def test_a_run_that_was_given_up_for_dead_is_ended(stage: Stage) -> None:
    task = await stage.add_task(rerun_after_crash=True)
    dispatch = await stage.due(task)
    ended = asyncio.Event()

    async def run_forever(_invocation: Invocation) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller = Recorder({"report": run_forever})
    await stage.post(dispatch)
    async with executing(stage, caller):
        await caller.next()
        await stage.end(dispatch, outcome=Outcome.CRASHED)
        await asyncio.wait_for(ended.wait(), PATIENCE_SECONDS)
        await stage.until_acknowledged()
    (row,) = await stage.occurrences(task)
    assert (row["attempt"], row["outcome"]) == (2, None)


async def test_what_was_given_up_while_its_executor_stood_still_does_not_run(
    stage: Stage, database_arguments: dict[str, Any]
) -> None:
    dispatch = await stage.due(await stage.add_task())
    caller = Recorder()
    arguments = {name: value for name, value in database_arguments.items() if name != "database"}
    async with executing(stage, caller, executor_lost_seconds=3):
        with psycopg.connect(dbname=database_arguments["database"], **arguments) as others:
            others.execute("LOCK TABLE bellringer.occurrences IN SHARE MODE")
            await stage.post(dispatch)
            async with stage.database.connection() as connection:
                await until_sessions_wait(connection)
            # From here on nothing happens in this process, as after SIGSTOP; its start goes through all the same.
            others.commit()
            given_up = None
            while given_up is None:
                crash = "SELECT is_recorded FROM bellringer.end_attempts(%s, %s, '{1}', '{crashed}', '{silent}')"
                given_up = others.execute(crash, ([dispatch.task], [dispatch.fire_at])).fetchone()
                others.commit()
            others.execute("SELECT pg_sleep(1.6)")
        await stage.until_acknowledged()
    assert caller.invocations == []


async def test_an_executor_is_seen_while_it_works_and_gone_afterwards(stage: Stage) -> None:
    async with executing(stage, Recorder(), concurrency=7, executor_lost_seconds=3) as executor:

        async def seen() -> list[asyncpg.Record]:
            return await stage.fetch("SELECT * FROM bellringer.executors WHERE seen_at > started_at")

        (row,) = await stage.fetch("SELECT * FROM bellringer.executors") or await until(seen)
        assert (row["id"], row["concurrency"]) == (executor.id, 7)
    assert await stage.fetch("SELECT FROM bellringer.executors") == []
