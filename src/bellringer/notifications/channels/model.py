"""Records of emails and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from bellringer.notifications.channels.email import DigestEvent


class OutboundEmail(msgspec.Struct, frozen=True, kw_only=True):
    """An email about to be sent: its events, and the recipients who still wait for it.

    `refusals` is how often the server has refused one of them for now.
    """

    id: UUID
    environment_id: UUID
    part: int
    parts: int
    created_at: datetime
    age_seconds: float
    pending: tuple[str, ...]
    refusals: int
    events: tuple[DigestEvent, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one recipient. `pending` means: refused for now, to be tried again."""

    address: str
    state: Literal["sent", "failed", "pending"]
    reply: str


class CapturedMail(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the capture server took; `message` is kept out of lists."""

    id: UUID
    sender: str
    recipients: list[str]
    subject: str
    received_at: datetime


class CapturedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A captured message in full: its source, and its two readings."""

    id: UUID
    sender: str
    recipients: list[str]
    subject: str
    received_at: datetime
    text: str
    html: str
    source: str
