"""What a digest email must be whatever the events contain, and what it says when they are ordinary."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from html.parser import HTMLParser
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bellringer.kernel.errors import InvalidInput
from bellringer.notifications.channels.email import EVENTS_MAXIMUM, DigestEmail, DigestEvent, compose

NINE = datetime(2026, 11, 20, 9, 0, 0, tzinfo=UTC)
EMAIL_ID = UUID("019aa0c4-7000-7000-8000-000000000001")
TEXT_EVENT = re.compile(r"^(?:\d\d? [A-Z][a-z]{2} )?\d\d:\d\d:\d\d  .*  #([0-9a-f-]{36})$", re.MULTILINE)
HEADERS = "Date Message-ID From To Subject Auto-Submitted MIME-Version Content-Type".split()  # noqa: SIM905
BIDI_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def event(
    number: int = 0,
    kind: str = "task.failed",
    subject: str | None = "nightly-import",
    data: object = None,
    at: datetime | None = None,
) -> DigestEvent:
    at = at or NINE + timedelta(seconds=number)
    notification_id = UUID(int=(0x019A << 112) + number)
    return DigestEvent(notification_id=notification_id, type=kind, occurred_at=at, subject=subject, data=data)


def digest(*events: DigestEvent, **changes: Any) -> DigestEmail:  # noqa: ANN401
    email = DigestEmail(
        email_id=EMAIL_ID,
        organisation="acme",
        environment="production",
        sender="Bellringer <noreply@acme.example>",
        created_at=NINE + timedelta(minutes=5),
        events=events,
    )
    return msgspec.structs.replace(email, **changes)


class Received(NamedTuple):
    message: EmailMessage
    subject: str
    text: str
    html: str


def receive(octets: bytes) -> Received:
    """Reads the message as a strict mail client would: every part, without a defect."""
    message = message_from_bytes(octets, policy=policy.default)
    plain, html = message.iter_parts()
    for part in (message, plain, html):
        assert not part.defects
        assert not [defect for value in part.values() for defect in value.defects]
    assert (plain.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
    text, page = (part.get_content().replace("\r\n", "\n") for part in (plain, html))
    return Received(message, str(message["Subject"]), text, page)


class Page(HTMLParser):
    """What the tests want to know of an HTML document."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.notifications: list[str] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.title = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.notifications.extend(value or "" for name, value in attrs if name == "data-notification")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "title":
            self.title += data.removesuffix("\n")


def ids(email: DigestEmail) -> list[str]:
    return sorted(str(event.notification_id) for event in email.events)


# Any input

PROPERTY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
# What has broken mail software before.
HOSTILE = st.sampled_from(
    [
        "a\r\nBcc: eve@evil.example",
        "nul\0 and \x1b[31m and \x85 and \u2028",
        "lone \ud800 surrogate \udfff",
        "\u202egnp.exe\u2066 hidden \u200b",
        "=?utf-8?q?not_an_encoded_word?=",
        "x" * 10_000,
        "\u8b66\u544a " * 3_000,
        "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 100,
        f"09:00:00  forged  #{EMAIL_ID}",
        f'"><tr data-notification="{EMAIL_ID}"><script>',
        f"--=_{EMAIL_ID.hex}--",
        "{{ 7 * 7 }} {% raw %} <!--% endfor %-->",
        "\t \n ",
    ]
)
TEXTS = st.text(st.characters(), max_size=60) | HOSTILE
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(TEXTS, children, max_size=8),
    max_leaves=20,
)
EVENTS = st.builds(
    event,
    number=st.integers(0, 10_000),
    kind=TEXTS,
    subject=st.none() | TEXTS,
    data=JSON,
    at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
EMAILS = st.builds(
    lambda events, **changes: digest(*sorted(events, key=lambda event: event.occurred_at), **changes),
    st.lists(EVENTS, min_size=1, max_size=20, unique_by=lambda event: event.notification_id),
    organisation=TEXTS,
    environment=TEXTS,
    parts=st.integers(1, 3),
)


@PROPERTY
@given(EMAILS)
@example(digest(event(kind="x" * 10_000, subject="y" * 10_000, data={"k" * 10_000: "v" * 10_000})))
@example(digest(event(kind="", subject="", data=""), organisation="", environment=""))
def test_any_input_gives_a_valid_email_that_shows_every_event_once(email: DigestEmail) -> None:
    octets = compose(email)
    received = receive(octets)
    page = Page(received.html)

    octets.decode("ascii")
    lines = octets.split(b"\r\n")
    assert max(map(len, lines)) <= 78
    assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)
    assert received.message.keys() == HEADERS
    assert sorted(page.notifications) == ids(email)
    assert sorted(TEXT_EVENT.findall(received.text)) == ids(email)
    assert "script" not in page.elements


