"""Claims of one queue: many callers, one claim in the database, and a little ahead of them.

Callers that ask while a claim is under way share the next one, but for FIFO queues, where a group goes to one caller.
When messages are handed out fast, a claim takes along what the next moments will ask for: as many as were handed out in
the last `ahead_seconds`. They are held for `_LONGEST_AHEAD_SECONDS` longer than their callers asked for, so a message
handed out late is still held for its time; what nobody wanted goes back, and that attempt does not count. Measured:
docs/benchmarks.md, `queue_throughput`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Sequence

import msgspec

from bellringer.broker import settlement, store
from bellringer.broker.frames import decode_frame, unpack
from bellringer.broker.model import LARGEST_BATCH, Message, MessageId, Queue
from bellringer.broker.receipts import Receipts
from bellringer.kernel.database import Database
from bellringer.kernel.logs import get_logger

_LONGEST_AHEAD_SECONDS = 1.0
_MOST_AHEAD = 250
_FEWEST_AHEAD = 8

_log = get_logger(__name__)


class _Request(msgspec.Struct, kw_only=True):
    limit: int
    seconds: float
    answer: asyncio.Future[list[Message]]


class Claimer:
    """Claims messages of one queue for the callers in this process."""

    def __init__(self, database: Database, receipts: Receipts, queue: Queue, *, ahead_seconds: float) -> None:
        self._database = database
        self._receipts = receipts
        self._queue = queue
        self._ahead_seconds = 0.0 if queue.settings.fifo else ahead_seconds
        self._requests: deque[_Request] = deque()
        self._claiming: asyncio.Task[None] | None = None
        # Each with the moment until which it may be handed out: its hold in the database began before that, and ends
        # a full visibility timeout after it.
        self._ahead: deque[tuple[Message, float]] = deque()
        self._ahead_hold_seconds = 0.0
        self._watching: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._pace = 0.0
        self._paced_at = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and nothing is held ahead."""
        under_way = [*self._background] if self._claiming is None else [*self._background, self._claiming]
        return not (self._requests or self._ahead) and all(task.done() for task in under_way)

    async def claim(self, limit: int, seconds: float) -> list[Message]:
        """Take up to `limit` messages for so many seconds, without waiting. Raises `Unavailable`.

        A caller that goes away holds nothing.
        """
        if self._ahead_hold_seconds == seconds and len(self._ahead) >= limit and not self._is_late():
            return self._hand_out([self._ahead.popleft()[0] for _ in range(limit)])
        request = _Request(limit=limit, seconds=seconds, answer=asyncio.get_running_loop().create_future())
        self._requests.append(request)
        if self._claiming is None or self._claiming.done():
            self._claiming = asyncio.create_task(self._claim_until_answered())
        try:
            return await asyncio.shield(request.answer)
        except asyncio.CancelledError:
            if not request.answer.done():
                request.answer.cancel()
            elif not request.answer.exception():
                await self._put_back(request.answer.result())
            raise

    async def drain(self) -> None:
        """Give back what is held ahead; return when nothing is under way."""
        if self._claiming is not None and not self._claiming.done():
            await asyncio.wait([self._claiming])
        self._give_back(self._ahead)
        self._ahead = deque()
        if self._background:
            await asyncio.wait(list(self._background))

    async def _claim_until_answered(self) -> None:
        # One turn of the loop lets the callers that became ready together share the first claim.
        await asyncio.sleep(0)
        while self._requests:
            requests = self._take_requests()
            try:
                await self._answer(requests)
            except Exception as error:  # noqa: BLE001 - every caller of the claim gets it
                for request in requests:
                    if not request.answer.done():
                        request.answer.set_exception(error)

    def _take_requests(self) -> list[_Request]:
        """The next callers that want to hold for the same time, up to one batch.

        Of a FIFO queue one caller: two that shared a claim would each hold some of one group.
        """
        requests = [self._requests.popleft()]
        wanted = requests[0].limit
        while (
            self._requests
            and not self._queue.settings.fifo
            and self._requests[0].seconds == requests[0].seconds
            and wanted + self._requests[0].limit <= LARGEST_BATCH
        ):
            requests.append(self._requests.popleft())
            wanted += requests[-1].limit
        return requests

    async def _answer(self, requests: Sequence[_Request]) -> None:
        seconds = requests[0].seconds
        wanted = sum(request.limit for request in requests if not request.answer.done())
        if not wanted:
            return
        if self._ahead and (self._ahead_hold_seconds != seconds or self._is_late()):
            # First, and not meanwhile: then this claim gets them, before what was published after them.
            unwanted, self._ahead = self._ahead, deque()
            await self._put_back([message for message, _ in unwanted])
        ready = [self._ahead.popleft() for _ in range(min(wanted, len(self._ahead)))]
        try:
            fresh, until = await self._claim_now(wanted - len(ready), seconds)
        except BaseException:
            self._ahead.extendleft(reversed(ready))
            raise
        now = asyncio.get_running_loop().time()
        self._give_back([(message, until_then) for message, until_then in ready if until_then <= now])
        messages = deque(message for message, until_then in ready if until_then > now)
        messages.extend(fresh)
        for request in requests:
            if not request.answer.done():
                request.answer.set_result(
                    self._hand_out([messages.popleft() for _ in range(min(request.limit, len(messages)))])
                )
        self._ahead.extend((message, until) for message in messages)
        self._ahead_hold_seconds = seconds
        self._watch_ahead()

    async def _claim_now(self, wanted: int, seconds: float) -> tuple[list[Message], float]:
        """Claim so many messages and some ahead; return them, and until when those ahead may be handed out."""
        if not wanted:
            return [], 0.0
        ahead = self._how_many_ahead(wanted)
        allowance_seconds = _LONGEST_AHEAD_SECONDS if ahead else 0.0
        until = asyncio.get_running_loop().time() + allowance_seconds
        async with self._database.connection() as connection:
            claimed = await store.claim(connection, self._queue.number, wanted + ahead, seconds + allowance_seconds)
            claimed = await store.read_runs(connection, self._queue.number, claimed)
        return [message for run in claimed for message in self._messages(run)], until

    def _is_late(self) -> bool:
        """Whether the first message held ahead may not be handed out any more."""
        return self._ahead[0][1] <= asyncio.get_running_loop().time()

    def _hand_out(self, messages: list[Message]) -> list[Message]:
        if self._ahead_seconds:
            now = asyncio.get_running_loop().time()
            self._pace = self._pace * math.exp((self._paced_at - now) / self._ahead_seconds) + len(messages)
            self._paced_at = now
        return messages

    def _how_many_ahead(self, wanted: int) -> int:
        # A batch that is as large as what would be taken ahead shares the costs of a claim well enough by itself.
        if not self._ahead_seconds or wanted >= _MOST_AHEAD:
            return 0
        elapsed = asyncio.get_running_loop().time() - self._paced_at
        pace = int(self._pace * math.exp(-elapsed / self._ahead_seconds))
        return min(pace, _MOST_AHEAD) if pace >= _FEWEST_AHEAD else 0

    def _watch_ahead(self) -> None:
        """See to it that what nobody asks for goes back in time."""
        if self._ahead and self._watching is None:
            self._watching = asyncio.get_running_loop().call_at(self._ahead[0][1], self._give_back_late)

    def _give_back_late(self) -> None:
        self._watching = None
        now = asyncio.get_running_loop().time()
        self._give_back([(message, until) for message, until in self._ahead if until <= now])
        self._ahead = deque((message, until) for message, until in self._ahead if until > now)
        self._watch_ahead()

    def _give_back(self, ahead: Collection[tuple[Message, float]]) -> None:
        if ahead:
            under_way = {task for task in self._background if not task.done()}
            self._background = {*under_way, asyncio.create_task(self._put_back([message for message, _ in ahead]))}

    async def _put_back(self, messages: Sequence[Message]) -> None:
        receipts = [(self._receipts.read(self._queue.number, message.receipt_handle), 0.0) for message in messages]
        try:
            async with self._database.connection() as connection:
                await settlement.put_back(connection, self._queue.number, receipts, keep=False, unseen=True)
        except Exception as error:  # noqa: BLE001 - their visibility timeout brings them back all the same
            _log.warning("could not give back messages", queue=self._queue.name, error=repr(error))

    def _messages(self, run: store.Claimed) -> list[Message]:
        number = self._queue.number
        messages: list[Message] = []
        for index, frame in enumerate(unpack(run.payload or b"", run.ends_before, run.ends)):
            header, body = decode_frame(frame)
            seq = run.first_seq + index
            messages.append(
                Message(
                    id=MessageId(seq),
                    body=body,
                    receipt_handle=self._receipts.issue(number, run.claim_seq, seq, run.attempts),
                    attempts=run.attempts,
                    created_at=run.sent_at,
                    first_claimed_at=run.first_claimed_at,
                    group=header.group,
                    deduplication_id=header.deduplication_id,
                    attributes=header.attributes,
                    origin=header.origin,
                )
            )
        return messages
