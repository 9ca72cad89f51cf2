"""No executors at all: what would be done is logged and recorded."""

from __future__ import annotations

from collections.abc import Collection

from bellringer.kernel.logs import get_logger

_log = get_logger(__name__)


class DryRun:
    """A driver that says what it would do."""

    name = "dry-run"

    async def current(self) -> int | None:
        """Nobody knows."""
        return None

    async def scale_to(
        self,
        executors: int,
        *,
        current: int,
        reason: str,
        busy: Collection[int] = (),  # noqa: ARG002 - not ours to stop
    ) -> None:
        """Say it."""
        _log.info("would scale executors", current=current, desired=executors, reason=reason)

    async def close(self) -> None:
        """Nothing to let go of."""
