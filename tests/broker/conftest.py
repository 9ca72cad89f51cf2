from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.shared_database import database_arguments, shared_database_arguments

from bellringer.broker import Broker, BrokerConfig, Queue, QueueSettings
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database, DatabaseConfig

__all__ = ["database_arguments", "shared_database_arguments"]


@pytest.fixture
async def queue(broker: Broker, environment: Environment) -> Queue:
    return await broker.ensure_queue(environment.id, "orders")


@pytest.fixture
async def fifo(broker: Broker, environment: Environment) -> Queue:
    """A queue with an order per group."""
    return await broker.create_queue(environment.id, "orders.fifo", QueueSettings(fifo=True))


@pytest.fixture
async def second_process(database_arguments: dict[str, Any]) -> AsyncIterator[Broker]:
    """A broker of another process: nothing but the database is shared. It claims nothing ahead."""
    database = await Database.open(DatabaseConfig(pool_size=4), database_arguments)
    broker = Broker(database, BrokerConfig(ahead_seconds=0))
    yield broker
    await broker.drain()
    await database.close()
