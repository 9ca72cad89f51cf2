"""Tasks that notify: one event for each fire time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.scheduler_calls import FIRE_AT, invocation_of

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker
from bellringer.edge.model import Environment
from bellringer.kernel.batcher import BatcherConfig
from bellringer.kernel.database import Database
from bellringer.notifications.calls import NotificationCaller
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications
from bellringer.scheduler.model import CallFailed, NotificationCall

CALL = NotificationCall(event_type="report.due", recipients=["Ben@ACME.example", "ann@acme.example"], subject="Monthly")


@pytest.fixture
async def notifications(database: Database, broker: Broker) -> AsyncIterator[Notifications]:
    accepted = await broker.ensure_queue(SYSTEM_ENVIRONMENT, ACCEPTED_QUEUE)
    opened = Notifications(database, broker, accepted, batcher=BatcherConfig())
    yield opened
    await opened.drain()


async def test_a_run_is_an_event_that_occurred_at_its_fire_time(
    notifications: Notifications, environment: Environment
) -> None:
    caller = NotificationCaller(notifications)
    await caller.call(invocation_of(CALL, {"month": 11}, environment_id=environment.id))
    (notification,) = await notifications.list_notifications(environment.id)
    assert notification.type == "report.due"
    assert notification.recipients == ["ann@acme.example", "ben@acme.example"]
    assert notification.subject == "Monthly"
    assert notification.source == "tasks/report"
    assert notification.occurred_at == FIRE_AT
    assert notification.data is not None
    assert bytes(notification.data) == b'{"month":11}'


async def test_without_a_payload_there_is_no_data(notifications: Notifications, environment: Environment) -> None:
    await NotificationCaller(notifications).call(invocation_of(CALL, environment_id=environment.id))
    (notification,) = await notifications.list_notifications(environment.id)
    assert notification.data is None


async def test_whoever_runs_it_again_adds_nothing(notifications: Notifications, environment: Environment) -> None:
    caller = NotificationCaller(notifications)
    for attempt in (1, 2):
        await caller.call(invocation_of(CALL, {"month": 11}, environment_id=environment.id, attempt=attempt))
    assert (await notifications.overview(environment.id)).events == 1


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (
            NotificationCall(event_type="a", recipients=["ann@acme.example", "ben"]),
            "call.recipients[1]: not an email address",
        ),
        (NotificationCall(event_type="a", recipients=[]), "call.recipients: an event has 1 to 10000 recipients"),
        (
            NotificationCall(event_type="a\nb", recipients=["ann@acme.example"]),
            "call.event_type: type must not hold control",
        ),
        (
            NotificationCall(event_type="a", recipients=["ann@acme.example"], subject=""),
            "call.subject: subject must have 1 to 500 characters",
        ),
    ],
)
async def test_an_event_that_is_not_valid_is_a_failure_that_names_the_field(
    notifications: Notifications, environment: Environment, call: NotificationCall, complaint: str
) -> None:
    with pytest.raises(CallFailed) as failed:
        await NotificationCaller(notifications).call(invocation_of(call, environment_id=environment.id))
    assert str(failed.value).startswith(complaint)
    assert (await notifications.overview(environment.id)).events == 0
