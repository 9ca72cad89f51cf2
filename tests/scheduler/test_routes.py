"""Tasks over HTTP: what is asked for, and every way to ask wrongly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from tests.support.application import client_of
from tests.support.scheduler_engine import Engine

from bellringer.edge.app import EdgeConfig, build_app
from bellringer.edge.keys import Keys
from bellringer.edge.model import Scope
from bellringer.kernel.database import Database
from bellringer.scheduler.model import Outcome
from bellringer.scheduler.routes import scheduler_routes
from bellringer.scheduler.service import Tasks

HOOK = {"type": "http", "url": "https://example.org/hook"}
DAILY = {"schedule": {"cron": "0 2 * * *", "time_zone": "Europe/Berlin"}, "call": HOOK}
AT_ONCE = {"schedule": {"delay_seconds": 0}, "call": HOOK}


@pytest.fixture
async def client(database: Database, keys: Keys, api_key: str, tasks: Tasks) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(EdgeConfig(), database, keys, [scheduler_routes(tasks)])
    async with client_of(app, api_key) as opened:
        yield opened


def fault(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("field")


async def test_a_task_is_made_and_looked_at(client: httpx.AsyncClient) -> None:
    asked = {"name": "acme:backup.1", **DAILY, "payload": {"to": ["s3"]}, "retry": {"max_retries": 1}}
    answer = await client.post("/v1/tasks", json=asked)
    made = answer.json()
    assert answer.status_code == 201
    assert {name: made[name] for name in ("name", "state", "schedule", "payload", "overlap", "problem", "last")} == {
        "name": "acme:backup.1",
        "state": "active",
        "schedule": asked["schedule"],
        "payload": {"to": ["s3"]},
        "overlap": "skip",
        "problem": None,
        "last": None,
    }
    assert made["retry"] == {"max_retries": 1, "first_seconds": 10.0, "cap_seconds": 3600.0}
    assert datetime.fromisoformat(made["next_fire_at"]) > datetime.now(UTC)
    again = await client.post("/v1/tasks", json=asked)
    assert (again.status_code, again.json()) == (200, made)
    assert fault(await client.post("/v1/tasks", json={**asked, "payload": None})) == (422, None)
    for path in ("/v1/tasks/acme:backup.1", "/v1/tasks/acme%3Abackup%2E1"):
        assert (await client.get(path)).json() == made
    nameless = (await client.post("/v1/tasks", json=DAILY)).json()
    assert (await client.get(f"/v1/tasks/{nameless['name']}")).json() == nameless


async def test_a_task_is_put_changed_and_deleted(client: httpx.AsyncClient) -> None:
    assert (await client.put("/v1/tasks/backup", json=DAILY)).status_code == 201
    changed = await client.put("/v1/tasks/backup", json={**DAILY, "schedule": {"every_seconds": 60}})
    assert (changed.status_code, changed.json()["schedule"]) == (200, {"every_seconds": 60.0})
    assert (await client.delete("/v1/tasks/backup")).status_code == 204
    for method, path in (
        ("DELETE", ""), ("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/cancel"), ("POST", "/run"),
        ("GET", "/occurrences"), ("GET", "/occurrences/2026-01-05T10:01:00Z"),
        ("POST", "/occurrences/2026-01-05T10:01:00Z/retry"), ("POST", "/occurrences/2026-01-05T10:01:00Z/cancel"),
    ):  # fmt: skip
        assert fault(await client.request(method, f"/v1/tasks/backup{path}")) == (404, None)
        assert fault(await client.request(method, f"/v1/tasks/-backup{path}")) == (400, "name")


async def test_a_task_is_paused_resumed_and_cancelled(client: httpx.AsyncClient) -> None:
    await client.put("/v1/tasks/backup", json=DAILY)
    for verb, state in (("pause", "paused"), ("resume", "active"), ("cancel", "cancelled"), ("cancel", "cancelled")):
        answer = await client.post(f"/v1/tasks/backup/{verb}")
        assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert (answer.json()["next_fire_at"] is None) == (state != "active")
    for verb in ("pause", "resume", "run"):
        refused = await client.post(f"/v1/tasks/backup/{verb}")
        assert (refused.status_code, refused.json()["detail"]) == (422, "the task backup is cancelled")


async def test_what_became_of_a_task_is_told_and_mended(client: httpx.AsyncClient, engine: Engine) -> None:
    await client.put("/v1/tasks/mail", json=AT_ONCE)
    await engine.pick()
    await engine.run(Outcome.FAILED, "the server said no")
    (told,) = (await client.get("/v1/tasks/mail/occurrences")).json()["occurrences"]
    assert (told["state"], told["outcome"], told["detail"], told["attempt"]) == (
        "ended", "failed", "the server said no", 1,
    )  # fmt: skip
    assert told["lag_seconds"] >= 0
    path = f"/v1/tasks/mail/occurrences/{told['fire_at']}"
    assert (await client.get(path)).json() == {**told, "past_attempts": []}
    moved = datetime.fromisoformat(told["fire_at"]) + timedelta(0)
    elsewhere = moved.astimezone().isoformat().replace("+", "%2B")
    assert (await client.get(f"/v1/tasks/mail/occurrences/{elsewhere}")).json()["fire_at"] == told["fire_at"]
    (incident,) = (await client.get("/v1/incidents?unresolved=true")).json()["incidents"]
    assert (incident["task"], incident["kind"], incident["fire_at"]) == ("mail", "failed", told["fire_at"])

    again = await client.post(f"{path}/retry")
    assert (again.status_code, again.json()["state"], again.json()["attempt"]) == (200, "picked", 2)
    assert fault(await client.post(f"{path}/retry")) == (422, None)
    assert (await client.get("/v1/incidents?unresolved=true")).json() == {"incidents": [], "next": None}
    (past,) = (await client.get(path)).json()["past_attempts"]
    assert (past["attempt"], past["outcome"]) == (1, "failed")
    cancelled = await client.post(f"{path}/cancel")
    assert (cancelled.status_code, cancelled.json()["outcome"]) == (200, "cancelled")
    assert (await client.get("/v1/tasks/mail")).json()["last"]["outcome"] == "cancelled"


async def test_a_task_runs_now(client: httpx.AsyncClient, engine: Engine) -> None:
    await client.put("/v1/tasks/backup", json=DAILY)
    answer = await client.post("/v1/tasks/backup/run")
    assert (answer.status_code, answer.json()["is_manual"], answer.json()["state"]) == (201, True, "picked")
    await engine.run()
    assert (await client.get("/v1/tasks/backup")).json()["last"]["outcome"] == "succeeded"


async def test_lists_come_in_pages(client: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await client.put(f"/v1/tasks/{name}", json=DAILY)
        await client.post("/v1/tasks/a/run")
    await client.post("/v1/tasks/b/pause")
    page = (await client.get("/v1/tasks?limit=2")).json()
    assert ([task["name"] for task in page["tasks"]], page["next"]) == (["a", "b"], "b")
    page = (await client.get(f"/v1/tasks?limit=2&after={page['next']}")).json()
    assert ([task["name"] for task in page["tasks"]], page["next"]) == (["c"], None)
    page = (await client.get("/v1/tasks?state=paused&prefix=b")).json()
    assert [task["name"] for task in page["tasks"]] == ["b"]
    runs = (await client.get("/v1/tasks/a/occurrences?limit=2")).json()
    rest = (await client.get(f"/v1/tasks/a/occurrences?limit=2&before={runs['next']}")).json()
    assert (len(runs["occurrences"]), len(rest["occurrences"]), rest["next"]) == (2, 1, None)


async def test_what_is_to_come_is_told(client: httpx.AsyncClient) -> None:
    await client.put("/v1/tasks/backup", json={**DAILY, "schedule": {"cron": "*/30 * * * *"}})
    minutes = (await client.get("/v1/calendar?hours=2")).json()["minutes"]
    assert [(minute["fire_times"], minute["tasks"]) for minute in minutes] == [(1, ["backup"])] * 4
    later = (await client.get(f"/v1/calendar?hours=1&start={minutes[2]['minute']}")).json()["minutes"]
    assert later == minutes[2:]
    asked = {"schedule": {"cron": "30 2 29 3 *", "time_zone": "Europe/Berlin"}, "count": 2}
    told = (await client.post("/v1/schedules/preview", json=asked)).json()["fire_times"]
    assert len(told) == 2
    assert (await client.get("/v1/executors")).json() == {"executors": []}
    assert (await client.get("/v1/functions")).json() == {"functions": []}


async def test_executors_with_the_functions_of_another_environment_are_not_told(
    client: httpx.AsyncClient, database: Database
) -> None:
    async with database.connection() as connection:
        await connection.execute("""
            INSERT INTO bellringer.executors (id, host, process, concurrency, environment_id)
            VALUES (gen_random_uuid(), 'ours', 1, 1, NULL), (gen_random_uuid(), 'theirs', 1, 1, gen_random_uuid())
        """)
    assert [one["host"] for one in (await client.get("/v1/executors")).json()["executors"]] == ["ours"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**DAILY, "schedule": {}}, "schedule"),
        ({**DAILY, "schedule": {"cron": "0 2 * * *", "every_seconds": 5}}, "schedule"),
        ({**DAILY, "schedule": {"cron": "0 0 31 2 *"}}, "schedule.cron"),
        ({**DAILY, "schedule": {"cron": 5}}, "schedule.cron"),
        ({**DAILY, "schedule": {"cron": "@daily", "time_zone": "Mars"}}, "schedule.time_zone"),
        ({**DAILY, "schedule": {"at": "2020-01-01T00:00:00Z"}}, "schedule.at"),
        ({**DAILY, "schedule": {"at": "2040-01-01T00:00:00"}}, "schedule.at"),
        ({**DAILY, "schedule": {"at": "14:45"}}, "schedule.at"),
        ({**DAILY, "schedule": {"delay_seconds": "5"}}, "schedule.delay_seconds"),
        ({**DAILY, "schedule": {"every": 5}}, "schedule.every"),
        ({**DAILY, "call": {"type": "mail"}}, "call.type"),
        ({**DAILY, "call": {"type": "http", "url": "example.org"}}, "call.url"),
        ({**DAILY, "call": {"type": "http"}}, "call.url"),
        ({**DAILY, "overlap": "never"}, "overlap"),
        ({**DAILY, "misfire": {"policy": "all", "limit": 0}}, "misfire.limit"),
        ({**DAILY, "retry": {"max_retries": -1}}, "retry.max_retries"),
        ({**DAILY, "speed": 1}, "speed"),
        ({"call": HOOK}, "schedule"),
        ([], "body"),
    ],
)
async def test_bad_input_names_the_field_and_changes_nothing(
    client: httpx.AsyncClient,
    body: object,
    field: str,
) -> None:
    assert fault(await client.post("/v1/tasks", json=body)) == (400, field)
    assert fault(await client.put("/v1/tasks/backup", json=body)) == (400, field)
    assert (await client.get("/v1/tasks")).json() == {"tasks": [], "next": None}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("tasks?state=sleeping", "state"),
        ("tasks?limit=0", "limit"),
        ("tasks?limit=x", "limit"),
        ("tasks?prefix=a%25", "prefix"),
        ("tasks?after=%00", "after"),
        ("tasks/backup/occurrences?before=yesterday", "before"),
        ("tasks/backup/occurrences?before=2026-01-05T10:01:00", "before"),
        ("tasks/backup/occurrences?limit=1001", "limit"),
        ("tasks/backup/occurrences/10:01", "fire_at"),
        ("tasks/backup/occurrences/2026-01-05T10:01:00", "fire_at"),
        ("tasks/backup/occurrences/0001-01-01T00:00:00%2B14:00", "fire_at"),
        ("incidents?kind=slow", "kind"),
        ("incidents?before=x", "before"),
        ("incidents?limit=0", "limit"),
        ("calendar?hours=169", "hours"),
        ("calendar?start=now", "start"),
    ],
)
async def test_a_bad_question_names_the_parameter(client: httpx.AsyncClient, query: str, field: str) -> None:
    await client.put("/v1/tasks/backup", json=DAILY)
    assert fault(await client.get(f"/v1/{query}")) == (400, field)


async def test_large_numbers_find_nothing(client: httpx.AsyncClient) -> None:
    for query in ("incidents?before=99999999999999999999", "incidents?before=-1"):
        assert (await client.get(f"/v1/{query}")).json() == {"incidents": [], "next": None}


async def test_those_who_publish_make_and_run_tasks_and_no_more(
    client: httpx.AsyncClient, keys: Keys, database: Database, tasks: Tasks
) -> None:
    await client.put("/v1/tasks/backup", json=DAILY)
    key = await keys.create("acme", "production", "publisher", scopes=[Scope.PUBLISH])
    app = build_app(EdgeConfig(), database, keys, [scheduler_routes(tasks)])
    async with client_of(app, key) as publisher:
        assert (await publisher.post("/v1/tasks", json=DAILY)).status_code == 201
        assert (await publisher.put("/v1/tasks/backup", json=DAILY)).status_code == 200
        assert (await publisher.post("/v1/tasks/backup/run")).status_code == 201
        assert (await publisher.post("/v1/schedules/preview", json={"schedule": {"cron": "@daily"}})).status_code == 200
        for method, path in (
            ("GET", "tasks"), ("GET", "tasks/backup"), ("DELETE", "tasks/backup"), ("POST", "tasks/backup/pause"),
            ("POST", "tasks/backup/cancel"), ("GET", "tasks/backup/occurrences"), ("GET", "incidents"),
            ("GET", "calendar"), ("GET", "executors"), ("GET", "functions"),
        ):  # fmt: skip
            assert (await publisher.request(method, f"/v1/{path}")).status_code == 403
