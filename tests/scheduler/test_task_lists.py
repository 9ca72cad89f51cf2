"""Tasks are listed page by page, and a schedule is looked at before it becomes one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from tests.support.scheduler_definitions import AT_ONCE, DAILY, task
from tests.support.scheduler_engine import Engine

from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler import task_store
from bellringer.scheduler.model import Schedule, TaskState
from bellringer.scheduler.service import Tasks, preview

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)


async def test_tasks_are_listed_by_name_page_by_page(tasks: Tasks, home: UUID) -> None:
    names = ["B", "a", "a.1", "a:2", "a_3", "b", "ba", "c"]
    for name in names:
        await tasks.create(home, name, task())
    assert [one.name for one in await tasks.list(home)] == names
    assert [one.name for one in await tasks.list(home, prefix="a")] == ["a", "a.1", "a:2", "a_3"]
    assert [one.name for one in await tasks.list(home, prefix="a_")] == ["a_3"]
    page = await tasks.page(home, limit=3)
    assert ([one.name for one in page.tasks], page.next) == (["B", "a", "a.1"], "a.1")
    page = await tasks.page(home, prefix="a", after="a.1", limit=3)
    assert ([one.name for one in page.tasks], page.next) == (["a:2", "a_3"], None)
    for arguments, field in (({"limit": 0}, "limit"), ({"prefix": "%"}, "prefix"), ({"after": "\x00"}, "after")):
        with pytest.raises(InvalidInput) as refused:
            await tasks.page(home, **arguments)  # type: ignore[arg-type]
        assert refused.value.field == field


async def test_tasks_are_listed_by_state(tasks: Tasks, engine: Engine, home: UUID) -> None:
    for name in ("done", "runs"):
        await tasks.create(home, name, task(AT_ONCE))
        await engine.pick()
        dispatches = await engine.dispatch()
        await engine.start(dispatches)
        if name == "done":
            await engine.end(dispatches[0])
    for name in ("daily", "paused", "cancelled"):
        await tasks.create(home, name, task())
    await tasks.pause(home, "paused")
    await tasks.cancel(home, "cancelled")
    listed = {state: await tasks.list(home, state=state) for state in TaskState}
    assert {one.state for one in listed[TaskState.FINISHED]} == {TaskState.FINISHED}
    assert {state.value: [one.name for one in found] for state, found in listed.items()} == {
        "active": ["daily", "runs"],
        "paused": ["paused"],
        "finished": ["done"],
        "cancelled": ["cancelled"],
        "refused": [],
    }


async def test_a_page_of_active_tasks_looks_at_so_many_and_says_where_to_go_on(
    tasks: Tasks, engine: Engine, home: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await tasks.create(home, f"done-{number}", task(AT_ONCE))
    await engine.pick()
    await engine.run()
    await tasks.create(home, "later", task())
    monkeypatch.setattr(task_store, "MOST_SCANNED", 2)
    found, after = [], ""
    for _ in range(4):
        page = await tasks.page(home, state=TaskState.ACTIVE, after=after)
        found.append(([one.name for one in page.tasks], page.next))
        after = page.next or ""
    assert found == [([], "done-1"), ([], "done-3"), (["later"], "later"), ([], None)]


def test_a_schedule_is_looked_at_before_a_task_is_made() -> None:
    assert preview(DAILY, 2, NOW) == [NOW.replace(day=29, hour=1), NOW.replace(day=30, hour=0)]
    assert preview(Schedule(delay_seconds=90), 5, NOW) == [NOW + timedelta(seconds=90)]
    assert preview(Schedule(at=NOW), 5, NOW) == [NOW]
    assert preview(Schedule(every_seconds=60), 2, NOW) == [NOW + timedelta(seconds=60), NOW + timedelta(seconds=120)]
    for schedule, count, field in ((DAILY, 0, "count"), (Schedule(cron="x"), 1, "schedule.cron")):
        with pytest.raises(InvalidInput) as refused:
            preview(schedule, count, NOW)
        assert refused.value.field == field
