"""The timeline of a notification, laid out: its steps, and its recipients gathered by what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from bellringer.notifications.model import Notification, TimelineEntry

State = Literal["failed", "pending", "sent"]

MOST_ADDRESSES = 1000
"""More are named by the API only: a page of ten thousand helps nobody."""
_MOST_OPEN = 30  # with more recipients in it a group of those who were reached starts folded


class Replies(msgspec.Struct, frozen=True, kw_only=True):
    """Recipients who share a state and the server's words; `at` is when the last of them got there."""

    reply: str
    at: datetime
    addresses: list[str]
    hidden: int


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """All recipients in one state."""

    state: State
    count: int
    replies: list[Replies]
    is_open: bool


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps as far as they have come. `is_settled` when nothing will change any more."""

    accepted_at: datetime
    joined_at: datetime | None
    closes_at: datetime | None
    closed_at: datetime | None
    outcomes: list[Outcomes]
    is_settled: bool

    def count(self, state: State) -> int:
        """How many recipients are in a state."""
        return sum(outcomes.count for outcomes in self.outcomes if outcomes.state == state)


def outline_of(notification: Notification, timeline: Sequence[TimelineEntry]) -> Outline:
    """Lay out a timeline, which may have a step per recipient and so ten thousand of them."""
    steps = {entry.step: entry for entry in timeline if entry.recipient is None}
    joined, closed = steps.get("in_digest"), steps.get("digest_closed")
    budget = MOST_ADDRESSES
    outcomes = []
    states: tuple[State, ...] = ("failed", "pending", "sent")
    for state in states:
        entries = [entry for entry in timeline if entry.recipient is not None and entry.step == state]
        if entries:
            outcomes.append(_outcomes(state, entries, budget))
            budget = max(0, budget - len(entries))
    delivered = sum(group.count for group in outcomes if group.state != "pending")
    return Outline(
        accepted_at=notification.accepted_at,
        joined_at=joined.at if joined else None,
        closes_at=joined.closes_at if joined else None,
        closed_at=closed.at if closed else None,
        outcomes=outcomes,
        is_settled=delivered >= len(notification.recipients),
    )


def _outcomes(state: State, entries: Sequence[TimelineEntry], budget: int) -> Outcomes:
    by_reply: dict[str, list[TimelineEntry]] = {}
    for entry in entries:
        by_reply.setdefault(entry.detail or "", []).append(entry)
    replies = []
    for reply, members in sorted(by_reply.items(), key=lambda item: -len(item[1])):
        shown = [entry.recipient for entry in members[:budget] if entry.recipient is not None]
        budget -= len(shown)
        replies.append(
            Replies(
                reply=reply,
                at=max(entry.at for entry in members),
                addresses=shown,
                hidden=len(members) - len(shown),
            )
        )
    is_open = state == "failed" or len(entries) <= _MOST_OPEN
    return Outcomes(state=state, count=len(entries), replies=replies, is_open=is_open)
