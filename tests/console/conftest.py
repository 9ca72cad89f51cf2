from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.application import client_of
from tests.support.shared_database import database_arguments, shared_database_arguments
from tests.support.site import Site

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker
from bellringer.broker.moves import Moves
from bellringer.console.routes import console_routes
from bellringer.edge.app import EdgeConfig, build_app
from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Database
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.channels.sender import OUTBOUND_QUEUE
from bellringer.notifications.digests.loops import CLOSED_QUEUE
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.samples import Samples
from bellringer.scheduler.service import Tasks

__all__ = ["database_arguments", "shared_database_arguments"]


@pytest.fixture
def stopping() -> asyncio.Event:
    """Set when the server shuts down."""
    return asyncio.Event()


@pytest.fixture
async def site(
    database: Database, keys: Keys, environment: Environment, broker: Broker, stopping: asyncio.Event
) -> AsyncIterator[Site]:
    names = (ACCEPTED_QUEUE, CLOSED_QUEUE, OUTBOUND_QUEUE)
    queues = [await broker.ensure_queue(SYSTEM_ENVIRONMENT, name) for name in names]
    notifications = Notifications(database, broker, queues[0], batcher=BatcherConfig())
    tasks, samples = Tasks(database, broker), Samples(database)
    routes = console_routes(
        keys,
        broker,
        Moves(database, broker),
        notifications,
        CapturedMailbox(database),
        tasks,
        samples,
        SchedulerConfig(),
        stopping,
    )
    app = build_app(EdgeConfig(), database, keys, [routes])
    opened = Site(database, broker, queues, environment, app, tasks)
    yield opened
    await opened.notifications.drain()


@pytest.fixture
async def visitor(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without a cookie."""
    async with client_of(site.app) as client:
        yield client


@pytest.fixture
async def reader(visitor: httpx.AsyncClient, api_key: str) -> httpx.AsyncClient:
    """A browser that is signed in to acme/production."""
    answer = await visitor.post("/console/login", data={"key": api_key})
    assert answer.status_code == 303
    return visitor
