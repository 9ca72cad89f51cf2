"""What a request of each action holds. The names on the wire are these in PascalCase: `queue_url` is `QueueUrl`."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The base of all: members without a default are required."""


class QueueRequest(Request, frozen=True, kw_only=True):
    """A request about one queue."""

    queue_url: str


class AttributeValue(Request, frozen=True, kw_only=True):
    """The value of a message attribute: text for the types String and Number, bytes (base64 on the wire) for Binary."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class CreateQueue(Request, frozen=True, kw_only=True):
    """Make a queue."""

    queue_name: str
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrl(Request, frozen=True, kw_only=True):
    """Find a queue by its name."""

    queue_name: str
    owner: str | None = msgspec.field(name="QueueOwnerAWSAccountId", default=None)


class ListQueues(Request, frozen=True, kw_only=True):
    """List queues by name, from the token on."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributes(QueueRequest, frozen=True, kw_only=True):
    """Show a queue."""

    attribute_names: list[str] | None = None


class SetQueueAttributes(QueueRequest, frozen=True, kw_only=True):
    """Change a queue."""

    attributes: dict[str, str]


class TagQueue(QueueRequest, frozen=True, kw_only=True):
    """Add tags to a queue."""

    tags: dict[str, str]


class UntagQueue(QueueRequest, frozen=True, kw_only=True):
    """Take tags from a queue."""

    tag_keys: list[str]


class ListDeadLetterSourceQueues(QueueRequest, frozen=True, kw_only=True):
    """List the queues whose dead letters go to this one."""

    next_token: str | None = None
    max_results: int | None = None


class Outgoing(Request, frozen=True, kw_only=True):
    """What there is to say of a message that is sent."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Outgoing, frozen=True, kw_only=True):
    """Send one message."""

    queue_url: str


class SendEntry(Outgoing, frozen=True, kw_only=True):
    """One message of a batch; ids tell the entries of a batch apart."""

    id: str


class SendMessageBatch(QueueRequest, frozen=True, kw_only=True):
    """Send messages."""

    entries: list[SendEntry] = []


class ReceiveMessage(QueueRequest, frozen=True, kw_only=True):
    """Take messages."""

    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(QueueRequest, frozen=True, kw_only=True):
    """Finish a message."""

    receipt_handle: str


class DeleteEntry(Request, frozen=True, kw_only=True):
    """One message of a batch to finish."""

    id: str
    receipt_handle: str


class DeleteMessageBatch(QueueRequest, frozen=True, kw_only=True):
    """Finish messages."""

    entries: list[DeleteEntry] = []


class ChangeMessageVisibility(QueueRequest, frozen=True, kw_only=True):
    """Hold a message for so many seconds from now; 0 hands it back."""

    receipt_handle: str
    visibility_timeout: int


class ChangeVisibilityEntry(Request, frozen=True, kw_only=True):
    """One message of a batch to hold longer."""

    id: str
    receipt_handle: str
    visibility_timeout: int


class ChangeMessageVisibilityBatch(QueueRequest, frozen=True, kw_only=True):
    """Hold messages longer."""

    entries: list[ChangeVisibilityEntry] = []


class StartMessageMoveTask(Request, frozen=True, kw_only=True):
    """Move dead letters to another queue, or each to where it came from."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(Request, frozen=True, kw_only=True):
    """Stop moving."""

    task_handle: str


class ListMessageMoveTasks(Request, frozen=True, kw_only=True):
    """List the latest moves out of a queue."""

    source_arn: str
    max_results: int | None = None


class Unsupported(Request, frozen=True, kw_only=True):
    """A request of an action that is not supported: nobody looks inside."""
