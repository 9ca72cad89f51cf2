"""Judges whether every fire time has exactly one occurrence, and nothing else has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.support.scheduler_history.expected import expected_fire_times
from tests.support.scheduler_history.records import Delay, IncidentKind, Occurrence, Verb
from tests.support.scheduler_history.story import Story
from tests.support.scheduler_history.violations import Kind, Violation


def judge(story: Story) -> Iterator[Violation]:
    """What is wrong with the fire times of a task."""
    yield from _judge_made(story)
    expected = expected_fire_times(story.requests, story.task)
    times = Counter(occurrence.fire_at for occurrence in story.occurrences)
    planned = {occurrence.fire_at for occurrence in story.occurrences if not occurrence.is_manual}
    for fire_at in sorted(expected.certain - times.keys()):
        if _was_given_up(story, fire_at):
            continue
        yield story.violation(Kind.MISSING, fire_at, "has no occurrence", story.task, *story.requests)
    for fire_at, number in times.items():
        if number > 1:
            yield story.violation(Kind.TWICE, fire_at, f"has {number} occurrences", *story.occurrences)
    for fire_at in sorted(planned - expected.possible):
        yield story.violation(Kind.UNCALLED, fire_at, "is no fire time", story.task, *story.requests)
    yield from _judge_by_hand(story)
    for occurrence in story.occurrences:
        if not occurrence.is_manual and occurrence.picked_at < occurrence.fire_at - story.ahead:
            yield story.violation(Kind.TIMES, occurrence, "was picked too long ahead")


def _was_given_up(story: Story, fire_at: int) -> bool:
    """Whether it is recorded that nobody had picked it when the task was stopped or changed."""
    return any(
        incident.kind is IncidentKind.SKIPPED
        and incident.fire_at is not None
        and incident.last_fire_at is not None
        and incident.fire_at <= fire_at <= incident.last_fire_at
        and any(
            request.begun_at <= incident.last_fire_at <= request.answered_at
            for request in story.requests
            if request.verb in {Verb.PAUSE, Verb.CANCEL, Verb.CHANGE}
        )
        for incident in story.incidents
    )


def _judge_made(story: Story) -> Iterator[Violation]:
    made = story.requests[0]
    task = story.task
    if not made.begun_at <= task.created_at <= made.answered_at:
        yield story.violation(Kind.TIMES, None, "was not made when it was asked for", task, made)
    if isinstance(made.schedule, Delay):
        earliest, latest = made.begun_at + made.schedule.length, made.answered_at + made.schedule.length
        if task.once_at is None or not earliest <= task.once_at <= latest:
            yield story.violation(Kind.TIMES, task.once_at, "is not so long after the task was made", task, made)


def _judge_by_hand(story: Story) -> Iterator[Violation]:
    """Each request to run it now made one occurrence; each that got no answer, one at most."""
    by_hand = {occurrence.fire_at: occurrence for occurrence in story.occurrences if occurrence.is_manual}
    for request in story.requests:
        if request.verb is not Verb.RUN:
            continue
        made = [fire_at for fire_at in by_hand if request.begun_at <= fire_at <= request.answered_at]
        occurrences: list[Occurrence] = [by_hand.pop(fire_at) for fire_at in made]
        if request.fire_at not in made:
            yield story.violation(Kind.MISSING, request.fire_at, "was asked for by hand and is not there", request)
        if len(made) > request.tries:
            yield story.violation(
                Kind.TWICE, request.fire_at, f"was asked for {request.tries} times by hand", request, *occurrences
            )
    for occurrence in by_hand.values():
        yield story.violation(Kind.UNCALLED, occurrence, "was not asked for by hand")
