"""What people and programs do with tasks: make, change, stop and run them, and look at what became of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from bellringer.broker import Broker
from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import Conflict, InvalidInput
from bellringer.kernel.ids import uuid7
from bellringer.scheduler import task_store
from bellringer.scheduler.definition import check_definition
from bellringer.scheduler.fire_times import check_schedule, fire_times_of
from bellringer.scheduler.history import History, check_limit, no_task, number_of, occurrence_of
from bellringer.scheduler.model import (
    FunctionCall,
    Occurrence,
    Overlap,
    Schedule,
    Task,
    TaskDefinition,
    TaskNumber,
    TaskState,
    check_task_name,
)
from bellringer.scheduler.parameters import check_payload
from bellringer.scheduler.queues import queue_of
from bellringer.scheduler.task_store import LockedTask

MOST_PREVIEWED = 1000

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_PART_OF_NAME = re.compile(r"[A-Za-z0-9._:-]{0,128}")
_DELETE_BATCH = 10_000


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by name. `next` goes into `after` for the page that follows; one that follows may be empty."""

    tasks: list[Task]
    next: str | None


class Tasks(History):
    """Tasks of all environments.

    Every change is made under the lock of the task's row, which pickers pass by and executors wait for; what was picked
    and has not started is taken back in the same transaction. `on_change` is called after each one that may make
    something due: it wakes the picker of this process.
    """

    def __init__(self, database: Database, broker: Broker, *, on_change: Callable[[], None] = lambda: None) -> None:
        super().__init__(database, on_change)
        self._broker = broker

    async def create(self, environment_id: UUID, name: str | None, definition: TaskDefinition) -> tuple[Task, bool]:
        """Make a task, of a name of its own if none is given; say whether it is new.

        One of the same name and definition is returned as it is, however far it has come. Raises `Conflict` for one
        with another definition, `InvalidInput`.
        """
        name = str(uuid7()) if name is None else check_task_name(name)
        definition = _completed(definition)
        queue = await self._queue_of(environment_id, definition)
        async with self._database.transaction() as connection:
            stored = await task_store.lock_task(connection, environment_id, name)
            number = None
            if stored is None:
                number = await self._add(connection, environment_id, name, definition, queue)
                stored = await task_store.lock_task(connection, environment_id, name) if number is None else None
            if stored is not None and not _are_same(stored.definition, definition):
                raise Conflict(f"there is a task {name} with another definition")
        return await self._changed(environment_id, name), number is not None

    async def put(
        self, environment_id: UUID, name: str, definition: TaskDefinition, *, revives: bool = True
    ) -> tuple[Task, bool]:
        """Make a task or change the one of that name; say whether it is new.

        Another schedule holds from now on; the same one goes on. One that was refused is active again, one that is
        paused stays so; one that was cancelled is active again if this `revives` it, or else stays as it is. Raises
        `InvalidInput`.
        """
        check_task_name(name)
        definition = _completed(definition)
        queue = await self._queue_of(environment_id, definition)
        is_new = False
        async with self._database.transaction() as connection:
            while (stored := await task_store.lock_task(connection, environment_id, name)) is None:
                if await self._add(connection, environment_id, name, definition, queue) is not None:
                    is_new = True
                    break
            if stored is not None and (revives or stored.state is not TaskState.CANCELLED):
                await self._change(connection, stored, definition, queue)
        return await self._changed(environment_id, name), is_new

    async def read(self, environment_id: UUID, name: str) -> Task:
        """The task of that name. Raises `NotFound`."""
        async with self._database.connection() as connection:
            tasks = await task_store.read_tasks(connection, [await number_of(connection, environment_id, name)])
        if not tasks:
            raise no_task(name)
        return tasks[0]

    async def page(
        self,
        environment_id: UUID,
        *,
        state: TaskState | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 50,
    ) -> TaskPage:
        """The tasks whose names come after that one, by name. Raises `InvalidInput`.

        Whether a task is active or finished is found out one by one: a page of such may be short, and yet not the last.
        """
        check_limit(limit)
        for field, value in (("prefix", prefix), ("after", after)):
            if not _PART_OF_NAME.fullmatch(value):
                raise InvalidInput(f"{field} holds what no name does", field=field)
        async with self._database.connection() as connection:
            names = await task_store.page(
                connection, environment_id, state=state, prefix=prefix, after=after, limit=limit
            )
            return TaskPage(tasks=await task_store.read_tasks(connection, names.numbers), next=names.next)

    async def pause(self, environment_id: UUID, name: str) -> Task:
        """Let a task start nothing until it is resumed; what runs, and what was asked for by hand, goes on.

        Raises `NotFound`, `Conflict` for one that is cancelled or refused.
        """
        await self._stop(environment_id, name, TaskState.PAUSED)
        return await self.read(environment_id, name)

    async def cancel(self, environment_id: UUID, name: str) -> Task:
        """Let a task start nothing any more; what runs goes on. Raises `NotFound`."""
        await self._stop(environment_id, name, TaskState.CANCELLED)
        return await self.read(environment_id, name)

    async def resume(self, environment_id: UUID, name: str) -> Task:
        """End a pause: the fire times from now on take place. Raises `NotFound`, `Conflict`."""
        async with self._database.transaction() as connection:
            stored = await _locked(connection, environment_id, name)
            if stored.state is TaskState.PAUSED:
                now = await task_store.now(connection)
                await task_store.plan_task(
                    connection, stored.number, TaskState.ACTIVE, _first_fire_time(stored, now), modified_at=now
                )
            elif stored.state is not TaskState.ACTIVE:
                raise Conflict(f"the task {name} is {stored.state}")
        return await self._changed(environment_id, name)

    async def delete(self, environment_id: UUID, name: str) -> None:
        """Delete a task with its history; what runs comes to its end unrecorded. Raises `NotFound`."""
        number = await self._stop(environment_id, name, TaskState.CANCELLED)
        async with self._database.connection() as connection:
            # Bit by bit, each a transaction of its own: a history may be long.
            while await task_store.delete_history(connection, number, _DELETE_BATCH):
                pass
        async with self._database.transaction() as connection:
            await task_store.delete_task(connection, number, _DELETE_BATCH)

    async def run_now(self, environment_id: UUID, name: str) -> Occurrence:
        """Let a task run at once, beside its schedule. Raises `NotFound`, `Conflict` if it is cancelled or refused."""
        async with self._database.connection() as connection:
            number = await number_of(connection, environment_id, name)
            answer = await task_store.run_task(connection, number)
            if answer is None:
                raise no_task(name)
            verdict, fire_at = answer
            if verdict != "done":
                raise Conflict(f"the task {name} is {verdict}")
            occurrence = await occurrence_of(connection, number, name, fire_at)
        self._on_change()
        return occurrence

    async def list(
        self,
        environment_id: UUID,
        *,
        state: TaskState | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 50,
    ) -> list[Task]:
        """The tasks of a `page`."""
        return (await self.page(environment_id, state=state, prefix=prefix, after=after, limit=limit)).tasks

    async def _add(
        self, connection: Connection, environment_id: UUID, name: str, definition: TaskDefinition, queue: int
    ) -> TaskNumber | None:
        now = await task_store.now(connection)
        check_schedule(definition.schedule, now=now)
        at = _time_of(definition.schedule, now)
        return await task_store.add_task(
            connection,
            environment_id,
            name,
            definition,
            queue=queue,
            at=at,
            next_fire_at=at or fire_times_of(definition.schedule, created_at=now).after(now),
            created_at=now,
        )

    async def _change(self, connection: Connection, stored: LockedTask, definition: TaskDefinition, queue: int) -> None:
        """Change a task under its lock, unless it is the same already."""
        goes_on = stored.state in {TaskState.ACTIVE, TaskState.PAUSED}
        if goes_on and _are_same(stored.definition, definition):
            return
        now = await task_store.now(connection)
        is_same_schedule = goes_on and stored.definition.schedule == definition.schedule
        at, next_fire_at, is_planned = stored.at, stored.next_fire_at, stored.is_planned
        if not is_same_schedule:
            check_schedule(definition.schedule, now=now)
            await task_store.give_up_missed(connection, stored.number, now, "the schedule was changed")
            at = _time_of(definition.schedule, now)
        await task_store.change_task(connection, stored.number, definition, queue=queue, at=at, modified_at=now)
        if stored.definition.overlap is not definition.overlap:
            await task_store.adopt_overlap(connection, stored.number)
        first_gone = await task_store.unpick(connection, stored.number, now, is_other_schedule=not is_same_schedule)
        if stored.state is TaskState.PAUSED:
            return
        if not is_same_schedule:
            fire_times = fire_times_of(definition.schedule, created_at=stored.created_at)
            next_fire_at, is_planned = at or fire_times.after(now), True
        elif first_gone is not None:
            next_fire_at = min(first_gone, next_fire_at or first_gone)
        await task_store.plan_task(
            connection, stored.number, TaskState.ACTIVE, next_fire_at, is_planned=is_planned, modified_at=now
        )

    async def _stop(self, environment_id: UUID, name: str, state: TaskState) -> TaskNumber:
        async with self._database.connection() as connection:
            stopped = await task_store.stop_task(connection, environment_id, check_task_name(name), state)
        if stopped is None:
            raise no_task(name)
        number, reached = stopped
        if reached is not state:
            raise Conflict(f"the task {name} is {reached}")
        return number

    async def _changed(self, environment_id: UUID, name: str) -> Task:
        self._on_change()
        return await self.read(environment_id, name)

    async def _queue_of(self, environment_id: UUID, definition: TaskDefinition) -> int:
        if isinstance(definition.call, FunctionCall):
            await self._check_function(environment_id, definition.call.name, bytes(definition.payload))
        return (await queue_of(self._broker, environment_id, definition.call)).number

    async def _check_function(self, environment_id: UUID, name: str, payload: bytes) -> None:
        """Raise `InvalidInput` for a function that the environment lacks, and for what its parameters do not take.

        Of an environment whose application was never started nothing is known: then the run will tell.
        """
        known = {function.name: function for function in await self.functions(environment_id)}
        if known and name not in known:
            raise InvalidInput(f"the application has no function {name}", field="call.name")
        if known:
            check_payload(known[name].parameters, payload)


