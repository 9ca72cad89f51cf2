from __future__ import annotations

from tests.support.shared_database import database_arguments, shared_database_arguments

__all__ = ["database_arguments", "shared_database_arguments"]
