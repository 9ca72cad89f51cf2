"""What an executor has in its hands."""

from __future__ import annotations

from bellringer.broker import Message, Queue
from bellringer.scheduler.occurrence_store import Dispatch
from bellringer.scheduler.run import Run


class Held:
    """An occurrence that this executor has, with the message that brought it; times are the event loop's."""

    __slots__ = ("claimed_at", "dispatch", "due_at", "is_unanswered", "message", "queue", "ready_at", "run")

    def __init__(self, queue: Queue, message: Message, dispatch: Dispatch, claimed_at: float, due_at: float) -> None:
        self.queue = queue
        self.message = message
        self.dispatch = dispatch
        self.claimed_at = claimed_at
        self.due_at = due_at
        self.ready_at = due_at
        self.is_unanswered = False
        self.run: Run | None = None
