"""A history opened for changes: what it tells of each message, and how to make it tell something else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TypeVar

import msgspec
from tests.support.history.events import (
    AcknowledgeBegun,
    Answered,
    ClaimBegun,
    Claimed,
    Delivered,
    Event,
    HoldBegun,
    NewMessage,
    PublishBegun,
    Published,
    QueueEnded,
)
from tests.support.history.reference import QUEUE

T = TypeVar("T")


class NotApplicable(Exception):
    """The history has no place for this fault."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was sent; `stored_at` is infinite when nobody knows whether it was stored."""

    message: NewMessage
    begun: PublishBegun
    stored_at: float


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery, and each acknowledgement with its handle that was answered, with its outcome."""

    begun: ClaimBegun
    answer: Claimed
    delivered: Delivered
    finished: list[tuple[AcknowledgeBegun, Answered, bool | None]]
    is_held_on: bool

    @property
    def is_finished(self) -> bool:
        """Whether an acknowledgement was accepted."""
        return any(held for _, _, held in self.finished)

    @property
    def held_until(self) -> float:
        """The earliest end of the hold as it was asked for."""
        return self.begun.at + self.begun.visibility_timeout_seconds


class Story:
    """A history opened for changes."""

    def __init__(self, events: Sequence[Event], random: Random) -> None:
        self.events = list(events)
        self.random = random
        begun = {event.operation: event for event in events if isinstance(event, PublishBegun | ClaimBegun)}
        stored = {event.operation: event.at for event in events if isinstance(event, Published)}
        self.sent = {
            message.key: Sent(message=message, begun=event, stored_at=stored.get(event.operation, math.inf))
            for event in begun.values()
            if isinstance(event, PublishBegun)
            for message in event.messages
        }
        finished, held_on = self._uses()
        self.taken = [
            Taken(
                begun=claim,
                answer=event,
                delivered=delivered,
                finished=finished[delivered.handle],
                is_held_on=delivered.handle in held_on,
            )
            for event in events
            if isinstance(event, Claimed) and isinstance(claim := begun[event.operation], ClaimBegun)
            for delivered in event.messages
        ]
        self.taken.sort(key=lambda taken: (taken.delivered.id, taken.delivered.attempts))

    @property
    def end(self) -> QueueEnded:
        """The end of the history, which its last event tells."""
        end = self.events[-1]
        assert isinstance(end, QueueEnded)
        return end

    def choose(self, choices: Iterator[T]) -> T:
        """One of these."""
        found = list(choices)
        if not found:
            raise NotApplicable
        return self.random.choice(found)

    def pairs(self) -> Iterator[tuple[Taken, Taken]]:
        """Deliveries and the next of the same message."""
        for taken, after in zip(self.taken, self.taken[1:], strict=False):
            if taken.delivered.key == after.delivered.key:
                yield taken, after

    def last_deliveries(self) -> Iterator[Taken]:
        """The last delivery of each message."""
        return iter({taken.delivered.key: taken for taken in self.taken}.values())

    def replace(self, old: Event, new: Event) -> None:
        """Put one event in the place of another."""
        self.events[self.events.index(old)] = new

    def deliver(self, delivered: Delivered, begun_at: float, answered_at: float) -> None:
        """Add a claim with one message."""
        claim = ClaimBegun(at=begun_at, operation="fault/claim", queue=QUEUE, visibility_timeout_seconds=0)
        self.events[:0] = [claim, Claimed(at=answered_at, operation="fault/claim", messages=[delivered])]

    def finish(self, handle: str, at: float) -> None:
        """Add an acknowledgement that is accepted."""
        begun = AcknowledgeBegun(at=at, operation="fault/acknowledge", queue=QUEUE, handles=[handle])
        self.events[:0] = [begun, Answered(at=at + 1, operation="fault/acknowledge", held=[True])]

    def rewrite(self, change: Callable[[Delivered], list[Delivered]]) -> None:
        """Change every delivery."""
        for index, event in enumerate(self.events):
            if isinstance(event, Claimed):
                messages = [new for old in event.messages for new in change(old)]
                self.events[index] = msgspec.structs.replace(event, messages=messages)

    def renumber(self, ids: Mapping[int, int]) -> None:
        """Give messages new ids."""
        self.rewrite(lambda delivered: [changed(delivered, id=ids.get(delivered.id, delivered.id))])
        for index, event in enumerate(self.events):
            if isinstance(event, Published):
                renumbered = [ids.get(id_, id_) for id_ in event.ids]
                self.events[index] = msgspec.structs.replace(event, ids=renumbered)

    def _uses(
        self,
    ) -> tuple[defaultdict[str, list[tuple[AcknowledgeBegun, Answered, bool | None]]], set[str]]:
        answers = {event.operation: event for event in self.events if isinstance(event, Answered)}
        finished = defaultdict[str, list[tuple[AcknowledgeBegun, Answered, bool | None]]](list)
        held_on = set[str]()
        for event in self.events:
            if isinstance(event, HoldBegun):
                held_on.update(event.handles)
            elif isinstance(event, AcknowledgeBegun) and event.operation in answers:
                answer = answers[event.operation]
                for handle, held in zip(event.handles, answer.held, strict=True):
                    finished[handle].append((event, answer, held))
        return finished, held_on


def changed(delivered: Delivered, **changes: object) -> Delivered:
    """A delivery with other fields."""
    return msgspec.structs.replace(delivered, **changes)
