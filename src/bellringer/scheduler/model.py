"""Records and names of the scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, NewType, TypeAlias
from uuid import UUID

import msgspec

from bellringer.kernel.errors import InvalidInput

TaskNumber = NewType("TaskNumber", int)
"""The number of a task in the database; names are what people use."""

Instant = Annotated[datetime, msgspec.Meta(tz=True)]

LARGEST_PAYLOAD_BYTES = 256 * 1024
LONGEST_SUBJECT = 200
LONGEST_TIME_LIMIT_SECONDS = 7 * 24 * 3600.0
LONGEST_DELAY_SECONDS = 10 * 366 * 24 * 3600.0
SHORTEST_INTERVAL_SECONDS = 1.0
MOST_RETRIES = 100
MOST_MISFIRES = 1000
WAIT_BOUNDS_SECONDS = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0)
"""Bounds of the counts of starts by how late they were; one more count is for what was later."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a task runs: exactly one of `at`, `delay_seconds`, `cron`, `every_seconds`.

    `cron` has five fields or is an alias (`@daily`), and counts in `time_zone`. `every_seconds` counts from
    `starting_at`, or from when the task was made.
    """

    at: Instant | None = None
    delay_seconds: float | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    every_seconds: float | None = None
    starting_at: Instant | None = None

    @property
    def is_recurring(self) -> bool:
        """Whether it has more than one fire time."""
        return self.cron is not None or self.every_seconds is not None


class Misfire(StrEnum):
    """What becomes of fire times that passed while nothing could pick them."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"
    WINDOW = "window"


class MisfirePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which missed fire times still run: none, the latest, the latest `limit`, or those of the last `window_seconds`.

    What does not run is recorded as skipped.
    """

    policy: Misfire = Misfire.LATEST
    limit: int = 10
    window_seconds: float = 3600.0


class Overlap(StrEnum):
    """What becomes of an occurrence that is due while an earlier one of its task still runs.

    `queue` lets one wait for the end of the other and skips the rest; `replace` cancels the one that runs.
    """

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a failed or timed out run is tried again, and how long after; by default never."""

    max_retries: int = 0
    first_seconds: float = 10.0
    cap_seconds: float = 3600.0


class HttpCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="http", tag_field="type"):
    """An HTTP request with the payload as its JSON body; an answer of 2xx is success."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = {}


class MessageCall(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="message", tag_field="type"
):
    """A message with the payload as its body, on a queue of the task's environment."""

    queue: str
    group: str | None = None


class NotificationCall(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="notification", tag_field="type"
):
    """An event for notifications, with the payload as its data."""

    event_type: str
    recipients: list[str]
    subject: str | None = None


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="function", tag_field="type"
):
    """A Python function with the payload, an object, as its keyword arguments."""

    name: str


Call: TypeAlias = HttpCall | MessageCall | NotificationCall | FunctionCall


def kind_of(call: Call) -> str:
    """What the field `type` of a call says."""
    return str(call.__struct_config__.tag)


class TaskDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be said of a task but its name.

    `overlap` left out is `skip` for recurring tasks and `allow` for others. A run that crashed with its executor runs
    again only with `rerun_after_crash`.
    """

    schedule: Schedule
    call: Call
    payload: msgspec.Raw = msgspec.Raw(b"null")
    misfire: MisfirePolicy = MisfirePolicy()
    overlap: Overlap | None = None
    time_limit_seconds: float = 3600.0
    retry: Retry = Retry()
    rerun_after_crash: bool = False


class TaskState(StrEnum):
    """Where a task stands; `finished` has no fire time to come and nothing that runs."""

    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class Outcome(StrEnum):
    """How an occurrence ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class OccurrenceState(StrEnum):
    """Where an occurrence stands."""

    PICKED = "picked"
    DISPATCHED = "dispatched"
    WAITING = "waiting"
    STARTED = "started"
    ENDED = "ended"


class MissCause(StrEnum):
    """What made a start late: the stage in which most of the time after the fire time went."""

    PICKER_LATE = "picker late"
    QUEUE_FULL = "queue full"
    EXECUTOR_BUSY = "executor busy"
    DATABASE_SLOW = "database slow"


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One fire time of a task and what became of it; the newest attempt, if there were several."""

    task: str
    fire_at: datetime
    state: OccurrenceState
    due_at: datetime
    attempt: int
    picked_at: datetime
    dispatched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: Outcome | None
    detail: str | None
    missed_cause: MissCause | None
    executor: UUID | None
    is_manual: bool
    cancel_requested: bool

    @property
    def lag_seconds(self) -> float | None:
        """How long after its due time it started."""
        return None if self.started_at is None else (self.started_at - self.due_at).total_seconds()


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt before the newest one."""

    attempt: int
    due_at: datetime
    dispatched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: Outcome
    detail: str | None
    executor: UUID | None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it is stored; a delay has become a time.

    `next_fire_at` is its first fire time without an occurrence, `fires_next_at` the first that is to come, picked or
    not; `last` is its newest occurrence that was due by now.
    """

    number: TaskNumber
    environment_id: UUID
    name: str
    definition: TaskDefinition
    state: TaskState
    problem: str | None
    next_fire_at: datetime | None
    fires_next_at: datetime | None
    last: Occurrence | None
    created_at: datetime
    modified_at: datetime


class IncidentKind(StrEnum):
    """What did not go as planned."""

    MISSED = "missed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    REFUSED = "refused"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Something that did not go as planned. Fire times skipped together are one incident, from `fire_at` on."""

    id: int
    task: str
    kind: IncidentKind
    fire_at: datetime | None
    last_fire_at: datetime | None
    fire_times: int
    attempt: int | None
    cause: str | None
    detail: str | None
    at: datetime
    resolved_at: datetime | None


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a task: what a caller gets."""

    environment_id: UUID
    number: TaskNumber
    task: str
    fire_at: datetime
    attempt: int
    call: Call
    payload: bytes
    time_limit_seconds: float

    @property
    def key(self) -> str:
        """The same for every attempt at this fire time, and for no other: an idempotency key."""
        return f"{self.environment_id}/{self.task}@{self.fire_at.isoformat()}"

    @property
    def subject(self) -> str:
        """What one-time tasks have in common, for the statistics of how long runs take."""
        return self._subject[:LONGEST_SUBJECT]

    @property
    def _subject(self) -> str:
        match self.call:
            case HttpCall(url=url):
                return f"http {url.partition('?')[0]}"
            case MessageCall(queue=queue):
                return f"message {queue}"
            case NotificationCall(event_type=event_type):
                return f"notification {event_type}"
            case FunctionCall(name=name):
                return f"function {name}"


class CallFailed(Exception):
    """A run failed; the text is for people."""

    most_characters: ClassVar[int] = 4000


def check_task_name(name: str) -> str:
    """Return the name of a task; raise `InvalidInput` when it is not one."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "a task name is 1 to 128 letters, digits, dots, dashes, colons or underscores, the first a letter or digit",
            field="name",
        )
    return name
