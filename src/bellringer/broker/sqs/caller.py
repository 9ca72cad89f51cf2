"""Who calls, as every action sees it, and the queues within its reach."""

from __future__ import annotations

import msgspec
from litestar.types import Receive

from bellringer.broker.model import Queue
from bellringer.broker.service import Broker
from bellringer.broker.sqs.errors import non_existent_queue
from bellringer.broker.sqs.names import Names
from bellringer.edge.model import Access
from bellringer.kernel.errors import InvalidInput, NotFound


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A caller whose key was accepted. `receive` tells when it hangs up."""

    access: Access
    names: Names
    receive: Receive


async def queue_at(broker: Broker, caller: Caller, url: str) -> Queue:
    """The queue at a URL, a copy of up to a second ago. Raises `SqsError`."""
    try:
        return await broker.queue(caller.access.environment.id, caller.names.queue_of_url(url))
    except (NotFound, InvalidInput):
        raise non_existent_queue() from None


async def find_queue(broker: Broker, caller: Caller, name: str) -> Queue | None:
    """The queue of that name as it is now; None when there is none."""
    try:
        return await broker.read_queue(caller.access.environment.id, name)
    except (NotFound, InvalidInput):
        return None


async def read_queue_at(broker: Broker, caller: Caller, url: str) -> Queue:
    """The queue at a URL as it is now. Raises `SqsError`."""
    queue = await find_queue(broker, caller, caller.names.queue_of_url(url))
    if queue is None:
        raise non_existent_queue()
    return queue
