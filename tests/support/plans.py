"""How PostgreSQL runs a statement: which scans, over how many rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec

from bellringer.kernel.database import Connection

PlanMode = Literal["force_custom_plan", "force_generic_plan"]
MODES: tuple[PlanMode, ...] = ("force_custom_plan", "force_generic_plan")
"""A prepared statement gets a plan for its arguments, and after five runs perhaps one for any: both must be good."""

_numbers = itertools.count(1)


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """One way into one table: by an index, or by none. `rows` counts what it read, in vain or not."""

    table: str
    index: str | None
    rows: float


async def scans_of(connection: Connection, statement: str, arguments: Sequence[object], mode: PlanMode) -> list[Scan]:
    """Run a statement, undo it, and say how it ran."""
    name = f"explained_{next(_numbers)}"
    literals = f"({', '.join(map(_literal, arguments))})" if arguments else ""
    await connection.execute(f"SET plan_cache_mode = {mode}; PREPARE {name} AS {statement}")
    transaction = connection.transaction()
    await transaction.start()
    try:
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name}{literals}")
    finally:
        await transaction.rollback()
    return list(_scans(msgspec.json.decode(plan)[0]["Plan"]))


def _scans(node: dict[str, Any]) -> list[Scan]:
    found = [scan for child in node.get("Plans", ()) for scan in _scans(child)]
    if node["Node Type"] == "Bitmap Index Scan":
        return [Scan(table="", index=node["Index Name"], rows=0), *found]  # its Bitmap Heap Scan reads the rows
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        indexes = [scan.index for scan in found if not scan.table] or [node.get("Index Name")]
        in_vain = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        rows = (node["Actual Rows"] + in_vain) * node["Actual Loops"]
        own = [Scan(table=node["Relation Name"], index=index, rows=rows) for index in indexes]
        return own + [scan for scan in found if scan.table]
    return found


def _literal(argument: object) -> str:
    match argument:
        case None:
            return "NULL"
        case bool() | int() | float():
            return str(argument)
        case list() | tuple():
            return "'{" + ",".join("NULL" if item is None else f'"{_text(item)}"' for item in argument) + "}'"
        case _:
            return f"'{_text(argument)}'"


def _text(argument: object) -> str:
    match argument:
        case bytes():
            return f"\\\\x{argument.hex()}"
        case str() | UUID() | int() | float():
            return str(argument)
        case _:
            raise TypeError(f"no literal for {argument!r}")
