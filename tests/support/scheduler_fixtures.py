"""The scheduler over a database of the test's own; a folder's `conftest.py` or a module imports the fixtures."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.support.scheduler_engine import Engine

from bellringer.broker import Broker
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler.service import Tasks


@pytest.fixture
def tasks(database: Database, broker: Broker) -> Tasks:
    return Tasks(database, broker)


@pytest.fixture
def engine(database: Database, broker: Broker) -> Engine:
    return Engine(database, broker)


@pytest.fixture
def home(environment: Environment) -> UUID:
    return environment.id
