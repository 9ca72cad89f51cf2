"""Tasks as HTTP takes and shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from bellringer.scheduler.model import (
    Call,
    MisfirePolicy,
    MissCause,
    Occurrence,
    OccurrenceState,
    Outcome,
    Overlap,
    PastAttempt,
    Retry,
    Schedule,
    Task,
    TaskDefinition,
    TaskState,
)


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


class TaskBody(TaskDefinition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task without its name.

    `overlap` left out is `skip` for recurring tasks and `allow` for others. A run that crashed with its executor runs
    again only with `rerun_after_crash`.
    """

    payload: msgspec.Raw = msgspec.field(default_factory=_null)  # a default itself would stand in the OpenAPI document

    def definition(self) -> TaskDefinition:
        """What the service takes."""
        return TaskDefinition(**{field: getattr(self, field) for field in TaskDefinition.__struct_fields__})


class NewTask(TaskBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to make; without a name it gets one."""

    name: str | None = None


class OccurrenceView(msgspec.Struct, frozen=True, kw_only=True):
    """One fire time of a task and what became of it: the newest attempt, if there were several.

    `lag_seconds` is how long after `due_at` it started, `missed_cause` what made that longer than promised.
    """

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
    lag_seconds: float | None
    missed_cause: MissCause | None
    executor: UUID | None
    is_manual: bool
    cancel_requested: bool


class OccurrenceDetail(OccurrenceView, frozen=True, kw_only=True):
    """An occurrence and the attempts before its newest, the oldest first."""

    past_attempts: list[PastAttempt]


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task: what was said of it, where a delay has become a time, and how it stands.

    `next_fire_at` is the first fire time to come, `last` the newest occurrence that was due by now, `problem` says why
    it was refused.
    """

    name: str
    state: TaskState
    next_fire_at: datetime | None
    last: OccurrenceView | None
    problem: str | None
    schedule: Schedule
    call: Call
    payload: msgspec.Raw
    misfire: MisfirePolicy
    overlap: Overlap | None
    time_limit_seconds: float
    retry: Retry
    rerun_after_crash: bool
    created_at: datetime
    modified_at: datetime


def task_view(task: Task) -> TaskView:
    """A task for who looks at it."""
    definition = task.definition
    return TaskView(
        name=task.name,
        state=task.state,
        next_fire_at=task.fires_next_at,
        last=None if task.last is None else occurrence_view(task.last),
        problem=task.problem,
        schedule=definition.schedule,
        call=definition.call,
        payload=definition.payload,
        misfire=definition.misfire,
        overlap=definition.overlap,
        time_limit_seconds=definition.time_limit_seconds,
        retry=definition.retry,
        rerun_after_crash=definition.rerun_after_crash,
        created_at=task.created_at,
        modified_at=task.modified_at,
    )


def occurrence_view(occurrence: Occurrence) -> OccurrenceView:
    """An occurrence for who looks at it."""
    return OccurrenceView(**_fields(occurrence))


def occurrence_detail(occurrence: Occurrence, past_attempts: list[PastAttempt]) -> OccurrenceDetail:
    """An occurrence with all its attempts."""
    return OccurrenceDetail(past_attempts=past_attempts, **_fields(occurrence))


def _fields(occurrence: Occurrence) -> dict[str, Any]:
    return {**msgspec.structs.asdict(occurrence), "lag_seconds": occurrence.lag_seconds}
