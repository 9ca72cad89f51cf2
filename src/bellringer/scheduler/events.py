"""What the scheduler announces: every incident, on the queue `scheduler.events` of the task's environment."""

from __future__ import annotations

from datetime import datetime

import msgspec

from bellringer.broker import QueueSettings
from bellringer.scheduler.model import IncidentKind

EVENTS_QUEUE = "scheduler.events"
EVENTS_SETTINGS = QueueSettings(retention_seconds=7 * 24 * 3600, expires=True, visibility_timeout_seconds=60)
"""Nobody need listen: what was not read within a week goes."""


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an event, in JSON; `id` is the incident's. Fire times that were skipped together are one event."""

    id: int
    kind: IncidentKind
    task: str
    at: datetime
    fire_at: datetime | None = None
    last_fire_at: datetime | None = None
    fire_times: int = 1
    attempt: int | None = None
    cause: str | None = None
    detail: str | None = None