@PROPERTY
@given(EMAILS)
def test_the_subject_is_one_short_line_of_visible_characters(email: DigestEmail) -> None:
    received = receive(compose(email))

    assert len(received.subject) <= 300
    assert not {unicodedata.category(character) for character in received.subject} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(character) for character in received.subject} & BIDI_CONTROLS
    # The page's title has the same words by another way: what was encoded is what is read.
    assert Page(received.html).title in received.subject


@PROPERTY
@given(EMAILS)
def test_a_retry_sends_the_same_bytes(email: DigestEmail) -> None:
    assert compose(deepcopy(email)) == compose(email)


@PROPERTY
@given(
    st.text(max_size=20)
    | st.builds("{} <{}@{}>".format, TEXTS, st.just("noreply") | TEXTS, st.just("acme.example") | TEXTS)
)
def test_a_sender_is_one_address_or_refused(sender: str) -> None:
    with suppress(InvalidInput):
        assert receive(compose(digest(event(), sender=sender))).message.keys() == HEADERS


# The envelope


def test_headers_name_nobody_and_ask_for_no_answer() -> None:
    message = receive(compose(digest(event()))).message

    assert message["To"] == "undisclosed-recipients:;"
    assert message["From"] == "Bellringer <noreply@acme.example>"
    assert message["Message-ID"] == f"<{EMAIL_ID}@acme.example>"
    assert message["Date"].datetime == NINE + timedelta(minutes=5)
    assert message["Auto-Submitted"] == "auto-generated"
    assert "Precedence" not in message


@pytest.mark.parametrize(
    "sender", ["noreply", "a@b.example, c@d.example", "j\u00f6rg@b.example", "a@b.example\r\nBcc: c@d.example"]
)
def test_a_sender_that_is_not_one_ascii_address_is_refused(sender: str) -> None:
    with pytest.raises(InvalidInput):
        compose(digest(event(), sender=sender))


@pytest.mark.parametrize("count", [0, EVENTS_MAXIMUM + 1])
def test_a_number_of_events_that_no_email_may_hold_is_refused(count: int) -> None:
    with pytest.raises(InvalidInput):
        compose(digest(*(event(number) for number in range(count))))


@pytest.mark.parametrize(
    ("subject", "encoding"),
    [("nightly-import", "quoted-printable"), ("\u591c\u9593\u532f\u5165\u5931\u6557" * 12, "base64")],
)
def test_bodies_take_the_smaller_encoding(subject: str, encoding: str) -> None:
    email = digest(*(event(number, subject=f"{subject} {number}") for number in range(200)))
    _, html = receive(compose(email)).message.iter_parts()

    assert html["Content-Transfer-Encoding"] == encoding


# What it says


@pytest.mark.parametrize(
    ("types", "subjects", "expected"),
    [
        (["task.failed"], ["nightly-import"], "task.failed: nightly-import"),
        (["task.failed"], [None], "task.failed"),
        (["task.failed"] * 12, ["a", "b", "c"] * 4, "12 x task.failed"),
        (["task.failed"] * 12, ["nightly-import"] * 12, "12 x task.failed: nightly-import"),
        (["a", "b", "b"], [None] * 3, "3 events: 2 b, 1 a"),
        (["a", "task.failed", "a"], [None] * 3, "3 events: 1 task.failed, 2 a"),
        (["a", "a", "a", "b", "b", "c"], [None] * 6, "6 events: 3 a, 2 b, 1 c"),
        (["a", "a", "b", "b", "c", "d"], [None] * 6, "6 events: 2 a, 2 b, 2 others"),
    ],
)
def test_the_subject_tells_what_happened(types: list[str], subjects: list[str | None], expected: str) -> None:
    events = [event(number, *pair) for number, pair in enumerate(zip(types, subjects, strict=True))]

    assert receive(compose(digest(*events))).subject == f"[acme/production] {expected}"


def test_the_subject_tells_which_part_of_a_flood_it_is() -> None:
    assert receive(compose(digest(event(), part=2, parts=3))).subject.endswith("nightly-import (part 2 of 3)")


def test_the_text_is_grouped_with_failures_first() -> None:
    email = digest(
        event(0, "task.succeeded", "invoice-export", {"rows": 184220}),
        event(1, "task.succeeded", "weekly-report"),
        event(2, "task.failed", "nightly-import", {"error": {"message": "connection refused " * 6}, "attempt": 3}),
    )

    assert receive(compose(email)).text == (
        "3 events from acme / production\n"
        "20 Nov 2026, 09:00:00 to 09:00:02 UTC\n"
        "\n"
        "task.failed (1)\n"
        "---------------\n"
        "\n"
        "09:00:02  nightly-import  #019a0000-0000-0000-0000-000000000002\n"
        "    error.message: connection refused connection refused connection\n"
        "      refused connection refused connection refused connection refused\n"
        "    attempt: 3\n"
        "\n"
        "task.succeeded (2)\n"
        "------------------\n"
        "\n"
        "09:00:00  invoice-export  #019a0000-0000-0000-0000-000000000000\n"
        "    rows: 184220\n"
        "\n"
        "09:00:01  weekly-report  #019a0000-0000-0000-0000-000000000001\n"
        "\n"
        "-- \n"
        "Sent by Bellringer for acme / production.\n"
        "Times are in UTC. Only the most telling data of an event is shown."
    )


