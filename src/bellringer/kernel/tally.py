"""Tallies: counts that are read in O(1) and written without contention.

A statement that changes something adds an entry (owner, name, change) in its own transaction; nobody waits for a
shared row, not even for a transaction that stays open. `TallyFolder` sums the entries into one row per count. A
count is that row plus the entries not yet folded: exact at every moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from bellringer.kernel.database import Database
from bellringer.kernel.service import Loop

# Every folded row was an entry once, and folding moves it in one transaction: no count is seen twice or not at all.
READ = """
SELECT owner, name, sum(value)::bigint AS value
FROM (
    SELECT owner, name, value FROM bellringer.tallies WHERE owner = ANY ($1)
    UNION ALL
    SELECT owner, name, change FROM bellringer.tally_entries WHERE owner = ANY ($1)
) AS counted
GROUP BY owner, name
"""
FOLD = """
WITH taken AS MATERIALIZED (
    SELECT id FROM bellringer.tally_entries ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM bellringer.tally_entries AS entry USING taken WHERE entry.id = taken.id
    RETURNING entry.owner, entry.name, entry.change
), folded AS (
    -- Sorted, so that two folders lock the rows in one order.
    INSERT INTO bellringer.tallies AS tally (owner, name, value)
    SELECT owner, name, sum(change) FROM removed GROUP BY owner, name ORDER BY owner, name
    ON CONFLICT (owner, name) DO UPDATE SET value = tally.value + excluded.value
)
SELECT count(*) FROM removed
"""


class Tallies:
    """Reads counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, owners: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
        """The counts of each owner by name; a count that was never written is missing, and 0 when asked for."""
        counts: dict[UUID, dict[str, int]] = {owner: defaultdict(int) for owner in owners}
        async with self._database.connection() as connection:
            for row in await connection.fetch(READ, list(owners)):
                counts[row["owner"]][row["name"]] = row["value"]
        return counts


class TallyFolder(Loop):
    """Folds entries into counts, in every process: rows that another folder holds are skipped."""

    _BATCH = 5000

    def __init__(self, database: Database, *, interval_seconds: float = 1.0) -> None:
        super().__init__("tally folder", interval_seconds=interval_seconds)
        self._database = database

    async def run_once(self) -> bool:
        """Fold one batch of entries."""
        async with self._database.connection() as connection:
            folded = await connection.fetchval(FOLD, self._BATCH)
        return bool(folded == self._BATCH)
