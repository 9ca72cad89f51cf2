"""The requests of a history: what began, put together with what was answered."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from tests.support.history.events import (
    AcknowledgeBegun,
    Answer,
    Answered,
    Begun,
    ClaimBegun,
    Claimed,
    Delivered,
    Event,
    HoldBegun,
    NewMessage,
    PublishBegun,
    Published,
    QueueEnded,
    Refused,
    Unanswered,
)


class MalformedHistory(Exception):
    """The record contradicts itself: it is at fault, and says nothing about the broker."""


class Operation(msgspec.Struct, kw_only=True, gc=False):
    """A request. `answered_at` is infinite while its outcome is not known: it may be done as late as that."""

    name: str
    queue: str
    begun_at: float
    answered_at: float = math.inf


class Publish(Operation, kw_only=True, gc=False):
    """Messages that were sent. `ids` is empty when they are not known."""

    messages: list[NewMessage]
    ids: list[int] = []
    was_stored: bool = False
    was_refused: bool = False


class Claim(Operation, kw_only=True, gc=False):
    """Messages that were asked for, and those that came."""

    visibility_timeout_seconds: float
    delivered: list[Delivered] = []


class Acknowledgement(Operation, kw_only=True, gc=False):
    """Handles whose messages were reported as done. `held` is empty while nothing is known."""

    handles: list[str]
    held: list[bool | None] = []


class Hold(Acknowledgement, kw_only=True, gc=False):
    """Handles whose holds were asked to end `seconds` after the request."""

    seconds: float


class Operations:
    """All requests of a history, by what they are, and the ends of its queues."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.publishes: list[Publish] = []
        self.claims: list[Claim] = []
        self.acknowledgements: list[Acknowledgement] = []
        self.holds: list[Hold] = []
        self.ends: dict[str, QueueEnded] = {}
        self._open: dict[str, Publish | Claim | Acknowledgement] = {}
        for event in events:
            match event:
                case QueueEnded():
                    self.ends[event.queue] = event
                case PublishBegun() | ClaimBegun() | AcknowledgeBegun() | HoldBegun():
                    self._begin(event)
                case _:
                    self._answer(event)

    def _begin(self, event: Begun) -> None:
        if event.operation in self._open:
            raise MalformedHistory(f"{event.operation} began twice")
        self._open[event.operation] = self._add(event)

    def _add(self, event: Begun) -> Publish | Claim | Acknowledgement:
        name, queue, at = event.operation, event.queue, event.at
        match event:
            case PublishBegun():
                self.publishes.append(Publish(name=name, queue=queue, begun_at=at, messages=event.messages))
                return self.publishes[-1]
            case ClaimBegun():
                seconds = event.visibility_timeout_seconds
                self.claims.append(Claim(name=name, queue=queue, begun_at=at, visibility_timeout_seconds=seconds))
                return self.claims[-1]
            case AcknowledgeBegun():
                done = Acknowledgement(name=name, queue=queue, begun_at=at, handles=event.handles)
                self.acknowledgements.append(done)
                return done
            case HoldBegun():
                hold = Hold(name=name, queue=queue, begun_at=at, handles=event.handles, seconds=event.seconds)
                self.holds.append(hold)
                return hold

    def _answer(self, event: Answer) -> None:
        operation = self._open.pop(event.operation, None)
        if operation is None or event.at < operation.begun_at:
            raise MalformedHistory(f"{event.operation} was answered before it began, or twice")
        match operation, event:
            case _, Unanswered():
                return
            case Publish(), Refused():
                operation.was_refused = True
            case Publish(), Published() if len(event.ids) in {0, len(operation.messages)}:
                operation.was_stored, operation.ids = True, event.ids
            case Claim(), Claimed():
                operation.delivered = event.messages
            case Acknowledgement(), Answered() if len(event.held) == len(operation.handles):
                operation.held = event.held
            case Acknowledgement(), Refused():
                operation.handles = []
            case Claim(), Refused():
                pass
            case _:
                raise MalformedHistory(f"{event.operation} got the answer to another question")
        operation.answered_at = event.at