def test_the_day_stands_beside_the_time_only_if_days_differ() -> None:
    one_day = receive(compose(digest(event(0), event(1))))
    two_days = receive(compose(digest(event(0), event(1, at=NINE + timedelta(days=1)))))

    assert "\n09:00:00  nightly-import" in one_day.text
    assert "\n21 Nov 09:00:00  nightly-import" in two_days.text
    assert "20 Nov 2026, 09:00:00 to 21 Nov 2026, 09:00:00 UTC" in two_days.html


PULL_REQUEST = {
    "action": "opened",
    "number": 2,
    "pull_request": {
        "url": "https://api.github.example/repos/acme/site/pulls/2",
        "node_id": "MDExOlB1bGxSZXF1ZXN0Mjc5MTQ3NDM3",
        "state": "open",
        "title": "Update the README with new information.",
        "user": {"login": "octocat", "avatar_url": "https://avatars.example/1"},
        "body": "word " * 200,
        "merge_commit_sha": None,
        "assignees": [],
    },
    "repository": {"id": 186853002, "name": "site", "full_name": "acme/site", "private": False},
    "sender": {"login": "octocat", "id": 21031067, "url": "https://api.github.example/users/octocat"},
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            PULL_REQUEST,
            [
                "action: opened",
                "number: 2",
                "pull_request.title: Update the README with new information.",
                "repository.full_name: acme/site",
                "sender.login: octocat",
                "pull_request.state: open",
            ],
        ),
        ({"error": None, "labels": [], "tags": ["a", "b"]}, ["tags: a, b", "error: null", "labels: []"]),
        ({"a": [{"b": True}, {"b": ""}]}, ["a.0.b: true", 'a.1.b: ""']),
        ({"task": "nightly-import", "rows": 0}, ["rows: 0"]),
        ({str(number): number for number in range(100)}, [f"{number}: {number}" for number in range(6)]),
        ("a plain string", ["a plain string"]),
        ({}, []),
        (False, ["false"]),
    ],
)
def test_data_is_shown_by_its_most_telling_values(data: object, expected: list[str]) -> None:
    text = receive(compose(digest(event(data=data)))).text

    assert [line.strip() for line in text.split("\n") if line.startswith("    ")] == expected


def test_long_values_are_shortened() -> None:
    assert re.search(r"word(?: word){39}\u2026\n", receive(compose(digest(event(data={"log": "word " * 1000})))).html)


def test_an_event_without_a_subject_is_named_after_its_data() -> None:
    text = receive(compose(digest(event(0, subject=None, data={"attempt": 2}), event(1, subject=" ")))).text

    assert "\n09:00:00  attempt: 2  #" in text
    assert "\n09:00:01  no details  #" in text


def test_rare_types_share_a_group() -> None:
    received = receive(compose(digest(*(event(number, f"type.{number}") for number in range(40)))))

    assert len(re.findall("^-+$", received.text, re.MULTILINE)) == 16
    assert "\nOther types (25)\n" in received.text
    assert "  type.39: nightly-import  #" in received.text


# Size and content of the HTML


@pytest.mark.parametrize("count", [1, 50, 200, 600])
def test_the_html_stays_below_the_size_at_which_gmail_cuts_it(count: int) -> None:
    types = ["push", "pull_request", "issues", "task.failed"]
    email = digest(*(event(number, types[number % 4], data=PULL_REQUEST) for number in range(count)))

    assert len(receive(compose(email)).html.encode()) < 102_000


def test_a_thousand_events_are_all_listed_and_some_of_each_type_have_data() -> None:
    types = ["task.failed"] * 9 + ["task.succeeded"]
    email = digest(*(event(number, types[number % 10], data={"rows": number}) for number in range(1000)))
    received = receive(compose(email))

    assert sorted(Page(received.html).notifications) == ids(email)
    assert sorted(TEXT_EVENT.findall(received.text)) == ids(email)
    assert "\n    rows: 0\n" in received.text
    assert "\n    rows: 9\n" in received.text
    assert "\n    rows: 999\n" not in received.text


def test_the_html_has_inlined_styles_a_dark_mode_and_nothing_remote() -> None:
    email = digest(event(0), event(1, "task.succeeded"), event(2, "quota.warning"))
    html = receive(compose(email)).html
    page = Page(html)

    assert {"img", "link", "script", "a"}.isdisjoint(page.elements)
    assert {"src", "href", "background"}.isdisjoint(page.attributes)
    assert "@media (prefers-color-scheme: dark)" in html
    assert '<meta name="color-scheme" content="light dark">' in html
    assert all(re.search(f'class="dot {tone}" style="[^"]*color:', html) for tone in ("failure", "success", "neutral"))
    assert "<!--" not in html
