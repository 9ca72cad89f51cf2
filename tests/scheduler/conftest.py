from __future__ import annotations

from tests.support.scheduler_fixtures import engine, home, tasks
from tests.support.shared_database import database_arguments, shared_database_arguments

__all__ = ["database_arguments", "engine", "home", "shared_database_arguments", "tasks"]
