"""The seed's three verbs over HTTP, and the queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from litestar.types import ASGIApp
from tests.support.application import client_of
from tests.support.queues import sweep_all
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, QueueCounts, QueueSettings
from bellringer.broker.model import LARGEST_BODY_BYTES
from bellringer.broker.moves import Moves
from bellringer.broker.routes import broker_routes
from bellringer.edge.app import EdgeConfig, build_app
from bellringer.edge.keys import Keys
from bellringer.kernel.database import Database

NO_HANDLE = "A" * 44


@pytest.fixture
def app(database: Database, keys: Keys, broker: Broker) -> ASGIApp:
    return build_app(EdgeConfig(), database, keys, [broker_routes(broker, Moves(database, broker))])


@pytest.fixture
async def client(app: ASGIApp, api_key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, api_key) as opened:
        yield opened


@pytest.fixture
async def foreigner(app: ASGIApp, keys: Keys) -> AsyncIterator[httpx.AsyncClient]:
    """Whoever holds a key of another environment."""
    async with client_of(app, await keys.create("acme", "staging", "test")) as opened:
        yield opened


async def put(client: httpx.AsyncClient, *bodies: str, queue: str = "q") -> None:
    for body in bodies:
        assert (await client.put(f"/v1/message/{queue}", json={"msg": body})).status_code == 201


async def take(
    client: httpx.AsyncClient, n: int = 10, *, queue: str = "q", **parameters: float
) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/messages/{queue}", params={"n": n, **parameters})
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def counts(client: httpx.AsyncClient, queue: str = "q") -> dict[str, int]:
    answer = await client.get(f"/v1/queues/{queue}")
    assert answer.status_code == 200, answer.text
    told: dict[str, int] = answer.json()["counts"]
    return told


def fault(answer: httpx.Response) -> tuple[int, str | None]:
    """The status of a problem and the field that it names."""
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    return answer.status_code, problem.get("field")


async def test_the_example_of_the_seed(client: httpx.AsyncClient, broker: Broker, database: Database) -> None:
    for body in ("Message A", "Message B", "Message C"):
        answer = await client.put("/v1/message/q", json={"msg": body})
        assert (answer.status_code, list(answer.json())) == (201, ["id"])

    a, b = await take(client, 2)
    assert set(a) == {"id", "msg", "receipt_handle", "attempts", "created_at"}  # what is not there is not told
    assert (a["msg"], b["msg"]) == ("Message A", "Message B")
    assert a["id"] < b["id"]
    (c,) = await take(client, 2)
    assert c["msg"] == "Message C"

    for message in (a, b):
        answer = await client.delete(f"/v1/message/q/{message['receipt_handle']}")
        assert (answer.status_code, answer.content) == (204, b"")

    await sweep_all(database, broker)
    (again,) = await take(client, 2)
    assert (again["msg"], again["attempts"]) == ("Message C", 2)
    assert again["receipt_handle"] != c["receipt_handle"]
    assert fault(await client.delete(f"/v1/message/q/{c['receipt_handle']}")) == (404, None)
    assert (await client.delete(f"/v1/message/q/{again['receipt_handle']}")).status_code == 204


async def test_a_batch_is_published_in_its_order(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/message/q", json=[{"msg": f"{number}"} for number in range(100)])
    assert answer.status_code == 201
    messages = await take(client, 1000)
    assert [message["id"] for message in messages] == answer.json()["ids"]
    assert [message["msg"] for message in messages] == [f"{number}" for number in range(100)]


@pytest.mark.parametrize("text", ["", "\x00", '{"user_id": 123}', "grüße 🔔", "a\r\nb"])
async def test_any_text_comes_out_as_it_went_in(client: httpx.AsyncClient, text: str) -> None:
    await put(client, text)
    assert [message["msg"] for message in await take(client)] == [text]


async def test_a_delayed_message_is_not_handed_out(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/message/q", json={"msg": "later", "delay_seconds": 60})
    assert answer.status_code == 201
    assert await take(client) == []
    assert (await counts(client))["delayed"] == 1


async def test_deleting_again_is_no_error(client: httpx.AsyncClient) -> None:
    await put(client, "a")
    (message,) = await take(client)
    for _ in range(2):
        assert (await client.delete(f"/v1/message/q/{message['receipt_handle']}")).status_code == 204
    assert (await counts(client))["deleted"] == 1


async def test_all_of_a_message_comes_out_as_it_went_in(client: httpx.AsyncClient) -> None:
    await client.put("/v1/queues/q.fifo", json={"fifo": True})
    whole = {"base64": "AP8=", "group": "g", "deduplication_id": "d", "attributes": {"a": [1, None, {"zero": "\x00"}]}}
    assert (await client.put("/v1/message/q.fifo", json=whole)).json() == {"id": 1}
    assert (await client.put("/v1/message/q.fifo", json=whole)).json() == {"id": 1}
    (message,) = await take(client, queue="q.fifo")
    assert {name: message[name] for name in whole} == whole
    assert "msg" not in message


async def test_a_batch_of_any_verb_tells_of_each_how_it_went(client: httpx.AsyncClient) -> None:
    await put(client, "a", "b", "c")
    handles = [message["receipt_handle"] for message in await take(client)]
    changes = [
        {"receipt_handle": handle, "seconds": seconds} for handle, seconds in zip(handles, (0, 60, 60), strict=True)
    ]
    answer = await client.post("/v1/queues/q/visibility", json={"changes": changes})
    assert (answer.status_code, answer.json()) == (200, {"held": [True, True, True]})
    answer = await client.post("/v1/queues/q/acknowledge", json={"receipt_handles": handles})
    assert (answer.status_code, answer.json()) == (200, {"held": [False, True, True]})
    told = await counts(client)
    assert (told["pending"], told["in_flight"], told["deleted"]) == (1, 0, 2)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("acknowledge", b"", "body"),
        ("acknowledge", b"{}", "receipt_handles"),
        ("acknowledge", b'{"receipt_handles": []}', "receipt_handles"),
        ("acknowledge", b'{"receipt_handles": [1]}', "receipt_handles[0]"),
        ("acknowledge", b'{"receipt_handles": ["hello"]}', "receipt_handle"),
        ("acknowledge", msgspec.json.encode({"receipt_handles": [""] * 1001}), "receipt_handles"),
        ("visibility", b'{"changes": []}', "changes"),
        ("visibility", b'{"changes": [{"receipt_handle": "hello", "seconds": 1}]}', "receipt_handle"),
        ("visibility", b'{"changes": [{"receipt_handle": "hello", "seconds": -1}]}', "visibility_timeout"),
        ("visibility", b'{"changes": [{"receipt_handle": "hello"}]}', "changes[0].seconds"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
async def test_a_batch_that_is_not_allowed_names_its_field_and_changes_nothing(
    client: httpx.AsyncClient, path: str, body: bytes, field: str
) -> None:
    await put(client, "a")
    await take(client)
    assert fault(await client.post(f"/v1/queues/q/{path}", content=body)) == (400, field)
    assert (await counts(client))["in_flight"] == 1


async def test_a_queue_is_paused_resumed_purged_and_deleted(client: httpx.AsyncClient) -> None:
    await put(client, "a", "b")
    assert (await client.post("/v1/queues/q/pause")).json()["paused"] is True
    assert await take(client) == []
    assert (await client.post("/v1/queues/q/resume")).json()["paused"] is False
    await take(client, 1)
    answer = await client.post("/v1/queues/q/purge")
    assert (answer.status_code, answer.json()) == (200, {"purged": 2})
    assert (await counts(client))["purged"] == 2
    assert (await client.delete("/v1/queues/q")).status_code == 204
    assert fault(await client.get("/v1/queues/q")) == (404, None)
    for method, path in (("POST", "pause"), ("POST", "resume"), ("POST", "purge")):
        assert fault(await client.request(method, f"/v1/queues/q/{path}")) == (404, None)
    assert fault(await client.delete("/v1/queues/q")) == (404, None)


async def test_a_claim_waits_for_a_message(client: httpx.AsyncClient, broker: Broker) -> None:
    await client.put("/v1/queues/q", json={})
    waiting = asyncio.create_task(client.get("/v1/messages/q?n=10&wait=20"))

    async def somebody_waits() -> bool:
        return bool(broker.wakeups.queues())

    await until(somebody_waits)
    await put(client, "a")
    answer = await asyncio.wait_for(waiting, PATIENCE_SECONDS / 2)
    assert [message["msg"] for message in answer.json()["messages"]] == ["a"]


async def test_claims_that_wait_are_answered_when_the_process_stops(client: httpx.AsyncClient, broker: Broker) -> None:
    await client.put("/v1/queues/q", json={})
    waiting = asyncio.create_task(client.get("/v1/messages/q?wait=20"))

    async def somebody_waits() -> bool:
        return bool(broker.wakeups.queues())

    await until(somebody_waits)
    broker.wakeups.close()
    answer = await asyncio.wait_for(waiting, PATIENCE_SECONDS / 2)
    assert (answer.status_code, answer.json()) == (200, {"messages": []})


async def test_a_hold_is_as_long_as_asked_for(client: httpx.AsyncClient, database: Database) -> None:
    await client.put("/v1/queues/q", json={"visibility_timeout_seconds": 5})
    await put(client, "a", "b")
    await take(client, 1)
    await take(client, 1, visibility_timeout=2.5)
    async with database.connection() as connection:
        held = await connection.fetch(
            "SELECT expires_at - claimed_at AS held FROM bellringer.claims ORDER BY first_seq"
        )
    assert [row["held"].total_seconds() for row in held] == pytest.approx([5, 2.5], abs=0.01)


async def test_queues_are_listed_and_shown_with_their_settings_and_counts(client: httpx.AsyncClient) -> None:
    changed = {"visibility_timeout_seconds": 60, "retention_seconds": 3600, "tags": {"team": "a"}}
    answer = await client.put("/v1/queues/orders", json=changed)
    assert answer.status_code == 200
    made = answer.json()
    assert set(made) == {"name", "paused", "settings", "counts"}
    assert (made["name"], made["paused"]) == ("orders", False)
    assert made["settings"] == msgspec.to_builtins(QueueSettings()) | changed
    assert set(made["counts"]) == set(QueueCounts.__struct_fields__)
    assert set(made["counts"].values()) == {0}
    await put(client, "a", "b", "c", queue="orders")
    await take(client, 1, queue="orders")
    shown = (await client.get("/v1/queues/orders")).json()
    assert (shown["counts"]["pending"], shown["counts"]["in_flight"]) == (2, 1)
    assert shown["counts"]["oldest_pending_age_seconds"] >= 0
    await put(client, "a", queue="another")
    listed = (await client.get("/v1/queues")).json()["queues"]
    assert [queue["name"] for queue in listed] == ["another", "orders"]
    assert listed[1]["settings"] == made["settings"]


async def test_a_queue_is_shown_as_another_process_set_it(
    client: httpx.AsyncClient, database: Database, keys: Keys, api_key: str
) -> None:
    await client.put("/v1/queues/q", json={"visibility_timeout_seconds": 60})
    other = Broker(database)
    environment = (await keys.authenticate(api_key)).environment
    await other.configure_queue(environment.id, "q", QueueSettings(visibility_timeout_seconds=7))
    shown = (await client.get("/v1/queues/q")).json()
    assert shown["settings"]["visibility_timeout_seconds"] == 7
    await other.drain()


async def test_another_environment_sees_and_touches_nothing(
    client: httpx.AsyncClient, foreigner: httpx.AsyncClient
) -> None:
    await put(client, "ours")
    (message,) = await take(client)
    handle = message["receipt_handle"]
    assert fault(await foreigner.get("/v1/messages/q")) == (404, None)
    assert fault(await foreigner.get("/v1/queues/q")) == (404, None)
    assert fault(await foreigner.delete(f"/v1/message/q/{handle}")) == (404, None)
    assert (await foreigner.get("/v1/queues")).json() == {"queues": []}

    await put(foreigner, "theirs")
    assert fault(await foreigner.delete(f"/v1/message/q/{handle}")) == (400, "receipt_handle")
    both = await asyncio.gather(foreigner.delete(f"/v1/message/q/{handle}"), client.delete(f"/v1/message/q/{handle}"))
    assert [answer.status_code for answer in both] == [400, 204]
    assert await take(client) == []
    assert [theirs["msg"] for theirs in await take(foreigner)] == ["theirs"]


async def test_the_queues_of_the_pipeline_are_nobodys(client: httpx.AsyncClient, broker: Broker) -> None:
    await broker.ensure_queue(SYSTEM_ENVIRONMENT, "emails.outbound")
    assert fault(await client.get("/v1/messages/emails.outbound")) == (404, None)
    assert (await client.get("/v1/queues")).json() == {"queues": []}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/message/q"),
        ("GET", "/v1/messages/q"),
        ("DELETE", f"/v1/message/q/{NO_HANDLE}"),
        ("PUT", "/v1/queues/q"),
        ("DELETE", "/v1/queues/q"),
        ("POST", "/v1/queues/q/acknowledge"),
        ("POST", "/v1/queues/q/visibility"),
        ("POST", "/v1/queues/q/purge"),
        ("POST", "/v1/queues/q/pause"),
        ("POST", "/v1/queues/q/resume"),
        ("GET", "/v1/queues"),
        ("GET", "/v1/queues/q"),
    ],
)
async def test_without_a_key_nothing_is_answered(app: ASGIApp, method: str, path: str) -> None:
    async with client_of(app) as stranger:
        answer = await stranger.request(method, path, content=b'{"msg": "a"}' if method == "PUT" else None)
    assert fault(answer) == (401, None)
    assert answer.headers["www-authenticate"] == "Bearer"


TOO_LARGE = "x" * (LARGEST_BODY_BYTES + 1)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b'{"msg": "\xff"}', 400, "body"),
        (b'{"msg": "\\ud800"}', 400, "body"),
        (b"[]", 400, "body"),
        (b"null", 400, "body"),
        (b"{}", 400, "msg"),
        (b'{"msg": 1}', 400, "msg"),
        (b'{"msg": "a", "delay_seconds": -1}', 400, "delay_seconds"),
        (b'{"msg": "a", "delay_seconds": 43201}', 400, "delay_seconds"),
        (b'{"msg": "a", "delay": 1}', 400, "delay"),
        (b'{"msg": "a", "base64": "YQ=="}', 400, "msg"),
        (b'{"base64": "%"}', 400, "base64"),
        (b'{"msg": "a", "group": ""}', 400, "group"),
        (b'{"msg": "a", "deduplication_id": ""}', 400, "deduplication_id"),
        (b'{"msg": "a", "attributes": []}', 400, "attributes"),
        (b'[{"msg": "a"}, {"msg": "b"}, {"msg": null}]', 400, "[2].msg"),
        (b'[{"msg": "a"}, {"msg": "b", "delay_seconds": -1}]', 400, "[1].delay_seconds"),
        (msgspec.json.encode([{"msg": ""}] * 1001), 400, "body"),
        (msgspec.json.encode({"msg": TOO_LARGE}), 413, "msg"),
        (msgspec.json.encode([{"msg": ""}, {"msg": TOO_LARGE}]), 413, "[1].msg"),
        (b" " * (4 * 1024 * 1024 + 1), 413, "body"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
async def test_what_cannot_be_published_names_its_field_and_changes_nothing(
    client: httpx.AsyncClient, body: bytes, status: int, field: str
) -> None:
    answer = await client.put("/v1/message/q", content=body)
    assert fault(answer) == (status, field)
    assert (await client.get("/v1/queues")).json() == {"queues": []}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("n=0", "n"),
        ("n=1001", "n"),
        ("n=x", "n"),
        ("n=1.5", "n"),
        ("wait=-1", "wait"),
        ("wait=20.5", "wait"),
        ("wait=nan", "wait"),
        ("wait=soon", "wait"),
        ("visibility_timeout=-1", "visibility_timeout"),
        ("visibility_timeout=43201", "visibility_timeout"),
        ("visibility_timeout=nan", "visibility_timeout"),
    ],
)
async def test_what_cannot_be_claimed_names_its_parameter(client: httpx.AsyncClient, query: str, field: str) -> None:
    await put(client, "a")
    assert fault(await client.get(f"/v1/messages/q?{query}")) == (400, field)
    assert (await counts(client))["pending"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"visibility_timeout_seconds": -1}', "visibility_timeout_seconds"),
        (b'{"visibility_timeout_seconds": 43201}', "visibility_timeout_seconds"),
        (b'{"visibility_timeout_seconds": 1.5}', "visibility_timeout_seconds"),
        (b'{"visibility_timeout_seconds": "60"}', "visibility_timeout_seconds"),
        (b'{"retention_seconds": 59}', "retention_seconds"),
        (b'{"max_receives": 3}', "dead_letter_queue"),
        (b'{"max_receives": 3, "dead_letter_queue": "nowhere"}', "dead_letter_queue"),
        (b'{"retention_seconds": 99999999999}', "retention_seconds"),
        (b'{"retention": 60}', "retention"),
        (b"[]", "body"),
    ],
)
async def test_settings_that_are_not_allowed_name_their_field(
    client: httpx.AsyncClient, body: bytes, field: str
) -> None:
    assert fault(await client.put("/v1/queues/q", content=body)) == (400, field)
    assert (await client.get("/v1/queues")).json() == {"queues": []}


async def test_a_handle_that_is_none_is_told_from_one_that_is_not_held(client: httpx.AsyncClient) -> None:
    await put(client, "a")
    (message,) = await take(client)
    assert fault(await client.delete("/v1/message/q/hello")) == (400, "receipt_handle")
    assert fault(await client.delete(f"/v1/message/q/{NO_HANDLE}")) == (400, "receipt_handle")
    change = {"changes": [{"receipt_handle": message["receipt_handle"], "seconds": 0}]}
    assert (await client.post("/v1/queues/q/visibility", json=change)).json() == {"held": [True]}
    assert fault(await client.delete(f"/v1/message/q/{message['receipt_handle']}")) == (404, None)


@pytest.mark.parametrize("name", ["-a", "a b", "ä", "a" * 81])
async def test_a_name_that_no_queue_can_have_is_refused(client: httpx.AsyncClient, name: str) -> None:
    assert fault(await client.put(f"/v1/message/{name}", json={"msg": "a"})) == (400, "queue")
    assert fault(await client.get(f"/v1/messages/{name}")) == (400, "queue")
    assert fault(await client.put(f"/v1/queues/{name}", json={})) == (400, "queue")


async def test_a_queue_that_nobody_made_is_not_found(client: httpx.AsyncClient) -> None:
    assert fault(await client.get("/v1/messages/q")) == (404, None)
    assert fault(await client.get("/v1/queues/q")) == (404, None)
    assert fault(await client.delete(f"/v1/message/q/{NO_HANDLE}")) == (404, None)


async def test_a_message_that_a_new_queue_would_not_take_makes_none(client: httpx.AsyncClient) -> None:
    assert fault(await client.put("/v1/message/q", json={"msg": "a", "group": "g"})) == (400, "group")
    assert fault(await client.get("/v1/queues/q")) == (404, None)


async def test_the_metrics_tell_how_each_queue_stands(client: httpx.AsyncClient, keys: Keys, api_key: str) -> None:
    await put(client, "a", "b", "c")
    await take(client, 1)
    environment = (await keys.authenticate(api_key)).environment
    metrics = (await client.get("/metrics")).text
    labels = f'environment="{environment.id}",queue="q"'
    assert f'bellringer_queue_messages{{{labels},state="pending"}} 2.0' in metrics
    assert f'bellringer_queue_messages{{{labels},state="in_flight"}} 1.0' in metrics
    assert f"bellringer_queue_stuck_messages{{{labels}}} 0.0" in metrics
    assert f"bellringer_queue_oldest_pending_age_seconds{{{labels}}}" in metrics
