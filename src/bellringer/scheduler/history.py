"""What became of tasks: their occurrences, incidents and calendar, and who executes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound
from bellringer.scheduler import history_store, task_store
from bellringer.scheduler.calendar import MinuteLoad, calendar_of, read_coming
from bellringer.scheduler.history_store import ExecutorView, FunctionView
from bellringer.scheduler.model import (
    Incident,
    IncidentKind,
    Occurrence,
    PastAttempt,
    TaskNumber,
    TaskState,
    check_task_name,
)

LARGEST_PAGE = 1000
LONGEST_CALENDAR_HOURS = 7 * 24

_FAR = datetime.max.replace(tzinfo=UTC)


class History:
    """The occurrences of tasks, to look at, to try again and to cancel."""

    def __init__(self, database: Database, on_change: Callable[[], None]) -> None:
        self._database = database
        self._on_change = on_change

    async def occurrences(
        self, environment_id: UUID, name: str, *, before: datetime | None = None, limit: int = 50
    ) -> list[Occurrence]:
        """The occurrences of a task, those picked ahead too, the newest first. Raises `NotFound`, `InvalidInput`."""
        check_limit(limit)
        moment = _FAR if before is None else _aware(before, "before")
        async with self._database.connection() as connection:
            number = await number_of(connection, environment_id, name)
            return await history_store.list_occurrences(connection, number, name, before=moment, limit=limit)

    async def occurrence(
        self, environment_id: UUID, name: str, fire_at: datetime
    ) -> tuple[Occurrence, list[PastAttempt]]:
        """One occurrence, and its attempts before the newest. Raises `NotFound`."""
        async with self._database.connection() as connection:
            number = await number_of(connection, environment_id, name)
            found = await occurrence_of(connection, number, name, _aware(fire_at, "fire_at"))
            return found, await history_store.past_attempts(connection, number, fire_at)

    async def retry(self, environment_id: UUID, name: str, fire_at: datetime) -> Occurrence:
        """Try an occurrence again that is over and did not succeed; its incidents count as resolved.

        Raises `NotFound`, `Conflict`.
        """
        async with self._database.connection() as connection:
            number = await number_of(connection, environment_id, name)
            verdict = await history_store.retry(connection, number, _aware(fire_at, "fire_at"))
            if verdict == "open":
                raise Conflict("this occurrence is not over")
            if verdict in {TaskState.CANCELLED, TaskState.REFUSED}:
                raise Conflict(f"the task {name} is {verdict}")
            if verdict not in {"done", None}:
                raise Conflict(f"this occurrence has {verdict}")
            occurrence = await occurrence_of(connection, number, name, fire_at)
        self._on_change()
        return occurrence

    async def cancel_occurrence(self, environment_id: UUID, name: str, fire_at: datetime) -> Occurrence:
        """End an occurrence before it starts; one that runs is stopped by its executor, within a second or so.

        Raises `NotFound`, `Conflict` for one that has ended otherwise.
        """
        async with self._database.connection() as connection:
            number = await number_of(connection, environment_id, name)
            verdict = await history_store.cancel(connection, number, _aware(fire_at, "fire_at"))
            if verdict not in {"done", None}:
                raise Conflict(f"this occurrence is over: {verdict}")
            return await occurrence_of(connection, number, name, fire_at)

    async def incidents(
        self,
        environment_id: UUID,
        *,
        kinds: Collection[IncidentKind] = (),
        unresolved: bool = False,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Incident]:
        """What did not go as planned, the newest first; `unresolved`: failures that nobody tried again yet.

        Raises `InvalidInput`.
        """
        check_limit(limit)
        async with self._database.connection() as connection:
            return await history_store.list_incidents(
                connection, environment_id, kinds=kinds, unresolved=unresolved, before=before, limit=limit
            )

    async def calendar(self, environment_id: UUID, start: datetime, hours: int = 24) -> list[MinuteLoad]:
        """The minutes in which anything is to start, from the minute of `start` on. Raises `InvalidInput`.

        It ends early, before a whole minute, where the schedules fire too often for all of it.
        """
        if not 1 <= hours <= LONGEST_CALENDAR_HOURS:
            raise InvalidInput(f"hours must be from 1 to {LONGEST_CALENDAR_HOURS}", field="hours")
        start = _aware(start, "start").astimezone(UTC).replace(second=0, microsecond=0)
        try:
            end = start + timedelta(hours=hours)
        except OverflowError:
            raise InvalidInput("the calendar ends with the year 9999", field="start") from None
        async with self._database.connection() as connection:
            coming = await read_coming(connection, environment_id, start, end)
        return await asyncio.to_thread(calendar_of, coming, start)

    async def executors(self) -> list[ExecutorView]:
        """The processes that execute, those too that were not seen for a while."""
        async with self._database.connection() as connection:
            return await history_store.list_executors(connection)

    async def functions(self, environment_id: UUID) -> list[FunctionView]:
        """The functions that executors of an environment have, by name."""
        async with self._database.connection() as connection:
            return await history_store.list_functions(connection, environment_id)

    async def now(self) -> datetime:
        """The time of the database, by which everything here goes."""
        async with self._database.connection() as connection:
            return await task_store.now(connection)


async def number_of(connection: Connection, environment_id: UUID, name: str) -> TaskNumber:
    """The number of the task of that name. Raises `NotFound`, `InvalidInput`."""
    number = await task_store.find_number(connection, environment_id, check_task_name(name))
    if number is None:
        raise no_task(name)
    return number


async def occurrence_of(connection: Connection, number: TaskNumber, name: str, fire_at: datetime) -> Occurrence:
    """The occurrence at that fire time. Raises `NotFound`."""
    found = await history_store.find_occurrence(connection, number, name, fire_at)
    if found is None:
        raise NotFound(f"the task {name} has no occurrence at {fire_at.isoformat()}")
    return found


def no_task(name: str) -> NotFound:
    """That there is no such task."""
    return NotFound(f"there is no task {name}")


def check_limit(limit: int) -> None:
    """Raise `InvalidInput` unless a page can be as large."""
    if not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInput(f"limit must be from 1 to {LARGEST_PAGE}", field="limit")


def _aware(moment: datetime, field: str) -> datetime:
    if moment.tzinfo is None:
        raise InvalidInput("the time lacks an offset from UTC, such as Z or +02:00", field=field)
    return moment
