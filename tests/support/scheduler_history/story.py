"""Everything that a history says of one task, put in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
from tests.support.scheduler_history.expected import policy_of
from tests.support.scheduler_history.records import (
    Attempt,
    History,
    Incident,
    MalformedHistory,
    Occurrence,
    Overlap,
    Policy,
    Request,
    Run,
    StoredTask,
    Verb,
)
from tests.support.scheduler_history.violations import Kind, Violation


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A task, what was asked of it, and what became of its fire times; runs by fire time and attempt."""

    task: StoredTask
    policy: Policy
    requests: list[Request]
    occurrences: list[Occurrence]
    runs: dict[tuple[int, int], list[Run]]
    incidents: list[Incident]
    promise: int
    ahead: int

    def attempts(self) -> Iterator[tuple[Occurrence, Attempt]]:
        """All attempts at all fire times."""
        for occurrence in self.occurrences:
            for attempt in occurrence.attempts:
                yield occurrence, attempt

    def was_asked(self, verb: Verb, *, fire_at: int | None = None, until: int | None = None) -> bool:
        """Whether somebody asked for this, of a fire time, and may have had it before a moment."""
        return any(
            request.verb is verb
            and (fire_at is None or request.fire_at == fire_at)
            and (until is None or request.begun_at <= until)
            for request in self.requests
        )

    def may_be_replaced(self, occurrence: Occurrence) -> bool:
        """Whether another one may have come due while the newest attempt ran, and asked for its end."""
        attempt = occurrence.last
        if self.policy.overlap is not Overlap.REPLACE or attempt.started_at is None or attempt.ended_at is None:
            return False
        return any(
            other.fire_at != occurrence.fire_at
            and other.fire_at <= attempt.ended_at
            and (other.last.ended_at is None or other.last.ended_at >= attempt.started_at)
            for other in self.occurrences
        )

    def violation(self, kind: Kind, occurrence: Occurrence | int | None, sentence: str, *facts: object) -> Violation:
        """A promise that was broken to this task."""
        if isinstance(occurrence, Occurrence):
            return Violation(
                kind=kind,
                task=self.task.name,
                fire_at=occurrence.fire_at,
                sentence=sentence,
                facts=(self.policy, occurrence, *facts),
            )
        return Violation(
            kind=kind, task=self.task.name, fire_at=occurrence, sentence=sentence, facts=(self.policy, *facts)
        )


def stories(history: History) -> Iterator[Story]:
    """The stories of all tasks. Raises `MalformedHistory` for a record of a task that does not exist."""
    requests = defaultdict[str, list[Request]](list)
    occurrences = defaultdict[str, list[Occurrence]](list)
    runs = defaultdict[str, dict[tuple[int, int], list[Run]]](dict)
    incidents = defaultdict[str, list[Incident]](list)
    for request in history.requests:
        requests[request.task].append(request)
    for occurrence in history.occurrences:
        occurrences[occurrence.task].append(occurrence)
    for run in history.runs:
        runs[run.task].setdefault((run.fire_at, run.attempt), []).append(run)
    for incident in history.incidents:
        incidents[incident.task].append(incident)
    names = {task.name for task in history.tasks}
    if strangers := (requests.keys() | runs.keys() | occurrences.keys() | incidents.keys()) - names:
        raise MalformedHistory(f"tasks that are not stored: {sorted(strangers)[:5]}")
    for task in history.tasks:
        yield Story(
            task=task,
            policy=policy_of(requests[task.name]),
            requests=requests[task.name],
            occurrences=sorted(occurrences[task.name], key=lambda occurrence: occurrence.fire_at),
            runs=runs[task.name],
            incidents=incidents[task.name],
            promise=history.promise,
            ahead=history.ahead,
        )
