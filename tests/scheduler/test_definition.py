"""What is a task and what is not."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyreqwest.client import ClientBuilder

from bellringer.kernel.errors import InvalidInput, TooLarge
from bellringer.scheduler.definition import check_definition
from bellringer.scheduler.model import (
    Call,
    FunctionCall,
    HttpCall,
    MessageCall,
    Misfire,
    MisfirePolicy,
    NotificationCall,
    Overlap,
    Retry,
    Schedule,
    TaskDefinition,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
URL = "https://acme.example/reports"
CALL = HttpCall(url=URL)


def check(call: Call = CALL, **fields: Any) -> None:  # noqa: ANN401 - of each its own
    check_definition(TaskDefinition(**{"schedule": Schedule(delay_seconds=5), "call": call, **fields}), now=NOW)


def refused(call: Call = CALL, **fields: Any) -> InvalidInput:  # noqa: ANN401 - of each its own
    with pytest.raises(InvalidInput) as error:
        check(call, **fields)
    return error.value


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "http://acme.example",
        "HTTP://acme.example:8080/a/b?c=d&e=%20#f",
        "http://[::1]:9/",
        "http://10.0.0.1",
        "http://localhost:65535",
        "http://a_b.example/~user/;x=1,2",
        "http://acme.example/a@b",
        "https://xn--bcher-kva.example",
    ],
)
def test_a_url_is_one_that_can_be_called(url: str) -> None:
    check(HttpCall(url=url))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "visible ASCII"),
        ("acme.example/reports", "begins with http"),
        ("//acme.example", "begins with http"),
        ("ftp://acme.example", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("javascript:alert(1)", "begins with http"),
        ("http:acme.example", "begins with http"),
        ("http://", "no host"),
        ("http:///reports", "no host"),
        ("https://?a", "no host"),
        ("http://:80/", "not valid"),
        ("http://ann@acme.example", "user name or password"),
        ("http://ann:secret@acme.example", "user name or password"),
        ("http://@acme.example", "user name or password"),
        ("http://acme.example:0", "port 0"),
        ("http://acme.example:65536", "not valid"),
        ("http://acme.example:-1", "not valid"),
        ("http://acme.example:http", "not valid"),
        ("http://[::1", "not valid"),
        ("http://xn--", "not valid"),
        ("http://bücher.example", "visible ASCII"),
        ("http://acme.example/a b", "visible ASCII"),
        ("http://acme.example\\@other.example", "visible ASCII"),
        ("http://acme.example/\r\nHost: other.example", "visible ASCII"),
        ("http://acme.example/\x00", "visible ASCII"),
        ("http://acme.example/" + "a" * 2000, "at most 2000 characters"),
    ],
)
def test_what_is_no_url_is_refused(url: str, complaint: str) -> None:
    error = refused(HttpCall(url=url))
    assert error.field == "call.url"
    assert complaint in str(error)


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "PURGE"])
def test_a_method_is_any_that_a_request_can_have(method: str) -> None:
    check(HttpCall(url=URL, method=method))


@pytest.mark.parametrize("method", ["", "post", "CONNECT", "TRACE", "GET /", "GET\r\n", "A" * 21, "ÄNDERE"])
def test_any_other_method_is_refused(method: str) -> None:
    assert refused(HttpCall(url=URL, method=method)).field == "call.method"


def test_headers_are_lines_of_ascii() -> None:
    headers = {"Authorization": "Bearer a.b-c", "X-Empty": "", "x_team": "a b\tc", "Host": "other.example"}
    check(HttpCall(url=URL, headers=headers))


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"X-Team": "a\r\nX-Admin: 1"}, "call.headers.X-Team"),
        ({"X-Team": "a\nb"}, "call.headers.X-Team"),
        ({"X-Team": "a\n"}, "call.headers.X-Team"),
        ({"X-Team": "a\x00"}, "call.headers.X-Team"),
        ({"X-Team": " a"}, "call.headers.X-Team"),
        ({"X-Team": "ü"}, "call.headers.X-Team"),
        ({"Idempotency-Key": "1"}, "call.headers.Idempotency-Key"),
        ({"bellringer-attempt": "1"}, "call.headers.bellringer-attempt"),
        ({"Content-Length": "1"}, "call.headers.Content-Length"),
        ({"Transfer-Encoding": "chunked"}, "call.headers.Transfer-Encoding"),
        ({"a": "1", "A": "2"}, "call.headers.A"),
        ({"": "a"}, "call.headers"),
        ({"X Team": "a"}, "call.headers"),
        ({"X-Team:": "a"}, "call.headers"),
        ({"X-Team\r\n": "a"}, "call.headers"),
        ({"a" * 101: "a"}, "call.headers"),
        ({"a": "b" * 8000}, "call.headers"),
        ({f"a{number}": "" for number in range(51)}, "call.headers"),
    ],
)
def test_headers_that_could_be_taken_for_something_else_are_refused(headers: dict[str, str], field: str) -> None:
    assert refused(HttpCall(url=URL, headers=headers)).field == field


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (MessageCall(queue="no queue"), "call.queue"),
        (MessageCall(queue=""), "call.queue"),
        (MessageCall(queue="orders", group=""), "call.group"),
        (MessageCall(queue="orders", group="a\x00"), "call.group"),
        (MessageCall(queue="orders", group="\ud800"), "call.group"),
        (MessageCall(queue="orders", group="a" * 129), "call.group"),
        (NotificationCall(event_type="", recipients=["a@b"]), "call.event_type"),
        (NotificationCall(event_type="a" * 201, recipients=["a@b"]), "call.event_type"),
        (NotificationCall(event_type="a", recipients=[]), "call.recipients"),
        (NotificationCall(event_type="a", recipients=["a@b"] * 10_001), "call.recipients"),
        (NotificationCall(event_type="a", recipients=["a@b", "ann"]), "call.recipients[1]"),
        (NotificationCall(event_type="a", recipients=["@b"]), "call.recipients[0]"),
        (NotificationCall(event_type="a", recipients=["a@b\nBcc: c@d"]), "call.recipients[0]"),
        (NotificationCall(event_type="a", recipients=["a@b"], subject="a\r\nb"), "call.subject"),
        (FunctionCall(name=""), "call.name"),
        (FunctionCall(name="__import__('os')"), "call.name"),
    ],
)
def test_other_calls_are_checked_as_far_as_can_be_said(call: Call, field: str) -> None:
    assert refused(call).field == field


@pytest.mark.parametrize(
    "call",
    [
        MessageCall(queue="orders"),
        MessageCall(queue="orders.fifo", group="Ann Müller"),
        NotificationCall(event_type="report.due", recipients=["ann@acme.example"], subject="Größe: 7 €"),
        FunctionCall(name="send_invoice"),
    ],
)
def test_other_calls_that_can_be_made_are_taken(call: Call) -> None:
    check(call)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"nul", b'{"a": NaN}', b"\xff", b'"\xff"', b"[" * 10_000, b"1e999", b"1 2", b"[1,]", b"9" * 5000],
)
def test_a_payload_that_is_no_json_is_refused(payload: bytes) -> None:
    assert refused(payload=msgspec.Raw(payload)).field == "payload"


def test_a_payload_has_a_largest_size() -> None:
    check(payload=msgspec.Raw(b'"' + b"a" * (256 * 1024 - 2) + b'"'))
    error = refused(payload=msgspec.Raw(b'"' + b"a" * (256 * 1024 - 1) + b'"'))
    assert isinstance(error, TooLarge)
    assert error.field == "payload"


@pytest.mark.parametrize("payload", [b"null", b"{}", b'{"a": 1}'])
def test_the_payload_of_a_function_is_an_object(payload: bytes) -> None:
    check(FunctionCall(name="work"), payload=msgspec.Raw(payload))


@pytest.mark.parametrize("payload", [b"1", b'"a"', b"[]", b"false"])
def test_any_other_payload_of_a_function_is_refused(payload: bytes) -> None:
    assert refused(FunctionCall(name="work"), payload=msgspec.Raw(payload)).field == "payload"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("time_limit_seconds", {"time_limit_seconds": 0.0}),
        ("time_limit_seconds", {"time_limit_seconds": 7 * 24 * 3600 + 1}),
        ("time_limit_seconds", {"time_limit_seconds": float("nan")}),
        ("time_limit_seconds", {"time_limit_seconds": float("inf")}),
        ("misfire.limit", {"misfire": MisfirePolicy(policy=Misfire.ALL, limit=0)}),
        ("misfire.limit", {"misfire": MisfirePolicy(policy=Misfire.ALL, limit=1001)}),
        ("misfire.window_seconds", {"misfire": MisfirePolicy(policy=Misfire.WINDOW, window_seconds=-1)}),
        ("misfire.window_seconds", {"misfire": MisfirePolicy(policy=Misfire.WINDOW, window_seconds=float("inf"))}),
        ("retry.max_retries", {"retry": Retry(max_retries=-1)}),
        ("retry.max_retries", {"retry": Retry(max_retries=101)}),
        ("retry.first_seconds", {"retry": Retry(first_seconds=0.0)}),
        ("retry.cap_seconds", {"retry": Retry(first_seconds=10, cap_seconds=9)}),
        ("retry.cap_seconds", {"retry": Retry(cap_seconds=float("nan"))}),
        ("schedule.cron", {"schedule": Schedule(cron="61 * * * *")}),
        ("schedule.at", {"schedule": Schedule(at=datetime(2020, 1, 1, tzinfo=UTC))}),
    ],
)
def test_what_is_out_of_range_names_its_field(field: str, fields: dict[str, Any]) -> None:
    assert refused(**fields).field == field


# Whatever comes, it is a task or it is refused

NASTY = st.text(st.sampled_from("aZ09:/@?#[]\\%.-_ \t\r\n\x00é\ud800\u202e")) | st.text()
NUMBERS = st.floats() | st.integers(-(10**30), 10**30) | st.sampled_from([0.001, 1.0, 10.0, 3600.0])
URLS = NASTY | st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https", "HTTP", "ftp"]),
    NASTY,
    st.sampled_from(["", ":80", "/a", "?b"]),
)
CALLS = st.one_of(
    st.builds(
        HttpCall,
        url=URLS | st.just(URL),
        method=st.just("POST") | NASTY,
        headers=st.dictionaries(NASTY, NASTY, max_size=3),
    ),
    st.builds(MessageCall, queue=NASTY | st.just("orders"), group=st.none() | NASTY),
    st.builds(
        NotificationCall,
        event_type=NASTY | st.just("a"),
        recipients=st.lists(NASTY | st.just("a@b"), max_size=3),
        subject=st.none() | NASTY,
    ),
    st.builds(FunctionCall, name=NASTY | st.just("work")),
)
SCHEDULES = st.builds(
    Schedule,
    at=st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()),
    delay_seconds=st.none() | NUMBERS,
    cron=st.none() | NASTY | st.text("0123456789*/,-L# @", max_size=20),
    time_zone=st.just("UTC") | NASTY,
    every_seconds=st.none() | NUMBERS,
    starting_at=st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()),
)
DEFINITIONS = st.builds(
    TaskDefinition,
    schedule=SCHEDULES | st.just(Schedule(delay_seconds=1)),
    call=CALLS,
    payload=st.builds(msgspec.Raw, st.binary(max_size=20) | st.sampled_from([b"null", b"{}"])),
    misfire=st.builds(
        MisfirePolicy, policy=st.sampled_from(Misfire), limit=st.just(1) | st.integers(), window_seconds=NUMBERS
    ),
    overlap=st.none() | st.sampled_from(Overlap),
    time_limit_seconds=NUMBERS,
    retry=st.builds(Retry, max_retries=st.just(0) | st.integers(), first_seconds=NUMBERS, cap_seconds=NUMBERS),
)


@settings(max_examples=500)
@given(definition=DEFINITIONS)
def test_a_definition_is_taken_or_refused_with_a_field_and_nothing_else_happens(definition: TaskDefinition) -> None:
    field: str | None = "schedule"
    try:
        check_definition(definition, now=NOW)
    except InvalidInput as error:
        field = error.field
    assert field is not None
    assert field.partition(".")[0] in TaskDefinition.__struct_fields__


@settings(max_examples=500)
@given(
    url=URLS | st.text(string.printable).map("http://{}".format),
    headers=st.dictionaries(st.text(string.printable, max_size=5), st.text(string.printable, max_size=5), max_size=2),
)
def test_what_is_taken_can_be_sent_to_the_host_that_it_names(url: str, headers: dict[str, str]) -> None:
    try:
        check(HttpCall(url=url, headers=headers))
    except InvalidInput:
        return
    request = CLIENT.request("POST", url).headers(headers).build_streamed()
    assert request.url.scheme in {"http", "https"}
    assert request.url.host_str
    assert (request.url.username, request.url.password) == ("", None)
    assert {name.lower(): value for name, value in headers.items()} == dict(request.headers)


CLIENT = ClientBuilder().build()
