"""The SMTP server is down, slow, or refuses: for now or for good, everything or one recipient."""

from __future__ import annotations

from contextlib import AbstractContextManager
from uuid import UUID

import pytest
from tests.support.postgres import Cluster
from tests.support.server import WORKER, EventStream, Server, empty_database, serving, until
from tests.support.smtp import SmtpServer, Stage

pytestmark = pytest.mark.scenario

ANN, BOB, EVE = PEOPLE = ["ann@acme.example", "bob@acme.example", "eve@acme.example"]
EVENT = {"type": "task.failed", "recipients": PEOPLE}


def settings_for(smtp: SmtpServer, *, visibility_timeout_seconds: int = 2) -> dict[str, str]:
    return {
        "BELLRINGER_DIGEST_WINDOW_SECONDS": "1",
        "BELLRINGER_VISIBILITY_TIMEOUT_SECONDS": str(visibility_timeout_seconds),
        "BELLRINGER_SMTP_URL": smtp.url,
    }


def serving_through(smtp: SmtpServer) -> AbstractContextManager[Server]:
    return serving(settings_for(smtp))


def replies(server: Server, notification_id: UUID) -> dict[str, tuple[str, str]]:
    """What the timeline says of each recipient: the state, and the words of the SMTP server."""
    steps = server.timeline(notification_id)
    return {
        step["recipient"]: (step["step"], step["detail"])
        for step in steps
        if step.get("detail") and "recipient" in step
    }


def counts(server: Server) -> tuple[int, int, int]:
    overview = server.overview()
    return (overview["emails"], overview["sent"], overview["failed"])


def test_an_smtp_server_that_is_down_then_refuses_and_then_takes_mail() -> None:
    with SmtpServer() as smtp, serving_through(smtp) as server:
        smtp.stop()
        events = [server.tell(EVENT | {"data": {"number": number}}) for number in range(5)]
        until(lambda: failures_to_send(server) >= 1, "the server has tried to send")
        assert server.readiness() == 200  # it takes events as before
        events.append(server.tell(EVENT))
        assert counts(server)[1:] == (0, 0)

        smtp.refuse("451 try again later")
        smtp.start()
        refused = dict.fromkeys(PEOPLE, ("pending", "451 try again later"))
        until(lambda: all(replies(server, event) == refused for event in events), "the timelines tell of the refusal")
        assert counts(server)[1:] == (0, 0)
        assert smtp.received == []

        smtp.accept()
        server.until_settled()
        smtp.check_arrivals(dict.fromkeys(events, PEOPLE), exactly_once=True)
        for event in events:
            assert replies(server, event) == dict.fromkeys(PEOPLE, ("sent", "taken"))
        assert counts(server) == (len(smtp.received), 3 * len(smtp.received), 0)
        assert {email.message_id for email in smtp.refused} == {email.message_id for email in smtp.received}


def failures_to_send(server: Server) -> float:
    return server.metric('bellringer_loop_failures_total{loop="consumer of emails.outbound"}')


@pytest.mark.parametrize("stage", ["MAIL", "RCPT"])
def test_a_refusal_for_now_at_any_stage_is_tried_again(stage: Stage) -> None:
    with SmtpServer() as smtp, serving_through(smtp) as server:
        smtp.refuse("452 no space left", at=stage)
        event = server.tell(EVENT)
        refused = dict.fromkeys(PEOPLE, ("pending", "452 no space left"))
        until(lambda: replies(server, event) == refused, "the timeline tells of the refusal")
        smtp.accept()
        server.until_settled()
        smtp.check_arrivals({event: PEOPLE}, exactly_once=True)
        assert counts(server) == (1, 3, 0)


@pytest.mark.parametrize("stage", ["MAIL", "RCPT", "DATA"])
def test_a_refusal_for_good_fails_everybody_and_is_not_tried_again(stage: Stage) -> None:
    with SmtpServer() as smtp, serving_through(smtp) as server:
        smtp.refuse("554 we do not want this", at=stage)
        event = server.tell(EVENT)
        server.until_settled()
        assert replies(server, event) == dict.fromkeys(PEOPLE, ("failed", "554 we do not want this"))
        assert counts(server) == (1, 0, 3)
        smtp.accept()
        later = server.tell(EVENT)
        server.until_settled()
        smtp.check_arrivals({later: PEOPLE}, exactly_once=True)
        assert counts(server) == (2, 3, 3)


