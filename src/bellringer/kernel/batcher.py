"""The micro-batcher: many callers, one write.

While batch n commits, batch n+1 fills; no timer decides when a batch is full. A lone caller therefore waits for no
one, and a crowd shares each commit. Every caller is answered after the write that holds its item.

States of an item: waiting -> in the write -> answered. `submit` refuses an item when too many wait (`Overloaded`),
so memory is bounded. A write that fails because of its content is split until the item at fault stands alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec

from bellringer.kernel.errors import Overloaded, Unavailable
from bellringer.kernel.metrics import BATCH_ITEMS

Item = TypeVar("Item")
Result = TypeVar("Result")

Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class BatcherConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of one batcher. Weight is in the unit of its `weigh`, bytes as a rule."""

    max_batch_items: Positive = 1000
    max_batch_weight: Positive = 8 * 1024 * 1024
    max_waiting_items: Positive = 20_000
    max_waiting_weight: Positive = 64 * 1024 * 1024


class Room:
    """Bounds what waits in several batchers together. One of them gets half of it at most: the others find room."""

    def __init__(self, max_items: int, max_weight: int) -> None:
        self._max_items = max_items
        self._max_weight = max_weight
        self._items = 0
        self._weight = 0

    def has(self, own_items: int, own_weight: int, weight: int) -> bool:
        """Whether one more item may wait, of a batcher in which so many wait already."""
        return (
            self._items < self._max_items
            and self._weight + weight <= self._max_weight
            and own_items < self._max_items / 2
            and own_weight + weight <= self._max_weight / 2
        )

    def change(self, items: int, weight: int) -> None:
        """Note that items came, or with negative numbers went."""
        self._items += items
        self._weight += weight


class MicroBatcher(Generic[Item, Result]):
    """Gathers items from many callers into one write at a time.

    `write` takes the items in the order of their submission and returns one result each; a result that is an
    exception is raised to its own caller alone. When `write` raises one of `isolate`, the transaction was rolled back
    because of an item: the batch is halved until only the items at fault fail. Any other exception goes to every
    caller of the batch.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        *,
        config: BatcherConfig | None = None,
        weigh: Callable[[Item], int] = lambda _item: 0,
        isolate: tuple[type[Exception], ...] = (),
        room: Room | None = None,
    ) -> None:
        self._config = config or BatcherConfig()
        self._room = room
        self._write = write
        self._weigh = weigh
        self._isolate = isolate
        self._waiting: deque[tuple[Item, int, asyncio.Future[Result]]] = deque()
        self._waiting_weight = 0
        self._writer: asyncio.Task[None] | None = None
        self._closed = False
        self._items_metric = BATCH_ITEMS.labels(batcher=name)

    async def submit(self, item: Item) -> Result:
        """Add an item and wait until the write that holds it has committed.

        Raises `Overloaded` when too much waits already or the batcher is closed; else what the write raised, or
        `Unavailable` when it was broken off.
        """
        weight = self._weigh(item)
        if self._closed or not self._has_room(weight):
            raise Overloaded
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, weight, answer))
        self._waiting_weight += weight
        if self._room is not None:
            self._room.change(1, weight)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_until_empty())
            self._writer.add_done_callback(self._refuse_the_forsaken)
        return await answer

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return not self._waiting and (self._writer is None or self._writer.done())

    async def drain(self) -> None:
        """Refuse new items and return when every item that waits has been answered."""
        self._closed = True
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])

    def _has_room(self, weight: int) -> bool:
        if not self._waiting:
            return True
        if self._room is not None and not self._room.has(len(self._waiting), self._waiting_weight, weight):
            return False
        return (
            len(self._waiting) < self._config.max_waiting_items
            and self._waiting_weight + weight <= self._config.max_waiting_weight
        )

    async def _write_until_empty(self) -> None:
        # One turn of the loop lets the callers that became ready together share the first write.
        await asyncio.sleep(0)
        while self._waiting:
            items, answers = self._take_batch()
            self._items_metric.observe(len(items))
            try:
                await self._write_and_answer(items, answers)
            finally:
                _refuse(answers, Unavailable())  # whoever has no answer because the writer was cancelled

    def _refuse_the_forsaken(self, ended_writer: asyncio.Task[None]) -> None:
        """A writer that was cancelled, even before its first step, leaves nobody waiting for ever."""
        while self._waiting and self._writer is ended_writer:
            _, answers = self._take_batch()
            _refuse(answers, Unavailable())

    def _take_batch(self) -> tuple[list[Item], list[asyncio.Future[Result]]]:
        items: list[Item] = []
        answers: list[asyncio.Future[Result]] = []
        batch_weight = 0
        while self._waiting and len(items) < self._config.max_batch_items:
            item, weight, answer = self._waiting[0]
            if items and batch_weight + weight > self._config.max_batch_weight:
                break
            self._waiting.popleft()
            self._waiting_weight -= weight
            if self._room is not None:
                self._room.change(-1, -weight)
            batch_weight += weight
            items.append(item)
            answers.append(answer)
        return items, answers

    async def _write_and_answer(self, items: Sequence[Item], answers: Sequence[asyncio.Future[Result]]) -> None:
        try:
            results = await self._write(items)
        except self._isolate as error:
            if len(items) == 1:
                _refuse(answers, error)
                return
            middle = len(items) // 2
            await self._write_and_answer(items[:middle], answers[:middle])
            await self._write_and_answer(items[middle:], answers[middle:])
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets it
            _refuse(answers, error)
        else:
            _answer(answers, results)


def _answer(answers: Sequence[asyncio.Future[Result]], results: Sequence[Result | Exception]) -> None:
    if len(results) != len(answers):
        _refuse(answers, RuntimeError(f"the write returned {len(results)} results for {len(answers)} items"))
        return
    for answer, result in zip(answers, results, strict=True):
        if answer.done():  # its caller went away
            continue
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _refuse(answers: Sequence[asyncio.Future[Result]], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
