"""Makes an application known: what its functions take, and the tasks that they declare."""

from __future__ import annotations

from uuid import UUID

from bellringer.kernel.database import Database
from bellringer.scheduler import executor_store
from bellringer.scheduler.functions import Scheduler
from bellringer.scheduler.service import Tasks


async def make_known(database: Database, tasks: Tasks, environment_id: UUID, application: Scheduler) -> None:
    """Store the functions of an environment, in place of those it had, and the tasks that they declare.

    A declared task that is unchanged goes on as it is; one that is declared no more stays until somebody deletes it.
    One that was cancelled stays cancelled: executors start at any time, and must not undo what people decide.
    """
    async with database.transaction() as connection:
        await executor_store.set_functions(connection, environment_id, list(application.functions.values()))
    for name, definition in application.declared():
        await tasks.put(environment_id, name, definition, revives=False)