def preview(schedule: Schedule, count: int, now: datetime) -> list[datetime]:
    """The first fire times that a task made now would have, fewer when there are no more. Raises `InvalidInput`."""
    if not 1 <= count <= MOST_PREVIEWED:
        raise InvalidInput(f"count must be from 1 to {MOST_PREVIEWED}", field="count")
    check_schedule(schedule, now=now)
    at = _time_of(schedule, now)
    if at is not None:
        return [at.astimezone(UTC)]
    upcoming = fire_times_of(schedule, created_at=now).upcoming(now)
    return [fire_time for fire_time, _ in zip(upcoming, range(count), strict=False)]


def _completed(definition: TaskDefinition) -> TaskDefinition:
    """A definition that is valid whenever it is stored, with its policy for overlaps. Raises `InvalidInput`."""
    check_definition(definition, now=_LONG_AGO)
    default = Overlap.SKIP if definition.schedule.is_recurring else Overlap.ALLOW
    return msgspec.structs.replace(definition, overlap=definition.overlap or default)


def _are_same(one: TaskDefinition, other: TaskDefinition) -> bool:
    """Whether two definitions say the same, however their payloads are written."""
    nothing = msgspec.Raw(b"null")
    if msgspec.structs.replace(one, payload=nothing) != msgspec.structs.replace(other, payload=nothing):
        return False
    return bytes(one.payload) == bytes(other.payload) or (
        msgspec.json.decode(one.payload) == msgspec.json.decode(other.payload)
    )


def _time_of(schedule: Schedule, now: datetime) -> datetime | None:
    """The one time of a schedule that is given now; None if it is recurring."""
    if schedule.delay_seconds is not None:
        return now + timedelta(seconds=schedule.delay_seconds)
    return schedule.at


def _first_fire_time(task: LockedTask, moment: datetime) -> datetime | None:
    """The first fire time after a moment."""
    if task.at is not None:
        return task.at if task.at > moment else None
    return fire_times_of(task.definition.schedule, created_at=task.created_at).after(moment)


async def _locked(connection: Connection, environment_id: UUID, name: str) -> LockedTask:
    stored = await task_store.lock_task(connection, environment_id, check_task_name(name))
    if stored is None:
        raise no_task(name)
    return stored
