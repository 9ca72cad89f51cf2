"""What a run under fire is made of, told to every process of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bellringer.scheduler.config import SchedulerConfig

API_KEY = "a-key-that-the-tests-set"
RUNS_FILE = "RECORD_OF_RUNS"
"""The environment variable that tells functions where to write down that they ran."""

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), Path("libfaketime.so.1"))
"""Sets the clock of a process apart. Of Debian's package libfaketime; no such file where that is not installed."""

SCHEDULER = SchedulerConfig(
    pick_ahead_seconds=8,
    dispatch_ahead_seconds=3,
    start_promise_seconds=8,
    visibility_timeout_seconds=8,
    executor_lost_seconds=6,
    concurrency=40,
    tasks="tests.support.scheduler_under_fire.application:scheduler",
)
"""Shorter than usual in everything that is waited for, so that a short run meets what else takes minutes."""

PAUSE_SECONDS = 12.0
"""How long who is stopped stays so: longer than its messages are held for, and than it is waited for."""

CLOCKS_APART_SECONDS = 60


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks there are, how long they are made, used and struck, and how long they go on after that."""

    seconds: float
    calm_seconds: float = 12.0
    one_time_tasks: int
    recurring_tasks: int
    crashing_tasks: int
