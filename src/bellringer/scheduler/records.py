"""Starts and ends on record: each in a commit that it shares with others, and tried until the database takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import asyncpg

from bellringer.kernel.backoff import Backoff
from bellringer.kernel.batcher import BatcherConfig, MicroBatcher
from bellringer.kernel.database import ITEM_FAULTS, Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.kernel.logs import get_logger
from bellringer.scheduler import occurrence_store
from bellringer.scheduler.caller import Effect
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.occurrence_store import AttemptEnd, Started, StartRequest

T = TypeVar("T")

_LOCKED_SECONDS = 0.1
_EFFECTS = BatcherConfig(max_batch_items=200)
_EFFECT_FAULTS = (InvalidInput, NotFound, Conflict, asyncpg.PostgresError)
"""Of these one run is at fault; those that it shared a transaction with try again without it."""

_log = get_logger(__name__)
BACKOFF = Backoff(first_seconds=0.2, cap_seconds=5.0)
"""Between tries of an executor to get something from the database, or to it."""


class Records:
    """What one executor starts and ends."""

    def __init__(self, database: Database, executor: UUID, config: SchedulerConfig) -> None:
        self._database = database
        self._executor = executor
        self._config = config
        self._starts = MicroBatcher[StartRequest, Started]("start", self._write_starts, isolate=ITEM_FAULTS)
        self._ends = MicroBatcher[AttemptEnd, bool | None]("end", self._write_ends, isolate=ITEM_FAULTS)
        self._ends_with_effects = MicroBatcher[tuple[AttemptEnd, Effect], bool | None](
            "end with effect", self._write_ends_with_effects, config=_EFFECTS, isolate=_EFFECT_FAULTS
        )

    async def start(self, request: StartRequest) -> Started:
        """Ask whether an attempt may start. Raises `Unavailable`: then it may have been recorded as started."""
        return await self._starts.submit(request)

    async def end(self, ended: AttemptEnd) -> bool:
        """Record an end, whatever comes between; say whether it was news."""
        return await insist(lambda: self._ends.submit(ended), on=Exception)

    async def end_with(self, effect: Effect, ended: AttemptEnd) -> bool:
        """Record an end and do what goes along with it, both or neither. Raises what the effect raises."""
        return await insist(lambda: self._ends_with_effects.submit((ended, effect)))

    async def _write_starts(self, requests: Sequence[StartRequest]) -> list[Started | Exception]:
        async with self._database.connection() as connection:
            return [
                *await occurrence_store.start(
                    connection,
                    self._executor,
                    requests,
                    promise_seconds=self._config.start_promise_seconds,
                    lost_seconds=self._config.executor_lost_seconds,
                )
            ]

    async def _write_ends(self, ends: Sequence[AttemptEnd]) -> list[bool | Exception | None]:
        async with self._database.connection() as connection:
            return [*await occurrence_store.end(connection, ends)]

    async def _write_ends_with_effects(
        self, ends: Sequence[tuple[AttemptEnd, Effect]]
    ) -> list[bool | Exception | None]:
        async with self._database.transaction() as connection:
            answers = await occurrence_store.end(connection, [ended for ended, _ in ends])
            effects = [effect for (_, effect), is_news in zip(ends, answers, strict=True) if is_news]
            # In one order, for each locks the queues that it publishes to.
            for kind in sorted({type(effect) for effect in effects}, key=lambda kind: kind.__name__):
                await kind.apply(connection, [effect for effect in effects if type(effect) is kind])
        for effect in effects:
            effect.committed()
        return [*answers]


async def insist(work: Callable[[], Awaitable[T | None]], *, on: type[Exception] = Unavailable) -> T:
    """Do something with the database as often as it takes, until it neither raises `on` nor returns None."""
    failures = 0
    while True:
        try:
            if (done := await work()) is not None:
                return done
            await asyncio.sleep(_LOCKED_SECONDS)
        except on as error:
            failures += 1
            _log.warning("the database did not take it", failures=failures, error=repr(error))
            await asyncio.sleep(BACKOFF.wait_seconds(failures))
