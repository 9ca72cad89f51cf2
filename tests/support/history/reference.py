"""A queue in memory that keeps every promise, and histories of clients that use it at random moments.

Time is what the simulation says. Every request takes effect at one moment; when it began and was answered is spread
around that, so requests overlap. Some get no answer, done or not; some clients forget what they hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random

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
    Refused,
)

QUEUE = "orders"


class Stored(msgspec.Struct, kw_only=True):
    """A message in the queue; free to take from `free_at` on."""

    id: int
    sent: NewMessage
    free_at: float
    attempts: int = 0
    handle: str = ""
    is_finished: bool = False


class ReferenceQueue:
    """Messages in the order of their ids. A strict one refuses a handle whose time is over, though nobody took it."""

    def __init__(self, *, is_fifo: bool, is_strict: bool) -> None:
        self.messages: list[Stored] = []
        self._is_fifo = is_fifo
        self._is_strict = is_strict

    def publish(self, messages: Sequence[NewMessage], now: float) -> list[int]:
        """Store messages; return their ids."""
        first = len(self.messages) + 1
        self.messages += [
            Stored(id=id_, sent=sent, free_at=now + sent.delay_seconds) for id_, sent in enumerate(messages, first)
        ]
        return list(range(first, first + len(messages)))

    def claim(self, limit: int, visibility_timeout_seconds: float, now: float) -> list[Delivered]:
        """Take the first messages that are free, none past an unfinished one of its group that is not taken along."""
        taken: list[Delivered] = []
        blocked = set[str | None]()
        for stored in self.messages:
            if stored.is_finished or (self._is_fifo and stored.sent.group in blocked):
                continue
            if stored.free_at > now or len(taken) == limit:
                blocked.add(stored.sent.group)
                continue
            stored.attempts += 1
            stored.handle = f"{stored.id}:{stored.attempts}"
            stored.free_at = now + visibility_timeout_seconds
            key, group = stored.sent.key, stored.sent.group
            taken.append(Delivered(key=key, id=stored.id, handle=stored.handle, attempts=stored.attempts, group=group))
        return taken

    def acknowledge(self, handle: str, now: float) -> bool:
        """Finish a message; again is no error."""
        stored = self._held(handle, now)
        if stored is None:
            return any(one.handle == handle and one.is_finished for one in self.messages)
        stored.is_finished = True
        return True

    def hold(self, handle: str, seconds: float, now: float) -> bool:
        """Let a hold end in `seconds`."""
        stored = self._held(handle, now)
        if stored is not None:
            stored.free_at = now + seconds
        return stored is not None

    def _held(self, handle: str, now: float) -> Stored | None:
        for stored in self.messages:
            if stored.handle == handle and not stored.is_finished:
                return None if self._is_strict and stored.free_at <= now else stored
        return None


class Simulation:
    """Clients of one queue. With `one_consumer` claims never overlap and are all answered."""

    def __init__(self, random: Random, *, is_fifo: bool, one_consumer: bool) -> None:
        self._random = random
        self._is_fifo = is_fifo
        self._one_consumer = one_consumer
        self._queue = ReferenceQueue(is_fifo=is_fifo, is_strict=random.random() < 0.5)
        self._now = 100.0
        self._claims_end_at = 0.0
        self._events: list[Event] = []
        self._handles: list[tuple[str, float]] = []  # with the moment at which its holder got it
        self._operations = (f"client/{number}" for number in itertools.count(1))
        self._keys = (f"message-{number}" for number in itertools.count(1))

    def run(self, steps: int) -> list[Event]:
        """The history of so many requests, in the order of its times."""
        actions: list[Callable[[], object]] = [self._publish, self._claim, self._acknowledge, self._hold]
        for _ in range(steps):
            self._now += self._random.choice([0.0, 0.25, 0.25, 0.5, 3.0])
            self._random.choices(actions, [3, 4, 4, 1])[0]()
        if self._random.random() < 0.7:
            self._drain()
        remaining = [stored.sent.key for stored in self._queue.messages if not stored.is_finished]
        end = QueueEnded(at=self._now + 10, queue=QUEUE, is_fifo=self._is_fifo, remaining=remaining)
        return [*sorted(self._events, key=lambda event: event.at), end]

    def _publish(self) -> None:
        messages = [
            NewMessage(
                key=next(self._keys),
                group=self._random.choice("ab") if self._is_fifo else None,
                delay_seconds=self._random.choice([0.0, 0.0, 0.0, 0.0, 1.0]),
            )
            for _ in range(self._random.randint(1, 3))
        ]
        operation, begun_at, answered_at = self._request()
        self._events.append(PublishBegun(at=begun_at, operation=operation, queue=QUEUE, messages=messages))
        if answered_at is not None and self._random.random() < 0.1:
            self._events.append(Refused(at=answered_at, operation=operation, reason="too much"))
        elif answered_at is not None or self._random.random() < 0.5:
            ids = self._queue.publish(messages, self._now)
            if answered_at is not None:
                self._events.append(Published(at=answered_at, operation=operation, ids=ids))

    def _claim(self, *, is_answered: bool = False, limit: int | None = None) -> list[Delivered]:
        is_answered = is_answered or self._one_consumer
        earliest = self._claims_end_at + 0.01 if self._one_consumer else 0.0
        operation, begun_at, answered_at = self._request(earliest, is_answered=is_answered)
        seconds = self._random.choice([1.0, 2.0, 5.0])
        self._events.append(
            ClaimBegun(at=begun_at, operation=operation, queue=QUEUE, visibility_timeout_seconds=seconds)
        )
        if answered_at is None and self._random.random() < 0.5:
            return []
        delivered = self._queue.claim(limit or self._random.randint(1, 3), seconds, self._now)
        if answered_at is None:
            return []
        self._claims_end_at = answered_at
        self._events.append(Claimed(at=answered_at, operation=operation, messages=delivered))
        self._handles += [(found.handle, answered_at) for found in delivered]
        return delivered

    def _acknowledge(self, chosen: Sequence[str] | None = None) -> None:
        handles, known_since = self._choose_handles() if chosen is None else (list(chosen), self._claims_end_at)
        if not handles:
            return
        operation, begun_at, answered_at = self._request(known_since, is_answered=chosen is not None)
        self._events.append(AcknowledgeBegun(at=begun_at, operation=operation, queue=QUEUE, handles=handles))
        if answered_at is not None or self._random.random() < 0.5:
            held: list[bool | None] = [self._queue.acknowledge(handle, self._now) for handle in handles]
            if answered_at is not None:
                self._events.append(Answered(at=answered_at, operation=operation, held=held))

    def _hold(self) -> None:
        handles, known_since = self._choose_handles()
        if not handles:
            return
        operation, begun_at, answered_at = self._request(known_since)
        seconds = self._random.choice([0.0, 1.0, 4.0])
        self._events.append(HoldBegun(at=begun_at, operation=operation, queue=QUEUE, handles=handles, seconds=seconds))
        if answered_at is not None or self._random.random() < 0.5:
            held: list[bool | None] = [self._queue.hold(handle, seconds, self._now) for handle in handles]
            if answered_at is not None:
                self._events.append(Answered(at=answered_at, operation=operation, held=held))

    def _drain(self) -> None:
        while any(not stored.is_finished for stored in self._queue.messages):
            self._now = max(self._now + 6, self._claims_end_at)
            delivered = self._claim(is_answered=True, limit=100)
            self._now = max(self._now, self._claims_end_at)
            self._acknowledge([found.handle for found in delivered])

    def _choose_handles(self) -> tuple[list[str], float]:
        recent = self._handles[-6:]
        chosen = self._random.sample(recent, min(len(recent), self._random.randint(1, 3)))
        return [handle for handle, _ in chosen], max((since for _, since in chosen), default=0.0)

    def _request(self, not_before: float = 0.0, *, is_answered: bool = False) -> tuple[str, float, float | None]:
        """A name, and when it begins and is answered, if at all. Its effect is now, or as soon as it has begun."""
        self._now = max(self._now, not_before)
        operation = next(self._operations)
        if not is_answered and self._random.random() < 0.15:
            return operation, max(not_before, self._now - self._random.choice([0.0, 1.0, 8.0])), None
        begun_at = max(not_before, self._now - self._random.choice([0.0, 0.25, 1.0]))
        return operation, begun_at, self._now + self._random.choice([0.0, 0.25, 1.0])
