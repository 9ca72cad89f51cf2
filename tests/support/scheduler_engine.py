"""Pickers, dispatchers and executors, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from bellringer.broker import Broker
from bellringer.kernel.database import Database
from bellringer.kernel.ids import uuid7
from bellringer.scheduler import occurrence_store
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.model import Outcome
from bellringer.scheduler.occurrence_store import AttemptEnd, Dispatch, StartRequest
from bellringer.scheduler.picker import Dispatcher, Picker

_AHEAD_SECONDS = 150.0
_MAKE_DUE = """
UPDATE bellringer.occurrences SET due_at = clock_timestamp() FROM bellringer.tasks
WHERE number = task AND name = $1 AND fire_at = $2
"""
_MISS = """
UPDATE bellringer.tasks SET next_fire_at = next_fire_at - make_interval(secs => $2), is_planned = true WHERE name = $1
"""
_SEEN = """
INSERT INTO bellringer.executors (id, host, process, concurrency) VALUES ($1, 'test', 1, 10)
ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()
"""


class Engine:
    """What runs tasks, one step at a time; `executor` is one that lives."""

    def __init__(self, database: Database, broker: Broker) -> None:
        self.executor: UUID = uuid7()
        self._database = database
        config = SchedulerConfig()
        self._picker = Picker(database, Dispatcher(database, broker, config), config)

    async def pick(self) -> None:
        """Pick everything of the next two minutes."""
        while await self._picker.run_once():
            pass

    async def dispatch(self) -> list[Dispatch]:
        """Hand over everything that was picked, those due first."""
        async with self._database.connection() as connection:
            dispatched = await occurrence_store.dispatch(connection, _AHEAD_SECONDS, 10_000)
        return sorted((dispatch for _, dispatch in dispatched), key=lambda dispatch: (dispatch.due_at, dispatch.task))

    async def start(self, dispatches: Sequence[Dispatch]) -> list[str]:
        """Try to start what was handed over; say what an executor is to do with each."""
        async with self._database.connection() as connection:
            await connection.execute(_SEEN, self.executor)
            started = await occurrence_store.start(
                connection,
                self.executor,
                [StartRequest(dispatch=dispatch, held_seconds=0.0, ready_seconds=0.0) for dispatch in dispatches],
                promise_seconds=30.0,
                lost_seconds=20.0,
            )
        return [answer.verdict for answer in started]

    async def end(self, dispatch: Dispatch, outcome: Outcome = Outcome.SUCCEEDED, detail: str | None = None) -> bool:
        """Record how a run ended; say whether that was news."""
        async with self._database.connection() as connection:
            (is_news,) = await occurrence_store.end(
                connection, [AttemptEnd(dispatch=dispatch, outcome=outcome, detail=detail)]
            )
        return is_news

    async def run(self, outcome: Outcome = Outcome.SUCCEEDED, detail: str | None = None) -> list[Dispatch]:
        """Run everything that is due by now, all to the same end; return what ran."""
        dispatches = await self.dispatch()
        verdicts = await self.start(dispatches)
        ran = [dispatch for dispatch, verdict in zip(dispatches, verdicts, strict=True) if verdict == "run"]
        for dispatch in ran:
            await self.end(dispatch, outcome, detail)
        return ran

    async def make_due(self, name: str, fire_at: datetime) -> None:
        """Let an occurrence that is to come be due now."""
        async with self._database.connection() as connection:
            await connection.execute(_MAKE_DUE, name, fire_at)

    async def miss(self, name: str, seconds: float) -> None:
        """Let the next fire time of a task have been so much earlier, and nobody have picked it."""
        async with self._database.connection() as connection:
            await connection.execute(_MISS, name, seconds)
