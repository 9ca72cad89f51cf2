"""Attributes of messages: their rules, their MD5 (those that the service itself computed), and how they are stored."""

from __future__ import annotations

import msgspec
import pytest

from bellringer.broker.sqs.errors import INVALID_PARAMETER_VALUE, UNSUPPORTED_OPERATION, SqsError
from bellringer.broker.sqs.message_attributes import (
    check_attributes,
    check_system_attributes,
    from_stored,
    md5_of,
    select,
    size_of,
    to_answer,
    to_stored,
    trace_header_of,
)
from bellringer.broker.sqs.requests import AttributeValue


def text(value: str, data_type: str = "String") -> AttributeValue:
    return AttributeValue(data_type=data_type, string_value=value)


def binary(value: bytes, data_type: str = "Binary") -> AttributeValue:
    return AttributeValue(data_type=data_type, binary_value=value)


def test_the_md5_is_what_the_service_answers() -> None:
    trace = binary(b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")
    assert md5_of({"MyAttribute": text("foobar")}) == "adb59cd4678ea5a855436b949cd07ab6"
    assert md5_of({"attr1": trace}) == "8cbe4db156db8a94db8b801b7addb984"
    assert md5_of({}) is None


def test_the_md5_does_not_depend_on_the_order() -> None:
    one, other = {"a": text("1"), "b": text("2")}, {"b": text("2"), "a": text("1")}
    assert md5_of(one) == md5_of(other) != md5_of({"a": text("2"), "b": text("1")})


GOOD = {
    "String": text("red"),
    "Number": text("-12.5e3", "Number"),
    "Binary": binary(b"\0\xff"),
    "custom": text("7", "Number.int"),
    "picture": binary(b"GIF", "Binary.gif"),
    "uuid": text("x", "String.uuid"),
    "name.with-every_kind": text("\t\n\r \ud7ff\U0010ffff"),
    "unicode1øßä": text("x"),
    "L" * 256: text("x"),
}


def test_every_type_is_taken() -> None:
    check_attributes(GOOD)


@pytest.mark.parametrize("name", ["", ".a", "a.", "a..b", "aWs.x", "AMAZON.x", "a!", "a b", 'a"', "L" * 257, "a:b"])
def test_a_name_that_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(SqsError) as error:
        check_attributes({name: text("x")})
    assert error.value.kind is INVALID_PARAMETER_VALUE


BAD_VALUES = [
    text("x", "Text"),
    text("x", ""),
    text("x", "String."),
    text("x", "Stringly"),
    text("1", "Number." + "L" * 256),
    text(""),
    AttributeValue(data_type="String"),
    binary(b"x", "String"),
    text("eA==", "Binary"),
    binary(b""),
    AttributeValue(data_type="String", string_value="x", binary_value=b"x"),
    text("bell\a"),
    text("\ufffe"),
    *(text(number, "Number") for number in ("", "x", "nan", "inf", "1_000", "0x10", "1e", "\u0663", "1 ", "1\n")),
]


@pytest.mark.parametrize("value", BAD_VALUES)
def test_a_value_that_is_not_of_its_type_is_refused(value: AttributeValue) -> None:
    with pytest.raises(SqsError) as error:
        check_attributes({"good": text("x"), "bad": value})
    assert error.value.kind is INVALID_PARAMETER_VALUE


def test_lists_are_not_supported() -> None:
    value = AttributeValue(data_type="String", string_value="x", string_list_values=["x"])
    with pytest.raises(SqsError) as error:
        check_attributes({"list": value})
    assert error.value.kind is UNSUPPORTED_OPERATION


def test_a_message_has_ten_attributes_at_most() -> None:
    check_attributes({str(number): text("x") for number in range(10)})
    with pytest.raises(SqsError, match=r"\[11\] exceeds the allowed maximum \[10\]"):
        check_attributes({str(number): text("x") for number in range(11)})


def test_the_only_system_attribute_is_a_trace_header() -> None:
    check_system_attributes({"AWSTraceHeader": text("Root=1-5759e988")})
    for wrong in ({"Other": text("x")}, {"AWSTraceHeader": binary(b"x")}, {"AWSTraceHeader": text("")}):
        with pytest.raises(SqsError):
            check_system_attributes(wrong)


def test_the_size_counts_names_types_and_values() -> None:
    assert size_of({"ä": text("red"), "b": binary(b"12")}) == (2 + 6 + 3) + (1 + 6 + 2)


def test_what_is_stored_comes_back() -> None:
    stored = to_stored(GOOD, {"AWSTraceHeader": text("Root=1")})
    stored = msgspec.json.decode(msgspec.json.encode(stored))
    assert from_stored(stored) == GOOD
    assert trace_header_of(stored) == "Root=1"
    assert stored["String"] == "red"  # readable as it is over the other API
    assert stored["Number"] == {"type": "Number", "value": "-12.5e3"}


def test_what_others_stored_is_shown_as_well_as_can_be() -> None:
    others = {
        "text": "red",
        "number": 5,
        "fraction": 0.5,
        "truth": True,
        "nothing": None,
        "list": [1, "a"],
        "odd type": {"type": "Text", "value": "x"},
        "no base64": {"type": "Binary", "value": "§"},
    }
    assert from_stored(others) == {
        "text": text("red"),
        "number": text("5", "Number"),
        "fraction": text("0.5", "Number"),
        "truth": text("true"),
        "nothing": text("null"),
        "list": text('[1,"a"]'),
        "odd type": text('{"type":"Text","value":"x"}'),
        "no base64": text('{"type":"Binary","value":"§"}'),
    }


def test_a_client_gets_the_attributes_that_it_names() -> None:
    attributes = {name: text("x") for name in ("trace.id", "trace.span", "trace", "colour")}

    def selected(*wanted: str) -> set[str]:
        return set(select(attributes, wanted))

    assert selected() == set()
    assert selected("colour", "nothing") == {"colour"}
    assert selected("trace.*") == {"trace.id", "trace.span"}
    assert selected("trace.*", "trace") == {"trace.id", "trace.span", "trace"}
    assert selected("All") == selected(".*") == set(attributes)


def test_an_answer_has_the_value_in_the_field_of_its_type() -> None:
    assert to_answer({"a": text("1", "Number"), "b": binary(b"\0")}) == {
        "a": {"StringValue": "1", "DataType": "Number"},
        "b": {"BinaryValue": b"\0", "DataType": "Binary"},
    }
