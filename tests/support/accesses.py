"""What PostgreSQL read to run a statement, all that its functions ran included: of which table or index, how many rows.

By the server's own counters: a plan tells nothing of the statements inside a function.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import asyncpg
import msgspec
from tests.support.plans import PlanMode

# Of an index: its scans, and the entries that they met. Of a table: the scans that read it whole, and their rows.
_COUNTERS = """
SELECT relation.relname AS name, COALESCE(on_table.relname, relation.relname) AS "table",
    relation.relkind = 'i' AS is_index,
    pg_stat_get_xact_numscans(relation.oid) AS scans, pg_stat_get_xact_tuples_returned(relation.oid) AS rows
FROM pg_class AS relation
LEFT JOIN pg_index AS entry ON entry.indexrelid = relation.oid
LEFT JOIN pg_class AS on_table ON on_table.oid = entry.indrelid
WHERE relation.relnamespace = 'bellringer'::regnamespace AND relation.relkind IN ('r', 'i')
"""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Ways into one index, or without one into a table, and the rows that they read, in vain or not."""

    name: str
    table: str
    is_index: bool
    scans: int
    rows: int


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with arguments, the indexes that it must use, and how many rows it may read in all."""

    statement: str
    arguments: tuple[object, ...]
    indexes: set[str]
    rows: int


async def accesses_of(
    connection: asyncpg.Connection[Any], statement: str, arguments: Sequence[object], mode: PlanMode
) -> list[Access]:
    """Run a statement, undo it, and say what was read for it."""
    await connection.execute(f"SET plan_cache_mode = {mode}")
    transaction = connection.transaction()
    await transaction.start()
    try:
        before = {row["name"]: row for row in await connection.fetch(_COUNTERS)}
        await connection.fetch(statement, *arguments)
        after = await connection.fetch(_COUNTERS)
    finally:
        await transaction.rollback()
    return [
        Access(
            name=row["name"],
            table=row["table"],
            is_index=row["is_index"],
            scans=row["scans"] - before[row["name"]]["scans"],
            rows=row["rows"] - before[row["name"]]["rows"],
        )
        for row in after
        if row["scans"] > before[row["name"]]["scans"]
    ]


async def check_accesses(
    connection: asyncpg.Connection[Any], case: Case, mode: PlanMode, *, small: Collection[str]
) -> None:
    """Fail unless a statement walks its indexes and reads no more than it may; `small` tables do not matter."""
    accesses = await accesses_of(connection, case.statement, case.arguments, mode)
    whole = [access for access in accesses if not access.is_index and access.rows and access.table not in small]
    assert whole == [], "reads whole tables"
    found = [access for access in accesses if access.is_index and access.table not in small]
    assert case.indexes <= {access.name for access in found}
    assert sum(access.rows for access in found) <= case.rows, f"reads too much: {found}"
