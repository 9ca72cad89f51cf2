"""The scheduler under fire: whoever is killed, stopped or cut off, whatever their clocks say, no fire time is lost."""

from __future__ import annotations

import os
import random

import pytest
from tests.support.scheduler_under_fire.run import run_under_fire
from tests.support.scheduler_under_fire.settings import LIBRARY, Size

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(not LIBRARY.exists(), reason="needs Debian's libfaketime: apt-get install libfaketime"),
]

SIZE = Size(seconds=25, one_time_tasks=200, recurring_tasks=40, crashing_tasks=6)
FAULTS = {
    "crash postgres",
    "kill a picker",
    "kill an executor",
    "restart postgres",
    "send all executors away",
    "send all pickers away",
    "stop a picker",
    "stop an executor",
    "terminate an executor",
    "terminate backends",
}


def test_no_fault_makes_the_scheduler_break_a_promise() -> None:
    """`make prove-scheduler` does the same for ten minutes."""
    seed = int(os.environ.get("BELLRINGER_TEST_SEED", random.randrange(10**6)))
    result = run_under_fire(
        SIZE,
        seed=seed,
        pause_seconds=(1.0, 3.0),
        tell=lambda line: print(f"BELLRINGER_TEST_SEED={seed}: {line}"),  # noqa: T201 - shown when the test fails
    )
    print(result)  # noqa: T201
    assert result.is_correct, str(result)
    assert set(result.struck) == FAULTS
    # There was something to get wrong.
    assert {"succeeded", "failed", "skipped", "cancelled"} <= set(result.report.outcomes)
    assert {"failed", "crashed"} <= set(result.report.repeated)
    assert result.report.missed > 0
