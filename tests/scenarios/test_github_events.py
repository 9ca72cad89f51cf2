"""Real input: GitHub's own examples of its webhook events, through the running server into a real SMTP server.

The file is not part of the repository. It is taken from BELLRINGER_GITHUB_EVENTS, or from the folder shared/data
beside the repository; each of its lines is {"event": …, "example": …, "payload": …}.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.support.server import Server, serving
from tests.support.smtp import ReceivedEmail, SmtpServer

pytestmark = pytest.mark.scenario

FILE = Path(
    os.environ.get("BELLRINGER_GITHUB_EVENTS")
    or Path(__file__).parents[2].parent / "shared" / "data" / "github-events.jsonl"
)
TEXT_EVENT = re.compile(r"^(?:\d\d? [A-Z][a-z]{2} )?\d\d:\d\d:\d\d  .*  #([0-9a-f-]{36})$", re.MULTILINE)

# Who subscribes to which kinds: by a fixed rule, so that audiences overlap in many ways. Some are alone with what they
# get, some share all of it (the twins, and the triplets, who get the same although their rules differ), most share a
# part with others, and one gets nothing at all.
SUBSCRIPTIONS: Mapping[str, Callable[[str], bool]] = {
    "everything": lambda _kind: True,
    "twin.one": lambda kind: kind.startswith("pull_request") or kind == "push",
    "twin.two": lambda kind: kind.startswith("pull_request") or kind == "push",
    "triplet.one": lambda kind: kind in {"issues", "issue_comment"},
    "triplet.two": lambda kind: kind.startswith("issue"),
    "triplet.three": lambda kind: kind[:5] == "issue",
    "releases": lambda kind: kind == "release",
    "discussions": lambda kind: kind.startswith("discussion"),
    "first.half": lambda kind: kind < "m",
    "second.half": lambda kind: kind >= "m",
    "every.third": lambda kind: sum(kind.encode()) % 3 == 0,
    "underscores": lambda kind: "_" in kind,
    "nothing": lambda _kind: False,
}


class Example(msgspec.Struct, frozen=True):
    """One line of the file."""

    event: str
    example: str
    payload: msgspec.Raw

    @property
    def recipients(self) -> list[str]:
        return [address_of(name) for name, subscribes in SUBSCRIPTIONS.items() if subscribes(self.event)]

    def as_event(self) -> dict[str, object]:
        return {
            "type": f"github.{self.event}",
            "subject": self.example,
            "recipients": self.recipients,
            "data": self.payload,
        }


def address_of(name: str) -> str:
    return f"{name}@subscriber.example"


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    if not FILE.exists():
        pytest.skip(f"there is no {FILE}; set BELLRINGER_GITHUB_EVENTS")
    return msgspec.json.Decoder(Example).decode_lines(FILE.read_bytes())


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with SmtpServer() as running:
        yield running


def accept_all(server: Server, examples: list[Example]) -> dict[UUID, Example]:
    """Send every example in a request of its own, several at a time."""
    with ThreadPoolExecutor(4) as senders:
        return dict(zip(senders.map(lambda example: server.tell(example.as_event()), examples), examples, strict=True))


def event_sets(accepted: Mapping[UUID, Example]) -> dict[str, frozenset[UUID]]:
    """What each person must be told of, by address; nobody who is told of nothing."""
    sets = defaultdict[str, set[UUID]](set)
    for notification_id, example in accepted.items():
        for recipient in example.recipients:
            sets[recipient].add(notification_id)
    return {recipient: frozenset(events) for recipient, events in sets.items()}


def check_emails(smtp: SmtpServer, accepted: Mapping[UUID, Example]) -> None:
    """Everybody is told of everything exactly once, by emails that are as they should be."""
    smtp.check_arrivals({event: example.recipients for event, example in accepted.items()}, exactly_once=True)
    for received in smtp.received:
        check_message(received)


def check_message(received: ReceivedEmail) -> None:
    assert received.sender == "bellringer@localhost"
    names = Counter(name.lower() for name in received.message)
    assert names == Counter(
        ["date", "message-id", "from", "to", "subject", "auto-submitted", "mime-version", "content-type"]
    )
    assert received.message["From"] == "Bellringer <bellringer@localhost>"
    assert received.message["To"] == "undisclosed-recipients:;"
    assert received.message["Auto-Submitted"] == "auto-generated"
    assert re.fullmatch(r"<[0-9a-f-]{36}@localhost>", received.message_id)
    subject = str(received.message["Subject"])
    assert subject.startswith("[default/production] ")
    assert subject.isprintable()
    sent_at = parsedate_to_datetime(received.message["Date"])
    assert abs(sent_at - datetime.now(UTC)) < timedelta(minutes=10)

    parts = [received.message, *received.message.iter_parts()]
    assert [part.get_content_type() for part in parts] == ["multipart/alternative", "text/plain", "text/html"]
    for part in parts:
        assert isinstance(part, EmailMessage)
        assert not part.defects
        assert not [defect for value in part.values() for defect in value.defects]
    received.content.decode("ascii")
    assert max(map(len, received.content.split(b"\r\n"))) <= 998

    # Whoever reads it cannot tell who else got it, nor is anybody told of an event twice.
    for name in SUBSCRIPTIONS:
        for text in (received.content.decode("ascii"), received.text, received.html):
            assert address_of(name) not in text
    told = sorted(received.notification_ids)
    assert len(set(told)) == len(told)
    assert sorted(UUID(found) for found in TEXT_EVENT.findall(received.text)) == told


def test_one_digest_of_all_events_reaches_everybody_in_the_fewest_emails(
    examples: list[Example], smtp: SmtpServer
) -> None:
    settings = {"BELLRINGER_DIGEST_WINDOW_SECONDS": "1", "BELLRINGER_SMTP_URL": smtp.url}
    # The events wait in the queue until all are there, so that they fall into one window however long that takes.
    with serving(settings, role="api") as server:
        accepted = accept_all(server, examples)
        assert len(accepted) == len(examples)
        assert server.queued()["notifications.accepted"] == len(examples)
        work_through(server)

        check_emails(smtp, accepted)
        sets = event_sets(accepted)
        fewest = len(set(sets.values()))
        assert fewest < len(sets)  # or nothing would be shared
        overview = server.overview()
        assert (overview["digests"], overview["emails"]) == (1, fewest)
        assert len(smtp.received) == fewest
        for received in smtp.received:
            assert {sets[recipient] for recipient in received.recipients} == {frozenset(received.notification_ids)}
        assert overview["events"] == len(examples)
        assert overview["notifications"] == sum(map(len, sets.values()))
        assert (overview["sent"], overview["failed"]) == (len(sets), 0)


def test_a_digest_per_window_reaches_everybody_in_the_fewest_emails(examples: list[Example], smtp: SmtpServer) -> None:
    def window_of(kind: str) -> int:
        return 1 + len(kind) % 3

    with serving({"BELLRINGER_SMTP_URL": smtp.url}, role="api") as server:
        for kind in {example.event for example in examples}:
            settings = {"digest_window_seconds": window_of(kind)}
            assert server.request("PUT", f"/v1/workflows/github.{kind}", settings).status == 200
        accepted = accept_all(server, examples)
        work_through(server)

        check_emails(smtp, accepted)
        fewest = 0
        for window in {window_of(example.event) for example in examples}:
            of_window = {event: example for event, example in accepted.items() if window_of(example.event) == window}
            fewest += len(set(event_sets(of_window).values()))
        overview = server.overview()
        assert (overview["digests"], overview["emails"]) == (3, fewest)
        assert len(smtp.received) == fewest


def test_events_as_they_come_reach_everybody_once(examples: list[Example], smtp: SmtpServer) -> None:
    # In as many windows as it takes, by all three ways of sending: one by one, in a batch, and as CloudEvents.
    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "1", "BELLRINGER_SMTP_URL": smtp.url}) as server:
        third = len(examples) // 3
        accepted = accept_all(server, examples[:third])
        accepted |= accept_batch(server, examples[third : 2 * third], Example.as_event, "application/json")
        accepted |= accept_batch(server, examples[2 * third :], as_cloud_event, "application/cloudevents-batch+json")
        server.until_settled()
        check_emails(smtp, accepted)
        for notification_id, example in list(accepted.items())[::20]:
            stored = server.get(f"/v1/notifications/{notification_id}")
            assert stored["data"] == msgspec.json.decode(example.payload)
            outcomes = dict.fromkeys(example.recipients, "sent")
            assert server.outcomes(notification_id) == outcomes


def accept_batch(
    server: Server, examples: list[Example], convert: Callable[[Example], dict[str, object]], content_type: str
) -> dict[UUID, Example]:
    reply = server.request(
        "POST", "/v1/events", [convert(example) for example in examples], headers={"Content-Type": content_type}
    )
    assert reply.status == 202, reply.body
    return dict(zip(map(UUID, reply.json()["ids"]), examples, strict=True))


def as_cloud_event(example: Example) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": example.example,
        "source": "https://github.com",
        "type": f"github.{example.event}",
        "subject": example.example,
        "recipients": ",".join(example.recipients),
        "data": example.payload,
    }


def work_through(server: Server) -> None:
    """Start the process again, now with the workers, and let them finish."""
    assert server.terminate() == 0
    server.role = "all"
    server.start()
    server.until_settled()
