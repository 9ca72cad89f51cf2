"""The whole way: from `POST /v1/events` to a real SMTP server, in one process, through every queue."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litestar.types import ASGIApp
from tests.support.application import client_of
from tests.support.pipeline import Pipeline, opened_pipeline
from tests.support.smtp import SmtpServer
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker.loops import Sweeper
from bellringer.broker.wakeups import PendingWatcher
from bellringer.edge.app import EdgeConfig, build_app
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.routes import notification_routes

ANN, BOB, CID = "ann@acme.example", "bob@acme.example", "cid@acme.example"


@pytest.fixture
async def smtp() -> AsyncIterator[SmtpServer]:
    server = SmtpServer()
    await asyncio.to_thread(server.start)
    yield server
    await asyncio.to_thread(server.stop)


@pytest.fixture
async def pipeline(database: Database, keys: Keys, smtp: SmtpServer) -> AsyncIterator[Pipeline]:
    async with opened_pipeline(database, keys, url=smtp.url, recipients_per_email=3, events_per_email=4) as opened:
        yield opened


@pytest.fixture
def app(database: Database, keys: Keys, pipeline: Pipeline) -> ASGIApp:
    routes = notification_routes(pipeline.notifications, CapturedMailbox(database))
    return build_app(EdgeConfig(), database, keys, [routes])


@pytest.fixture
async def client(app: ASGIApp, api_key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, api_key) as opened:
        yield opened


def event(*recipients: str, type: str = "task.failed", **fields: Any) -> dict[str, Any]:  # noqa: A002, ANN401
    return {"type": type, "recipients": list(recipients), **fields}


async def tell(client: httpx.AsyncClient, *events: dict[str, Any]) -> dict[UUID, list[str]]:
    """Tell of events; return the recipients of each by the id that it got."""
    answer = await client.post("/v1/events", json=list(events))
    assert answer.status_code == 202, answer.text
    return {UUID(found): told["recipients"] for found, told in zip(answer.json()["ids"], events, strict=True)}


async def steps(client: httpx.AsyncClient, notification_id: UUID) -> list[dict[str, Any]]:
    timeline: list[dict[str, Any]] = (await client.get(f"/v1/notifications/{notification_id}")).json()["timeline"]
    return timeline


async def test_the_example_of_the_seed(client: httpx.AsyncClient, pipeline: Pipeline, smtp: SmtpServer) -> None:
    told = await tell(
        client,
        event(BOB, ANN, CID, type="Task Failed"),
        event(BOB, type="Task Succeeded"),
        event(ANN, CID, type="Task Failed"),
    )
    await pipeline.run_through()
    smtp.check_arrivals(told, exactly_once=True)
    assert sorted(received.recipients for received in smtp.received) == [(ANN, CID), (BOB,)]
    overview = (await client.get("/v1/overview")).json()
    assert (overview["events"], overview["emails"], overview["sent"], overview["failed"]) == (3, 2, 3, 0)
    for notification_id, recipients in told.items():
        *before, last = await steps(client, notification_id)
        assert [step["step"] for step in before][:3] == ["accepted", "in_digest", "digest_closed"]
        assert last["step"] == "sent"
        assert len(before) == 2 + len(recipients)


async def test_a_flood_is_a_few_emails(client: httpx.AsyncClient, pipeline: Pipeline, smtp: SmtpServer) -> None:
    told: dict[UUID, list[str]] = {}
    for number in range(8):
        told |= await tell(client, event(ANN, BOB, subject=f"task {number}"))
    await pipeline.run_through()
    smtp.check_arrivals(told, exactly_once=True)
    assert len(smtp.received) == 2  # parts of four events


async def test_nothing_is_sent_before_the_window_is_over(
    client: httpx.AsyncClient, pipeline: Pipeline, smtp: SmtpServer
) -> None:
    (notification_id,) = await tell(client, event(ANN))
    for round_ in (pipeline.joins, pipeline.closer, pipeline.groups, pipeline.sends):
        await round_.run_once()
    assert [step["step"] for step in await steps(client, notification_id)] == ["accepted", "in_digest"]
    assert smtp.received == []


async def test_a_window_of_nothing_sends_in_the_next_round(
    client: httpx.AsyncClient, pipeline: Pipeline, smtp: SmtpServer
) -> None:
    await client.put("/v1/workflows/urgent", json={"digest_window_seconds": 0})
    told = await tell(client, event(ANN, type="urgent"))
    for round_ in (pipeline.joins, pipeline.closer, pipeline.groups, pipeline.sends):
        await round_.run_once()
    smtp.check_arrivals(told, exactly_once=True)


async def test_a_server_that_refuses_stops_and_comes_back_gets_everything_exactly_once(
    client: httpx.AsyncClient, pipeline: Pipeline, smtp: SmtpServer
) -> None:
    told = await tell(client, event(ANN, BOB), event(BOB, CID), event(CID))
    smtp.refuse_recipient(ANN, "451 later")
    await pipeline.run_through()
    smtp.refuse("452 full", at="DATA")
    await pipeline.end_pauses()
    await pipeline.sends.run_once()
    await asyncio.to_thread(smtp.stop)
    await pipeline.end_pauses()
    (failed,) = await asyncio.gather(pipeline.sends.run_once(), return_exceptions=True)
    assert isinstance(failed, Exception)
    smtp.accept()
    await asyncio.to_thread(smtp.start)
    await pipeline.end_pauses()
    await pipeline.sends.run_once()
    smtp.check_arrivals(told, exactly_once=True)


async def test_the_pipeline_runs_by_itself(
    client: httpx.AsyncClient, pipeline: Pipeline, database: Database, smtp: SmtpServer, environment: Environment
) -> None:
    """All loops at once, with the intake going on; windows end again and again."""
    await client.put("/v1/workflows/urgent", json={"digest_window_seconds": 0})
    stopping = asyncio.Event()
    loops = [
        PendingWatcher(database, pipeline.broker.wakeups),
        Sweeper(database, pipeline.broker),
        pipeline.closer,
        *(pipeline.joins, pipeline.groups, pipeline.sends),
    ]
    running = [asyncio.create_task(loop.run(stopping)) for loop in loops]
    told: dict[UUID, list[str]] = {}
    for number in range(20):
        told |= await tell(
            client, event(ANN, BOB, type="urgent"), event(f"reader-{number}@acme.example", type="urgent")
        )

    async def all_were_sent() -> bool:
        return (await pipeline.notifications.overview(environment.id)).sent == len(
            {(address, received.message_id) for received in smtp.received for address in received.recipients}
        ) and len(smtp.arrivals()) == sum(map(len, told.values()))

    await until(all_were_sent)
    stopping.set()
    await asyncio.wait_for(asyncio.gather(*running), PATIENCE_SECONDS)
    smtp.check_arrivals(told, exactly_once=True)


Names = st.frozensets(st.sampled_from([f"{name}@acme.example" for name in "abcde"]), min_size=1)
Steps = st.lists(st.one_of(st.lists(Names, min_size=1, max_size=4), st.sampled_from(["run", "lose holds"])), max_size=8)
_examples = itertools.count(1)


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
@settings(max_examples=20)
@given(steps=Steps)
async def test_whatever_is_told_when_reaches_everybody_exactly_once_in_the_fewest_emails(
    app: ASGIApp, keys: Keys, pipeline: Pipeline, smtp: SmtpServer, steps: list[list[frozenset[str]] | str]
) -> None:
    already = len(smtp.received)
    key = await keys.create("acme", f"example-{next(_examples)}", "test")
    told: dict[UUID, list[str]] = {}
    async with client_of(app, key) as client:
        for step in [*steps, "run"]:
            if step == "run":
                await pipeline.run_through()
            elif step == "lose holds":
                # Somebody takes whatever is on its way, and falls silent.
                for queue in (pipeline.accepted, pipeline.closed, pipeline.outbound):
                    await pipeline.broker.claim(queue, 1000)
                await pipeline.end_pauses()
            else:
                told |= await tell(client, *(event(*sorted(names)) for names in step if isinstance(names, frozenset)))
    arrived = defaultdict[tuple[str, UUID], int](int)
    for received in smtp.received[already:]:
        assert len(received.recipients) <= 3
        assert len(received.notification_ids) <= 4
        for address in received.recipients:
            for notification_id in received.notification_ids:
                arrived[(address, notification_id)] += 1
    wanted = {(address, found) for found, recipients in told.items() for address in recipients}
    assert arrived == dict.fromkeys(wanted, 1)
