"""Which fragments a room has, and what of a snapshot each of them shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bellringer.console.snapshot import Snapshot, state_of
from bellringer.kernel.errors import NotFound

# The rooms, each with its fragments: what of the page changes while somebody looks.
_ROOMS: Mapping[str, tuple[str, ...]] = {
    "overview": ("first-steps", "numbers", "pipeline", "latest-queues", "latest-notifications", "latest-mail"),
    "queues": ("own-queues", "pipeline-queues"),
    "queue": ("queue-counts",),
    "pipeline-queue": ("queue-counts",),
    "notifications": ("notification-list",),
    "notification": ("pulse",),
    "mail": ("mail-list",),
}
# The parts of a snapshot that a fragment shows. It is rendered anew when one of them has changed, and only then: the
# page itself keeps relative times going.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "first-steps": ("is_new",),
    "numbers": ("overview", "pace"),
    "pipeline": ("overview", "pace", "pipeline"),
    "latest-queues": ("queues",),
    "latest-notifications": ("notifications",),
    "latest-mail": ("mail",),
    "own-queues": ("queues",),
    "pipeline-queues": ("pipeline",),
    "notification-list": ("notifications",),
    "mail-list": ("mail",),
    "pulse": ("overview",),
}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody looks at: a room, and in the rooms of one queue its name."""

    room: str
    name: str = ""

    def __post_init__(self) -> None:
        if self.room not in _ROOMS:
            raise NotFound(f"there is no room {self.room}")


def fragments_of(view: View, snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """The fragments of a view, each with what it shows. Raises `NotFound` when its queue does not exist."""
    if view.room in {"queue", "pipeline-queue"}:
        states = snapshot.queues if view.room == "queue" else snapshot.pipeline
        return {"queue-counts": {"state": state_of(states, view.name)}}
    names = _ROOMS[view.room]
    if snapshot.is_new:
        # The first steps name the host that the reader used: their page has them, and only their end is news.
        names = tuple(name for name in names if name != "first-steps")
    return {name: {part: getattr(snapshot, part) for part in _PARTS[name]} for name in names}
