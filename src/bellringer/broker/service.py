"""What the broker does, for HTTP and for the pipeline alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from bellringer.broker import inspection, queue_store, samples, settlement, store
from bellringer.broker.checks import check_claim, check_each, check_publications, check_visibility_timeout, fill_in
from bellringer.broker.lane import Lane, append
from bellringer.broker.model import (
    LARGEST_BATCH,
    LARGEST_MESSAGE_ID,
    LONGEST_RETENTION_SECONDS,
    LONGEST_VISIBILITY_TIMEOUT_SECONDS,
    Message,
    MessageHistory,
    MessageId,
    Publication,
    Queue,
    QueueCounts,
    QueueSample,
    QueueSettings,
    ReceiptHandle,
    StoredMessage,
    check_queue_name,
    check_settings,
)
from bellringer.broker.receipts import Receipts
from bellringer.broker.wakeups import Wakeups
from bellringer.kernel.batcher import BatcherConfig, Room
from bellringer.kernel.database import Connection, Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound

_MOST_LANES = 10_000
_QUEUE_CACHE_SECONDS = 1.0


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of a new queue, and the pace of the background work.

    `ahead_seconds`: a process claims as many messages ahead as it handed out in that time; 0 claims none.
    """

    visibility_timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_VISIBILITY_TIMEOUT_SECONDS)] = 600
    retention_seconds: Annotated[int, msgspec.Meta(ge=60, le=LONGEST_RETENTION_SECONDS)] = 7 * 24 * 3600
    ahead_seconds: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    inbox_interval_seconds: Annotated[float, msgspec.Meta(gt=0)] = 0.1
    sweep_interval_seconds: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    collect_interval_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    batcher: BatcherConfig = BatcherConfig()


class ReceiptNotHeld(NotFound):
    """No message is held under this receipt handle: it was returned when its visibility timeout ran out."""


