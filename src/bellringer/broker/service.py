"""What the broker does, for HTTP and for the pipeline alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from bellringer.broker import store
from bellringer.broker.model import (
    LARGEST_BATCH,
    LARGEST_BODY_BYTES,
    LONGEST_RETENTION_SECONDS,
    LONGEST_VISIBILITY_TIMEOUT_SECONDS,
    LONGEST_WAIT_SECONDS,
    Message,
    MessageId,
    Queue,
    QueueCounts,
    ReceiptHandle,
    check_queue_name,
)
from bellringer.broker.wakeups import Wakeups
from bellringer.kernel.batcher import BatcherConfig, MicroBatcher
from bellringer.kernel.database import ITEM_FAULTS, Connection, Database
from bellringer.kernel.errors import InvalidInput, NotFound, TooLarge
from bellringer.kernel.tally import Tallies

_WEIGHT_OF_A_MESSAGE = 256
"""What a message weighs in a write beside its body, in bytes: an empty one is not for nothing."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of a new queue, and the pace of the background work."""

    visibility_timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_VISIBILITY_TIMEOUT_SECONDS)] = 600
    retention_seconds: Annotated[int, msgspec.Meta(ge=0, le=LONGEST_RETENTION_SECONDS)] = 7 * 24 * 3600
    sweep_interval_seconds: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    purge_interval_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    batcher: BatcherConfig = BatcherConfig()


