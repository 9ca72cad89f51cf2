"""Writes a history while it happens, and reads what was written.

What has begun is with the operating system before the request is sent: a client that is killed leaves a true record.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

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
    Unanswered,
)


class Recorder:
    """The record of one client. Its name is of its own in the whole history, over restarts as well."""

    def __init__(self, client: str, write: Callable[[Event], None]) -> None:
        self._client = client
        self._write = write
        self._numbers = itertools.count(1)

    def publish(self, queue: str, messages: Sequence[NewMessage]) -> str:
        """Messages will be sent; returns the name of the request, which its answer is recorded under."""
        operation = self._next()
        self._write(PublishBegun(at=time.monotonic(), operation=operation, queue=queue, messages=list(messages)))
        return operation

    def claim(self, queue: str, visibility_timeout_seconds: float) -> str:
        """Messages will be asked for."""
        operation = self._next()
        self._write(
            ClaimBegun(
                at=time.monotonic(),
                operation=operation,
                queue=queue,
                visibility_timeout_seconds=visibility_timeout_seconds,
            )
        )
        return operation

    def acknowledge(self, queue: str, handles: Sequence[str]) -> str:
        """Messages will be reported as done."""
        operation = self._next()
        self._write(AcknowledgeBegun(at=time.monotonic(), operation=operation, queue=queue, handles=list(handles)))
        return operation

    def hold(self, queue: str, handles: Sequence[str], seconds: float) -> str:
        """Holds will be asked to end in `seconds`."""
        operation = self._next()
        self._write(
            HoldBegun(at=time.monotonic(), operation=operation, queue=queue, handles=list(handles), seconds=seconds)
        )
        return operation

    def published(self, operation: str, ids: Sequence[int]) -> None:
        """The broker has stored the messages."""
        self._write(Published(at=time.monotonic(), operation=operation, ids=list(ids)))

    def claimed(self, operation: str, messages: Sequence[Delivered]) -> None:
        """The broker has handed messages out."""
        self._write(Claimed(at=time.monotonic(), operation=operation, messages=list(messages)))

    def answered(self, operation: str, held: Sequence[bool | None]) -> None:
        """The broker has said which handles were in force."""
        self._write(Answered(at=time.monotonic(), operation=operation, held=list(held)))

    def refused(self, operation: str, reason: str) -> None:
        """The broker has said that it did nothing."""
        self._write(Refused(at=time.monotonic(), operation=operation, reason=reason))

    def unanswered(self, operation: str, reason: str) -> None:
        """What the broker did is not known."""
        self._write(Unanswered(at=time.monotonic(), operation=operation, reason=reason))

    def ended(self, queue: str, *, is_fifo: bool, remaining: Sequence[str] = ()) -> None:
        """No request is under way any more, nor will be."""
        self._write(QueueEnded(at=time.monotonic(), queue=queue, is_fifo=is_fifo, remaining=list(remaining)))

    def _next(self) -> str:
        return f"{self._client}/{next(self._numbers)}"


def recorder_to_file(client: str, file: Path) -> Recorder:
    """A recorder that appends to a file, one event per line, each in one write of its own."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    encode = msgspec.json.Encoder().encode

    def write(event: Event) -> None:
        line = encode(event) + b"\n"
        if os.write(descriptor, line) != len(line):
            raise OSError(f"{file} took only a part of an event: is the disk full?")

    return Recorder(client, write)


def read_history(files: Iterable[Path]) -> Iterator[Event]:
    """The events of these files. The last line of a file that has no end was being written when its client died."""
    decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield decoder.decode(line)
