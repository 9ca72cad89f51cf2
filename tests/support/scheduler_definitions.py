"""Definitions of tasks, of which most say nothing but when."""

from __future__ import annotations

from typing import Any

import msgspec

from bellringer.scheduler.model import HttpCall, Schedule, TaskDefinition

DAILY = Schedule(cron="0 2 * * *", time_zone="Europe/Berlin")
MINUTELY = Schedule(cron="* * * * *")
AT_ONCE = Schedule(delay_seconds=0)
EVERY_20_SECONDS = Schedule(every_seconds=20)
"""Six fire times in what a picker looks ahead."""


def task(schedule: Schedule = DAILY, payload: bytes = b"null", **more: Any) -> TaskDefinition:  # noqa: ANN401 - of each
    """A task that calls a hook; `more` are fields of its definition."""
    call = HttpCall(url="https://example.org/hook")
    return TaskDefinition(**{"schedule": schedule, "call": call, "payload": msgspec.Raw(payload), **more})
