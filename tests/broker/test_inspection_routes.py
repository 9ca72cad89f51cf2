"""Looks at messages, moves and samples over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.application import client_of

from bellringer.broker import Broker, BrokerConfig
from bellringer.broker.moves import Mover, Moves
from bellringer.broker.routes import broker_routes
from bellringer.broker.samples import Sampler
from bellringer.edge.app import EdgeConfig, build_app
from bellringer.edge.keys import Keys
from bellringer.kernel.database import Database


@pytest.fixture
async def client(database: Database, keys: Keys, broker: Broker, api_key: str) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(EdgeConfig(), database, keys, [broker_routes(broker, Moves(database, broker))])
    async with client_of(app, api_key) as opened:
        await opened.put("/v1/message/q", json=[{"msg": "a", "attributes": {"b": 1}}, {"base64": "AP8="}])
        yield opened


def fault(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("field")


async def test_messages_are_looked_at(client: httpx.AsyncClient) -> None:
    told = (await client.get("/v1/queues/q/peek")).json()["messages"]
    assert [(one["id"], one["state"], one["attempts"]) for one in told] == [(1, "pending", 0), (2, "pending", 0)]
    assert (told[0]["msg"], told[0]["attributes"], told[1]["base64"]) == ("a", {"b": 1}, "AP8=")
    assert len((await client.get("/v1/queues/q/peek?n=1")).json()["messages"]) == 1
    assert fault(await client.get("/v1/queues/q/peek?n=0")) == (400, "n")
    assert fault(await client.get("/v1/queues/nowhere/peek")) == (404, None)


async def test_a_message_tells_its_history(client: httpx.AsyncClient) -> None:
    await client.get("/v1/messages/q?n=1")
    told = (await client.get("/v1/queues/q/messages/1")).json()
    assert (told["message"]["id"], told["message"]["state"], told["message"]["attempts"]) == (1, "in_flight", 1)
    assert [(entry["event"], entry["attempt"]) for entry in told["history"]] == [("published", None), ("claimed", 1)]
    assert fault(await client.get("/v1/queues/q/messages/3")) == (404, None)
    assert fault(await client.get("/v1/queues/nowhere/messages/1")) == (404, None)


async def test_a_queue_tells_how_it_stood(client: httpx.AsyncClient, database: Database) -> None:
    await Sampler(database).run_once()
    (sample,) = (await client.get("/v1/queues/q/samples")).json()["samples"]
    assert {name: sample[name] for name in ("pending", "in_flight", "delayed", "published", "finished")} == {
        "pending": 2, "in_flight": 0, "delayed": 0, "published": 2, "finished": 0,
    }  # fmt: skip
    for seconds in (0, 86_401):
        assert fault(await client.get(f"/v1/queues/q/samples?seconds={seconds}")) == (400, "seconds")


async def test_messages_are_moved(client: httpx.AsyncClient, database: Database) -> None:
    await client.put("/v1/queues/other", json={})
    answer = await client.post("/v1/queues/q/moves", json={"destination": "other"})
    assert (answer.status_code, answer.json()["state"], answer.json()["to_move"]) == (202, "running", 2)
    assert fault(await client.post("/v1/queues/q/moves", json={"destination": "other"})) == (422, None)
    carrier = Broker(database, BrokerConfig(ahead_seconds=0))
    mover = Mover(database, carrier)
    while await mover.run_once():
        pass
    await carrier.drain()
    (move,) = (await client.get("/v1/queues/q/moves")).json()["moves"]
    assert (move["state"], move["moved"]) == ("completed", 2)
    assert [one["msg"] for one in (await client.get("/v1/queues/other/peek?n=1")).json()["messages"]] == ["a"]
    assert fault(await client.post("/v1/queues/q/cancel-move")) == (404, None)
    await client.post("/v1/queues/other/moves", json={"destination": "q", "max_per_second": 1})
    cancelled = await client.post("/v1/queues/other/cancel-move")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b'{"destination": "nowhere"}', "destination"),
        (b'{"destination": "a b"}', "queue"),
        (b'{"destination": "q"}', "destination"),
        (b'{"max_per_second": 0}', "max_per_second"),
        (b'{"max_per_second": 501}', "max_per_second"),
        (b'{"to": "q"}', "to"),
    ],
)
async def test_a_move_that_is_not_allowed_names_its_field(client: httpx.AsyncClient, body: bytes, field: str) -> None:
    assert fault(await client.post("/v1/queues/q/moves", content=body)) == (400, field)
    assert (await client.get("/v1/queues/q/moves")).json() == {"moves": []}
