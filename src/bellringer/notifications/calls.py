"""Tasks of the scheduler that notify: an event per run."""

from __future__ import annotations

from typing import cast

from bellringer.kernel.errors import InvalidInput
from bellringer.notifications.intake import new_notification
from bellringer.notifications.model import Submission
from bellringer.notifications.service import Notifications
from bellringer.scheduler.model import CallFailed, Invocation, NotificationCall

_FIELDS = {"type": "call.event_type", "data": "payload", "body": "payload"}
"""What a task calls the fields of an event, where it does not call them the same."""


class NotificationCaller:
    """Runs notification calls: accepts an event that occurred at the fire time, once for each fire time.

    Whoever runs it again within the time for which idempotency keys are kept adds nothing.
    """

    def __init__(self, notifications: Notifications) -> None:
        self._notifications = notifications

    async def call(self, invocation: Invocation) -> None:
        """Return when the event is accepted. Raises `CallFailed` for an event that is not valid, `Unavailable`."""
        call = cast("NotificationCall", invocation.call)
        try:
            notification = new_notification(
                type=call.event_type,
                source=f"tasks/{invocation.task}",
                subject=call.subject,
                occurred_at=invocation.fire_at,
                recipients=call.recipients,
                data=None if invocation.payload == b"null" else invocation.payload.decode(),
            )
            # No request can bring this key: one of a header has no line break, and that of a CloudEvent has one.
            submission = Submission(notifications=(notification,), idempotency_key=f"task\n\n{invocation.key}")
            await self._notifications.accept(invocation.environment_id, (submission,))
        except InvalidInput as error:
            raise CallFailed(f"{_FIELDS.get(error.field or '', f'call.{error.field}')}: {error}") from None
