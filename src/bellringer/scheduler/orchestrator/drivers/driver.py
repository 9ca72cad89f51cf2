"""What a driver of executors is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from bellringer.kernel.errors import Unavailable


class DriverFailed(Unavailable):
    """Whoever runs the executors did not do as asked. The text is recorded, and the next round asks again."""


class Driver(Protocol):
    """Whoever runs the executors."""

    @property
    def name(self) -> str:
        """As in the settings."""
        ...

    async def current(self) -> int | None:
        """How many executors were ordered, ready or not; None when it cannot be asked. Raises `DriverFailed`."""
        ...

    async def scale_to(self, executors: int, *, current: int, reason: str, busy: Collection[int] = ()) -> None:
        """Order so many executors; being ordered is enough. `busy` are processes of this host that run something: they
        should go last. Raises `DriverFailed`.
        """
        ...

    async def close(self) -> None:
        """Let go of what cannot do without this process."""
        ...
