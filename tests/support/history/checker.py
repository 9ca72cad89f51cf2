"""Decides whether a recorded history is one that a correct broker can have.

It never rejects a history that some choice of moments explains: each request done once between its beginning and its
answer, or at any later time or never when it has no answer. It takes time in proportion to the history, but for
sorting, and holds it in memory: a million messages take about a gigabyte.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter

import msgspec
from tests.support.history import order
from tests.support.history.events import Event
from tests.support.history.messages import Delivery, Message
from tests.support.history.operations import Acknowledgement, Claim, Hold, MalformedHistory, Operations
from tests.support.history.violations import Fact, Kind, Violation

MOST_TOLD_PER_KIND = 20


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict: how often each promise was broken, the first cases of each, and what the history holds."""

    violations: tuple[Violation, ...]
    broken: Counter[Kind]
    messages: int
    stored_for_sure: int
    deliveries: int
    redeliveries: int
    finished_for_sure: int
    unanswered: int
    refused_handles: int

    @property
    def is_correct(self) -> bool:
        """Whether nothing was found."""
        return not self.violations

    def __str__(self) -> str:
        counted = (
            f"{self.messages:,} messages, {self.stored_for_sure:,} of them stored for sure and "
            f"{self.finished_for_sure:,} finished for sure, in {self.deliveries:,} deliveries, "
            f"{self.redeliveries:,} of them repeated; {self.unanswered:,} requests without an answer, "
            f"{self.refused_handles:,} handles refused"
        )
        if self.is_correct:
            return f"correct: {counted}"
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in self.broken.most_common())
        return "\n".join([f"BROKEN: {kinds}; {counted}", *map(str, self.violations)])


def check(events: Iterable[Event]) -> Report:
    """Judge a history, the events of each request in their order. Raises `MalformedHistory`."""
    with _without_collector():
        operations = Operations(events)
        queues = _index(operations)
        strays = [*_use(queues, operations.acknowledgements), *_use(queues, operations.holds)]
        broken = Counter[Kind]()
        told: list[Violation] = []
        for violation in [*strays, *(found for queue in queues.values() for found in queue.judge(operations))]:
            broken[violation.kind] += 1
            if broken[violation.kind] <= MOST_TOLD_PER_KIND:
                told.append(violation)
        return _report(operations, queues, tuple(told), broken)


class _Queue:
    """The messages of a queue by their keys, its claims, and its deliveries by their handles."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: dict[str, Message] = {}
        self.claims: list[Claim] = []
        self.deliveries: dict[str, tuple[str, Delivery]] = {}
        self.repeated_handles: list[tuple[str, Delivery, Delivery]] = []

    def message(self, key: str) -> Message:
        found = self.messages.get(key)
        if found is None:
            found = self.messages[key] = Message(key)
        return found

    def add_claim(self, claim: Claim) -> None:
        self.claims.append(claim)
        for delivered in claim.delivered:
            message = self.message(delivered.key)
            delivery = Delivery(claim=claim, message=delivered)
            message.deliveries.append(delivery)
            if message.id is None:
                message.id = delivered.id
            _, other = self.deliveries.setdefault(delivered.handle, (delivered.key, delivery))
            if other is not delivery:
                self.repeated_handles.append((delivered.key, delivery, other))

    def judge(self, operations: Operations) -> Iterator[Violation]:
        for key, delivery, other in self.repeated_handles:
            sentence = f"was delivered under a handle that {other.message.key} has"
            yield Violation(
                kind=Kind.HANDLES,
                queue=self.name,
                message=key,
                sentence=sentence,
                facts=delivery.facts() + other.facts(),
            )
        end = operations.ends.get(self.name)
        remaining = None if end is None else frozenset(end.remaining)
        for message in self.messages.values():
            yield from message.judge(self.name, remaining)
        numbered = sorted((one for one in self.messages.values() if one.id is not None), key=attrgetter("id"))
        yield from order.judge_ids(self.name, numbered)
        is_fifo = end is not None and end.is_fifo
        if is_fifo:
            yield from order.judge_answers(self.name, self.claims, self.messages)
            yield from order.judge_groups(self.name, numbered)
        else:
            yield from order.judge_queue(self.name, self.claims, self.messages)


def _index(operations: Operations) -> dict[str, _Queue]:
    queues: dict[str, _Queue] = {}
    for publish in operations.publishes:
        queue = queues.setdefault(publish.queue, _Queue(publish.queue))
        for position, sent in enumerate(publish.messages):
            message = queue.message(sent.key)
            if message.publish is not None:
                raise MalformedHistory(f"message {sent.key} was sent by {message.publish.name} and by {publish.name}")
            message.publish, message.sent = publish, sent
            if publish.ids:
                message.id = publish.ids[position]
    for claim in operations.claims:
        queues.setdefault(claim.queue, _Queue(claim.queue)).add_claim(claim)
    return queues


def _use(queues: dict[str, _Queue], uses: Iterable[Acknowledgement]) -> Iterator[Violation]:
    """Give each use of a handle to its delivery."""
    for use in uses:
        queue = queues.setdefault(use.queue, _Queue(use.queue))
        held = use.held or [None] * len(use.handles)
        for handle, was_held in zip(use.handles, held, strict=True):
            key, delivery = queue.deliveries.get(handle, (handle, None))
            if delivery is None and was_held:
                fact = Fact(operation=use.name, did=handle, begun_at=use.begun_at, answered_at=use.answered_at)
                sentence = "has a handle that was given to nobody, and it was accepted"
                yield Violation(kind=Kind.STALE_HANDLE, queue=use.queue, message=key, sentence=sentence, facts=(fact,))
            elif delivery is not None and isinstance(use, Hold):
                delivery.holds.append((use, was_held))
            elif delivery is not None:
                delivery.acknowledgements.append((use, was_held))


def _report(
    operations: Operations, queues: dict[str, _Queue], told: tuple[Violation, ...], broken: Counter[Kind]
) -> Report:
    deliveries = [found.delivered for found in operations.claims]
    used = [*operations.acknowledgements, *operations.holds]
    every = [*operations.publishes, *operations.claims, *used]
    return Report(
        violations=told,
        broken=broken,
        messages=sum(len(queue.messages) for queue in queues.values()),
        stored_for_sure=sum(len(publish.messages) for publish in operations.publishes if publish.was_stored),
        deliveries=sum(map(len, deliveries)),
        redeliveries=sum(found.attempts > 1 for delivered in deliveries for found in delivered),
        finished_for_sure=sum(
            any(held for delivery in message.deliveries for _, held in delivery.acknowledgements)
            for queue in queues.values()
            for message in queue.messages.values()
        ),
        unanswered=sum(math.isinf(operation.answered_at) for operation in every),
        refused_handles=sum(done.held.count(False) for done in used),
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of records that all stay: looking through them for cycles again and again finds none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
