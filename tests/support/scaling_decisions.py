"""What the orchestrator wrote down."""

from __future__ import annotations

from datetime import datetime

import msgspec

from bellringer.kernel.database import Connection


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A round of the orchestrator."""

    at: datetime
    driver: str
    runs_due: int
    slots: float
    waiting: int
    executors_seen: int
    current: int | None
    needed: int
    desired: int
    reason: str
    problem: str | None


async def scaling_decisions(connection: Connection) -> list[ScalingDecision]:
    """All of them, in the order in which they were written."""
    rows = await connection.fetch("SELECT * FROM bellringer.scaling_decisions ORDER BY id")
    return [ScalingDecision(**{name: row[name] for name in ScalingDecision.__struct_fields__}) for row in rows]
