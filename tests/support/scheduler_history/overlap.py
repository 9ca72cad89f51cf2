"""Judges what does not run, and what may not run at the same time: overlap, skips and cancellations."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from tests.support.scheduler_history.expected import expected_fire_times
from tests.support.scheduler_history.records import (
    Attempt,
    Incident,
    IncidentKind,
    Misfire,
    Occurrence,
    Outcome,
    Overlap,
    Run,
    Verb,
)
from tests.support.scheduler_history.story import Story
from tests.support.scheduler_history.violations import Kind, Violation


def judge(story: Story) -> Iterator[Violation]:
    """What is wrong with the overlaps, skips and cancellations of a task."""
    if story.policy.overlap is not Overlap.ALLOW:
        yield from _judge_recorded_overlap(story)
        yield from _judge_real_overlap(story)
    for occurrence in story.occurrences:
        if occurrence.last.outcome is Outcome.SKIPPED:
            yield from _judge_skip(story, occurrence)
        elif occurrence.last.outcome is Outcome.CANCELLED:
            yield from _judge_cancellation(story, occurrence)


def _judge_recorded_overlap(story: Story) -> Iterator[Violation]:
    started = [(attempt.started_at, occurrence, attempt) for occurrence, attempt in story.attempts()]
    in_order = sorted((one for one in started if one[0] is not None), key=lambda one: (one[0], one[1].fire_at))
    latest: tuple[int, Occurrence] | None = None
    for started_at, occurrence, attempt in in_order:
        if latest is not None and started_at is not None and started_at < latest[0]:
            yield story.violation(Kind.OVERLAP, occurrence, "was started before another one ended", latest[1])
        ended_at = attempt.ended_at if attempt.ended_at is not None else 2**62
        if latest is None or ended_at > latest[0]:
            latest = (ended_at, occurrence)


def _judge_real_overlap(story: Story) -> Iterator[Violation]:
    """As the functions tell it. A run that was given up as crashed counts until then: nobody can stop it."""
    attempts = {(occurrence.fire_at, attempt.number): attempt for occurrence, attempt in story.attempts()}
    runs = sorted((run for same in story.runs.values() for run in same), key=attrgetter("begun_at"))
    latest: tuple[int, Run] | None = None
    for run in runs:
        if latest is not None and run.begun_at < latest[0]:
            yield story.violation(Kind.OVERLAP, run.fire_at, "ran while another one did", run, latest[1])
        ended_at = _ended_at(run, attempts.get((run.fire_at, run.attempt)))
        if latest is None or ended_at > latest[0]:
            latest = (ended_at, run)


def _ended_at(run: Run, attempt: Attempt | None) -> int:
    """When nothing of a run can be left, unless the scheduler had lost it."""
    known = [moment for moment in (run.ended_at,) if moment is not None]
    if attempt is not None and attempt.ended_at is not None and (attempt.outcome is Outcome.CRASHED or not known):
        known.append(attempt.ended_at)
    return min(known, default=run.begun_at)


def _judge_skip(story: Story, occurrence: Occurrence) -> Iterator[Violation]:
    skip = occurrence.last
    if not any(_covers(incident, occurrence.fire_at) for incident in story.incidents):
        yield story.violation(Kind.UNREPORTED, occurrence, "was skipped, and nobody was told why")
    if skip.started_at is not None or (occurrence.fire_at, skip.number) in story.runs:
        yield story.violation(Kind.UNTRUE, occurrence, "is skipped, and was started")
    if not (_is_misfire(story, occurrence) or _is_forbidden_overlap(story, occurrence)):
        yield story.violation(Kind.SKIP, occurrence, "was skipped, against its policy")


def _covers(incident: Incident, fire_at: int) -> bool:
    return (
        incident.kind is IncidentKind.SKIPPED
        and incident.cause is not None
        and incident.fire_at is not None
        and incident.fire_at <= fire_at <= (incident.last_fire_at or incident.fire_at)
    )


def _is_misfire(story: Story, occurrence: Occurrence) -> bool:
    """Whether the misfire policy can have skipped it when it was picked."""
    if occurrence.fire_at + story.promise > occurrence.picked_at or occurrence.is_manual:
        return False
    policy = story.policy
    if policy.misfire is Misfire.SKIP:
        return True
    if policy.misfire is Misfire.WINDOW:
        return occurrence.fire_at + policy.misfire_window <= occurrence.picked_at
    after = expected_fire_times(story.requests, story.task).possible
    missed_as_well = sum(occurrence.fire_at < fire_at <= occurrence.picked_at - story.promise for fire_at in after)
    return missed_as_well >= (policy.misfire_limit if policy.misfire is Misfire.ALL else 1)


def _is_forbidden_overlap(story: Story, occurrence: Occurrence) -> bool:
    """Whether another one of the task ran when it was skipped."""
    skipped_at = occurrence.last.ended_at
    if story.policy.overlap is Overlap.ALLOW or skipped_at is None or skipped_at < occurrence.fire_at:
        return False
    return any(
        attempt.started_at is not None
        and attempt.started_at <= skipped_at
        and (attempt.ended_at is None or attempt.ended_at >= skipped_at)
        for other, attempt in story.attempts()
        if other.fire_at != occurrence.fire_at
    )


def _judge_cancellation(story: Story, occurrence: Occurrence) -> Iterator[Violation]:
    """Its task was stopped before it could start, or a later one took its place while it ran."""
    cancelled = occurrence.last
    if cancelled.ended_at is None:
        return
    was_stopped = cancelled.started_at is None and any(
        request.verb in {Verb.PAUSE, Verb.CANCEL} and request.begun_at <= cancelled.ended_at <= request.answered_at
        for request in story.requests
    )
    if not was_stopped and not story.may_be_replaced(occurrence):
        yield story.violation(Kind.SKIP, occurrence, "was cancelled, and nobody asked for it")
