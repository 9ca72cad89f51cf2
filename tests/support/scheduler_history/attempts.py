"""Judges each occurrence and its attempts: against what really ran, what the policy allows, and what was reported."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.support.scheduler_history.records import (
    FAILURES,
    Attempt,
    Incident,
    IncidentKind,
    Occurrence,
    Outcome,
    Result,
    Run,
    Verb,
)
from tests.support.scheduler_history.story import Story
from tests.support.scheduler_history.violations import Kind, Violation

MOST_CRASHES = 3
CAUSES = frozenset({"picker late", "queue full", "executor busy", "database slow"})

_RESULTS = {Outcome.SUCCEEDED: {Result.RETURNED}, Outcome.FAILED: {Result.RAISED}}
"""How the function must have ended. It may have ended in any way where the scheduler cut it off or lost it."""


def judge(story: Story) -> Iterator[Violation]:
    """What is wrong with the attempts at the fire times of a task."""
    known = {(occurrence.fire_at, attempt.number): attempt for occurrence, attempt in story.attempts()}
    for (fire_at, number), runs in story.runs.items():
        if len(runs) > 1:
            yield story.violation(Kind.TWICE, fire_at, f"ran {len(runs)} times as attempt {number}", *runs)
        if (fire_at, number) not in known:
            yield story.violation(Kind.UNRECORDED, fire_at, f"ran as attempt {number}, which is unknown", *runs)
    for occurrence in story.occurrences:
        yield from _judge_order(story, occurrence)
        yield from _judge_number(story, occurrence)
        for attempt in occurrence.attempts:
            yield from _judge_times(story, occurrence, attempt)
            runs = story.runs.get((occurrence.fire_at, attempt.number), [])
            for run in runs:
                yield from _judge_run(story, occurrence, attempt, run)
            if attempt.outcome in _RESULTS and not runs:
                yield story.violation(Kind.UNTRUE, occurrence, f"is {attempt.outcome}, and nothing ran")
            yield from _judge_lateness(story, occurrence, attempt)
        yield from _judge_failure(story, occurrence)


def _judge_order(story: Story, occurrence: Occurrence) -> Iterator[Violation]:
    """Attempts are numbered from 1 and follow one another."""
    numbers = [attempt.number for attempt in occurrence.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        yield story.violation(Kind.ATTEMPTS, occurrence, f"has attempts {numbers}")
    if occurrence.last.outcome is None:
        yield story.violation(Kind.UNFINISHED, occurrence, "is still open")
    for one, following in pairwise(occurrence.attempts):
        if one.outcome is None or one.ended_at is None:
            yield story.violation(Kind.ATTEMPTS, occurrence, f"was tried again before attempt {one.number} ended")
        elif following.due_at < one.ended_at:
            yield story.violation(Kind.TIMES, occurrence, f"was due again before attempt {one.number} ended")


def _judge_number(story: Story, occurrence: Occurrence) -> Iterator[Violation]:
    """Each attempt but the first had leave to be made, and none that should have been made is missing."""
    for one, _following in pairwise(occurrence.attempts):
        asked = story.was_asked(Verb.RETRY, fire_at=occurrence.fire_at) and one.outcome is not Outcome.SUCCEEDED
        if not asked and not _is_tried_again(story, one):
            sentence = f"was tried again after attempt {one.number}, against its policy"
            yield story.violation(Kind.ATTEMPTS, occurrence, sentence)
    if _must_be_tried_again(story, occurrence.last) and not story.may_be_replaced(occurrence):
        yield story.violation(Kind.ATTEMPTS, occurrence, "was not tried again, against its policy")


def _is_tried_again(story: Story, attempt: Attempt) -> bool:
    if attempt.outcome is Outcome.CRASHED:
        return story.policy.rerun_after_crash
    return attempt.outcome in {Outcome.FAILED, Outcome.TIMED_OUT} and attempt.number <= story.policy.max_retries


def _must_be_tried_again(story: Story, attempt: Attempt) -> bool:
    """Crashes end it sooner: a function that takes its executor down with it would do so for ever."""
    return (
        _is_tried_again(story, attempt)
        and (attempt.outcome is not Outcome.CRASHED or attempt.number < MOST_CRASHES)
        and not story.was_asked(Verb.CANCEL, until=attempt.ended_at)
    )


def _judge_times(story: Story, occurrence: Occurrence, attempt: Attempt) -> Iterator[Violation]:
    """By the database's clock alone: one step after the other, and none before it was due."""
    steps = [attempt.dispatched_at, attempt.started_at, attempt.ended_at]
    known = [step for step in steps if step is not None]
    was_picked = attempt is not occurrence.last or not known or known[0] >= occurrence.picked_at
    if known != sorted(known) or not was_picked:
        yield story.violation(Kind.TIMES, occurrence, f"has its times out of order in attempt {attempt.number}")
    if attempt.due_at < occurrence.fire_at:
        yield story.violation(Kind.TIMES, occurrence, f"was due before its fire time in attempt {attempt.number}")
    if attempt.started_at is not None and attempt.started_at < attempt.due_at:
        yield story.violation(Kind.EARLY, occurrence, f"was started before it was due in attempt {attempt.number}")


def _judge_run(story: Story, occurrence: Occurrence, attempt: Attempt, run: Run) -> Iterator[Violation]:
    """What the function says against what the database says."""
    if attempt.started_at is None or run.begun_at < attempt.started_at:
        yield story.violation(Kind.UNRECORDED, occurrence, "ran before its start was recorded", run)
    if run.begun_at < attempt.due_at:
        yield story.violation(Kind.EARLY, occurrence, "ran before it was due", run)
    if attempt.outcome not in _RESULTS:
        return
    if run.result not in _RESULTS[attempt.outcome]:
        yield story.violation(Kind.UNTRUE, occurrence, f"is {attempt.outcome} after it had {run.result}", run)
    elif run.ended_at is not None and attempt.ended_at is not None and attempt.ended_at < run.ended_at:
        yield story.violation(Kind.UNTRUE, occurrence, f"was {attempt.outcome} before the function ended", run)


def _judge_lateness(story: Story, occurrence: Occurrence, attempt: Attempt) -> Iterator[Violation]:
    if attempt.started_at is None or attempt.started_at - attempt.due_at <= story.promise:
        return
    reports = [
        incident
        for incident in story.incidents
        if incident.kind is IncidentKind.MISSED
        and (incident.fire_at, incident.attempt) == (occurrence.fire_at, attempt.number)
    ]
    if not any(report.cause in CAUSES for report in reports):
        yield story.violation(
            Kind.UNREPORTED, occurrence, f"started late in attempt {attempt.number}, and nobody was told why", *reports
        )


def _judge_failure(story: Story, occurrence: Occurrence) -> Iterator[Violation]:
    """A failure that is not tried again by itself is an incident; those before are kept as attempts."""
    last = occurrence.last
    if last.outcome not in FAILURES:
        return
    if not any(_reports(incident, occurrence, last) for incident in story.incidents):
        yield story.violation(Kind.UNREPORTED, occurrence, f"{last.outcome}, and nobody was told")


def _reports(incident: Incident, occurrence: Occurrence, attempt: Attempt) -> bool:
    return (incident.kind.value, incident.fire_at, incident.attempt) == (
        attempt.outcome.value if attempt.outcome else None,
        occurrence.fire_at,
        attempt.number,
    )
