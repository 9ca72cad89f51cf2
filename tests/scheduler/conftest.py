from __future__ import annotations

import pytest
from tests.support.scheduler import Stage
from tests.support.scheduler_fixtures import engine, home, tasks
from tests.support.shared_database import database_arguments, shared_database_arguments

from bellringer.broker import Broker
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler.queues import calls_queue

__all__ = ["database_arguments", "engine", "home", "shared_database_arguments", "tasks"]


@pytest.fixture
async def stage(database: Database, broker: Broker, environment: Environment) -> Stage:
    """The scheduler of an environment, step by step."""
    return Stage(database, broker, environment.id, await calls_queue(broker))
