"""Bodies of `POST /v1/events`, understood or refused. No database is needed for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bellringer.kernel.errors import InvalidInput, TooLarge, UnsupportedFormat
from bellringer.notifications.intake import Intake, read_events
from bellringer.notifications.model import LONGEST_DATA_BYTES, NewNotification, Submission

ANN, BOB = "ann@acme.example", "bob@acme.example"
PLAIN, CLOUD, BATCH = "application/json", "application/cloudevents+json", "application/cloudevents-batch+json"


def event(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON holds
    return {"type": "task.failed", "recipients": [ANN], **fields}


def cloud_event(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"specversion": "1.0", "id": "1", "source": "/tasks", "type": "task.failed", "recipients": ANN, **fields}


def read(content: object, content_type: str = PLAIN, **headers: str) -> Intake:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_events({"content-type": content_type, **named}, body)


def only(intake: Intake) -> NewNotification:
    (submission,) = intake.submissions
    (notification,) = submission.notifications
    return notification


def fault_of(content: object, content_type: str = PLAIN, **headers: str) -> str | None:
    with pytest.raises(InvalidInput) as refused:
        read(content, content_type, **headers)
    return refused.value.field


def test_a_plain_event_is_understood() -> None:
    intake = read(
        event(
            recipients=["Bob@ACME.example", ANN, BOB],
            data={"b": 1, "a": [1.50, None]},
            subject="nightly-import",
            source="/tasks/1",
            time="2026-01-05T10:00:00+02:00",
        )
    )
    assert intake.is_batch is False
    assert intake.submissions[0].idempotency_key is None
    notification = only(intake)
    assert (notification.type, notification.subject, notification.source) == (
        "task.failed",
        "nightly-import",
        "/tasks/1",
    )
    assert notification.recipients == (ANN, BOB)
    assert notification.data == '{"b":1,"a":[1.5,null]}'
    assert notification.occurred_at == datetime(2026, 1, 5, 8, tzinfo=UTC)


def test_data_keeps_the_spelling_that_it_came_in() -> None:
    text = '{"b" : 1.50e2, "a":"\\u00fc", "b":2}'
    body = f'{{"type": "t", "recipients": ["{ANN}"], "data": {text}}}'.encode()
    assert only(read(body)).data == text


@pytest.mark.parametrize(("fields", "data"), [({}, None), ({"data": None}, "null"), ({"data": 0}, "0")])
def test_no_data_is_told_from_data_that_is_null(fields: dict[str, Any], data: str | None) -> None:
    assert only(read(event(**fields))).data == data


def test_ids_are_drawn_in_the_order_of_a_batch() -> None:
    intake = read([event(subject=f"{number}") for number in range(100)])
    assert intake.is_batch is True
    (submission,) = intake.submissions
    assert [notification.subject for notification in submission.notifications] == [f"{n}" for n in range(100)]
    ids = [notification.id for notification in submission.notifications]
    assert ids == sorted(ids)


@pytest.mark.parametrize("content_type", [PLAIN, "application/json; charset=utf-8", "Application/JSON"])
def test_a_content_type_may_be_spelt_as_it_likes(content_type: str) -> None:
    assert only(read(event(), content_type)).type == "task.failed"


def test_without_a_content_type_a_body_is_json() -> None:
    assert only(read_events({}, msgspec.json.encode(event()))).type == "task.failed"


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "application/cloudevents+avro", ""])
def test_another_format_is_not_supported(content_type: str) -> None:
    with pytest.raises(UnsupportedFormat) as refused:
        read(event(), content_type)
    assert refused.value.field == "Content-Type"


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"null", "body"),
        (b"[]", "body"),
        (b"[1]", "[0]"),
        (b"\xff", "body"),
        (b"[" * 100_000, "[0]"),
        (b'{"type": "t", "recipients": [], "data": ' + b"[" * 100_000, "body"),
        ({"recipients": [ANN]}, "type"),
        ({"type": "t"}, "recipients"),
        (event(type=""), "type"),
        (event(type="t" * 201), "type"),
        (event(type="a\nb"), "type"),
        (event(type=1), "type"),
        (event(subject=""), "subject"),
        (event(subject="s" * 501), "subject"),
        (event(source=""), "source"),
        (event(source="s" * 256), "source"),
        (event(time="2026-01-05T10:00:00"), "time"),
        (event(time="yesterday"), "time"),
        (event(time=0), "time"),
        (event(time="0001-01-01T00:00:00Z"), "time"),
        (event(time="1899-12-31T23:59:59Z"), "time"),
        (event(time="9999-12-31T23:59:59.999999Z"), "time"),
        (event(time="0001-01-01T00:00:00+14:00"), "time"),
        (event(recipients=[]), "recipients"),
        (event(recipients=ANN), "recipients"),
        (event(recipients=[ANN, "b"]), "recipients[1]"),
        (event(recipients=[ANN, 1]), "recipients[1]"),
        (event(recipients=[ANN] * 10_001), "recipients"),
        (event(recipient=ANN), "recipient"),
        ([event(), event(), event(recipients=["b"])], "[2].recipients[0]"),
        ([event(), event(), event(recipients=[1])], "[2].recipients[0]"),
        ([event(), event(type="")], "[1].type"),
        ([event(), {"type": "t"}], "[1].recipients"),
        ([event(recipients=[])], "[0].recipients"),
        ([event()] * 1001, "body"),
        (b'{"type": "t", "recipients": ["ann@acme.example"], "data": "\xff"}', "data"),
        (b'{"type": "\\ud800", "recipients": ["ann@acme.example"]}', "body"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_wrong_with_a_plain_event_is_named(content: object, field: str) -> None:
    assert fault_of(content) == field


def test_data_has_a_limit_in_bytes() -> None:
    largest = "ä" * (LONGEST_DATA_BYTES // 2 - 1)
    assert only(read(event(data=largest))).data == f'"{largest}"'
    with pytest.raises(TooLarge) as refused:
        read([event(), event(data=largest + "x")])
    assert refused.value.field == "[1].data"


def test_a_cloud_event_in_structured_mode_is_understood() -> None:
    intake = read(
        cloud_event(
            recipients=f"{BOB}, {ANN}",
            subject="nightly-import",
            time="2026-01-05T10:00:00Z",
            datacontenttype="application/json",
            dataschema="https://acme.example/schema",
            traceparent="00-abc",
            data={"error": "timeout"},
        ),
        CLOUD,
    )
    assert intake.is_batch is False
    notification = only(intake)
    assert (notification.source, notification.type, notification.subject) == ("/tasks", "task.failed", "nightly-import")
    assert notification.recipients == (ANN, BOB)
    assert notification.data == '{"error":"timeout"}'


@pytest.mark.parametrize(
    "named_in",
    [
        {"recipients": ANN},
        {"recipients": f" {ANN} , {ANN}"},
        {"recipients": [ANN]},
        {"recipients": None, "data": {"recipients": [ANN], "error": "timeout"}},
        {"recipients": [ANN], "data": {"recipients": [BOB]}},
    ],
)
def test_a_cloud_event_names_its_recipients_in_an_attribute_or_in_its_data(named_in: dict[str, Any]) -> None:
    assert only(read(cloud_event(**named_in), CLOUD)).recipients == (ANN,)


def test_binary_data_is_kept_as_its_base64() -> None:
    assert only(read(cloud_event(data_base64="AAH/"), CLOUD)).data == '"AAH/"'


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (cloud_event(specversion="0.3"), "specversion"),
        ({"specversion": "1.0", "source": "/tasks", "type": "t"}, "id"),
        (cloud_event(id=""), "id"),
        (cloud_event(id="1\n"), "id"),
        (cloud_event(id=1), "id"),
        (cloud_event(source=""), "source"),
        (cloud_event(source="a\nb"), "source"),
        (cloud_event(type=""), "type"),
        (cloud_event(recipients=None), "recipients"),
        (cloud_event(recipients=None, data={"recipients": ANN}), "recipients"),
        (cloud_event(recipients=None, data="hello"), "recipients"),
        (cloud_event(recipients=""), "recipients[0]"),
        (cloud_event(recipients=f"{ANN},"), "recipients[1]"),
        (cloud_event(recipients=[]), "recipients"),
        (cloud_event(data={}, data_base64="AAAA"), "data_base64"),
        (cloud_event(data_base64="%"), "data_base64"),
        (cloud_event(time="2026-01-05"), "time"),
        ([cloud_event()], "body"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_wrong_with_a_cloud_event_is_named(content: object, field: str) -> None:
    assert fault_of(content, CLOUD) == field


def test_what_is_wrong_with_one_event_of_a_batch_is_named_with_its_place() -> None:
    assert fault_of([cloud_event(), cloud_event(recipients="b")], BATCH) == "[1].recipients[0]"
    assert fault_of([cloud_event(), cloud_event(specversion="2.0")], BATCH) == "[1].specversion"
    assert fault_of([], BATCH) == "body"
    assert fault_of(cloud_event(), BATCH) == "body"


def test_binary_mode_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedFormat) as refused:
        read(event(), ce_specversion="1.0", ce_type="t", ce_id="1", ce_source="/")
    assert refused.value.field == "ce-specversion"


def test_a_cloud_event_is_known_by_its_source_and_id() -> None:
    intake = read([cloud_event(id="1"), cloud_event(id="2"), cloud_event(id="1", source="/other")], BATCH)
    keys = [submission.idempotency_key for submission in intake.submissions]
    assert len(set(keys)) == 3
    assert [submission.fingerprint for submission in intake.submissions] == [None] * 3
    again = read(cloud_event(id="1", data="changed", time="2026-01-05T10:00:00Z"), CLOUD)
    assert again.submissions[0].idempotency_key == keys[0]


Name = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=10)


@given(one=st.tuples(Name, Name), other=st.tuples(Name, Name), header=Name)
@example(one=("a b", "c"), other=("a", "b c"), header="a b c")
def test_no_two_pairs_of_source_and_id_nor_a_key_of_a_header_are_mistaken_for_each_other(
    one: tuple[str, str], other: tuple[str, str], header: str
) -> None:
    keys = [
        read(cloud_event(source=source, id=name), CLOUD).submissions[0].idempotency_key for source, name in (one, other)
    ]
    assert (keys[0] == keys[1]) == (one == other)
    assert read(event(), idempotency_key=header).submissions[0].idempotency_key not in keys


def test_a_key_of_the_request_stands_before_those_of_its_events() -> None:
    (submission,) = read([cloud_event(id="1"), cloud_event(id="2")], BATCH, idempotency_key="k").submissions
    assert submission.idempotency_key == "k"
    assert len(submission.notifications) == 2
    assert submission.fingerprint is not None


def test_the_fingerprint_is_that_of_the_body() -> None:
    fingerprints = {
        read(content, idempotency_key="k").submissions[0].fingerprint
        for content in (event(), event(), event(subject="other"), [event()])
    }
    assert len(fingerprints) == 3


@pytest.mark.parametrize("key", ["", "k" * 256, "a\tb"])
def test_a_key_that_is_empty_too_long_or_invisible_is_refused(key: str) -> None:
    assert fault_of(event(), idempotency_key=key) == "Idempotency-Key"


Json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
Instants = st.datetimes(timezones=st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours))))
PlainEvents = st.fixed_dictionaries(
    {"type": st.text(max_size=210) | Json, "recipients": st.lists(st.emails() | st.text(), max_size=3) | Json},
    optional={"data": Json, "subject": st.text() | Json, "source": st.text() | Json, "time": Instants | Json},
)
CloudEvents = st.fixed_dictionaries(
    {"specversion": st.just("1.0"), "id": st.text(), "source": st.text(), "type": st.text(min_size=1)},
    optional={"recipients": st.emails() | Json, "data": Json, "data_base64": st.text(), "time": Instants | Json},
)


@given(
    content=st.binary() | st.builds(msgspec.json.encode, Json | PlainEvents | CloudEvents | st.lists(PlainEvents)),
    content_type=st.sampled_from([PLAIN, CLOUD, BATCH]),
)
def test_any_body_is_understood_or_refused_by_name(content: bytes, content_type: str) -> None:
    refusal = None
    submissions: tuple[Submission, ...] = ()
    try:
        submissions = read(content, content_type).submissions
    except InvalidInput as error:
        refusal = error
    assert bool(submissions) == (refusal is None)
    assert refusal is None or refusal.field
    for notification in (notification for submission in submissions for notification in submission.notifications):
        assert notification.recipients == tuple(sorted(set(notification.recipients)))
        assert len(notification.recipients) >= 1
        assert notification.data is None or msgspec.json.decode(notification.data) is not ...
