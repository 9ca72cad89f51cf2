"""A history of the scheduler: what was asked of it, what its functions did, and what its database says in the end.

Moments are whole microseconds since 1970 by the clock of the machine, which is the database's as well; lengths of time
are microseconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class Once(msgspec.Struct, frozen=True, kw_only=True, tag="once"):
    """A schedule with one fire time."""

    at: int


class Delay(msgspec.Struct, frozen=True, kw_only=True, tag="delay"):
    """A schedule with one fire time, so long after the task is made."""

    length: int


class Interval(msgspec.Struct, frozen=True, kw_only=True, tag="interval"):
    """Fire times at `anchor` and every so long after it; without an anchor they count from when the task was made."""

    every: int
    anchor: int | None = None


class Minutes(msgspec.Struct, frozen=True, kw_only=True, tag="minutes"):
    """The cron expression `*/step * * * *` in a zone that is ahead of UTC by so many minutes all the year."""

    step: int
    zone: str
    ahead_minutes: int


Schedule = Once | Delay | Interval | Minutes


class Overlap(StrEnum):
    """What may happen while another occurrence of the task runs."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class Misfire(StrEnum):
    """Which of the fire times run that passed while nobody looked."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"
    WINDOW = "window"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What a task says about things that go wrong. It stays the same for the life of the task."""

    overlap: Overlap = Overlap.ALLOW
    misfire: Misfire = Misfire.LATEST
    misfire_limit: int = 10
    misfire_window: int = HOUR
    max_retries: int = 0
    rerun_after_crash: bool = False


class Verb(StrEnum):
    """What a request asks for."""

    CREATE = "create"
    CHANGE = "change"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RUN = "run"
    RETRY = "retry"


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """Something that was asked of a task, again and again until it was answered.

    It took effect once between its beginning and its answer; but `run` may have with each of its `tries`. Requests
    about one task follow one another. `schedule` and `policy` are given with `create`, `schedule` with `change`,
    `fire_at` with `run`, as the answer had it, and with `retry`.
    """

    task: str
    verb: Verb
    begun_at: int
    answered_at: int
    schedule: Schedule | None = None
    policy: Policy | None = None
    fire_at: int | None = None
    tries: int = 1


class Result(StrEnum):
    """How a function ended."""

    RETURNED = "returned"
    RAISED = "raised"
    CANCELLED = "cancelled"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A function that really ran, by its own account. Without an end it went down with its process."""

    task: str
    fire_at: int
    attempt: int
    process: str
    begun_at: int
    ended_at: int | None = None
    result: Result | None = None


class Outcome(StrEnum):
    """How the scheduler says that an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


FAILURES = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED})


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as the database has it; without an outcome it has not ended."""

    number: int
    due_at: int
    dispatched_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome | None = None
    detail: str | None = None


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A fire time as the database has it, with all its attempts, the newest last."""

    task: str
    fire_at: int
    picked_at: int
    attempts: list[Attempt]
    is_manual: bool = False

    @property
    def last(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]


class IncidentKind(StrEnum):
    """What an incident says went wrong."""

    MISSED = "missed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    REFUSED = "refused"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident as the database has it; of fire times that were skipped together, the first and the last."""

    task: str
    kind: IncidentKind
    fire_at: int | None = None
    last_fire_at: int | None = None
    attempt: int | None = None
    cause: str | None = None


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the database has it."""

    name: str
    created_at: int
    once_at: int | None = None
    next_fire_at: int | None = None


class History(msgspec.Struct, kw_only=True):
    """Everything there is to judge, in no order, but that the requests of a task are in theirs.

    `promise`: a start later than that after it was due is reported, a fire time that was not picked for so long is
    missed. `ahead`: how long before its fire time an occurrence may be picked.
    """

    requests: list[Request]
    runs: list[Run]
    tasks: list[StoredTask]
    occurrences: list[Occurrence]
    incidents: list[Incident]
    promise: int = 30 * SECOND
    ahead: int = 120 * SECOND


class MalformedHistory(Exception):
    """The record contradicts itself: it says nothing about the scheduler."""