class Broker:
    """Queues of messages: publish, claim, acknowledge, extend, release."""

    def __init__(self, database: Database, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.wakeups = Wakeups()
        self._database = database
        self._room = Room(self.config.batcher.max_waiting_items, self.config.batcher.max_waiting_weight)
        # By the number of the environment: to hash a UUID takes more time than all the rest of a look-up.
        self._queues: dict[tuple[int, str], tuple[float, Queue]] = {}
        self._lanes: dict[int, Lane] = {}
        self._receipts: Receipts | None = None

    # Queues

    async def queue(self, environment_id: UUID, name: str) -> Queue:
        """The queue of that name, as it was a second ago at most. Raises `NotFound`, or `InvalidInput` for the name."""
        known = self._queues.get((environment_id.int, name))
        if known is not None and known[0] > time.monotonic():
            return known[1]
        return await self.read_queue(environment_id, name)

    async def read_queue(self, environment_id: UUID, name: str) -> Queue:
        """The queue of that name as it is now. Raises as `queue` does."""
        check_queue_name(name)
        async with self._database.connection() as connection:
            queue = await queue_store.find_queue(connection, environment_id, name)
        if queue is None:
            self._queues.pop((environment_id.int, name), None)
            raise NotFound(f"there is no queue {name}")
        return self._remember(queue)

    async def ensure_queue(self, environment_id: UUID, name: str) -> Queue:
        """The queue of that name, made with the default settings if it is new."""
        try:
            return await self.queue(environment_id, name)
        except NotFound:
            await self._add_queue(environment_id, name, self.default_settings())
            return await self.read_queue(environment_id, name)

    async def create_queue(self, environment_id: UUID, name: str, settings: QueueSettings) -> Queue:
        """Make a queue. One that exists with the same settings is returned.

        Raises `Conflict` for one with other settings, `InvalidInput`.
        """
        check_settings(settings)
        await self._check_dead_letter_queue(environment_id, name, settings)
        await self._add_queue(environment_id, check_queue_name(name), settings)
        queue = await self.read_queue(environment_id, name)
        if queue.settings != settings:
            raise Conflict(f"there is a queue {name} with other settings")
        return queue

    async def configure_queue(self, environment_id: UUID, name: str, settings: QueueSettings) -> Queue:
        """Make a queue or replace its settings; they hold for publishes and claims from then on, within a second.

        Raises `InvalidInput`; `Conflict` when it would turn a FIFO queue into another or back.
        """
        check_settings(settings)
        await self._check_dead_letter_queue(environment_id, name, settings)
        await self._add_queue(environment_id, check_queue_name(name), settings)
        queue = await self.read_queue(environment_id, name)
        if queue.settings == settings:
            return queue
        if queue.settings.fifo != settings.fifo:
            raise Conflict("a queue is a FIFO queue from its beginning, or never")
        async with self._database.connection() as connection:
            return self._remember(_found(await queue_store.change_queue(connection, queue.id, settings), name))

    async def list_queues(self, environment_ids: Sequence[UUID] | None = None) -> list[Queue]:
        """The queues of those environments, or of all, by name."""
        async with self._database.connection() as connection:
            return await queue_store.list_queues(connection, environment_ids)

    async def list_sources(self, queue: Queue) -> list[Queue]:
        """The queues whose dead letters go to this one."""
        async with self._database.connection() as connection:
            return await queue_store.list_sources(connection, queue.environment_id, queue.name)

    async def pause_queue(self, queue: Queue) -> Queue:
        """Let claims of a queue get nothing, in every process within a second; publishing goes on."""
        async with self._database.connection() as connection:
            paused = _found(await queue_store.pause_queue(connection, queue.id, paused=True), queue.name)
        lane = self._lanes.get(queue.number)
        if lane is not None:
            await lane.claimer.drain()
        return self._remember(paused)

    async def resume_queue(self, queue: Queue) -> Queue:
        """End a pause."""
        async with self._database.connection() as connection:
            resumed = _found(await queue_store.pause_queue(connection, queue.id, paused=False), queue.name)
        self.wakeups.wake(queue.id, LARGEST_BATCH)
        return self._remember(resumed)

    async def delete_queue(self, queue: Queue) -> None:
        """Delete a queue with its messages; one of the same name that is made later is another."""
        self._queues.pop((queue.environment_id.int, queue.name), None)
        lane = self._lanes.pop(queue.number, None)
        if lane is not None:
            await lane.drain()
        async with self._database.transaction() as connection:
            await queue_store.delete_queue(connection, queue.id)

    async def purge_queue(self, queue: Queue) -> int:
        """Remove every message, those in flight too, and say how many; their receipt handles do nothing from then on.

        What another transaction is just completing stays with it.
        """
        lane = self._lanes.get(queue.number)
        if lane is not None:
            await lane.claimer.drain()
        async with self._database.connection() as connection:
            return await store.purge(connection, queue.number)

    async def counts(self, queues: Sequence[Queue]) -> dict[UUID, QueueCounts]:
        """How each queue stands, without a look at its messages. Queues that are gone are left out."""
        ids = [queue.id for queue in queues]
        async with self._database.connection() as connection:
            standings = await queue_store.counts(connection, ids)
            ages = await queue_store.ages(connection, ids)
            rates = await samples.published_per_minute(connection, ids)
        return {
            queue_id: QueueCounts(
                **msgspec.structs.asdict(standing),
                oldest_pending_age_seconds=round(ages[queue_id].oldest_pending_age_seconds, 3),
                stuck=ages[queue_id].stuck,
                seconds_to_deletion=round(ages[queue_id].seconds_to_deletion, 6),
                published_per_minute=round(rates.get(queue_id, 0.0), 3),
            )
            for queue_id, standing in standings.items()
            if queue_id in ages
        }

    async def samples(self, queue: Queue, seconds: float) -> list[QueueSample]:
        """How a queue stood over the last so many seconds; each sample holds until the next."""
        async with self._database.connection() as connection:
            return await samples.read(connection, queue.number, seconds)

    async def peek(self, queue: Queue, limit: int) -> list[StoredMessage]:
        """The first messages that nobody holds, by id, without claiming them. Raises `InvalidInput`."""
        check_claim(limit, 0.0)
        async with self._database.connection() as connection:
            return await inspection.peek(connection, queue.number, limit)

    async def history(self, queue: Queue, message_id: MessageId) -> MessageHistory:
        """A message and what happened to it, for as long as its queue keeps it. Raises `NotFound`."""
        found = None
        if 1 <= message_id <= LARGEST_MESSAGE_ID:
            async with self._database.connection() as connection:
                found = await inspection.history(connection, queue.number, message_id)
        if found is None:
            raise NotFound(f"there is no message {message_id} in {queue.name}")
        return found

    # Publishing

    async def publish(
        self, connection: Connection, queue: Queue, publications: Sequence[Publication | bytes]
    ) -> list[MessageId]:
        """Publish inside the caller's transaction, as its last statement: it locks the queue's order to its end.

        After the commit call `wakeups.wake`, or a claim waits 200 ms. A transaction that goes on for long publishes
        with `SELECT bellringer.publish(...)` instead, which locks nothing.
        """
        filled = [
            fill_in(queue, publication if isinstance(publication, Publication) else Publication(body=publication))
            for publication in publications
        ]
        check_each(filled, queue.settings)
        return await append(connection, queue, filled)

    async def send(self, queue: Queue, publications: Sequence[Publication]) -> list[MessageId]:
        """Publish in a commit shared with other callers; return the ids after it. All or none are stored.

        A message whose deduplication id was used within five minutes is not stored; its id is that of the first.
        Raises `InvalidInput` for an empty or too large batch, `TooLarge` for a body over the queue's limit,
        `NotFound` when the queue was deleted, `Overloaded`.
        """
        filled = [fill_in(queue, publication) for publication in publications]
        check_publications(filled, queue.settings)
        return await (await self._lane(queue)).send(filled)

    # Consuming

    async def claim(
        self,
        queue: Queue,
        limit: int,
        *,
        visibility_timeout_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> list[Message]:
        """Take up to `limit` messages; wait up to `wait_seconds` for the first of them.

        Messages that came back are first, then the oldest. Of a FIFO queue: none of a group of which one is held.
        Raises `InvalidInput` when a number is out of range. A claim that is cancelled holds nothing.
        """
        seconds = queue.visibility_timeout_seconds if visibility_timeout_seconds is None else visibility_timeout_seconds
        wait = queue.settings.wait_seconds if wait_seconds is None else wait_seconds
        check_claim(limit, wait)
        check_visibility_timeout(seconds, "visibility_timeout")
        lane = await self._lane(queue)
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            with self.wakeups.waiter(queue.id) as woken:
                messages = await lane.claimer.claim(limit, seconds)
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

    async def acknowledge(self, queue: Queue, receipt_handle: ReceiptHandle) -> None:
        """Finish a message in a commit shared with other callers; again is no error.

        Raises `ReceiptNotHeld`, or `ReceiptInvalid` for what is no handle of this queue.
        """
        if not (await self.acknowledge_each(queue, [receipt_handle]))[0]:
            raise ReceiptNotHeld

    async def acknowledge_each(self, queue: Queue, receipt_handles: Sequence[ReceiptHandle]) -> list[bool]:
        """Finish messages; say of each whether it is finished. Raises `ReceiptInvalid`."""
        receipts = await self._open_receipts()
        read = receipts.read(queue.number, receipt_handles)
        done = await (await self._lane(queue)).finish(read)
        if queue.settings.fifo:
            self.wakeups.wake(queue.id, len(done))  # the next of their groups
        return [receipt in done for receipt in read]

    async def complete(self, connection: Connection, queue: Queue, messages: Sequence[Message]) -> None:
        """Finish messages inside the caller's transaction, once: raises `ReceiptNotHeld` unless all are held till now.

        The error must end the transaction: then an attempt that lost its hold, or is repeated after its commit, leaves
        no trace. Completed first thing in the transaction, the messages stay held to its end. (So does the whole of a
        FIFO queue: there, complete last.)
        """
        receipts = await self._open_receipts()
        read = receipts.read(queue.number, [message.receipt_handle for message in messages])
        done = await settlement.finish(connection, queue.number, read)
        if not all(done.get(receipt, False) for receipt in read):
            raise ReceiptNotHeld

    async def change_visibility(self, queue: Queue, changes: Sequence[tuple[ReceiptHandle, float]]) -> list[bool]:
        """Let messages be held for so many seconds from now, 0 to hand one back; say of each whether it was held.

        Raises `ReceiptInvalid`, `InvalidInput` for seconds out of range.
        """
        for _, seconds in changes:
            check_visibility_timeout(seconds, "visibility_timeout")
        receipts = await self._open_receipts()
        given = receipts.read(queue.number, [handle for handle, _ in changes])
        read = [(receipt, seconds) for receipt, (_, seconds) in zip(given, changes, strict=True)]
        held = set()
        async with self._database.connection() as connection:
            for keep in (True, False):
                chosen = [(receipt, seconds) for receipt, seconds in read if (seconds > 0) is keep]
                if chosen:
                    held |= await settlement.put_back(connection, queue.number, chosen, keep=keep)
        self.wakeups.wake(queue.id, sum(seconds == 0 for _, seconds in read))
        return [receipt in held for receipt, _ in read]

    async def extend(self, queue: Queue, receipt_handles: Sequence[ReceiptHandle], seconds: float) -> int:
        """Hold messages for `seconds` from now; return how many were still held."""
        return sum(await self.change_visibility(queue, [(handle, seconds) for handle in receipt_handles]))

    async def release(
        self, queue: Queue, receipt_handles: Sequence[ReceiptHandle], delays_seconds: Sequence[float]
    ) -> None:
        """Hand messages back, each to be claimed after its delay. Those no longer held are another's now."""
        for delay_seconds in delays_seconds:
            check_visibility_timeout(delay_seconds, "delay_seconds")
        receipts = await self._open_receipts()
        read = list(zip(receipts.read(queue.number, receipt_handles), delays_seconds, strict=True))
        async with self._database.connection() as connection:
            await settlement.put_back(connection, queue.number, read, keep=False)
        self.wakeups.wake(queue.id, len(receipt_handles))

    async def drain(self) -> None:
        """End the waits, and return when what was submitted is written."""
        self.wakeups.close()
        for lane in list(self._lanes.values()):
            await lane.drain()

    def default_settings(self) -> QueueSettings:
        """The settings of a queue that somebody makes by publishing to it."""
        return QueueSettings(
            visibility_timeout_seconds=self.config.visibility_timeout_seconds,
            retention_seconds=self.config.retention_seconds,
        )

    async def _add_queue(self, environment_id: UUID, name: str, settings: QueueSettings) -> None:
        async with self._database.connection() as connection:
            await queue_store.add_queue(connection, environment_id, name, settings)

    async def _check_dead_letter_queue(self, environment_id: UUID, name: str, settings: QueueSettings) -> None:
        if settings.dead_letter_queue is None:
            return
        if settings.dead_letter_queue == name:
            raise InvalidInput("a queue cannot be its own dead letter queue", field="dead_letter_queue")
        try:
            letters = await self.read_queue(environment_id, settings.dead_letter_queue)
        except NotFound:
            raise InvalidInput(f"there is no queue {settings.dead_letter_queue}", field="dead_letter_queue") from None
        if letters.settings.fifo != settings.fifo:
            raise InvalidInput("the dead letter queue of a FIFO queue is a FIFO queue", field="dead_letter_queue")

    def _remember(self, queue: Queue) -> Queue:
        until = time.monotonic() + _QUEUE_CACHE_SECONDS
        self._queues[(queue.environment_id.int, queue.name)] = (until, queue)
        return queue

    async def _lane(self, queue: Queue) -> Lane:
        lane = self._lanes.get(queue.number)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:
                self._lanes = {number: lane for number, lane in self._lanes.items() if not lane.is_idle}
            receipts = await self._open_receipts()
            lane = self._lanes.setdefault(
                queue.number,
                Lane(
                    self._database,
                    receipts,
                    queue,
                    self.wakeups,
                    self.config.batcher,
                    self._room,
                    ahead_seconds=self.config.ahead_seconds,
                ),
            )
        return lane

    async def _open_receipts(self) -> Receipts:
        if self._receipts is None:
            async with self._database.connection() as connection:
                self._receipts = Receipts(await store.secret(connection))
        return self._receipts


def _found(queue: Queue | None, name: str) -> Queue:
    if queue is None:
        raise NotFound(f"there is no queue {name}")
    return queue
