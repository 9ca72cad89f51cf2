"""Message calls: the payload as a message on a queue, in the commit that records the end of the run."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import msgspec

from bellringer.broker import Broker, Publication, Queue
from bellringer.broker.checks import check_each, fill_in
from bellringer.kernel.database import Connection
from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.model import CallFailed, Invocation, MessageCall

_FIELDS = {"queue": "call.queue", "group": "call.group", "msg": "payload"}
"""What a task calls the fields of a message."""


class Publishing(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a message call."""

    broker: Broker
    queue: Queue
    publication: Publication

    @classmethod
    async def apply(cls, connection: Connection, effects: Sequence[Publishing]) -> None:
        """Publish, queue by queue. Raises `NotFound` when a queue was deleted just now."""
        by_queue: defaultdict[int, list[Publishing]] = defaultdict(list)
        for effect in effects:
            by_queue[effect.queue.number].append(effect)
        # The order of the numbers keeps two executors from waiting for each other.
        for _, publishings in sorted(by_queue.items()):
            broker, queue = publishings[0].broker, publishings[0].queue
            await broker.publish(connection, queue, [publishing.publication for publishing in publishings])

    def committed(self) -> None:
        """Wake a claim that waits for the message."""
        self.broker.wakeups.wake(self.queue.id)


class MessageCaller:
    """Runs message calls. A queue that does not exist is made with the default settings."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def call(self, invocation: Invocation) -> Publishing:
        """Say what is to be published. Raises `CallFailed` for what the queue would not take."""
        call = cast("MessageCall", invocation.call)
        try:
            queue = await self._broker.ensure_queue(invocation.environment_id, call.queue)
            publication = fill_in(queue, _publication(invocation, call, queue))
            check_each([publication], queue.settings)
        except InvalidInput as error:
            raise CallFailed(f"{_FIELDS[error.field or '']}: {error}") from None
        return Publishing(broker=self._broker, queue=queue, publication=publication)


def _publication(invocation: Invocation, call: MessageCall, queue: Queue) -> Publication:
    # The same payload at the next fire time is another message.
    run = f"{invocation.key}#{invocation.attempt}"
    return Publication(
        body=invocation.payload,
        group=call.group,
        deduplication_id=hashlib.sha256(run.encode()).hexdigest() if queue.settings.content_deduplication else None,
    )
