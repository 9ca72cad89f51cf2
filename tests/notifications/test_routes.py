"""Events in over HTTP, and what became of them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from litestar.types import ASGIApp
from tests.support.application import client_of
from tests.support.pipeline import Pipeline, opened_pipeline

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker
from bellringer.edge.app import EdgeConfig, build_app
from bellringer.edge.keys import Keys
from bellringer.kernel.database import Database
from bellringer.notifications.channels import store as channels_store
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.routes import notification_routes
from bellringer.notifications.service import ACCEPTED_QUEUE

ANN, BOB = "ann@acme.example", "bob@acme.example"
CLOUD = {"content-type": "application/cloudevents+json"}
CLOUD_BATCH = {"content-type": "application/cloudevents-batch+json"}
UNKNOWN = UUID(int=1)


@pytest.fixture
async def pipeline(database: Database, keys: Keys) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys) as opened:
        yield opened


@pytest.fixture
def app(database: Database, keys: Keys, pipeline: Pipeline) -> ASGIApp:
    routes = notification_routes(pipeline.notifications, CapturedMailbox(database))
    return build_app(EdgeConfig(), database, keys, [routes])


@pytest.fixture
async def client(app: ASGIApp, api_key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, api_key) as opened:
        yield opened


@pytest.fixture
async def foreigner(app: ASGIApp, keys: Keys) -> AsyncIterator[httpx.AsyncClient]:
    """Whoever holds a key of another environment."""
    async with client_of(app, await keys.create("acme", "staging", "test")) as opened:
        yield opened


def event(*recipients: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON holds
    return {"type": "task.failed", "recipients": list(recipients or (ANN,)), **fields}


def cloud_event(id: str = "1", **fields: Any) -> dict[str, Any]:  # noqa: A002, ANN401
    return {"specversion": "1.0", "id": id, "source": "/tasks", "type": "task.failed", "recipients": ANN, **fields}


async def tell(client: httpx.AsyncClient, content: object, **headers: str) -> httpx.Response:
    named = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/v1/events", content=msgspec.json.encode(content), headers=named)


async def accepted(client: httpx.AsyncClient, content: object, **headers: str) -> Any:  # noqa: ANN401
    """Tell what must be accepted; return the id, or the ids of a batch."""
    answer = await tell(client, content, **headers)
    assert answer.status_code == 202, answer.text
    (value,) = answer.json().values()
    return value


async def listed(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/v1/notifications?limit=200")).json()["notifications"]
    return found


async def number_queued(broker: Broker) -> int:
    queue = await broker.ensure_queue(SYSTEM_ENVIRONMENT, ACCEPTED_QUEUE)
    return (await broker.counts([queue]))[queue.id].pending


def fault(answer: httpx.Response) -> tuple[int, str | None]:
    """The status of a problem and the field that it names."""
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    return answer.status_code, problem.get("field")


async def test_an_event_is_accepted_and_shown(client: httpx.AsyncClient) -> None:
    told = event(BOB, ANN, data={"error": "timeout"}, subject="nightly", source="/t", time="2026-01-05T10:00:00+02:00")
    answer = await tell(client, told)
    assert (answer.status_code, list(answer.json())) == (202, ["id"])
    shown = (await client.get(f"/v1/notifications/{answer.json()['id']}")).json()
    assert shown["recipients"] == [ANN, BOB]
    assert (shown["type"], shown["subject"], shown["source"]) == ("task.failed", "nightly", "/t")
    assert shown["data"] == {"error": "timeout"}
    assert shown["occurred_at"] == "2026-01-05T08:00:00Z"
    assert [entry["step"] for entry in shown["timeline"]] == ["accepted"]


async def test_a_batch_answers_with_its_ids_in_its_order(client: httpx.AsyncClient) -> None:
    ids = await accepted(client, [event(subject=f"{number}") for number in range(5)])
    assert [found["id"] for found in await listed(client)] == ids[::-1]
    assert [found["subject"] for found in await listed(client)] == ["4", "3", "2", "1", "0"]


async def test_data_that_is_absent_is_told_from_null(client: httpx.AsyncClient) -> None:
    absent, null = await accepted(client, [event(), event(data=None)])
    assert (await client.get(f"/v1/notifications/{absent}")).json()["data"] is None
    assert (await client.get(f"/v1/notifications/{null}")).json()["data"] is None
    both = await client.get("/v1/notifications")
    assert both.text.count('"data":null') == 2


async def test_cloud_events_come_in_structured_and_in_batch_mode(client: httpx.AsyncClient) -> None:
    one = await accepted(client, cloud_event("1", data={"error": "x"}), **CLOUD)
    many = await accepted(client, [cloud_event("2"), cloud_event("3", recipients=f"{ANN},{BOB}")], **CLOUD_BATCH)
    assert [found["id"] for found in await listed(client)] == [*many[::-1], one]
    assert (await listed(client))[0]["recipients"] == [ANN, BOB]


async def test_a_cloud_event_in_binary_mode_is_not_supported(client: httpx.AsyncClient) -> None:
    answer = await tell(client, {"error": "x"}, ce_specversion="1.0", ce_id="1", ce_source="/tasks", ce_type="t")
    assert fault(answer) == (415, "ce-specversion")
    assert await listed(client) == []


async def test_a_cloud_event_that_is_told_again_is_the_same_notification(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    first = await accepted(client, cloud_event("1"), **CLOUD)
    assert await accepted(client, cloud_event("1", time="2026-01-05T10:00:00Z"), **CLOUD) == first
    assert await accepted(client, [cloud_event("1"), cloud_event("1")], **CLOUD_BATCH) == [first, first]
    other = await accepted(client, cloud_event("1", source="/other"), **CLOUD)
    assert other != first
    assert await number_queued(broker) == 2


async def test_the_same_key_with_the_same_body_answers_with_the_same_id_and_queues_nothing(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    first = await accepted(client, event(), Idempotency_Key="k")
    assert await accepted(client, event(), Idempotency_Key="k") == first
    assert await accepted(client, event(), idempotency_key="k") == first
    assert await accepted(client, event(), Idempotency_Key="another") != first
    assert await number_queued(broker) == 2


async def test_the_same_key_with_another_body_is_refused(client: httpx.AsyncClient) -> None:
    await accepted(client, event(), Idempotency_Key="k")
    assert fault(await tell(client, event(subject="other"), Idempotency_Key="k")) == (422, None)
    assert fault(await tell(client, [event()], Idempotency_Key="k")) == (422, None)
    assert len(await listed(client)) == 1


async def test_requests_with_one_key_at_the_same_moment_are_one(client: httpx.AsyncClient, broker: Broker) -> None:
    batch = [event(subject="a"), event(subject="b")]
    answers = await asyncio.gather(*(accepted(client, batch, Idempotency_Key="k") for _ in range(20)))
    assert len({tuple(ids) for ids in answers}) == 1
    assert await number_queued(broker) == 2


async def test_a_key_of_another_environment_is_another_key(
    client: httpx.AsyncClient, foreigner: httpx.AsyncClient
) -> None:
    ours = await accepted(client, event(subject="ours"), Idempotency_Key="k")
    theirs = await accepted(foreigner, event(subject="theirs"), Idempotency_Key="k")
    assert ours != theirs
    assert await accepted(client, cloud_event("1"), **CLOUD) != await accepted(foreigner, cloud_event("1"), **CLOUD)


async def test_a_batch_with_one_bad_event_stores_nothing_and_names_it(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    batch = [event(), event(), event("not an address"), event()]
    assert fault(await tell(client, batch, Idempotency_Key="k")) == (400, "[2].recipients[0]")
    assert fault(await tell(client, [cloud_event("1"), cloud_event("2", recipients="x")], **CLOUD_BATCH)) == (
        400,
        "[1].recipients[0]",
    )
    assert await listed(client) == []
    assert await number_queued(broker) == 0
    await accepted(client, event(), Idempotency_Key="k")  # the key was not used up


@pytest.mark.parametrize(
    ("content", "headers", "status", "field"),
    [
        (b"", {}, 400, "body"),
        (b"{", {}, 400, "body"),
        (b'{"type": "t"}', {}, 400, "recipients"),
        (b'{"type": "t", "recipients": ["ann@acme.example"], "time": "0001-01-01T00:00:00Z"}', {}, 400, "time"),
        (b"{}", {"content-type": "text/plain"}, 415, "Content-Type"),
        (b"{}", {"idempotency-key": ""}, 400, "Idempotency-Key"),
        (b" " * (4 * 1024 * 1024 + 1), {}, 413, "body"),
        (b'{"type": "t", "recipients": ["ann@acme.example"], "data": "' + b"x" * 262_144 + b'"}', {}, 413, "data"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_cannot_be_accepted_names_its_field(
    client: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int, field: str
) -> None:
    answer = await client.post("/v1/events", content=content, headers=headers)
    assert fault(answer) == (status, field)
    assert await listed(client) == []


async def test_pages_are_followed_by_their_next(client: httpx.AsyncClient) -> None:
    ids = await accepted(client, [event() for _ in range(5)])
    first = (await client.get("/v1/notifications?limit=2")).json()
    second = (await client.get("/v1/notifications", params={"limit": 2, "before": first["next"]})).json()
    third = (await client.get("/v1/notifications", params={"limit": 2, "before": second["next"]})).json()
    pages = [[found["id"] for found in page["notifications"]] for page in (first, second, third)]
    assert pages == [ids[:2:-1], ids[2:0:-1], ids[:1]]
    assert third["next"] is None


@pytest.mark.parametrize("path", ["/v1/notifications", "/v1/captured-mail"])
@pytest.mark.parametrize(
    ("query", "field"), [("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("before=x", "before")]
)
async def test_a_page_that_cannot_be_had_names_its_parameter(
    client: httpx.AsyncClient, path: str, query: str, field: str
) -> None:
    assert fault(await client.get(f"{path}?{query}")) == (400, field)


async def test_workflows_are_set_listed_and_removed(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/workflows/task.failed", json={"digest_window_seconds": 60})
    assert answer.status_code == 200
    assert (answer.json()["type"], answer.json()["digest_window_seconds"]) == ("task.failed", 60)
    await client.put("/v1/workflows/a type", json={"digest_window_seconds": 0})
    listed = (await client.get("/v1/workflows")).json()["workflows"]
    assert [(workflow["type"], workflow["digest_window_seconds"]) for workflow in listed] == [
        ("a type", 0),
        ("task.failed", 60),
    ]
    assert (await client.delete("/v1/workflows/a type")).status_code == 204
    assert fault(await client.delete("/v1/workflows/a type")) == (404, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "digest_window_seconds"),
        (b'{"digest_window_seconds": -1}', "digest_window_seconds"),
        (b'{"digest_window_seconds": 604801}', "digest_window_seconds"),
        (b'{"digest_window_seconds": "60"}', "digest_window_seconds"),
        (b'{"digest_window_seconds": 60, "extra": 1}', "extra"),
        (b"[]", "body"),
    ],
)
async def test_a_workflow_that_is_not_allowed_names_its_field(
    client: httpx.AsyncClient, body: bytes, field: str
) -> None:
    assert fault(await client.put("/v1/workflows/task.failed", content=body)) == (400, field)
    assert (await client.get("/v1/workflows")).json() == {"workflows": []}


async def test_another_environment_sees_and_touches_nothing(
    client: httpx.AsyncClient, foreigner: httpx.AsyncClient, pipeline: Pipeline, database: Database
) -> None:
    notification_id = await accepted(client, event())
    await client.put("/v1/workflows/task.failed", json={"digest_window_seconds": 60})
    await pipeline.group_all()
    async with database.connection() as connection:
        email_id = await connection.fetchval("SELECT id FROM bellringer.emails")
        await channels_store.capture(connection, email_id, "a@acme.example", [ANN], "subject", b"Subject: x\r\n\r\nhi")
    mail_id = (await client.get("/v1/captured-mail")).json()["captured_mail"][0]["id"]

    assert fault(await foreigner.get(f"/v1/notifications/{notification_id}")) == (404, None)
    assert fault(await foreigner.get(f"/v1/captured-mail/{mail_id}")) == (404, None)
    assert fault(await foreigner.delete("/v1/workflows/task.failed")) == (404, None)
    assert (await foreigner.get("/v1/notifications")).json() == {"notifications": [], "next": None}
    assert (await foreigner.get("/v1/notifications", params={"before": notification_id})).json()["notifications"] == []
    assert (await foreigner.get("/v1/captured-mail")).json() == {"captured_mail": [], "next": None}
    assert (await foreigner.get("/v1/workflows")).json() == {"workflows": []}
    assert set((await foreigner.get("/v1/overview")).json().values()) == {0}


async def test_the_overview_counts_what_happened(client: httpx.AsyncClient, pipeline: Pipeline) -> None:
    await accepted(client, [event(ANN, BOB), event(BOB)])
    await pipeline.group_all()
    await accepted(client, event())
    await pipeline.joins.run_once()
    assert (await client.get("/v1/overview")).json() == {
        "events": 3,
        "notifications": 4,
        "digests": 2,
        "open_digests": 1,
        "emails": 2,
        "sent": 0,
        "failed": 0,
    }


@pytest.mark.parametrize(
    "path", [f"/v1/notifications/{UNKNOWN}", f"/v1/captured-mail/{UNKNOWN}", "/v1/notifications/x", "/v1/workflows"]
)
async def test_what_does_not_exist_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    method = "DELETE" if path == "/v1/workflows" else "GET"
    answer = await client.request(method, path)
    assert answer.status_code in {404, 405}
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/events"),
        ("GET", "/v1/notifications"),
        ("GET", f"/v1/notifications/{UNKNOWN}"),
        ("GET", "/v1/overview"),
        ("GET", "/v1/workflows"),
        ("PUT", "/v1/workflows/t"),
        ("DELETE", "/v1/workflows/t"),
        ("GET", "/v1/captured-mail"),
        ("GET", f"/v1/captured-mail/{UNKNOWN}"),
    ],
)
async def test_without_a_key_nothing_is_answered(app: ASGIApp, method: str, path: str) -> None:
    async with client_of(app) as stranger:
        assert fault(await stranger.request(method, path)) == (401, None)
