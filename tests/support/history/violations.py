"""What a history can prove against a broker."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Which promise was broken."""

    LOST = "lost"
    """Stored, or once delivered, and never finished; and it is not there any more."""
    PHANTOM = "phantom"
    """Delivered, and published by nobody, or not yet, or in a request that was refused, or not like that."""
    TWICE = "twice"
    """One publication, several messages."""
    EARLY = "early"
    """Delivered before its delay was over."""
    AFTER_ACKNOWLEDGEMENT = "after acknowledgement"
    """Delivered, or still there, after its acknowledgement was answered."""
    STALE_HANDLE = "stale handle"
    """A handle was accepted though another attempt had begun, or though nobody was given it."""
    HELD_HANDLE_REFUSED = "held handle refused"
    """A handle was refused while its holder was the owner."""
    TWO_OWNERS = "two owners"
    """Delivered to a second client while the first was the owner."""
    ATTEMPTS = "attempts"
    """Attempts do not ascend from delivery to delivery."""
    HANDLES = "handles"
    """Two deliveries have one handle."""
    NUMBERING = "numbering"
    """A message has a lower id than another one that was stored before it was sent."""
    GROUP_ORDER = "group order"
    """Delivered while an earlier message of its group was unfinished, or before it in one answer."""
    QUEUE_ORDER = "queue order"
    """First delivered after a younger one, though nobody else claimed."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its outcome, as far as one message is concerned. Times in seconds of the recorders' clock."""

    operation: str
    did: str
    begun_at: float
    answered_at: float

    def __str__(self) -> str:
        answered = "without an answer" if math.isinf(self.answered_at) else f"answered {self.answered_at:.6f}"
        return f"{self.operation} [begun {self.begun_at:.6f}, {answered}] {self.did}"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was broken: to which message, and the facts that prove it."""

    kind: Kind
    queue: str
    message: str
    sentence: str
    facts: tuple[Fact, ...]

    def __str__(self) -> str:
        return "\n    ".join(
            [f"{self.kind}: message {self.message} of {self.queue} {self.sentence}", *map(str, self.facts)]
        )
