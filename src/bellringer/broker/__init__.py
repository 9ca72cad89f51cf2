"""The broker: queues of messages on PostgreSQL.

A publish appends a chunk of messages, a claim is one row with the range that it took, an acknowledgement ends the
claim or records a part of it: on the way of most messages nothing is updated but the claim, once. What is different,
delayed, ordered by group, returned, held on, is tracked row by row. docs/broker.md draws tables and states.

Invariants:
- Order: a queue numbers its messages in the order of the commits, and hands them out in that order; what came back
  goes first. In a FIFO queue no message of a group is handed out while an earlier one is unfinished.
- Exclusive: a message is held by one attempt. The receipt handle of another attempt finishes, extends and releases
  nothing.
- Attempts are counted at the claim, so a message that kills its consumer is seen to do so.
- Every transition is one SQL function call: no process that dies or stops holds a lock.
- Counts need no look at the messages.

Every operation that takes a `connection` joins the caller's transaction. A queue belongs to an environment; those of
`SYSTEM_ENVIRONMENT` carry Bellringer's own pipeline.
"""

from bellringer.broker.consumer import Consumer, ConsumerConfig
from bellringer.broker.model import (
    SYSTEM_ENVIRONMENT,
    Message,
    MessageId,
    Publication,
    Queue,
    QueueCounts,
    QueueSettings,
    ReceiptHandle,
)
from bellringer.broker.receipts import ReceiptInvalid
from bellringer.broker.service import Broker, BrokerConfig, ReceiptNotHeld

__all__ = [
    "SYSTEM_ENVIRONMENT",
    "Broker",
    "BrokerConfig",
    "Consumer",
    "ConsumerConfig",
    "Message",
    "MessageId",
    "Publication",
    "Queue",
    "QueueCounts",
    "QueueSettings",
    "ReceiptHandle",
    "ReceiptInvalid",
    "ReceiptNotHeld",
]
