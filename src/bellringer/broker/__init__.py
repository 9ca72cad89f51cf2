"""The broker: queues of messages on PostgreSQL.

States of a message (all in `messages.state`; one statement per arrow, in `store.py`):

    publish -> pending -> claim -> in_flight -> delete -> deleted -> purge (the row goes)
                  ^                   |  |
                  |   visibility timeout |
                  +-------------------+  +-- release with a delay -> delayed -> (due) -> pending

Invariants:
- Order: a queue hands out pending messages in the order of their ids, the lowest first; a message that comes back
  keeps its place.
- Exclusive: a message in flight is held under one receipt handle, drawn anew at every claim. A handle of an earlier
  attempt deletes, extends or releases nothing.
- Attempts are counted at the claim, so a message that kills its consumer is seen to do so.
- Counts are tallies (`bellringer.kernel.tally`): no reader scans the table.

Every operation that takes a `connection` joins the caller's transaction. A queue belongs to an environment; those of
`SYSTEM_ENVIRONMENT` carry Bellringer's own pipeline.
"""

from bellringer.broker.consumer import Consumer, ConsumerConfig
from bellringer.broker.model import SYSTEM_ENVIRONMENT, Message, Queue, QueueCounts
from bellringer.broker.service import Broker, BrokerConfig, Publication, ReceiptNotHeld

__all__ = [
    "SYSTEM_ENVIRONMENT",
    "Broker",
    "BrokerConfig",
    "Consumer",
    "ConsumerConfig",
    "Message",
    "Publication",
    "Queue",
    "QueueCounts",
    "ReceiptNotHeld",
]
