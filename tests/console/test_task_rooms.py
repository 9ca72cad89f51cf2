from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from tests.support.application import client_of
from tests.support.html import tags_of, text_of
from tests.support.scheduler_rows import add_past_attempt, add_run, count, report
from tests.support.site import Site

from bellringer.edge.keys import Keys
from bellringer.kernel.database import Database
from bellringer.scheduler.model import FunctionCall, HttpCall, MessageCall, OccurrenceState, Outcome, TaskState

HOSTILE = "<script>alert(1)</script>\"'>"
FIRE_AT = datetime(2026, 11, 20, 2, tzinfo=UTC)
DASH = "\N{EN DASH}"
PATH = "2026-11-20T02:00:00Z"


async def text_at(reader: httpx.AsyncClient, path: str) -> str:
    answer = await reader.get(path)
    assert answer.status_code == 200, answer.text
    return text_of(answer.text)


def cells_of(html: str) -> list[str]:
    """What each cell of the calendar says."""
    return re.findall(r"<rect class=\"plot-moment heat-\d\"[^>]*><title>([^<]*)</title>", html)


# The list


async def test_the_list_tells_what_each_task_calls_and_when(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    await site.add_task(
        "billing", call=HttpCall(url="https://acme.example/bill"), cron="30 2 * * *", time_zone="Asia/Tokyo"
    )
    await site.add_task("import", call=FunctionCall(name="load"), every_seconds=90.0)
    await site.add_task("reports")
    await site.tasks.pause(site.environment.id, "reports")
    number = (await site.tasks.read(site.environment.id, "import")).number
    await add_run(database, number, FIRE_AT, outcome="failed")
    listed = await text_at(reader, "/console/tasks")
    assert "HTTP POST https://acme.example/bill at 02:30 every day 30 2 * * * in Asia/Tokyo" in listed
    assert re.search(r"import every 1 min 30 s function load every 1 min 30 s in \d+ (s|min) failed", listed)
    assert f"reports paused every 1 h message to reports every 1 h {DASH} {DASH}" in listed


async def test_the_next_fire_time_is_told_though_it_is_picked(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    await site.add_task("tick", cron="* * * * *")
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.tasks SET next_fire_at = next_fire_at + interval '10 min'")
    assert re.search(r"every minute \* \* \* \* \* in (\d+ s|1 min) ", await text_at(reader, "/console/tasks"))
    assert re.search(r"Next fire time in (\d+ s|1 min) ", await text_at(reader, "/console/tasks/tick"))


async def test_a_fire_time_that_is_overdue_is_told(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    await site.add_task("tick", every_seconds=3600)
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.tasks SET next_fire_at = next_fire_at - interval '2 h'")
    assert re.search(r"Next fire time (1 h|59 min) ago", await text_at(reader, "/console/tasks/tick"))


async def test_the_list_is_filtered_and_turned_page_by_page(site: Site, reader: httpx.AsyncClient) -> None:
    for number in range(26):
        await site.add_task(f"sweep.{number:02}")
    await site.add_task("report")
    await site.tasks.pause(site.environment.id, "report")
    first = (await reader.get("/console/tasks", params={"prefix": "sweep."})).text
    assert "sweep.24" in text_of(first)
    assert "sweep.25" not in text_of(first)
    assert "report" not in [link["href"].rpartition("/")[2] for link in tags_of(first, "a")]
    (following,) = [link["href"] for link in tags_of(first, "a") if link.get("rel") == "next"]
    assert "sweep.25" in await text_at(reader, following)
    paused = await text_at(reader, "/console/tasks?state=paused")
    assert "report paused" in paused
    assert "sweep.00" not in paused
    assert "No tasks here" in await text_at(reader, "/console/tasks?prefix=none")
    assert (await reader.get("/console/tasks?state=asleep")).status_code == 404


async def test_the_five_metrics_are_told_and_plotted(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    await site.add_task("report")
    totals = {"picked": 40, "started": 30, "wait_ms": 6_000, "wait_1": 30, "ended": 20, "run_ms": 50_000, "failed": 3}
    await count(database, site.environment.id, {f"tasks.{name}": value for name, value in totals.items()})
    html = (await reader.get("/console/tasks")).text
    text = text_of(html)
    assert "Pulled a minute 40 40 in all Wait time 200 ms no start over 30 s" in text
    assert "Time to completion 2.5 s 3 of 20 failed Picker lag 0 ms pickers keep up Queue depth 0" in text
    assert "Executors 0 nobody executes" in text
    drawings = [svg["aria-label"] for svg in tags_of(html, "svg") if svg.get("role") == "img"]
    assert drawings == [
        "Tasks pulled over the last hour, at most 40 a minute",
        "Starts by wait over the last hour, at most 30 a minute",
        "Wait time over the last hour, at most 200 milliseconds",
        "Time to completion over the last hour, at most 2.5 seconds",
        "Picker lag over the last hour, at most 0 seconds",
        "Queue depth over the last hour, at most 0 tasks",
    ]
    assert "Tasks pulled over the last 24 hours" in await text_at(reader, "/console/tasks?period=24h")


async def test_who_has_no_tasks_is_told_how_to_make_one(reader: httpx.AsyncClient) -> None:
    for path in ("/console/tasks", "/console/calendar"):
        assert "curl http://bellringer/v1/tasks" in await text_at(reader, path)
    assert "Nothing waits for you" in await text_at(reader, "/console/failures")
    assert "Every start was in time" in await text_at(reader, "/console/failures?kind=missed")


# A task


async def test_a_task_shows_its_definition_and_what_is_to_come(site: Site, reader: httpx.AsyncClient) -> None:
    await site.add_task("report", cron="0 2 * * *", time_zone="Europe/Berlin", payload={"format": "pdf"})
    text = await text_at(reader, "/console/tasks/report")
    assert "message to reports , at 02:00 every day in Europe/Berlin." in text
    assert '"format" : "pdf"' in text
    assert f"Overlap skipped {DASH} while an earlier occurrence still runs" in text
    assert f"Retries none {DASH} a failure waits for a person" in text
    assert "It has not fired yet" in text
    assert len(re.findall(r"[A-Z][a-z]{2} \d\d, 0[01]:00:00 in \d+ (?:d|h|min)", text)) == 8
    assert "http://bellringer/v1/tasks/report/run" in text


async def test_each_occurrence_is_drawn_with_its_times(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    number = (await site.add_task("report")).number
    await add_run(database, number, FIRE_AT, lag=0.25, ran=90)
    await add_run(
        database,
        number,
        FIRE_AT + timedelta(days=1),
        lag=45,
        ran=2,
        cause="executor busy",
        outcome="failed",
        detail="disk full",
    )
    html = (await reader.get("/console/tasks/report")).text
    told = [svg["aria-label"] for svg in tags_of(html, "svg") if svg.get("class") == "line"]
    ahead = "picked 2 min before it was due, dispatched 5 s before it was due"
    assert told == [
        f"{ahead}, started 45 s after it was due, ran 2 s, failed",
        f"{ahead}, started 250 ms after it was due, ran 1 min 30 s, succeeded",
    ]
    text = text_of(html)
    assert re.search(
        r"Nov 21, 02:00:00 .* started \+45 s ran 2 s failed executor busy Retry Nov 21, 02:00:00 disk full", text
    )
    assert re.search(r"Nov 20, 02:00:00 .* started \+250 ms ran 1 min 30 s succeeded", text)
    assert "Retry Nov 20" not in text
    assert "In time 1 of 2 typically 23 s after due Typical run 46 s longest 1 min 30 s" in text


async def test_a_long_history_is_turned_page_by_page(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    number = (await site.add_task("report")).number
    for days in range(51):
        await add_run(database, number, FIRE_AT - timedelta(days=days))
    first = (await reader.get("/console/tasks/report")).text
    assert "data-live" in first
    (older,) = [link["href"] for link in tags_of(first, "a") if link.get("rel") == "next"]
    second = (await reader.get(older)).text
    assert [svg["class"] for svg in tags_of(second, "svg")].count("line") == 1
    assert "Oct 01, 02:00:00" in text_of(second)
    assert "data-live" not in second


async def test_what_is_picked_far_ahead_does_not_hide_what_was(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    task = await site.add_task("tick", every_seconds=1.0)
    await add_run(database, task.number, FIRE_AT)
    first = task.created_at + timedelta(seconds=30)
    for seconds in range(120):
        await add_run(database, task.number, first + timedelta(seconds=seconds), lag=None, outcome=None)
    assert "Nov 20, 02:00:00" in await text_at(reader, "/console/tasks/tick")


async def test_the_attempts_at_a_fire_time_are_told_one_by_one(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    number = (await site.add_task("report")).number
    await add_run(database, number, FIRE_AT, attempt=3, lag=40, cause="queue full")
    await add_past_attempt(database, number, FIRE_AT, 1, outcome="failed", detail=f"ValueError: {HOSTILE}")
    await add_past_attempt(database, number, FIRE_AT, 2, outcome="crashed")
    text = await text_at(reader, f"/console/tasks/report/occurrences/{PATH}")
    assert "It did not start within 30 s: queue full. It waited in the queue" in text
    assert re.search(
        r"3rd attempt succeeded .* 2nd attempt crashed .* 1st attempt failed .* ValueError: <script>", text
    )
    assert "Started Nov 20, 02:00:40.000 40 s after due Ended Nov 20, 02:00:41.000 ran 1 s" in text


@pytest.mark.parametrize(
    "path",
    [
        "/console/tasks/none",
        "/console/tasks/none/cancel",
        "/console/tasks/report?before=yesterday",
        "/console/tasks/report/occurrences/2026-11-20T02:00:00Z",
        "/console/tasks/report/occurrences/2026-11-20T02:00:00",
        "/console/tasks/report/occurrences/now",
        "/console/tasks/report/else",
        "/console/calendar?at=noon",
        "/console/calendar?at=9999-12-31T23:59:59Z",
        "/console/calendar?at=0001-01-01T00:00:00%2B14:00",
        "/console/failures?kind=strange",
        "/console/failures?before=-1",
        "/console/tasks?period=1y",
    ],
)
async def test_what_is_not_there_is_not_found(site: Site, reader: httpx.AsyncClient, path: str) -> None:
    await site.add_task("report")
    answer = await reader.get(path)
    assert answer.status_code == 404
    assert "There is nothing here" in text_of(answer.text)


# The calendar


async def test_the_calendar_tells_what_comes_in_each_minute(site: Site, reader: httpx.AsyncClient) -> None:
    at = (datetime.now(UTC) + timedelta(hours=5)).replace(minute=30, second=0, microsecond=0)
    for name in ("first", "second", "third"):
        await site.add_task(name, at=at)
    html = (await reader.get("/console/calendar")).text
    assert cells_of(html) == [f"{at:%H:%M} UTC, 3: first, second, third"]
    assert f"3 fire times busiest {at:%H:%M}, 3" in text_of(html)
    assert "Nothing starts in this hour." in text_of(html)


async def test_a_minute_of_the_calendar_is_opened(site: Site, reader: httpx.AsyncClient) -> None:
    at = (datetime.now(UTC) + timedelta(hours=5)).replace(minute=30, second=0, microsecond=0)
    await site.add_task("report", at=at)
    await site.add_task("import", at=at + timedelta(minutes=10))
    html = (await reader.get(f"/console/calendar?at={at:%Y-%m-%dT%H:%M:00Z}")).text
    assert f"{at:%H}:00 to {at + timedelta(hours=1):%H}:00 UTC" in text_of(html)
    assert re.findall(r"<details( open)?>\s*<summary class=\"load\">", html) == [" open", ""]
    assert "/console/tasks/report" in [link["href"] for link in tags_of(html, "a")]


async def test_what_comes_within_the_hour_is_told_in_detail(site: Site, reader: httpx.AsyncClient) -> None:
    await site.add_task("tick", cron="* * * * *")
    html = (await reader.get("/console/calendar")).text
    assert 1438 <= len(cells_of(html)) <= 1440
    assert 58 <= html.count('<summary class="load">') <= 60


# What went wrong


async def test_failures_wait_until_they_are_tried_again(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    task = await site.add_task("report")
    await add_run(database, task.number, FIRE_AT, outcome="failed")
    await report(database, site.environment.id, "failed", task=task.number, fire_at=FIRE_AT, detail="disk full")
    html = (await reader.get("/console/failures")).text
    assert re.search(
        r"failed report Nov 20, 02:00:00 just now Retry report of Nov 20, 02:00:00 disk full", text_of(html)
    )
    (action,) = [form["action"] for form in tags_of(html, "form") if form["action"].endswith("/retry")]
    answer = await reader.post(action, data={"from": "failures"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/failures")
    assert "Nothing waits for you" in await text_at(reader, "/console/failures")
    assert "tried again just now" in await text_at(reader, "/console/failures?kind=all")
    again, _ = await site.tasks.occurrence(site.environment.id, "report", FIRE_AT)
    assert (again.state, again.attempt) == (OccurrenceState.PICKED, 2)


async def test_late_starts_and_skips_say_why(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    await site.add_task("report")
    await report(database, site.environment.id, "missed", cause="queue full", fire_at=FIRE_AT)
    await report(database, site.environment.id, "skipped", cause="misfire", fire_times=40, fire_at=FIRE_AT)
    late = await text_at(reader, "/console/failures?kind=missed")
    assert "late report Nov 20, 02:00:00 just now Queue full. It waited in the queue until" in late
    assert "Misfire" not in late
    skipped = await text_at(reader, "/console/failures?kind=skipped")
    assert "40 fire times. Misfire. Nothing could pick it in time." in skipped
    assert "Nothing waits for you" in await text_at(reader, "/console/failures")


async def test_many_incidents_are_turned_page_by_page(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    for _ in range(51):
        await report(database, site.environment.id, "missed", cause="queue full", fire_at=FIRE_AT)
    first = (await reader.get("/console/failures?kind=missed")).text
    assert first.count('class="incident"') == 50
    (older,) = [link["href"] for link in tags_of(first, "a") if link.get("rel") == "next"]
    assert (await reader.get(older)).text.count('class="incident"') == 1


# What can be done


async def test_a_task_is_paused_resumed_and_run(site: Site, reader: httpx.AsyncClient) -> None:
    await site.add_task("report")
    answer = await reader.post("/console/tasks/report/pause")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/tasks/report")
    assert "Paused. Fire times pass" in await text_at(reader, "/console/tasks/report")
    await reader.post("/console/tasks/report/resume")
    assert (await site.tasks.read(site.environment.id, "report")).state is TaskState.ACTIVE
    answer = await reader.post("/console/tasks/report/run")
    assert answer.headers["location"] == "/console/tasks/report#history"
    assert "by hand" in await text_at(reader, "/console/tasks/report")


async def test_a_cancellation_needs_the_name(site: Site, reader: httpx.AsyncClient) -> None:
    await site.add_task("report")
    assert "Cancel report?" in await text_at(reader, "/console/tasks/report/cancel")
    for wrong in ({}, {"name": "repor"}, {"name": HOSTILE}):
        refused = await reader.post("/console/tasks/report/cancel", data=wrong)
        assert refused.status_code == 422
        assert "That is not the name of the task. Nothing was changed." in text_of(refused.text)
        assert "<script>" not in refused.text
    assert (await site.tasks.read(site.environment.id, "report")).state is TaskState.ACTIVE
    assert (await reader.post("/console/tasks/report/cancel", data={"name": "report"})).status_code == 303
    text = await text_at(reader, "/console/tasks/report")
    assert "Cancelled just now" in text
    assert "Run now" not in text


async def test_an_occurrence_is_cancelled_before_it_starts(site: Site, reader: httpx.AsyncClient) -> None:
    await site.add_task("report")
    occurrence = await site.tasks.run_now(site.environment.id, "report")
    html = (await reader.get("/console/tasks/report")).text
    (action,) = [form["action"] for form in tags_of(html, "form") if "/occurrences/" in form["action"]]
    await reader.post(action)
    ended, _ = await site.tasks.occurrence(site.environment.id, "report", occurrence.fire_at)
    assert ended.outcome is Outcome.CANCELLED


async def test_what_cannot_be_done_is_told(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    task = await site.add_task("report")
    await add_run(database, task.number, FIRE_AT)
    answer = await reader.post(f"/console/tasks/report/occurrences/{PATH}/retry")
    assert answer.status_code == 422
    assert "this occurrence has succeeded" in text_of(answer.text)
    await site.tasks.cancel(site.environment.id, "report")
    assert (await reader.post("/console/tasks/report/run")).status_code == 422


@pytest.mark.parametrize(
    "action", ["pause", "resume", "run", "cancel", f"occurrences/{PATH}/retry", f"occurrences/{PATH}/cancel"]
)
async def test_other_sites_can_do_nothing(site: Site, reader: httpx.AsyncClient, action: str) -> None:
    await site.add_task("report")
    answer = await reader.post(f"/console/tasks/report/{action}", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403


async def test_another_environment_sees_none_of_it(site: Site, keys: Keys, visitor: httpx.AsyncClient) -> None:
    await site.add_task("report")
    async with client_of(site.app) as stranger:
        await stranger.post("/console/login", data={"key": await keys.create("acme", "staging", "test")})
        assert "No tasks yet" in await text_at(stranger, "/console/tasks")
        assert (await stranger.get("/console/tasks/report")).status_code == 404
        assert (await stranger.post("/console/tasks/report/pause")).status_code == 404
    assert (await visitor.get("/console/tasks")).headers["location"] == "/console/login?next=%2Fconsole%2Ftasks"


async def test_what_people_write_is_text(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    task = await site.add_task("report", call=MessageCall(queue="reports", group=HOSTILE), payload={HOSTILE: HOSTILE})
    await add_run(database, task.number, FIRE_AT, outcome="failed", detail=HOSTILE)
    await report(database, site.environment.id, "failed", task=task.number, fire_at=FIRE_AT, detail=HOSTILE)
    for path in (
        "/console/tasks",
        "/console/tasks/report",
        f"/console/tasks/report/occurrences/{PATH}",
        "/console/failures",
    ):
        html = (await reader.get(path)).text
        assert "<script>alert" not in html
        assert not re.search(r"<[^>]*\s(style|on\w+)=", html)
