"""Decides whether a recorded history is one that a correct scheduler can have.

It reads what was asked, what the functions wrote down, and what the database holds in the end, and never asks the
scheduler, nor computes with any of its parts. Where a moment is not known it gives the scheduler the benefit of the
doubt.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from tests.support.scheduler_history import attempts, fire_times, overlap
from tests.support.scheduler_history.records import History, Outcome
from tests.support.scheduler_history.story import stories
from tests.support.scheduler_history.violations import Kind, Violation

MOST_TOLD_PER_KIND = 20


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict: how often each promise was broken, the first cases of each, and what the history holds.

    `outcomes` are those of the occurrences, `repeated` those of attempts that were followed by another. `lags` are
    microseconds from due to started, ascending.
    """

    violations: tuple[Violation, ...]
    broken: Counter[Kind]
    tasks: int
    occurrences: int
    runs: int
    outcomes: Counter[str]
    repeated: Counter[str]
    missed: int
    lags: list[int]

    @property
    def is_correct(self) -> bool:
        """Whether nothing was found."""
        return not self.violations

    def __str__(self) -> str:
        counted = (
            f"{self.tasks:,} tasks, {self.occurrences:,} occurrences ({_told(self.outcomes)}), {self.runs:,} runs, "
            f"{self.repeated.total():,} tried again ({_told(self.repeated)}), {self.missed:,} started late; "
            f"started after {self._lag(0.5)} (half), {self._lag(0.99)} (99 %), {self._lag(1)} (all)"
        )
        if self.is_correct:
            return f"correct: {counted}"
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in self.broken.most_common())
        return "\n".join([f"BROKEN: {kinds}; {counted}", *map(str, self.violations)])

    def _lag(self, part: float) -> str:
        return f"{self.lags[int((len(self.lags) - 1) * part)] / 1e6:.3f} s" if self.lags else "-"


def check(history: History) -> Report:
    """Judge a history. Raises `MalformedHistory`."""
    broken = Counter[Kind]()
    told: list[Violation] = []
    for story in stories(history):
        for judge in (fire_times.judge, attempts.judge, overlap.judge):
            for violation in judge(story):
                broken[violation.kind] += 1
                if broken[violation.kind] <= MOST_TOLD_PER_KIND:
                    told.append(violation)
    return _report(history, tuple(told), broken)


def _report(history: History, told: tuple[Violation, ...], broken: Counter[Kind]) -> Report:
    every = [attempt for occurrence in history.occurrences for attempt in occurrence.attempts]
    lags = sorted(attempt.started_at - attempt.due_at for attempt in every if attempt.started_at is not None)
    return Report(
        violations=told,
        broken=broken,
        tasks=len(history.tasks),
        occurrences=len(history.occurrences),
        runs=len(history.runs),
        outcomes=Counter(_word(occurrence.last.outcome) for occurrence in history.occurrences),
        repeated=Counter(
            _word(attempt.outcome) for occurrence in history.occurrences for attempt in occurrence.attempts[:-1]
        ),
        missed=sum(lag > history.promise for lag in lags),
        lags=lags,
    )


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(counts.items()))


def _word(outcome: Outcome | None) -> str:
    return "open" if outcome is None else outcome.value
