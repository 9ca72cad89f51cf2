"""kill -9 at random moments while events stream in: nothing that was accepted is lost, nothing is told twice."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
from tests.support.postgres import Cluster
from tests.support.server import WORKER, EventStream, Server, empty_database, serving
from tests.support.smtp import SmtpServer

pytestmark = pytest.mark.scenario

KILLS = 10
KILLS_OF_A_WORKER = 8
PEOPLE = [f"person-{number}@acme.example" for number in range(8)]
SETTINGS = {"BELLRINGER_DIGEST_WINDOW_SECONDS": "1", "BELLRINGER_VISIBILITY_TIMEOUT_SECONDS": "2"}
# The SMTP server keeps a message and answers a little later: a kill in between leaves the answer unheard.
ANSWER_DELAY_SECONDS = 0.1


@pytest.fixture
def moments() -> random.Random:
    """What decides when to kill; the same again with the seed that a failed test shows."""
    seed = int(os.environ.get("BELLRINGER_TEST_SEED", random.randrange(10**6)))
    print(f"BELLRINGER_TEST_SEED={seed}")  # noqa: T201 - shown when the test fails
    return random.Random(seed)


def make_event(number: int) -> dict[str, Any]:
    chosen = random.Random(number)
    audience = sorted(chosen.sample(PEOPLE, chosen.randint(1, 4)))
    return {"type": chosen.choice(["task.failed", "task.done"]), "recipients": audience, "data": {"number": number}}


def test_every_accepted_event_survives_ten_kills_and_is_told_once(moments: random.Random) -> None:
    with (
        SmtpServer(delay_seconds=ANSWER_DELAY_SECONDS) as smtp,
        serving(SETTINGS | {"BELLRINGER_SMTP_URL": smtp.url}) as server,
    ):
        with EventStream(server, make_event, pause_seconds=0.02) as stream:
            for number in range(KILLS):
                wait_for_any_moment(stream, moments)
                if number % 3 == 2:
                    os.kill(server.postmaster(), signal.SIGKILL)
                server.kill()
                if number % 5 == 4:  # and then again, while it starts
                    server.spawn()
                    time.sleep(moments.uniform(0, 1))
                    server.kill()
                server.start()
            stream.until_accepted(20)
        check(server, smtp, stream)
        assert server.interrupt() == 0
        assert server.postgres_processes() == []


async def test_every_event_survives_the_kills_of_its_worker(cluster: Cluster, moments: random.Random) -> None:
    url = await empty_database(cluster, commit_delay_seconds=0.1)
    own = {"BELLRINGER_DATABASE_URL": url, "BELLRINGER_API_KEY": "a-key-that-the-tests-set"}
    with SmtpServer(delay_seconds=ANSWER_DELAY_SECONDS) as smtp:
        settings = SETTINGS | own | {"BELLRINGER_SMTP_URL": smtp.url}
        with (
            serving(settings, role="api") as api,
            serving(settings, role=WORKER) as killed,
            serving(settings, role=WORKER) as other,
        ):
            with EventStream(api, make_event, pause_seconds=0.02) as stream:
                for number in range(KILLS_OF_A_WORKER):
                    wait_for_any_moment(stream, moments, most_events=30)
                    killed.kill()
                    if number == KILLS_OF_A_WORKER - 1:
                        other.kill()
                    killed.start()
                stream.until_accepted(20)
            assert stream.refusals.total() == 0  # nobody who sends events notices
            check(api, smtp, stream)


def wait_for_any_moment(stream: EventStream, moments: random.Random, *, most_events: int = 150) -> None:
    """Let some events pass, and then be anywhere in the second that a digest takes."""
    stream.until_accepted(moments.randint(1, most_events))
    time.sleep(moments.uniform(0, 1))


def check(server: Server, smtp: SmtpServer, stream: EventStream) -> None:
    """What must hold in the end, whenever the kills came."""
    server.until_settled()
    expected = {notification_id: event["recipients"] for notification_id, event in stream.accepted.items()}
    smtp.check_arrivals(expected, exactly_once=False)
    overview = server.overview()
    assert overview["events"] == len(expected)
    assert overview["notifications"] == sum(map(len, expected.values()))
    assert overview["emails"] == len({email.message_id for email in smtp.received})
    told = {(email.message_id, recipient) for email in smtp.received for recipient in email.recipients}
    assert (overview["sent"], overview["failed"]) == (len(told), 0)
    for notification_id in list(expected)[:: len(expected) // 10]:
        assert server.outcomes(notification_id) == dict.fromkeys(expected[notification_id], "sent")
    repeated = len(smtp.received) - overview["emails"]
    print(f"{len(expected)} events, {overview['emails']} emails, {repeated} sent again")  # noqa: T201
