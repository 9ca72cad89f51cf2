"""Settings of the scheduler."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far ahead the scheduler works, and how much one executor does at a time.

    `tasks` names the application whose functions an executor runs, as `package.module:attribute`. A start later than
    `start_promise_seconds` after its due time is an incident; a fire time that nobody picked for as long is a misfire.
    An executor that is told to stop lets its runs go on for `finish_seconds`, and then ends them; one that was not seen
    for `executor_lost_seconds` is dead.
    """

    pick_ahead_seconds: Seconds = 120.0
    dispatch_ahead_seconds: Seconds = 5.0
    start_promise_seconds: Seconds = 30.0
    poll_seconds: Seconds = 0.25
    batch: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    visibility_timeout_seconds: Annotated[float, msgspec.Meta(ge=3, le=3600)] = 30.0
    executor_lost_seconds: Annotated[float, msgspec.Meta(ge=3, le=3600)] = 20.0
    retention_seconds: Annotated[int, msgspec.Meta(ge=60)] = 30 * 24 * 3600
    finish_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    tasks: str | None = None
