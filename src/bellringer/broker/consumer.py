"""A consumer: claims messages, keeps the hold while they are handled, hands back what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from bellringer.broker.model import Message, Queue
from bellringer.broker.service import Broker, ReceiptNotHeld
from bellringer.kernel.backoff import Backoff
from bellringer.kernel.errors import Unavailable
from bellringer.kernel.logs import get_logger
from bellringer.kernel.service import Loop

_log = get_logger(__name__)


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much a consumer takes at a time, for how long, and how soon it tries again what failed."""

    batch_items: int = 500
    visibility_timeout_seconds: float = 30.0
    retry: Backoff = Backoff(first_seconds=1.0, cap_seconds=300.0)


class Consumer(Loop):
    """Feeds one queue to a handler, batch by batch.

    The handler deletes what it has done by `Broker.complete`, in the transaction of its own writes, so its effect
    happens once however often a message comes. When it raises over a batch, each message is handled alone, so that
    one bad message holds up no other; what then still fails comes back after a growing pause.
    """

    def __init__(
        self,
        broker: Broker,
        queue: Queue,
        handle: Callable[[Sequence[Message]], Awaitable[None]],
        config: ConsumerConfig | None = None,
    ) -> None:
        super().__init__(f"consumer of {queue.name}", interval_seconds=0.05)
        self._broker = broker
        self._queue = queue
        self._handle = handle
        self._config = config or ConsumerConfig()

    async def run_once(self) -> bool:
        """Claim one batch, waiting a second for it at most, and handle it."""
        messages = await self._broker.claim(
            self._queue,
            self._config.batch_items,
            visibility_timeout_seconds=self._config.visibility_timeout_seconds,
            wait_seconds=1.0,
        )
        if messages:
            holding = asyncio.create_task(self._keep_hold(messages))
            try:
                await self._handle_or_release(messages)
            finally:
                holding.cancel()
        return bool(messages)

    async def _handle_or_release(self, messages: Sequence[Message]) -> None:
        try:
            await self._handle(messages)
        except ReceiptNotHeld:
            # Another attempt holds some of them. Those that we do hold come back when their own time is over.
            _log.warning("lost the hold on messages", queue=self._queue.name, messages=len(messages))
        except Unavailable:
            raise  # not the fault of any message: the visibility timeout brings them all back
        except Exception:  # noqa: BLE001 - whatever a handler raises must not stop the queue
            if len(messages) > 1:
                for message in messages:
                    await self._handle_or_release([message])
                return
            _log.exception("message failed", queue=self._queue.name, id=messages[0].id, attempts=messages[0].attempts)
            wait_seconds = self._config.retry.wait_seconds(messages[0].attempts)
            await self._broker.release(self._queue, [messages[0].receipt_handle], [wait_seconds])

    async def _keep_hold(self, messages: Sequence[Message]) -> None:
        timeout = self._config.visibility_timeout_seconds
        handles = [message.receipt_handle for message in messages]
        while True:
            await asyncio.sleep(timeout / 3)
            try:
                await self._broker.extend(self._queue, handles, timeout)
            except Exception as error:  # noqa: BLE001 - whatever this attempt met, the next one may succeed
                _log.warning("could not extend the hold", queue=self._queue.name, error=repr(error))
