"""Faults to seed into the history of a correct scheduler: each leaves it as one with that fault could have left it.

Each takes a history and a source of choices, and raises `NotApplicable` where the history has no place for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TypeVar

import msgspec
from tests.support.scheduler_history.attempts import MOST_CRASHES
from tests.support.scheduler_history.expected import expected_fire_times, fire_times
from tests.support.scheduler_history.records import (
    FAILURES,
    SECOND,
    Attempt,
    Delay,
    History,
    Incident,
    IncidentKind,
    Misfire,
    Occurrence,
    Outcome,
    Overlap,
    Result,
    Run,
    Verb,
)
from tests.support.scheduler_history.story import Story, stories
from tests.support.scheduler_history.violations import Kind

T = TypeVar("T")


class NotApplicable(Exception):
    """The history has no place for this fault."""


def _choose(random: Random, choices: Iterable[T]) -> T:
    found = list(choices)
    if not found:
        raise NotApplicable
    return random.choice(found)


def _replace(items: list[T], old: T, new: T) -> None:
    items[next(index for index, item in enumerate(items) if item is old)] = new


def _change(history: History, occurrence: Occurrence, place: int, /, **changes: object) -> None:
    """Change the attempt at a place, from 1, of an occurrence."""
    attempts = list(occurrence.attempts)
    attempts[place - 1] = msgspec.structs.replace(attempts[place - 1], **changes)
    _replace(history.occurrences, occurrence, msgspec.structs.replace(occurrence, attempts=attempts))


def _certain(history: History) -> Iterator[tuple[Story, Occurrence]]:
    """The occurrences that there must be."""
    for story in stories(history):
        expected = expected_fire_times(story.requests, story.task)
        for occurrence in story.occurrences:
            if occurrence.fire_at in expected.certain:
                yield story, occurrence


def _attempts(history: History) -> Iterator[tuple[Story, Occurrence, Attempt, list[Run]]]:
    for story in stories(history):
        for occurrence, attempt in story.attempts():
            yield story, occurrence, attempt, story.runs.get((occurrence.fire_at, attempt.number), [])


def _lose_a_fire_time(history: History, random: Random) -> None:
    _, occurrence = _choose(random, _certain(history))
    history.occurrences.remove(occurrence)
    history.runs = [run for run in history.runs if (run.task, run.fire_at) != (occurrence.task, occurrence.fire_at)]


def _lose_what_was_asked_for_by_hand(history: History, random: Random) -> None:
    occurrence = _choose(random, (one for one in history.occurrences if one.is_manual))
    history.occurrences.remove(occurrence)
    history.runs = [run for run in history.runs if (run.task, run.fire_at) != (occurrence.task, occurrence.fire_at)]


def _add_a_fire_time(history: History, random: Random) -> None:
    occurrence = _choose(
        random,
        (one for one in history.occurrences if one.last.outcome is Outcome.CANCELLED and not one.is_manual),
    )
    fire_at = occurrence.fire_at + 1
    attempts = [msgspec.structs.replace(attempt, due_at=attempt.due_at + 1) for attempt in occurrence.attempts]
    history.occurrences.append(msgspec.structs.replace(occurrence, fire_at=fire_at, attempts=attempts))


def _fire_while_paused(history: History, random: Random) -> None:
    def gaps() -> Iterator[tuple[Story, int]]:
        for story in stories(history):
            for one, following in zip(story.requests, story.requests[1:], strict=False):
                if one.verb is Verb.PAUSE and following.verb is Verb.RESUME:
                    schedule = next(request.schedule for request in story.requests if request.schedule)
                    for fire_at in fire_times(schedule, story.task, one.answered_at + 1, following.begun_at - 1):
                        yield story, fire_at

    story, fire_at = _choose(random, gaps())
    _add_cancelled(history, story.task.name, fire_at, is_manual=False)


def _run_by_hand_what_nobody_asked_for(history: History, random: Random) -> None:
    story = _choose(random, stories(history))
    _add_cancelled(history, story.task.name, story.requests[-1].answered_at + SECOND, is_manual=True)


def _add_cancelled(history: History, task: str, fire_at: int, *, is_manual: bool) -> None:
    attempt = Attempt(number=1, due_at=fire_at, ended_at=fire_at + 1, outcome=Outcome.CANCELLED)
    history.occurrences.append(
        Occurrence(task=task, fire_at=fire_at, picked_at=fire_at, attempts=[attempt], is_manual=is_manual)
    )


def _store_one_twice(history: History, random: Random) -> None:
    history.occurrences.append(_choose(random, history.occurrences))


def _run_one_twice(history: History, random: Random) -> None:
    run = _choose(random, history.runs)
    history.runs.append(msgspec.structs.replace(run, process="2", begun_at=run.begun_at + 1))


def _run_without_a_record(history: History, random: Random) -> None:
    run = _choose(random, history.runs)
    history.runs.append(msgspec.structs.replace(run, attempt=7, process="2"))


def _run_what_was_skipped(history: History, random: Random) -> None:
    occurrence = _choose(random, (one for one in history.occurrences if one.last.outcome is Outcome.SKIPPED))
    begun_at = max(occurrence.last.due_at, occurrence.picked_at)
    history.runs.append(
        Run(
            task=occurrence.task,
            fire_at=occurrence.fire_at,
            attempt=occurrence.last.number,
            process="2",
            begun_at=begun_at,
        )
    )


def _run_before_the_record(history: History, random: Random) -> None:
    _, occurrence, attempt, _ = _choose(random, (one for one in _attempts(history) if one[3]))
    (run,) = (run for run in history.runs if _is_of(run, occurrence, attempt))
    _change(history, occurrence, attempt.number, started_at=run.begun_at + 1)


def _is_of(run: Run, occurrence: Occurrence, attempt: Attempt) -> bool:
    return (run.task, run.fire_at, run.attempt) == (occurrence.task, occurrence.fire_at, attempt.number)


def _run_early(history: History, random: Random) -> None:
    """By the clock of an executor that is ahead."""
    _, occurrence, attempt, (run,) = _choose(random, (one for one in _attempts(history) if one[3]))
    ahead = run.begun_at - attempt.due_at + 1
    _change(history, occurrence, attempt.number, started_at=attempt.started_at - ahead if attempt.started_at else None)
    _replace(history.runs, run, msgspec.structs.replace(run, begun_at=run.begun_at - ahead))


def _start_early(history: History, random: Random) -> None:
    _, occurrence, attempt, _ = _choose(random, (one for one in _attempts(history) if one[2].started_at is not None))
    _change(history, occurrence, attempt.number, started_at=attempt.due_at - 1)


def _call_a_failure_success(history: History, random: Random) -> None:
    _, occurrence, attempt, (run,) = _choose(random, (one for one in _attempts(history) if one[3]))
    if run.result is Result.RETURNED:
        raise NotApplicable
    _change(history, occurrence, attempt.number, outcome=Outcome.SUCCEEDED)


def _call_success_a_failure(history: History, random: Random) -> None:
    _, occurrence, attempt, (run,) = _choose(random, (one for one in _attempts(history) if one[3]))
    if run.result is not Result.RETURNED:
        raise NotApplicable
    _change(history, occurrence, attempt.number, outcome=Outcome.FAILED)


def _succeed_without_a_run(history: History, random: Random) -> None:
    _, _, _, (run,) = _choose(
        random, (one for one in _attempts(history) if one[2].outcome is Outcome.SUCCEEDED and one[3])
    )
    history.runs.remove(run)


def _end_before_it_ends(history: History, random: Random) -> None:
    _, occurrence, attempt, (run,) = _choose(
        random,
        (
            one
            for one in _attempts(history)
            if one[2].outcome is Outcome.SUCCEEDED and one[3] and one[3][0].ended_at != one[3][0].begun_at
        ),
    )
    _change(history, occurrence, attempt.number, ended_at=run.begun_at)


def _leave_one_open(history: History, random: Random) -> None:
    occurrence = _choose(random, history.occurrences)
    _change(history, occurrence, occurrence.last.number, outcome=None, ended_at=None)


def _try_again_without_leave(history: History, random: Random) -> None:
    _, occurrence, attempt, _ = _choose(
        random,
        (
            (story, occurrence, attempt, runs)
            for story, occurrence, attempt, runs in _attempts(history)
            if attempt.outcome is Outcome.SUCCEEDED or not _may_be_tried_again(story, occurrence, attempt)
        ),
    )
    if attempt is not occurrence.last:
        raise NotApplicable
    following = msgspec.structs.replace(attempt, number=attempt.number + 1, due_at=attempt.ended_at)
    attempts = [*occurrence.attempts, msgspec.structs.replace(following, started_at=None, ended_at=None)]
    _replace(history.occurrences, occurrence, msgspec.structs.replace(occurrence, attempts=attempts))


def _may_be_tried_again(story: Story, occurrence: Occurrence, attempt: Attempt) -> bool:
    if story.was_asked(Verb.RETRY, fire_at=occurrence.fire_at):
        return True
    if attempt.outcome is Outcome.CRASHED:
        return story.policy.rerun_after_crash
    return attempt.outcome in FAILURES and attempt.number <= story.policy.max_retries


def _give_up_too_soon(history: History, random: Random) -> None:
    _, occurrence, first, _ = _choose(
        random,
        (
            (story, occurrence, attempt, runs)
            for story, occurrence, attempt, runs in _attempts(history)
            if attempt is not occurrence.last
            and not story.was_asked(Verb.RETRY, fire_at=occurrence.fire_at)
            and not story.was_asked(Verb.CANCEL, until=attempt.ended_at)
            and attempt.number < MOST_CRASHES
            and story.policy.overlap is not Overlap.REPLACE
        ),
    )
    _replace(
        history.occurrences,
        occurrence,
        msgspec.structs.replace(occurrence, attempts=occurrence.attempts[: first.number]),
    )


def _count_attempts_wrong(history: History, random: Random) -> None:
    occurrence = _choose(random, history.occurrences)
    _change(history, occurrence, occurrence.last.number, number=occurrence.last.number + 1)


def _overlapping(history: History) -> Iterator[tuple[Story, Occurrence, Occurrence]]:
    """Pairs of which the second was started as soon as the first had ended, or later, and could have been before."""
    for story in stories(history):
        if story.policy.overlap is Overlap.ALLOW:
            continue
        for one in story.occurrences:
            for other in story.occurrences:
                started_at, ended_at = other.attempts[0].started_at, one.last.ended_at
                if (
                    one is not other
                    and one.last.started_at is not None
                    and started_at is not None
                    and ended_at is not None
                    and started_at >= ended_at
                    and one.last.started_at < ended_at - 1
                ):
                    yield story, one, other


def _start_while_another_runs(history: History, random: Random) -> None:
    _, one, other = _choose(random, _overlapping(history))
    started_at = other.attempts[0].started_at
    assert started_at is not None
    _change(history, one, one.last.number, ended_at=started_at + 1)


def _run_while_another_runs(history: History, random: Random) -> None:
    """The database says that one ended in time; its function does not."""

    def pairs() -> Iterator[tuple[Run, Run]]:
        for story, one, other in _overlapping(history):
            if one.last.outcome is not Outcome.CRASHED:
                for run in story.runs.get((one.fire_at, one.last.number), []):
                    for later in story.runs.get((other.fire_at, 1), []):
                        if run.ended_at is not None:
                            yield run, later

    run, later = _choose(random, pairs())
    _replace(history.runs, run, msgspec.structs.replace(run, ended_at=later.begun_at + 1))


def _skip_without_reason(history: History, random: Random) -> None:
    def free() -> Iterator[Occurrence]:
        for story, occurrence in _certain(history):
            if story.policy.overlap is Overlap.ALLOW and occurrence.picked_at <= occurrence.fire_at:
                yield occurrence

    occurrence = _choose(random, free())
    _skip(history, occurrence, occurrence.fire_at + 1)


def _skip_what_the_misfire_policy_saves(history: History, random: Random) -> None:
    def saved() -> Iterator[Occurrence]:
        for story, occurrence in _certain(history):
            if story.policy.overlap is not Overlap.ALLOW or story.policy.misfire is Misfire.SKIP:
                continue
            last = max(one.fire_at for one in story.occurrences if one.picked_at <= occurrence.picked_at)
            if occurrence.fire_at == last and occurrence.picked_at - occurrence.fire_at < 40 * SECOND:
                yield occurrence

    occurrence = _choose(random, saved())
    _skip(history, occurrence, occurrence.picked_at)


def _skip(history: History, occurrence: Occurrence, skipped_at: int) -> None:
    history.runs = [run for run in history.runs if (run.task, run.fire_at) != (occurrence.task, occurrence.fire_at)]
    attempt = Attempt(number=1, due_at=occurrence.fire_at, ended_at=skipped_at, outcome=Outcome.SKIPPED)
    _replace(history.occurrences, occurrence, msgspec.structs.replace(occurrence, attempts=[attempt]))
    history.incidents.append(
        Incident(task=occurrence.task, kind=IncidentKind.SKIPPED, fire_at=occurrence.fire_at, cause="misfire")
    )


def _cancel_what_nobody_cancelled(history: History, random: Random) -> None:
    _, occurrence = _choose(
        random,
        (
            one
            for one in _certain(history)
            if one[0].policy.overlap is not Overlap.REPLACE and one[1].last.started_at is not None
        ),
    )
    _change(history, occurrence, occurrence.last.number, outcome=Outcome.CANCELLED)


def _forget_an_incident(kind: IncidentKind) -> Fault:
    def forget(history: History, random: Random) -> None:
        incident = _choose(
            random, (one for one in history.incidents if one.kind is kind and not _was_asked_again(history, one))
        )
        history.incidents.remove(incident)

    forget.__name__ = f"_forget_that_one_{kind.value}"
    return forget


def _was_asked_again(history: History, incident: Incident) -> bool:
    """Of what was tried again by hand only the last failure is needed."""
    return any(
        request.verb is Verb.RETRY and (request.task, request.fire_at) == (incident.task, incident.fire_at)
        for request in history.requests
    )


def _tell_no_cause(history: History, random: Random) -> None:
    incident = _choose(random, (one for one in history.incidents if one.cause is not None))
    _replace(history.incidents, incident, msgspec.structs.replace(incident, cause=None))


def _start_late_in_silence(history: History, random: Random) -> None:
    _, occurrence, attempt, _ = _choose(
        random,
        (one for one in _attempts(history) if one[2].started_at is not None and not one[3]),
    )
    if attempt.started_at is None or attempt.started_at - attempt.due_at > history.promise:
        raise NotApplicable
    _change(history, occurrence, attempt.number, started_at=attempt.due_at + history.promise + 1)


def _record_times_out_of_order(history: History, random: Random) -> None:
    _, occurrence, attempt, _ = _choose(random, (one for one in _attempts(history) if one[2].started_at is not None))
    assert attempt.started_at is not None
    _change(history, occurrence, attempt.number, dispatched_at=attempt.started_at + 1)


def _pick_by_a_clock_that_is_ahead(history: History, random: Random) -> None:
    occurrence = _choose(random, (one for one in history.occurrences if not one.is_manual))
    picked_at = occurrence.fire_at - 180 * SECOND
    _replace(history.occurrences, occurrence, msgspec.structs.replace(occurrence, picked_at=picked_at))


def _count_a_delay_by_another_clock(history: History, random: Random) -> None:
    made = _choose(random, (request for request in history.requests if isinstance(request.schedule, Delay)))
    task = next(task for task in history.tasks if task.name == made.task)
    assert task.once_at is not None
    _replace(history.tasks, task, msgspec.structs.replace(task, once_at=task.once_at + 60 * SECOND))


def _make_a_task_at_another_time(history: History, random: Random) -> None:
    task = _choose(random, history.tasks)
    _replace(history.tasks, task, msgspec.structs.replace(task, created_at=task.created_at + 60 * SECOND))


Fault = Callable[[History, Random], None]
FAULTS: dict[Kind, tuple[Fault, ...]] = {
    Kind.MISSING: (_lose_a_fire_time, _lose_what_was_asked_for_by_hand),
    Kind.UNCALLED: (_add_a_fire_time, _fire_while_paused, _run_by_hand_what_nobody_asked_for),
    Kind.TWICE: (_store_one_twice, _run_one_twice),
    Kind.UNRECORDED: (_run_without_a_record, _run_what_was_skipped, _run_before_the_record),
    Kind.EARLY: (_run_early, _start_early),
    Kind.UNTRUE: (_call_a_failure_success, _call_success_a_failure, _succeed_without_a_run, _end_before_it_ends),
    Kind.UNFINISHED: (_leave_one_open,),
    Kind.ATTEMPTS: (_try_again_without_leave, _give_up_too_soon, _count_attempts_wrong),
    Kind.OVERLAP: (_start_while_another_runs, _run_while_another_runs),
    Kind.SKIP: (_skip_without_reason, _skip_what_the_misfire_policy_saves, _cancel_what_nobody_cancelled),
    Kind.UNREPORTED: (
        *(_forget_an_incident(kind) for kind in IncidentKind if kind is not IncidentKind.REFUSED),
        _tell_no_cause,
        _start_late_in_silence,
    ),
    Kind.TIMES: (
        _record_times_out_of_order,
        _pick_by_a_clock_that_is_ahead,
        _count_a_delay_by_another_clock,
        _make_a_task_at_another_time,
    ),
}
"""Per promise the faults that break it."""
