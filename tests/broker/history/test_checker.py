"""The checker of histories: it accepts what a correct queue can have done, and finds every fault seeded into that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.support.history.checker import check
from tests.support.history.events import (
    AcknowledgeBegun,
    Answered,
    ClaimBegun,
    Claimed,
    Delivered,
    Event,
    HoldBegun,
    NewMessage,
    PublishBegun,
    Published,
    QueueEnded,
    Unanswered,
)
from tests.support.history.faults import FAULTS, Fault
from tests.support.history.operations import MalformedHistory
from tests.support.history.recorder import read_history, recorder_to_file
from tests.support.history.reference import Simulation
from tests.support.history.story import NotApplicable, Story
from tests.support.history.violations import Kind

CHOICES = st.randoms(use_true_random=False)
STEPS = st.integers(min_value=3, max_value=40)
QUEUE = "orders"


@settings(max_examples=300)
@given(random=CHOICES, steps=STEPS, is_fifo=st.booleans(), one_consumer=st.booleans())
def test_what_a_correct_queue_did_is_accepted(random: Random, steps: int, is_fifo: bool, one_consumer: bool) -> None:
    report = check(Simulation(random, is_fifo=is_fifo, one_consumer=one_consumer).run(steps))
    assert report.is_correct, str(report)


@settings(max_examples=100)
@given(random=CHOICES, steps=STEPS, is_fifo=st.booleans(), kept=st.integers(min_value=0))
def test_what_a_correct_queue_did_so_far_is_accepted(random: Random, steps: int, is_fifo: bool, kept: int) -> None:
    events = Simulation(random, is_fifo=is_fifo, one_consumer=False).run(steps)
    report = check(events[: kept % len(events)])
    assert report.is_correct, str(report)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind, faults in FAULTS.items() for fault in faults],
    ids=lambda value: "" if isinstance(value, Kind) else value.__name__.strip("_"),
)
# Many stories have no place for a fault, and are drawn anew.
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture])
@given(random=CHOICES, steps=STEPS, is_fifo=st.booleans(), one_consumer=st.booleans())
def test_every_fault_is_found(
    kind: Kind, fault: Fault, random: Random, steps: int, is_fifo: bool, one_consumer: bool
) -> None:
    is_fifo = (is_fifo or kind is Kind.GROUP_ORDER) and kind is not Kind.QUEUE_ORDER
    one_consumer = one_consumer or kind is Kind.QUEUE_ORDER
    story = Story(Simulation(random, is_fifo=is_fifo, one_consumer=one_consumer).run(steps), random)
    try:
        fault(story)
    except NotApplicable:
        assume(False)
    report = check(story.events)
    assert kind in report.broken, str(report)
    assert all(violation.facts for violation in report.violations)


def test_every_promise_has_faults_that_break_it() -> None:
    assert set(FAULTS) == set(Kind)


def published(*keys: str, at: float = 0.0, group: str | None = None) -> list[Event]:
    operation = f"publish {keys}"
    messages = [NewMessage(key=key, group=group) for key in keys]
    first = int(at) * 10 + 1
    return [
        PublishBegun(at=at, operation=operation, queue=QUEUE, messages=messages),
        Published(at=at + 0.5, operation=operation, ids=list(range(first, first + len(keys)))),
    ]


def claimed(*messages: Delivered, at: float, until: float, timeout_seconds: float = 10.0) -> list[Event]:
    operation = f"claim {[message.handle for message in messages]}"
    begun = ClaimBegun(at=at, operation=operation, queue=QUEUE, visibility_timeout_seconds=timeout_seconds)
    return [begun, Claimed(at=until, operation=operation, messages=list(messages))]


def finished(handle: str, *, at: float, until: float | None, held: bool = True) -> list[Event]:
    operation = f"acknowledge {handle} {at}"
    begun = AcknowledgeBegun(at=at, operation=operation, queue=QUEUE, handles=[handle])
    if until is None:
        return [begun, Unanswered(at=at, operation=operation, reason="the connection broke")]
    return [begun, Answered(at=until, operation=operation, held=[held])]


def held_on(handle: str, *, at: float, until: float, seconds: float) -> list[Event]:
    operation = f"hold {handle} {at}"
    begun = HoldBegun(at=at, operation=operation, queue=QUEUE, handles=[handle], seconds=seconds)
    return [begun, Answered(at=until, operation=operation, held=[True])]


def attempt(key: str, number: int, id_: int = 1, group: str | None = None) -> Delivered:
    return Delivered(key=key, id=id_, handle=f"{key}.{number}", attempts=number, group=group)


def kinds_of(*parts: Sequence[Event]) -> set[Kind]:
    return set(check([event for part in parts for event in part]).broken)


def end(*remaining: str, is_fifo: bool = False) -> list[Event]:
    return [QueueEnded(at=1000, queue=QUEUE, is_fifo=is_fifo, remaining=list(remaining))]


def test_a_hold_lasts_from_the_earliest_moment_of_its_claim() -> None:
    first = claimed(attempt("a", 1), at=1, until=4)  # taken at 1 or later: held until 11 or later
    assert kinds_of(published("a"), first, claimed(attempt("a", 2), at=3, until=10.9)) == {Kind.TWO_OWNERS}
    assert kinds_of(published("a"), first, claimed(attempt("a", 2), at=3, until=11)) == set()


def test_the_last_extension_decides_how_long_a_hold_lasts() -> None:
    until = [*published("a"), *claimed(attempt("a", 1), at=1, until=2)]
    extended = [*until, *held_on("a.1", at=3, until=4, seconds=20)]
    assert kinds_of(extended, claimed(attempt("a", 2), at=12, until=22.9)) == {Kind.TWO_OWNERS}
    assert kinds_of(extended, claimed(attempt("a", 2), at=12, until=23)) == set()
    shortened = [*extended, *held_on("a.1", at=5, until=6, seconds=0)]
    assert kinds_of(shortened, claimed(attempt("a", 2), at=5.5, until=5.6)) == set()
    overlapping = [*extended, *held_on("a.1", at=3.5, until=5, seconds=0)]  # either may have come last
    assert kinds_of(overlapping, claimed(attempt("a", 2), at=4, until=5)) == set()


def test_what_got_no_answer_may_have_been_done_or_not() -> None:
    delivered = [*published("a"), *claimed(attempt("a", 1), at=1, until=2)]
    unknown = [*delivered, *finished("a.1", at=3, until=None)]
    assert kinds_of(unknown, end()) == set()
    assert kinds_of(unknown, end("a")) == set()
    assert kinds_of(unknown, claimed(attempt("a", 2), at=30, until=31), end("a")) == set()
    # Delivered again, it had not been done; and the handle was stale from then on.
    assert kinds_of(unknown, claimed(attempt("a", 2), at=30, until=31), end()) == {Kind.LOST}
    assert kinds_of(delivered, end()) == {Kind.LOST}


def test_a_message_may_be_stored_long_after_its_request_was_given_up() -> None:
    request: list[Event] = [
        PublishBegun(at=0, operation="p", queue=QUEUE, messages=[NewMessage(key="a"), NewMessage(key="b")]),
        Unanswered(at=1, operation="p", reason="too late"),
    ]
    assert kinds_of(request, end()) == set()
    late = [*request, *claimed(attempt("a", 1), at=500, until=501)]
    assert kinds_of(late, end()) == {Kind.LOST}
    assert kinds_of(late, end("a")) == set()


def test_a_group_waits_for_what_may_be_unfinished_and_no_longer() -> None:
    sent = published("a", "b", "c", group="g")
    one = [*sent, *claimed(attempt("a", 1, 1, "g"), attempt("b", 1, 2, "g"), at=1, until=2)]
    next_one = claimed(attempt("c", 1, 3, "g"), at=3, until=5)
    done = [*finished("a.1", at=3, until=4), *finished("b.1", at=4.5, until=9)]
    assert kinds_of(one, done, next_one, end("c", is_fifo=True)) == set()  # b may have been finished at 4.5
    late = [*finished("a.1", at=3, until=4), *finished("b.1", at=5.5, until=9)]
    assert kinds_of(one, late, next_one, end("c", is_fifo=True)) == {Kind.GROUP_ORDER}


def test_a_part_of_an_answer_may_be_delivered_again_while_the_rest_is_done() -> None:
    sent = published("a", "b", "c", group="g")
    together = claimed(*(attempt(key, 1, id_, "g") for id_, key in enumerate("abc", 1)), at=1, until=2)
    done = finished("b.1", at=3, until=4)
    again = claimed(attempt("a", 2, 1, "g"), attempt("c", 2, 3, "g"), at=20, until=21)
    only_later = claimed(attempt("c", 2, 3, "g"), at=20, until=21)
    assert kinds_of(sent, together, done, again, end("a", "c", is_fifo=True)) == set()
    assert kinds_of(sent, together, done, only_later, end("a", "c", is_fifo=True)) == {Kind.GROUP_ORDER}


def test_a_violation_names_the_requests_that_prove_it() -> None:
    done = [*published("a"), *claimed(attempt("a", 1), at=1, until=2), *finished("a.1", at=3, until=4)]
    (violation,) = check([*done, *claimed(attempt("a", 2), at=20, until=21)]).violations
    assert (violation.kind, violation.queue, violation.message) == (Kind.AFTER_ACKNOWLEDGEMENT, QUEUE, "a")
    assert [fact.operation for fact in violation.facts] == ["claim ['a.1']", "acknowledge a.1 3", "claim ['a.2']"]
    assert "attempt 2" in str(violation)


def test_a_record_that_contradicts_itself_says_nothing_about_the_broker() -> None:
    for events in (
        [*published("a"), *published("a")],
        published("a")[1:],
        [*published("a"), *published("a", "b")],
        list(reversed(published("a"))),
        [published("a")[0], Published(at=1, operation="publish ('a',)", ids=[1, 2])],
        [published("a")[0], Claimed(at=1, operation="publish ('a',)", messages=[])],
    ):
        with pytest.raises(MalformedHistory):
            check(events)


def test_a_client_that_dies_leaves_a_true_record(tmp_path: Path) -> None:
    file = tmp_path / "client"
    recorder = recorder_to_file("client", file)
    operation = recorder.publish(QUEUE, [NewMessage(key="a", group="g", delay_seconds=1.5)])
    recorder.published(operation, [7])
    recorder.claim(QUEUE, 30)
    whole = file.read_bytes()
    events = list(read_history([file]))
    file.write_bytes(whole[:-1])  # the client died in the middle of its last line
    assert list(read_history([file])) == events[:-1]
    assert events[0] == PublishBegun(
        at=events[0].at, operation="client/1", queue=QUEUE, messages=[NewMessage(key="a", group="g", delay_seconds=1.5)]
    )
    assert isinstance(events[2], ClaimBegun)
    assert events[0].at <= events[1].at <= events[2].at
