"""How SQS names things: accounts, queue URLs, ARNs, the ids of messages; and what no text of it may hold."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from bellringer.broker.model import MessageId
from bellringer.broker.sqs.errors import INVALID_ADDRESS, SqsError, invalid_value, missing_parameter, non_existent_queue

FIFO_SUFFIX = ".fifo"
MESSAGE_GROUP_OR_DEDUPLICATION_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")

INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, and so no message of SQS."""

_ARN = re.compile(r"arn:aws:sqs:[^:]*:(?P<account>[0-9]{12}):(?P<name>[A-Za-z0-9._-]+)")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_LONGEST_QUEUE_NAME = 80
_URL_PARTS = 2  # /{account}/{queue}


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names as one caller sees them: its account, the region it signed for, and where it reached this server."""

    environment_id: UUID
    region: str
    base_url: str

    @property
    def account(self) -> str:
        """The account number that stands for the caller's environment: twelve digits made of the id."""
        return f"{self.environment_id.int % 10**12:012}"

    def url(self, queue_name: str) -> str:
        """The URL of a queue."""
        return f"{self.base_url}/{self.account}/{queue_name}"

    def arn(self, queue_name: str) -> str:
        """The ARN of a queue."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{queue_name}"

    def queue_of_url(self, url: str) -> str:
        """The name of the queue at a URL, which may be the name alone. Raises `SqsError`."""
        if not url:
            raise missing_parameter("QueueUrl")
        if "/" not in url:
            return url
        parts = urlsplit(url).path.split("/")[1:]
        if len(parts) != _URL_PARTS or not parts[1]:
            raise SqsError(INVALID_ADDRESS, f"The address {url} is not valid for this endpoint.")
        account, name = parts
        if account != self.account:
            raise non_existent_queue()
        return unquote(name)

    def queue_of_arn(self, arn: str, parameter: str) -> str:
        """The name of the queue with an ARN. Raises `SqsError`, also for that of another account."""
        found = _ARN.fullmatch(arn)
        if found is None or found["account"] != self.account:
            raise invalid_value(arn, parameter, "It is not the ARN of a queue of this account")
        return found["name"]


def check_new_queue_name(name: str) -> None:
    """Raise `SqsError` for a name that no new queue may have."""
    if not _QUEUE_NAME.fullmatch(name) or len(name) > _LONGEST_QUEUE_NAME:
        raise invalid_value(
            name,
            "QueueName",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )


def message_uuid(queue_id: UUID, message_id: MessageId) -> str:
    """The id of a message in the whole world: that of its queue, with its number in the last bits."""
    return str(UUID(int=queue_id.int ^ message_id))


def sequence_number(message_id: MessageId) -> str:
    """The place of a message in a FIFO queue: twenty digits, so that texts compare as numbers do."""
    return f"{message_id:020}"
