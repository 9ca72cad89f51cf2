"""The picker: fire times of the next two minutes become occurrences, each once, and what was missed is on record."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from tests.support.scheduler import Stage

from bellringer.scheduler import picker as picker_module
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.model import TaskNumber
from bellringer.scheduler.picker import Dispatcher, Picker


@pytest.fixture
def dispatcher(stage: Stage) -> Dispatcher:
    return Dispatcher(stage.database, stage.broker, SchedulerConfig())


@pytest.fixture
def picker(stage: Stage, dispatcher: Dispatcher) -> Picker:
    return Picker(stage.database, dispatcher, SchedulerConfig())


async def fire_ats(stage: Stage, task: TaskNumber) -> list[datetime]:
    return [row["fire_at"] for row in await stage.occurrences(task)]


async def every(
    stage: Stage, seconds: float, *, name: str = "report", begin: float = 0.0, **columns: object
) -> TaskNumber:
    """An interval whose next fire time lies so many seconds after now."""
    next_fire_at = await stage.now() + timedelta(seconds=begin)
    return await stage.add_task(
        name, every_seconds=seconds, starting_at=next_fire_at, next_fire_at=next_fire_at, **columns
    )


async def test_fire_times_of_the_next_two_minutes_are_picked(stage: Stage, picker: Picker) -> None:
    task = await every(stage, 30)
    first = (await stage.task(task))["next_fire_at"]
    await picker.run_once()
    picked = await fire_ats(stage, task)
    assert picked == [first + timedelta(seconds=30 * place) for place in range(len(picked))]
    assert len(picked) in {4, 5}
    row = await stage.task(task)
    assert row["next_fire_at"] == picked[-1] + timedelta(seconds=30)
    assert row["next_fire_at"] > await stage.now() + timedelta(seconds=118)
    assert (await stage.counts())["picked"] == len(picked)


async def test_what_is_picked_is_due_at_its_fire_time(stage: Stage, picker: Picker) -> None:
    task = await every(stage, 3600, begin=60)
    await picker.run_once()
    (row,) = await stage.occurrences(task)
    assert (row["due_at"], row["stage"], row["attempt"]) == (row["fire_at"], 0, 1)


async def test_nothing_is_picked_twice(stage: Stage, picker: Picker) -> None:
    task = await every(stage, 30)
    await picker.run_once()
    picked = await fire_ats(stage, task)
    await picker.run_once()
    assert await fire_ats(stage, task) == picked
    await stage.change_task(task, next_fire_at=picked[0])  # as if the schedule were planned anew
    await picker.run_once()
    assert await fire_ats(stage, task) == picked


async def test_what_is_due_later_is_left(stage: Stage, picker: Picker) -> None:
    task = await every(stage, 3600, begin=600)
    assert not await picker.run_once()
    assert await fire_ats(stage, task) == []


async def test_a_one_time_task_is_picked_for_good(stage: Stage, picker: Picker) -> None:
    at = await stage.now() + timedelta(seconds=30)
    task = await stage.add_task(once_at=at, next_fire_at=at)
    await picker.run_once()
    assert await fire_ats(stage, task) == [at]
    assert (await stage.task(task))["next_fire_at"] is None


async def test_a_cron_task_is_picked_by_the_clock_of_its_zone(stage: Stage, picker: Picker) -> None:
    at = (await stage.now()).replace(second=0, microsecond=0) + timedelta(minutes=1)
    task = await stage.add_task(cron="* * * * *", time_zone="Asia/Kathmandu", next_fire_at=at)
    await picker.run_once()
    assert (await fire_ats(stage, task))[0] == at
    assert (await stage.task(task))["next_fire_at"].second == 0


@pytest.mark.parametrize(
    ("columns", "runs"),
    [
        ({"misfire": "skip"}, 0),
        ({"misfire": "latest"}, 1),
        ({"misfire": "all", "misfire_limit": 3}, 3),
        ({"misfire": "window", "misfire_window_seconds": 1000.0}, 5),
    ],
)
async def test_what_was_missed_runs_or_is_skipped_as_the_task_says(
    stage: Stage, picker: Picker, columns: dict[str, object], runs: int
) -> None:
    task = await every(stage, 200, begin=-1900, **columns)  # ten fire times, the last 100 seconds ago
    await picker.run_once()
    rows = [row for row in await stage.occurrences(task) if row["fire_at"] < await stage.now()]
    assert [row["outcome"] for row in rows] == ["skipped"] * (10 - runs) + [None] * runs
    (incident,) = await stage.incidents()
    assert (incident["kind"], incident["cause"], incident["fire_times"]) == ("skipped", "misfire", 10 - runs)
    assert (incident["fire_at"], incident["last_fire_at"]) == (rows[0]["fire_at"], rows[9 - runs]["fire_at"])
    assert (await stage.counts())["skipped"] == 10 - runs


async def test_a_fire_time_of_a_few_seconds_ago_is_not_missed(stage: Stage, picker: Picker) -> None:
    task = await every(stage, 3600, begin=-25, misfire="skip")
    await picker.run_once()
    assert await stage.outcomes(task) == [None]


@pytest.mark.parametrize(("misfire", "runs"), [("skip", 0), ("latest", 1)])
async def test_a_long_past_is_picked_in_pieces_to_the_same_end(
    stage: Stage, picker: Picker, misfire: str, runs: int
) -> None:
    task = await every(stage, 1, begin=-3000, misfire=misfire)
    rounds = 1
    while await picker.run_once():
        rounds += 1
    assert rounds > 2
    rows = await stage.occurrences(task)
    assert [row["fire_at"] for row in rows] == [
        rows[0]["fire_at"] + timedelta(seconds=place) for place in range(len(rows))
    ]
    missed = [row for row in rows if row["fire_at"] < rows[0]["picked_at"] - timedelta(seconds=30)]
    assert [row["outcome"] for row in missed].count(None) == runs


async def test_one_round_plans_so_much_and_leaves_the_rest_to_the_next(
    stage: Stage, picker: Picker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picker_module, "_MOST_FIRE_TIMES", 10)
    tasks = [await every(stage, 20, name=f"task{number}") for number in range(5)]
    rounds = 1
    while await picker.run_once():
        rounds += 1
    assert rounds > 2
    assert {len(await fire_ats(stage, task)) for task in tasks} <= {6, 7}


async def test_a_task_that_cannot_be_planned_is_refused_and_holds_up_no_other(stage: Stage, picker: Picker) -> None:
    now = await stage.now()
    bad = await stage.add_task("bad", cron="0 0 31 2 *", next_fire_at=now, is_planned=False)
    good = await every(stage, 3600, name="good")
    await picker.run_once()
    assert len(await fire_ats(stage, good)) == 1
    row = await stage.task(bad)
    assert (row["state"], row["next_fire_at"]) == ("refused", None)
    assert row["problem"].startswith("schedule.cron")
    (incident,) = await stage.incidents()
    assert (incident["kind"], incident["task_name"], incident["detail"]) == ("refused", "bad", row["problem"])


async def test_a_row_that_is_no_task_is_refused_and_holds_up_no_other(stage: Stage, picker: Picker) -> None:
    now = await stage.now()
    bad = await stage.add_task("bad", call='{"type": "smoke"}', next_fire_at=now, is_planned=False)
    good = [await stage.add_task(f"good{number}", next_fire_at=now, is_planned=False) for number in range(4)]
    await picker.run_once()
    assert (await stage.task(bad))["problem"].startswith("call: ")
    assert [(await stage.task(task))["state"] for task in good] == ["active"] * 4


async def test_a_task_scheduled_in_sql_is_planned_from_then_on(stage: Stage, picker: Picker) -> None:
    made = await stage.now() - timedelta(seconds=10)
    task = await stage.add_task(
        every_seconds=50.0, next_fire_at=made + timedelta(seconds=5), created_at=made, is_planned=False
    )
    await picker.run_once()
    picked = await fire_ats(stage, task)
    assert picked[0] == made + timedelta(seconds=50)
    assert (await stage.task(task))["is_planned"]


async def test_several_pickers_share_the_work(stage: Stage, dispatcher: Dispatcher) -> None:
    tasks = [await every(stage, 30, name=f"task{number}") for number in range(40)]
    pickers = [Picker(stage.database, dispatcher, SchedulerConfig(batch=7)) for _ in range(4)]

    async def pick_all(one: Picker) -> None:
        while await one.run_once():
            pass

    await asyncio.gather(*map(pick_all, pickers))
    while await pickers[0].run_once():
        pass
    for task in tasks:
        picked = await fire_ats(stage, task)
        assert picked == [picked[0] + timedelta(seconds=30 * place) for place in range(len(picked))]
        assert len(picked) in {4, 5}


async def test_a_task_that_somebody_changes_is_left_to_the_next_round(stage: Stage, picker: Picker) -> None:
    task = await every(stage, 3600)
    async with stage.database.transaction() as connection:
        await connection.execute("SELECT FROM bellringer.tasks FOR NO KEY UPDATE")
        assert not await picker.run_once()
    assert await fire_ats(stage, task) == []
    await picker.run_once()
    assert len(await fire_ats(stage, task)) == 1


async def test_a_picker_that_fails_has_picked_nothing(
    stage: Stage, picker: Picker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await every(stage, 3600)
    before = await stage.task(task)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(picker_module, "add_plan", fail)
        with pytest.raises(MemoryError):
            await picker.run_once()
    assert await stage.task(task) == before
    assert await picker.run_once() is False
    assert len(await fire_ats(stage, task)) == 1
