"""Which fragments a room has, and what of a snapshot each of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from bellringer.console.depth import Period
from bellringer.console.snapshot import QueueDetails, QueueState, Snapshot, sources_of, state_of
from bellringer.kernel.errors import NotFound

# The rooms, each with its fragments: what of the page changes while somebody looks.
_ROOMS: Mapping[str, tuple[str, ...]] = {
    "overview": ("first-steps", "numbers", "pipeline", "latest-queues", "latest-notifications", "latest-mail"),
    "queues": ("own-queues", "pipeline-queues"),
    "queue": ("queue-actions", "queue-counts", "queue-plots", "queue-moves"),
    "pipeline-queue": ("queue-counts", "queue-plots"),
    "queue-message": ("queue-pulse",),
    "notifications": ("notification-list",),
    "notification": ("pulse",),
    "mail": ("mail-list",),
}
TASK_ROOMS = frozenset({"tasks", "calendar", "task", "occurrence", "failures"})
"""The rooms of the scheduler, which show nothing of a snapshot: `task_reader` reads what they show."""

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
    """What somebody looks at: a room; in it a queue or a task by its name, and how far back they look.

    The rest is what the rooms of the scheduler are asked for, as it stands in the address: `at` is a moment, `kind`
    and `state` are choices of what is listed, `after` and `before` say where a page of a list begins.
    """

    room: str
    name: str = ""
    period: Period = Period.HOUR
    at: str = ""
    kind: str = ""
    state: str = ""
    prefix: str = ""
    after: str = ""
    before: str = ""

    def __post_init__(self) -> None:
        if self.room not in _ROOMS and not self.is_of_tasks:
            raise NotFound(f"there is no room {self.room}")

    @property
    def is_of_tasks(self) -> bool:
        """Whether it shows tasks, and nothing of a snapshot."""
        return self.room in TASK_ROOMS

    @property
    def query(self) -> str:
        """The view as the query of an address."""
        return urlencode({name: value for name, value in msgspec.structs.asdict(self).items() if value})

    @property
    def has_details(self) -> bool:
        """Whether it shows more of a queue than a snapshot has."""
        return self.room in {"queue", "pipeline-queue"}


def view_of(query: Mapping[str, str], **known: str) -> View:
    """The view that an address asks for, where `known` comes before its query. Raises `NotFound`."""
    try:
        return msgspec.convert({**query, **known}, View)
    except msgspec.ValidationError:
        raise NotFound("There is nothing like this to look at.") from None


def queue_of(view: View, snapshot: Snapshot) -> QueueState:
    """The queue that a view shows. Raises `NotFound`."""
    return state_of(snapshot.pipeline if view.room == "pipeline-queue" else snapshot.queues, view.name)


def fragments_of(view: View, snapshot: Snapshot, details: QueueDetails | None = None) -> dict[str, dict[str, Any]]:
    """The fragments of a view, each with what it shows. Raises `NotFound` when its queue does not exist.

    What needs details is left out where there are none yet.
    """
    if view.room == "queue-message":
        return {"queue-pulse": {"counts": queue_of(view, snapshot).counts}}
    if view.has_details:
        return queue_fragments(view, queue_of(view, snapshot), snapshot.queues, details)
    names = _ROOMS[view.room]
    if snapshot.is_new:
        # The first steps name the host that the reader used: their page has them, and only their end is news.
        names = tuple(name for name in names if name != "first-steps")
    return {name: {part: getattr(snapshot, part) for part in _PARTS[name]} for name in names}


def queue_fragments(
    view: View, state: QueueState, own: Sequence[QueueState], details: QueueDetails | None
) -> dict[str, dict[str, Any]]:
    """The fragments of the page of a queue; `own` has all queues of the reader's environment."""
    is_pipeline = view.room == "pipeline-queue"
    sources = [] if is_pipeline else sources_of(own, view.name)
    values: dict[str, dict[str, Any]] = {
        "queue-actions": {"queue": state.queue},
        "queue-counts": {"state": state, "is_pipeline": is_pipeline, "sources": sources},
    }
    if details is not None:
        values["queue-plots"] = {"plots": details.plots, "view": view}
        values["queue-moves"] = {
            "queue": state.queue,
            "moves": details.moves,
            "running": details.running,
            "sources": sources,
            "destinations": [
                other.queue
                for other in own
                if other.queue.id != state.queue.id and other.queue.settings.fifo == state.queue.settings.fifo
            ],
        }
    return {name: values[name] for name in _ROOMS[view.room] if name in values}
