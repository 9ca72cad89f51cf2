"""What a request of each action holds. The names on the wire are these in PascalCase: `queue_url` is `QueueUrl`."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The base of all: members without a default are required."""


class QueueRequest(Request):
    """A request about one queue."""

    queue_url: str


class AttributeValue(Request):
    """The value of a message attribute: text for the types String and Number, bytes (base64 on the wire) for Binary."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class CreateQueue(Request):
    """Make a queue."""

    queue_name: str
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrl(Request):
    """Find a queue by its name."""

    queue_name: str
    owner: str | None = msgspec.field(name="QueueOwnerAWSAccountId", default=None)


class ListQueues(Request):
    """List queues by name, from the token on."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributes(QueueRequest):
    """Show a queue."""

    attribute_names: list[str] | None = None


class SetQueueAttributes(QueueRequest):
    """Change a queue."""

    attributes: dict[str, str]


class TagQueue(QueueRequest):
    """Add tags to a queue."""

    tags: dict[str, str]


class UntagQueue(QueueRequest):
    """Take tags from a queue."""

    tag_keys: list[str]


class ListDeadLetterSourceQueues(QueueRequest):
    """List the queues whose dead letters go to this one."""

    next_token: str | None = None
    max_results: int | None = None


class Outgoing(Request):
    """What there is to say of a message that is sent."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(QueueRequest, Outgoing):
    """Send one message."""


class Entry(Request):
    """An entry of a batch."""

    id: str


class SendEntry(Entry, Outgoing):
    """One message of a batch."""


class SendMessageBatch(QueueRequest):
    """Send messages."""

    entries: list[SendEntry]


class ReceiveMessage(QueueRequest):
    """Take messages."""

    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(QueueRequest):
    """Finish a message."""

    receipt_handle: str


class DeleteEntry(Entry):
    """One message of a batch to finish."""

    receipt_handle: str


class DeleteMessageBatch(QueueRequest):
    """Finish messages."""

    entries: list[DeleteEntry]


class ChangeMessageVisibility(QueueRequest):
    """Hold a message for so many seconds from now; 0 hands it back."""

    receipt_handle: str
    visibility_timeout: int


class ChangeVisibilityEntry(Entry):
    """One message of a batch to hold longer."""

    receipt_handle: str
    visibility_timeout: int


class ChangeMessageVisibilityBatch(QueueRequest):
    """Hold messages longer."""

    entries: list[ChangeVisibilityEntry]


class StartMessageMoveTask(Request):
    """Move dead letters to another queue, or each to where it came from."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(Request):
    """Stop moving."""

    task_handle: str


class ListMessageMoveTasks(Request):
    """List the latest moves out of a queue."""

    source_arn: str
    max_results: int | None = None


class Unsupported(Request):
    """A request of an action that is not supported: nobody looks inside."""
