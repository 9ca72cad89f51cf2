"""One message through its history: what was sent, each delivery of it, and what its holders did.

The rules use no more than these facts: a request takes effect at one moment between its beginning and its answer, or
at any moment after its beginning when it has no answer; a claim raises the attempts of a message; a message is taken
again when its hold is over, and no sooner. The times below are therefore the earliest that are possible, and a
violation is a history for which no moments can be found.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from operator import attrgetter

import msgspec
from tests.support.history.events import Delivered, NewMessage
from tests.support.history.operations import Acknowledgement, Claim, Hold, Publish
from tests.support.history.violations import Fact, Kind, Violation

CLOCK_TOLERANCE_SECONDS = 0.001
"""Holds are measured by PostgreSQL's clock, which counts in microseconds and may be set while the recorders' is not."""


class Delivery(msgspec.Struct, kw_only=True):
    """An attempt at a message: the claim, and what its handle was used for, with whether it was in force.

    `begun_at` is the earliest moment at which the claim can have taken the message.
    """

    claim: Claim
    message: Delivered
    acknowledgements: list[tuple[Acknowledgement, bool | None]] = []
    holds: list[tuple[Hold, bool | None]] = []
    begun_at: float = -math.inf

    def held_until(self, asked_before: float) -> float:
        """The earliest end of the hold, as far as requests decide it that began no later than that."""
        length_seconds = self.claim.visibility_timeout_seconds - CLOCK_TOLERANCE_SECONDS
        end = self.begun_at + max(length_seconds, 0)
        if not self.holds:
            return end
        sure_since = self.claim.begun_at  # what was answered before then has been overruled
        possible = [(self.claim.answered_at, end)]
        for hold, was_held in self.holds:
            if hold.begun_at <= asked_before and was_held is not False:
                possible.append((hold.answered_at, hold.begun_at + max(hold.seconds - CLOCK_TOLERANCE_SECONDS, 0)))
                if was_held:
                    sure_since = max(sure_since, hold.begun_at)
        return min(end for answered_at, end in possible if answered_at >= sure_since)

    def facts(self) -> tuple[Fact, ...]:
        """The claim."""
        did = f"claimed it: attempt {self.message.attempts}, id {self.message.id}"
        return (
            _fact(self.claim, f"{did}, held for {self.claim.visibility_timeout_seconds:g} s as {self.message.handle}"),
        )


class Message:
    """What is known of one message."""

    __slots__ = ("deliveries", "finished_at", "id", "key", "publish", "sent")

    def __init__(self, key: str) -> None:
        self.key = key
        self.publish: Publish | None = None
        self.sent = NewMessage(key=key)
        self.id: int | None = None
        self.deliveries: list[Delivery] = []
        self.finished_at = math.inf
        """The earliest moment at which it can have been finished; infinite when nobody can have finished it."""

    def facts(self) -> tuple[Fact, ...]:
        """Its publication."""
        if self.publish is None:
            return ()
        outcome = "refused" if self.publish.was_refused else f"published it as id {self.id}"
        return (_fact(self.publish, outcome),)

    def judge(self, queue: str, remaining: Container[str] | None) -> Iterator[Violation]:
        """What is wrong with it. `remaining` has the keys that were there at the end; None when that is not known."""
        self.deliveries.sort(key=_attempts)
        for kind, sentence, facts in self._all():
            yield Violation(kind=kind, queue=queue, message=self.key, sentence=sentence, facts=facts)
        if remaining is not None:
            for kind, sentence, facts in self._at_the_end(remaining):
                yield Violation(kind=kind, queue=queue, message=self.key, sentence=sentence, facts=facts)

    def _all(self) -> Iterator[_Finding]:
        yield from self._origin()
        before: Delivery | None = None
        for delivery in self.deliveries:
            yield from self._succession(before, delivery)
            before = delivery
        for index, delivery in enumerate(self.deliveries):
            after = self.deliveries[index + 1] if index + 1 < len(self.deliveries) else None
            if delivery.acknowledgements:
                yield from self._acknowledgements(delivery, after)
            if delivery.holds:
                yield from self._holds(delivery, after)

    def _origin(self) -> Iterator[_Finding]:
        if self.publish is None:
            yield Kind.PHANTOM, "was published by nobody", self.deliveries[0].facts()
            return
        for delivery in self.deliveries:
            facts = self.facts() + delivery.facts()
            if self.publish.was_refused:
                yield Kind.PHANTOM, "was delivered though it had been refused", facts
            if delivery.message.group != self.sent.group:
                yield Kind.PHANTOM, f"was sent to group {self.sent.group}, not {delivery.message.group}", facts
            if delivery.message.id != self.id:
                yield Kind.TWICE, f"has two ids, {self.id} and {delivery.message.id}", facts

    def _succession(self, before: Delivery | None, delivery: Delivery) -> Iterator[_Finding]:
        """Set the earliest moment of a delivery; it is wrong when its answer came sooner."""
        claim = delivery.claim
        if before is None:
            sent_at = self.publish.begun_at if self.publish is not None else -math.inf
            visible_at = sent_at + max(self.sent.delay_seconds - CLOCK_TOLERANCE_SECONDS, 0)
            if claim.answered_at < sent_at:
                yield Kind.PHANTOM, "was delivered before it was sent", self.facts() + delivery.facts()
            elif claim.answered_at < visible_at:
                sentence = f"was delivered before its delay of {self.sent.delay_seconds:g} s was over"
                yield Kind.EARLY, sentence, self.facts() + delivery.facts()
        else:
            visible_at = before.held_until(claim.answered_at)
            facts = before.facts() + delivery.facts()
            if before.message.attempts == delivery.message.attempts:
                yield Kind.ATTEMPTS, f"was delivered twice as attempt {delivery.message.attempts}", facts
            elif claim.answered_at < before.begun_at:
                yield Kind.ATTEMPTS, "was delivered with a higher attempt before the lower one", facts
            elif claim.answered_at < visible_at:
                yield Kind.TWO_OWNERS, "was delivered to another while it was held", facts + _used(before.holds)
        delivery.begun_at = max(claim.begun_at, visible_at if visible_at <= claim.answered_at else -math.inf)

    def _acknowledgements(self, delivery: Delivery, after: Delivery | None) -> Iterator[_Finding]:
        for acknowledgement, was_held in delivery.acknowledgements:
            may_finish = was_held or (was_held is None and after is None)
            if may_finish:
                self.finished_at = min(self.finished_at, max(acknowledgement.begun_at, delivery.begun_at))
            if was_held and after is not None:
                facts = delivery.facts() + _used([(acknowledgement, was_held)]) + after.facts()
                if after.claim.answered_at < acknowledgement.begun_at:
                    yield Kind.STALE_HANDLE, "was finished with the handle of an attempt that was over", facts
                else:
                    yield Kind.AFTER_ACKNOWLEDGEMENT, "was delivered again, and had been finished", facts
            if was_held is False and acknowledgement.answered_at < delivery.held_until(acknowledgement.answered_at):
                facts = delivery.facts() + _used([*delivery.holds, (acknowledgement, was_held)])
                yield Kind.HELD_HANDLE_REFUSED, "could not be finished by its owner", facts

    def _holds(self, delivery: Delivery, after: Delivery | None) -> Iterator[_Finding]:
        finished_at = min((done.answered_at for done, held in delivery.acknowledgements if held), default=math.inf)
        begun_to_finish_at = min((done.begun_at for done, _ in delivery.acknowledgements), default=math.inf)
        for hold, was_held in delivery.holds:
            facts = delivery.facts() + _used([*delivery.acknowledgements, (hold, was_held)])
            if was_held and after is not None and after.claim.answered_at < hold.begun_at:
                sentence = "was held on with the handle of an attempt that was over"
                yield Kind.STALE_HANDLE, sentence, facts + after.facts()
            if was_held and finished_at < hold.begun_at:
                yield Kind.STALE_HANDLE, "was held on after it was finished", facts
            is_refused = was_held is False and hold.answered_at < begun_to_finish_at
            if is_refused and hold.answered_at < delivery.held_until(hold.answered_at):
                yield Kind.HELD_HANDLE_REFUSED, "could not be held on by its owner", facts + _used(delivery.holds)

    def _at_the_end(self, remaining: Container[str]) -> Iterator[_Finding]:
        facts = self.facts() + tuple(
            fact for delivery in self.deliveries for fact in delivery.facts() + _used(delivery.acknowledgements)
        )
        if self.key in remaining:
            if any(held for delivery in self.deliveries for _, held in delivery.acknowledgements):
                yield Kind.AFTER_ACKNOWLEDGEMENT, "was there at the end, and had been finished", facts
        elif math.isinf(self.finished_at) and (
            self.deliveries or (self.publish is not None and self.publish.was_stored)
        ):
            yield Kind.LOST, "was finished by nobody and is gone", facts


_Finding = tuple[Kind, str, tuple[Fact, ...]]
_attempts = attrgetter("message.attempts")


def _fact(operation: Publish | Claim | Acknowledgement, did: str) -> Fact:
    return Fact(operation=operation.name, did=did, begun_at=operation.begun_at, answered_at=operation.answered_at)


_OUTCOMES = {True: "in force", False: "not held", None: "not known whether in force"}


def _used(uses: Sequence[tuple[Acknowledgement, bool | None]]) -> tuple[Fact, ...]:
    return tuple(
        _fact(use, f"{f'held on for {use.seconds:g} s' if isinstance(use, Hold) else 'finished it'}: {_OUTCOMES[held]}")
        for use, held in uses
    )