class ReceiptNotHeld(NotFound):
    """No message is held under this receipt handle: it was returned when its visibility timeout ran out."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """One message to publish; `delay_seconds` hides it for that long."""

    body: bytes
    delay_seconds: float = 0.0


class Broker:
    """Queues of messages: publish, claim, delete, extend, release."""

    def __init__(self, database: Database, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.wakeups = Wakeups()
        self._database = database
        self._tallies = Tallies(database)
        self._queues: dict[tuple[UUID, str], Queue] = {}
        self._publisher = MicroBatcher[tuple[Queue, Sequence[Publication]], list[MessageId]](
            "publish",
            self._write_publications,
            config=self.config.batcher,
            weigh=lambda item: sum(_WEIGHT_OF_A_MESSAGE + len(publication.body) for publication in item[1]),
            isolate=ITEM_FAULTS,
        )
        self._deleter = MicroBatcher[tuple[Queue, ReceiptHandle], bool](
            "delete", self._write_deletions, config=self.config.batcher
        )

    async def queue(self, environment_id: UUID, name: str) -> Queue:
        """The queue of that name. Raises `NotFound`, or `InvalidInput` for an impossible name.

        It may be a copy, for its id, which never changes: `read_queue` has the settings as they are now.
        """
        return self._queues.get((environment_id, name)) or await self.read_queue(environment_id, name)

    async def read_queue(self, environment_id: UUID, name: str) -> Queue:
        """The queue of that name as it is now. Raises as `queue` does."""
        check_queue_name(name)
        async with self._database.connection() as connection:
            queue = await store.find_queue(connection, environment_id, name)
        if queue is None:
            raise NotFound(f"there is no queue {name}")
        self._queues[(environment_id, name)] = queue
        return queue

    async def ensure_queue(self, environment_id: UUID, name: str) -> Queue:
        """The queue of that name, made with the default settings if it is new."""
        try:
            return await self.queue(environment_id, name)
        except NotFound:
            async with self._database.connection() as connection:
                await store.add_queue(
                    connection,
                    environment_id,
                    name,
                    self.config.visibility_timeout_seconds,
                    self.config.retention_seconds,
                )
            return await self.queue(environment_id, name)

    async def configure_queue(
        self, environment_id: UUID, name: str, *, visibility_timeout_seconds: int, retention_seconds: int
    ) -> Queue:
        """Make a queue or change its settings; they hold for claims made from then on. Raises `InvalidInput`."""
        check_queue_name(name)
        check_visibility_timeout(visibility_timeout_seconds, "visibility_timeout_seconds")
        if not 0 <= retention_seconds <= LONGEST_RETENTION_SECONDS:
            raise InvalidInput(
                f"retention_seconds must be from 0 to {LONGEST_RETENTION_SECONDS}", field="retention_seconds"
            )
        async with self._database.connection() as connection:
            queue = await store.configure_queue(
                connection, environment_id, name, visibility_timeout_seconds, retention_seconds
            )
        self._queues[(environment_id, name)] = queue
        return queue

    async def list_queues(self, environment_ids: Sequence[UUID] | None = None) -> list[Queue]:
        """The queues of those environments, or of all, by name."""
        async with self._database.connection() as connection:
            return await store.list_queues(connection, environment_ids)

    async def publish(self, connection: Connection, queue: Queue, bodies: Sequence[bytes]) -> list[MessageId]:
        """Publish inside the caller's transaction. After its commit call `wakeups.wake`, or a claim waits 200 ms."""
        _check_each([Publication(body=body) for body in bodies])
        return await store.publish(connection, [queue.id] * len(bodies), bodies, [0.0] * len(bodies))

    async def send(self, queue: Queue, publications: Sequence[Publication]) -> list[MessageId]:
        """Publish in a commit shared with other callers; return the ids after it. All or none are stored.

        Raises `InvalidInput` for an empty or too large batch, `TooLarge` for a body over 256 KiB, `Overloaded`.
        """
        check_publications(publications)
        return await self._publisher.submit((queue, publications))

    async def claim(
        self,
        queue: Queue,
        limit: int,
        *,
        visibility_timeout_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> list[Message]:
        """Take up to `limit` messages, the oldest first; wait up to `wait_seconds` for the first of them.

        Raises `InvalidInput` when a number is out of range. A claim that is cancelled holds nothing.
        """
        _check_claim(limit, wait_seconds)
        if visibility_timeout_seconds is not None:
            check_visibility_timeout(visibility_timeout_seconds, "visibility_timeout")
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while True:
            with self.wakeups.waiter(queue.id) as woken:
                messages = await self._claim_now(queue, limit, visibility_timeout_seconds)
                remaining = deadline - asyncio.get_running_loop().time()
                if not messages and remaining > 0 and not self.wakeups.closed:
                    try:
                        await asyncio.wait_for(woken.wait(), remaining)
                    except TimeoutError:
                        return []
                    continue
            # Out of the line, for the next in it: there may be more messages, or one came for which it was woken.
            if len(messages) == limit or woken.is_set():
                self.wakeups.wake(queue.id)
            return messages

    async def _claim_now(self, queue: Queue, limit: int, visibility_timeout_seconds: float | None) -> list[Message]:
        claiming = asyncio.create_task(self._claim(queue, limit, visibility_timeout_seconds))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # Its caller has gone, and the claim may be committed: what it took is for others, and at once.
            handles = [message.receipt_handle for message in await claiming]
            if handles:
                await self.release(queue, handles, [0.0] * len(handles))
            raise

    async def _claim(self, queue: Queue, limit: int, visibility_timeout_seconds: float | None) -> list[Message]:
        async with self._database.connection() as connection:
            return await store.claim(connection, queue.id, limit, visibility_timeout_seconds)

    async def acknowledge(self, queue: Queue, receipt_handle: ReceiptHandle) -> None:
        """Delete a message in a commit shared with other callers. Raises `ReceiptNotHeld`."""
        if not await self._deleter.submit((queue, receipt_handle)):
            raise ReceiptNotHeld

    async def complete(self, connection: Connection, queue: Queue, messages: Sequence[Message]) -> None:
        """Delete messages inside the caller's transaction, once: raises `ReceiptNotHeld` unless all are held till now.

        The error must end the transaction: then an attempt that lost its hold, or is repeated after its commit, leaves
        no trace. Completed first thing in the transaction, the messages stay held to its end.
        """
        handles = [message.receipt_handle for message in messages]
        deleted = await store.delete(connection, [queue.id] * len(handles), handles)
        if not all(deleted.get((queue.id, handle), False) for handle in handles):
            raise ReceiptNotHeld

    async def extend(self, queue: Queue, receipt_handles: Sequence[ReceiptHandle], seconds: float) -> int:
        """Hold messages for `seconds` from now; return how many were still held."""
        async with self._database.connection() as connection:
            return len(await store.extend(connection, queue.id, receipt_handles, seconds))

    async def release(
        self, queue: Queue, receipt_handles: Sequence[ReceiptHandle], delays_seconds: Sequence[float]
    ) -> None:
        """Hand messages back, each to be claimed after its delay. Those no longer held are another's now."""
        async with self._database.connection() as connection:
            await store.release(connection, queue.id, receipt_handles, delays_seconds)
        self.wakeups.wake(queue.id, len(receipt_handles))

    async def counts(self, queues: Sequence[Queue]) -> dict[UUID, QueueCounts]:
        """How each queue stands, without a scan."""
        ids = [queue.id for queue in queues]
        tallies = await self._tallies.read(ids)
        async with self._database.connection() as connection:
            ages = await store.ages(connection, ids)
        return {
            queue_id: QueueCounts(
                pending=tallies[queue_id]["pending"],
                in_flight=tallies[queue_id]["in_flight"],
                delayed=tallies[queue_id]["delayed"],
                deleted=tallies[queue_id]["deleted"],
                oldest_pending_age_seconds=round(ages[queue_id][0], 3),
                stuck=ages[queue_id][1],
            )
            for queue_id in ids
        }

    async def drain(self) -> None:
        """End the waits, and return when what was submitted is written."""
        self.wakeups.close()
        await self._publisher.drain()
        await self._deleter.drain()

    async def _write_publications(
        self, items: Sequence[tuple[Queue, Sequence[Publication]]]
    ) -> list[list[MessageId] | Exception]:
        flat = [(queue.id, publication) for queue, publications in items for publication in publications]
        async with self._database.connection() as connection:
            ids = iter(
                await store.publish(
                    connection,
                    [queue_id for queue_id, _ in flat],
                    [publication.body for _, publication in flat],
                    [publication.delay_seconds for _, publication in flat],
                )
            )
        for queue, publications in items:
            self.wakeups.wake(queue.id, len(publications))
        return [[next(ids) for _ in publications] for _, publications in items]

    async def _write_deletions(self, items: Sequence[tuple[Queue, ReceiptHandle]]) -> list[bool | Exception]:
        async with self._database.connection() as connection:
            deleted = await store.delete(connection, [queue.id for queue, _ in items], [handle for _, handle in items])
        return [(queue.id, handle) in deleted for queue, handle in items]


def check_visibility_timeout(seconds: float, field: str) -> None:
    """Raise `InvalidInput` for a visibility timeout out of range."""
    if not 1 <= seconds <= LONGEST_VISIBILITY_TIMEOUT_SECONDS:
        raise InvalidInput(f"{field} must be from 1 to {LONGEST_VISIBILITY_TIMEOUT_SECONDS} seconds", field=field)


def _check_claim(limit: int, wait_seconds: float) -> None:
    if not 1 <= limit <= LARGEST_BATCH:
        raise InvalidInput(f"n must be from 1 to {LARGEST_BATCH}", field="n")
    if not 0 <= wait_seconds <= LONGEST_WAIT_SECONDS:
        raise InvalidInput(f"wait must be from 0 to {LONGEST_WAIT_SECONDS:g} seconds", field="wait")


def check_publications(publications: Sequence[Publication]) -> None:
    """Raise `InvalidInput` for an empty or too large batch, and for a message that is too large or too late."""
    if not 1 <= len(publications) <= LARGEST_BATCH:
        raise InvalidInput(f"a batch holds 1 to {LARGEST_BATCH} messages", field="body")
    _check_each(publications)


def _check_each(publications: Sequence[Publication]) -> None:
    for index, publication in enumerate(publications):
        place = f"[{index}]." if len(publications) > 1 else ""
        if len(publication.body) > LARGEST_BODY_BYTES:
            raise TooLarge(f"a message holds at most {LARGEST_BODY_BYTES} bytes", field=f"{place}msg")
        if not 0 <= publication.delay_seconds <= LONGEST_VISIBILITY_TIMEOUT_SECONDS:
            raise InvalidInput(
                f"delay_seconds must be from 0 to {LONGEST_VISIBILITY_TIMEOUT_SECONDS}", field=f"{place}delay_seconds"
            )
