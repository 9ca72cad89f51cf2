"""Moves of messages between queues: a dead letter queue's messages go back to where they came from, or elsewhere.

States of a move: running -> completed | cancelled | failed. One runs per source at a time. Each round claims messages
and, in one transaction, completes them, publishes them anew and counts them: whoever crashes, none is lost or doubled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import asyncpg

from bellringer.broker import queue_store
from bellringer.broker.model import Message, MoveState, MoveTask, Publication, Queue
from bellringer.broker.service import Broker, ReceiptNotHeld
from bellringer.kernel.database import Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound
from bellringer.kernel.ids import uuid7
from bellringer.kernel.lease import Lease
from bellringer.kernel.service import Loop

START = """
INSERT INTO bellringer.moves (id, source_id, destination_id, max_per_second, to_move)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source_id) WHERE state = 'running' DO NOTHING
RETURNING *
"""
# Index: moves_source.
LIST = "SELECT * FROM bellringer.moves WHERE source_id = $1 ORDER BY started_at DESC LIMIT $2"
FIND = "SELECT * FROM bellringer.moves WHERE id = $1"
# Index: moves_running.
RUNNING = "SELECT * FROM bellringer.moves WHERE state = 'running' ORDER BY started_at"
COUNT = "UPDATE bellringer.moves SET moved = moved + $2 WHERE id = $1"
END = """
UPDATE bellringer.moves SET state = $2, failure = $3, ended_at = clock_timestamp()
WHERE id = $1 AND state = 'running'
RETURNING *
"""

MOST_PER_SECOND = 500
_BATCH = 250
_HOLD_SECONDS = 60.0


class Moves:
    """Starts, lists and cancels moves."""

    def __init__(self, database: Database, broker: Broker) -> None:
        self._database = database
        self._broker = broker

    async def start(self, source: Queue, destination: Queue | None, max_per_second: int | None = None) -> MoveTask:
        """Begin to move what waits in `source`. Raises `InvalidInput`, or `Conflict` while another move of it runs."""
        if max_per_second is not None and not 1 <= max_per_second <= MOST_PER_SECOND:
            raise InvalidInput(f"max_per_second must be from 1 to {MOST_PER_SECOND}", field="max_per_second")
        if destination is not None and destination.id == source.id:
            raise InvalidInput("the destination is the queue itself", field="destination")
        if destination is not None and destination.settings.fifo != source.settings.fifo:
            raise InvalidInput("a FIFO queue's messages go to a FIFO queue, and others to another", field="destination")
        counts = await self._broker.counts([source])
        async with self._database.connection() as connection:
            row = await connection.fetchrow(
                START,
                uuid7(),
                source.id,
                None if destination is None else destination.id,
                max_per_second,
                counts[source.id].pending,
            )
        if row is None:
            raise Conflict(f"messages of {source.name} are being moved already")
        return _task(row)

    async def list(self, source: Queue, limit: int = 10) -> Sequence[MoveTask]:
        """The moves of a queue, the newest first."""
        async with self._database.connection() as connection:
            return [_task(row) for row in await connection.fetch(LIST, source.id, limit)]

    async def find(self, move_id: UUID) -> MoveTask:
        """The move with that id. Raises `NotFound`."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(FIND, move_id)
        if row is None:
            raise NotFound(f"there is no move {move_id}")
        return _task(row)

    async def cancel(self, move_id: UUID) -> MoveTask:
        """End a move; what is moved stays moved. Raises `NotFound`, or `Conflict` when it has ended already."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(END, move_id, MoveState.CANCELLED, None)
        if row is None:
            raise Conflict(f"the move is {(await self.find(move_id)).state} already")
        return _task(row)


class Mover(Loop):
    """Carries out moves, in one process at a time."""

    def __init__(self, database: Database, broker: Broker, *, interval_seconds: float = 1.0) -> None:
        super().__init__("message mover", interval_seconds=interval_seconds)
        self._database = database
        self._broker = broker
        self._interval_seconds = interval_seconds
        self._lease = Lease(database, "message mover", ttl_seconds=10.0)

    async def run_once(self) -> bool:
        """Move one batch of every move that runs."""
        async with self._database.connection() as connection:
            running = [_task(row) for row in await connection.fetch(RUNNING)]
        if not running or await self._lease.hold() is None:
            return False
        return any([await self._move_batch(task) for task in running])

    async def _move_batch(self, task: MoveTask) -> bool:
        """Move one batch; return whether another may follow at once."""
        async with self._database.connection() as connection:
            source = await queue_store.find_queue_by_id(connection, task.source_id)
        if source is None:
            await self._end(task, MoveState.FAILED, "the queue is gone")
            return False
        if source.paused:
            return False
        limit = _BATCH if task.max_per_second is None else max(1, int(task.max_per_second * self._interval_seconds))
        messages = (
            await self._broker.claim(
                source,
                min(limit, task.to_move - task.moved),
                visibility_timeout_seconds=_HOLD_SECONDS,
                wait_seconds=0.0,
            )
            if task.moved < task.to_move
            else []
        )
        if not messages:
            await self._end(task, MoveState.COMPLETED, None)
            return False
        try:
            await self._carry(task, source, messages)
        except Exception as error:
            await self._broker.release(source, [message.receipt_handle for message in messages], [0.0] * len(messages))
            if isinstance(error, ReceiptNotHeld) or not isinstance(error, NotFound | InvalidInput):
                raise  # a round that failed: the next one tries again
            await self._end(task, MoveState.FAILED, str(error))
            return False
        return task.max_per_second is None

    async def _carry(self, task: MoveTask, source: Queue, messages: Sequence[Message]) -> None:
        batches: defaultdict[UUID, list[Publication]] = defaultdict(list)
        destinations: dict[UUID, Queue] = {}
        common = await self._common_destination(task)
        for message in messages:
            destination = common or await self._origin(source, message)
            destinations[destination.id] = destination
            batches[destination.id].append(
                Publication(
                    body=message.body,
                    group=message.group if destination.settings.fifo else None,
                    deduplication_id=_id_of(task, message) if destination.settings.content_deduplication else None,
                    attributes=message.attributes,
                    delay_seconds=0.0,
                )
            )
        async with self._database.transaction() as connection:
            await self._broker.complete(connection, source, messages)
            await connection.execute(COUNT, task.id, len(messages))
            for destination in sorted(destinations.values(), key=lambda queue: queue.number):
                await self._broker.publish(connection, destination, batches[destination.id])
        for destination in destinations.values():
            self._broker.wakeups.wake(destination.id, len(batches[destination.id]))

    async def _common_destination(self, task: MoveTask) -> Queue | None:
        """Where all messages go; None when each goes to where it came from. Raises `NotFound`."""
        if task.destination_id is None:
            return None
        async with self._database.connection() as connection:
            found = await queue_store.find_queue_by_id(connection, task.destination_id)
        if found is None:
            raise NotFound("the destination is gone")
        return found

    async def _origin(self, source: Queue, message: Message) -> Queue:
        if message.origin is None:
            raise NotFound(f"message {message.id} came from no other queue: a destination is needed")
        return await self._broker.queue(source.environment_id, message.origin.queue)

    async def _end(self, task: MoveTask, state: MoveState, failure: str | None) -> None:
        async with self._database.connection() as connection:
            await connection.execute(END, task.id, state, failure)


def _id_of(task: MoveTask, message: Message) -> str:
    """A deduplication id of its own: by its body, a queue that knows it from a moment ago would drop the message."""
    return f"{task.id}:{message.id}"


def _task(row: asyncpg.Record) -> MoveTask:
    return MoveTask(
        id=row["id"],
        source_id=row["source_id"],
        destination_id=row["destination_id"],
        state=MoveState(row["state"]),
        max_per_second=row["max_per_second"],
        to_move=row["to_move"],
        moved=row["moved"],
        failure=row["failure"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )
