"""What a history can prove against a scheduler."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Which promise was broken."""

    MISSING = "missing"
    """A fire time has no occurrence."""
    UNCALLED = "uncalled"
    """An occurrence at a moment that is no fire time of its task."""
    TWICE = "twice"
    """One fire time has two occurrences, or an attempt ran twice."""
    UNRECORDED = "unrecorded"
    """A function ran, or began to, without a recorded start."""
    EARLY = "early"
    """A run began before it was due."""
    UNTRUE = "untrue"
    """The recorded outcome is not what the function did."""
    UNFINISHED = "unfinished"
    """An occurrence is still open."""
    ATTEMPTS = "attempts"
    """More attempts than the policy allows, or fewer, or not one after the other."""
    OVERLAP = "overlap"
    """Two runs at the same time, of a task that forbids it."""
    SKIP = "skip"
    """Skipped or cancelled, and neither the policy nor anybody asked for it."""
    UNREPORTED = "unreported"
    """A skip, a failure or a late start without an incident that says so, and why."""
    TIMES = "times"
    """Recorded times that cannot be: out of order, or of another clock."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was broken: at which fire time of which task, and the records that prove it."""

    kind: Kind
    task: str
    fire_at: int | None
    sentence: str
    facts: tuple[object, ...]

    def __str__(self) -> str:
        head = f"{self.kind}: {self.task}{'' if self.fire_at is None else f' at {told(self.fire_at)}'} {self.sentence}"
        return "\n    ".join([head, *map(_told_fact, self.facts)])


def told(moment: int | None) -> str:
    """A moment for people."""
    if moment is None:
        return "-"
    return datetime.fromtimestamp(moment // 1_000_000, UTC).strftime("%H:%M:%S") + f".{moment % 1_000_000:06d}"


def _told_fact(fact: object) -> str:
    """A record with its moments for people, and without what it does not say."""
    if not isinstance(fact, msgspec.Struct):
        return str(fact)
    parts = []
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if name.endswith("_at"):
            parts.append(f"{name}={told(value)}")
        elif name == "attempts":
            parts.append("; ".join(map(_told_fact, value)))
        elif value is not None and name != "task":
            parts.append(f"{name}={value}")
    return f"{type(fact).__name__} {' '.join(parts)}"
