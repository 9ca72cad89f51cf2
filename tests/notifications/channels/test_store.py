from __future__ import annotations

import msgspec
import pytest
from tests.support.pipeline import notification, opened_pipeline

from bellringer.edge.keys import Keys
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.notifications.channels import store
from bellringer.notifications.model import Submission


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ('{"recipients": ["ann@acme.example", "bob@acme.example"], "error": "timeout"}', {"error": "timeout"}),
        ('{"list": ["kept"]}', {"list": ["kept"]}),
        ('["a", 1]', ["a", 1]),
        ('"\\ud800"', None),
        (None, None),
    ],
)
async def test_an_email_shows_the_data_of_an_event_and_never_whom_it_names_as_recipients(
    database: Database, keys: Keys, environment: Environment, data: str | None, shown: object
) -> None:
    event = msgspec.structs.replace(notification("ann", "bob"), data=data)
    async with opened_pipeline(database, keys) as pipeline:
        await pipeline.notifications.accept(environment.id, (Submission(notifications=(event,)),))
        await pipeline.group_all()
        async with database.connection() as connection:
            email_id = await connection.fetchval("SELECT id FROM bellringer.emails")
            email = await store.load_email(connection, email_id)
    assert email is not None
    assert email.pending == ("ann@acme.example", "bob@acme.example")
    assert [told.data for told in email.events] == [shown]
