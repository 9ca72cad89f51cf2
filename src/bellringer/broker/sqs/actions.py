"""Which action is which: what its request holds, which scope it needs, who does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from bellringer.broker.moves import Moves
from bellringer.broker.service import Broker
from bellringer.broker.sqs import requests
from bellringer.broker.sqs.caller import Caller
from bellringer.broker.sqs.message_actions import MessageActions
from bellringer.broker.sqs.move_actions import MoveActions
from bellringer.broker.sqs.queue_actions import QueueActions
from bellringer.edge.model import Scope


class Action(msgspec.Struct, frozen=True):
    """An action: the type of its request, what does it, and the scopes of which a key needs one."""

    request: type[requests.Request]
    handle: Callable[[Caller, Any], Awaitable[Mapping[str, Any]]]
    scopes: tuple[Scope, ...]


def sqs_actions(broker: Broker, moves: Moves) -> dict[str, Action]:
    """All actions over one broker, by name."""
    queues, messages, tasks = QueueActions(broker), MessageActions(broker), MoveActions(broker, moves)
    publish, consume, admin = (Scope.PUBLISH,), (Scope.CONSUME,), (Scope.ADMIN,)
    # A client that only sends or only receives has to find its queue, and many look at it first.
    either = (Scope.PUBLISH, Scope.CONSUME)
    return {
        "SendMessage": Action(requests.SendMessage, messages.send, publish),
        "SendMessageBatch": Action(requests.SendMessageBatch, messages.send_batch, publish),
        "ReceiveMessage": Action(requests.ReceiveMessage, messages.receive, consume),
        "DeleteMessage": Action(requests.DeleteMessage, messages.delete, consume),
        "DeleteMessageBatch": Action(requests.DeleteMessageBatch, messages.delete_batch, consume),
        "ChangeMessageVisibility": Action(requests.ChangeMessageVisibility, messages.change_visibility, consume),
        "ChangeMessageVisibilityBatch": Action(
            requests.ChangeMessageVisibilityBatch, messages.change_visibility_batch, consume
        ),
        "GetQueueUrl": Action(requests.GetQueueUrl, queues.get_url, either),
        "GetQueueAttributes": Action(requests.GetQueueAttributes, queues.get_attributes, either),
        "CreateQueue": Action(requests.CreateQueue, queues.create, admin),
        "ListQueues": Action(requests.ListQueues, queues.list, admin),
        "DeleteQueue": Action(requests.QueueRequest, queues.delete, admin),
        "PurgeQueue": Action(requests.QueueRequest, queues.purge, admin),
        "SetQueueAttributes": Action(requests.SetQueueAttributes, queues.set_attributes, admin),
        "TagQueue": Action(requests.TagQueue, queues.tag, admin),
        "UntagQueue": Action(requests.UntagQueue, queues.untag, admin),
        "ListQueueTags": Action(requests.QueueRequest, queues.list_tags, admin),
        "ListDeadLetterSourceQueues": Action(
            requests.ListDeadLetterSourceQueues, queues.list_dead_letter_sources, admin
        ),
        "StartMessageMoveTask": Action(requests.StartMessageMoveTask, tasks.start, admin),
        "ListMessageMoveTasks": Action(requests.ListMessageMoveTasks, tasks.list, admin),
        "CancelMessageMoveTask": Action(requests.CancelMessageMoveTask, tasks.cancel, admin),
        "AddPermission": Action(requests.Unsupported, queues.refuse, admin),
        "RemovePermission": Action(requests.Unsupported, queues.refuse, admin),
    }
