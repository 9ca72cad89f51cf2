"""The broker under fire: whatever is killed, stopped or cut off, what its clients wrote down is a correct history."""

from __future__ import annotations

import os
import random

import pytest
from tests.support.under_fire.run import run_under_fire

pytestmark = pytest.mark.scenario

MESSAGES = 50_000
FAULTS = {
    "crash postgres",
    "kill a broker",
    "kill a consumer",
    "restart postgres",
    "stop a broker",
    "stop a consumer",
    "terminate backends",
}


def test_no_fault_makes_the_broker_break_a_promise() -> None:
    """`make prove` does the same with a million messages."""
    seed = int(os.environ.get("BELLRINGER_TEST_SEED", random.randrange(10**6)))
    outcome = run_under_fire(
        MESSAGES,
        seed=seed,
        least_seconds=30,
        pause_seconds=(1.0, 2.5),
        tell=lambda line: print(f"BELLRINGER_TEST_SEED={seed}: {line}"),  # noqa: T201 - shown when the test fails
    )
    print(outcome)  # noqa: T201
    assert outcome.is_correct, str(outcome)
    assert set(outcome.struck) == FAULTS
    # There was something to get wrong.
    assert outcome.report.stored_for_sure >= MESSAGES
    assert outcome.report.redeliveries > 0
    assert outcome.report.refused_handles > 0
    assert outcome.report.unanswered > 0
