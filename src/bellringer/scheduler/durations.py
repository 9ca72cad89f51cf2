"""How long runs take: of each recurring task, and of what one-time tasks have in common. The forecast reads it."""

from __future__ import annotations

from collections import defaultdict

from bellringer.kernel.database import Database
from bellringer.scheduler import executor_store
from bellringer.scheduler.model import Invocation
from bellringer.scheduler.occurrence_store import Started

KEPT = 200
"""So many of the newest runs of a subject are kept."""

_WEIGHT_OF_THE_NEWEST = 0.05
_SHORTEST_SECONDS = 0.001


class Durations:
    """The runs of one executor since it wrote them down last, and how long a run typically takes here."""

    def __init__(self, database: Database) -> None:
        self.typical_seconds = 1.0
        self._database = database
        self._new: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, invocation: Invocation, started: Started, seconds: float) -> None:
        """Note a run."""
        subject = f"task {invocation.number}" if started.is_recurring else invocation.subject
        runs = self._new[subject]
        runs.append(seconds)
        if len(runs) > 2 * KEPT:
            del runs[:KEPT]
        self.typical_seconds += (max(seconds, _SHORTEST_SECONDS) - self.typical_seconds) * _WEIGHT_OF_THE_NEWEST

    def expect(self, seconds: float) -> None:
        """Learn from runs that go on that one takes so long at least."""
        self.typical_seconds = max(self.typical_seconds, seconds)

    async def write(self) -> None:
        """Write down what is new. Raises `Unavailable`; then it is written the next time."""
        if not self._new:
            return
        new, self._new = self._new, defaultdict(list)
        try:
            async with self._database.connection() as connection:
                await executor_store.add_durations(connection, new, KEPT)
        except BaseException:
            for subject, runs in new.items():
                self._new[subject] = [*runs, *self._new[subject]]
            raise
