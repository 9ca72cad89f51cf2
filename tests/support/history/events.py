"""What a client of the broker writes down: each request when it begins, and again when its answer is known.

A request that has begun and has no answer, or an `Unanswered`, may have been done, at any time since, or never. All
times are seconds of one clock, `time.monotonic` of one machine, which every process on it shares.
"""

from __future__ import annotations

import msgspec


class NewMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of a publish request. Its key is of its own in the whole history and travels in its body."""

    key: str
    group: str | None = None
    delay_seconds: float = 0.0


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as a claim's answer had it."""

    key: str
    id: int
    handle: str
    attempts: int
    group: str | None = None


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    operation: str
    """The request that this is about: its name is of its own in the whole history."""


class PublishBegun(_Event, frozen=True, tag="publish"):
    """Messages are sent to a queue, all or none."""

    queue: str
    messages: list[NewMessage]


class ClaimBegun(_Event, frozen=True, tag="claim"):
    """Messages are asked for. The broker may take some at any moment until the answer, if need be after a wait."""

    queue: str
    visibility_timeout_seconds: float


class AcknowledgeBegun(_Event, frozen=True, tag="acknowledge"):
    """Messages are reported as done, each for itself."""

    queue: str
    handles: list[str]


class HoldBegun(_Event, frozen=True, tag="hold"):
    """Holds are asked to end in `seconds` from now: extended, shortened, or with 0 handed back."""

    queue: str
    handles: list[str]
    seconds: float


class Published(_Event, frozen=True, tag="published"):
    """The messages are stored, under these ids in the order given, or none where the broker does not say."""

    ids: list[int]


class Claimed(_Event, frozen=True, tag="claimed"):
    """These messages are the client's now."""

    messages: list[Delivered]


class Answered(_Event, frozen=True, tag="answered"):
    """Per handle whether it was in force and did what it was used for; None where the broker does not say."""

    held: list[bool | None]


class Refused(_Event, frozen=True, tag="refused"):
    """The broker did nothing of what it was asked."""

    reason: str


class Unanswered(_Event, frozen=True, tag="unanswered"):
    """Nobody knows what the broker did: no answer came, or one that leaves it open."""

    reason: str


class QueueEnded(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The end of the history of a queue: from then on no request is under way, and these messages are still there."""

    at: float
    queue: str
    is_fifo: bool = False
    remaining: list[str] = []


Begun = PublishBegun | ClaimBegun | AcknowledgeBegun | HoldBegun
Answer = Published | Claimed | Answered | Refused | Unanswered
Event = Begun | Answer | QueueEnded