def test_one_recipient_who_is_refused_for_good_fails_alone() -> None:
    with SmtpServer() as smtp, serving_through(smtp) as server:
        smtp.refuse_recipient(BOB, "550 no such mailbox")
        event = server.tell(EVENT)
        server.until_settled()
        assert replies(server, event) == {
            ANN: ("sent", "taken"),
            BOB: ("failed", "550 no such mailbox"),
            EVE: ("sent", "taken"),
        }
        smtp.check_arrivals({event: [ANN, EVE]}, exactly_once=True)
        assert counts(server) == (1, 2, 1)


def test_one_recipient_who_is_refused_for_now_is_tried_again_alone() -> None:
    with SmtpServer() as smtp, serving_through(smtp) as server:
        smtp.refuse_recipient(BOB, "450 mailbox busy")
        event = server.tell(EVENT)
        wanted = {ANN: ("sent", "taken"), BOB: ("pending", "450 mailbox busy"), EVE: ("sent", "taken")}
        until(lambda: replies(server, event) == wanted, "the timeline tells of the refusal")
        assert counts(server) == (1, 2, 0)
        smtp.accept()
        server.until_settled()
        assert replies(server, event) == dict.fromkeys(PEOPLE, ("sent", "taken"))
        assert counts(server) == (1, 3, 0)
        # One email, in two deliveries with the same Message-ID and the same content.
        smtp.check_arrivals({event: PEOPLE}, exactly_once=True)
        assert [email.recipients for email in smtp.received] == [(ANN, EVE), (BOB,)]
        assert len({email.message_id for email in smtp.received}) == 1


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
async def test_a_server_slower_than_the_visibility_timeout_gets_each_email_once(cluster: Cluster) -> None:
    # Long enough for a hold that is not extended to run out, twice: then the other worker would send the email too.
    with SmtpServer(delay_seconds=9) as smtp:
        settings = settings_for(smtp, visibility_timeout_seconds=4) | {
            "BELLRINGER_DATABASE_URL": await empty_database(cluster),
            "BELLRINGER_API_KEY": "a-key-that-the-tests-set",
        }
        with (
            serving(settings, role="api") as server,
            serving(settings, role=WORKER),
            serving(settings, role=WORKER),
        ):
            events = {server.tell(EVENT | {"recipients": [person]}): [person] for person in PEOPLE}
            server.until_settled()
            smtp.check_arrivals(events, exactly_once=True)
            assert counts(server) == (3, 3, 0)


def test_connections_that_break_under_load_lose_nothing() -> None:
    with SmtpServer(delay_seconds=0.05) as smtp, serving_through(smtp) as server:
        with EventStream(server, lambda number: EVENT | {"recipients": PEOPLE[: 1 + number % 3]}) as stream:
            for _ in range(3):
                taken = len(smtp.received)
                until(lambda taken=taken: len(smtp.received) > taken, "an email is on its way")
                smtp.stop()  # it has the email, and its answer is never heard
                stream.until_accepted(30)
                smtp.start()
        server.until_settled()
        smtp.check_arrivals({id_: event["recipients"] for id_, event in stream.accepted.items()}, exactly_once=False)
        emails = {email.message_id for email in smtp.received}
        assert counts(server)[0] == len(emails)
        assert counts(server)[2] == 0
        assert len(smtp.received) > len(emails)  # some were sent again, with the same content


def test_a_stop_lets_the_email_in_hand_be_finished() -> None:
    with SmtpServer(delay_seconds=2) as smtp, serving_through(smtp) as server:
        event = server.tell(EVENT)
        until(lambda: smtp.received, "the email is on its way")
        assert server.terminate() == 0
        server.start()
        server.until_settled()
        smtp.check_arrivals({event: PEOPLE}, exactly_once=True)
