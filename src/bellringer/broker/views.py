"""Messages as HTTP shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from bellringer.broker.model import Message, MessageState, Origin, StoredMessage


class MessageContent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message. A body that is not UTF-8 comes as `base64`."""

    id: int
    attempts: int
    created_at: datetime
    msg: str | None = None
    base64: bytes | None = None
    group: str | None = None
    deduplication_id: str | None = None
    attributes: dict[str, Any] = {}
    origin: Origin | None = None


class ClaimedMessage(MessageContent, frozen=True, kw_only=True, omit_defaults=True):
    """A message held under its receipt handle until it is deleted or its visibility timeout runs out."""

    receipt_handle: str


class MessageView(MessageContent, frozen=True, kw_only=True, omit_defaults=True):
    """A message, seen without a claim."""

    state: MessageState


def claimed_message(message: Message) -> ClaimedMessage:
    """A message for who claimed it."""
    return ClaimedMessage(receipt_handle=message.receipt_handle, **_content(message))


def message_view(message: StoredMessage) -> MessageView:
    """A message for who looks at it."""
    return MessageView(state=message.state, **_content(message))


def _content(message: Message | StoredMessage) -> dict[str, Any]:
    content = {
        "id": message.id,
        "attempts": message.attempts,
        "created_at": message.created_at,
        "group": message.group,
        "deduplication_id": message.deduplication_id,
        "attributes": message.attributes,
        "origin": message.origin,
    }
    try:
        return {**content, "msg": message.body.decode()}
    except UnicodeDecodeError:
        return {**content, "base64": message.body}
