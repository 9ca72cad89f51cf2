"""Attributes of messages: their rules, their MD5, and how they are stored beside the message.

Stored as JSON, so that who reads the same message over Bellringer's own API can use them: an attribute of the type
String as its text, any other as `{"type": "Number", "value": "5"}`, with base64 as the value of a Binary. The other way
round, what was published over that API with attributes of its own shows as String or Number, or as JSON text.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from bellringer.broker.sqs.errors import INVALID_PARAMETER_VALUE, UNSUPPORTED_OPERATION, SqsError
from bellringer.broker.sqs.names import INVALID_CHARACTERS
from bellringer.broker.sqs.requests import AttributeValue

MOST_ATTRIBUTES = 10
TRACE_HEADER = "AWSTraceHeader"

_LONGEST_NAME = 256
_LONGEST_TYPE = 256
_NAME = re.compile(r"[\w.-]+")
_TYPE = re.compile(r"(?P<logical>String|Number|Binary)(\..+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_RESERVED = ("aws.", "amazon.")
# No user may name an attribute so: a colon is not among the characters of a name.
_TRACE_HEADER_KEY = "aws:trace-header"
_GROUP_KEY = "aws:message-group-id"
_OURS = (_TRACE_HEADER_KEY, _GROUP_KEY)
_TEXT, _BYTES = b"\x01", b"\x02"


def check_attributes(attributes: Mapping[str, AttributeValue]) -> None:
    """Raise `SqsError` for a user's attributes that are not allowed."""
    if len(attributes) > MOST_ATTRIBUTES:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MOST_ATTRIBUTES}].",
        )
    for name, value in attributes.items():
        _check_name(name)
        _check_value(name, value)


def check_system_attributes(attributes: Mapping[str, AttributeValue]) -> None:
    """Raise `SqsError` for system attributes other than a trace header."""
    for name, value in attributes.items():
        if name != TRACE_HEADER:
            raise SqsError(INVALID_PARAMETER_VALUE, f"Message system attribute name '{name}' is invalid.")
        _check_value(name, value, kind="system")
        if value.data_type != "String":
            raise SqsError(
                INVALID_PARAMETER_VALUE, f"The message system attribute '{name}' must be of the type 'String'."
            )


def size_of(attributes: Mapping[str, AttributeValue]) -> int:
    """What attributes add to the size of a message, in bytes."""
    return sum(
        len(name.encode()) + len(value.data_type.encode()) + len(_value_bytes(value))
        for name, value in attributes.items()
    )


def md5_of(attributes: Mapping[str, AttributeValue]) -> str | None:
    """The MD5 that clients compare with their own; None without attributes."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        for part in (name.encode(), value.data_type.encode()):
            digest.update(struct.pack(">I", len(part)) + part)
        content = _value_bytes(value)
        digest.update(_BYTES if _logical_type(value) == "Binary" else _TEXT)
        digest.update(struct.pack(">I", len(content)) + content)
    return digest.hexdigest()


def md5_of_text(text: str) -> str:
    """The MD5 of a message's body."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def to_stored(
    attributes: Mapping[str, AttributeValue],
    system_attributes: Mapping[str, AttributeValue],
    group: str | None = None,
) -> dict[str, Any]:
    """Attributes as they are stored beside the message; with the group that a queue without order knows nothing of."""
    stored: dict[str, Any] = {}
    for name, value in attributes.items():
        if value.data_type == "String":
            stored[name] = value.string_value
        elif value.binary_value is not None:
            stored[name] = {"type": value.data_type, "value": base64.b64encode(value.binary_value).decode()}
        else:
            stored[name] = {"type": value.data_type, "value": value.string_value}
    if trace_header := system_attributes.get(TRACE_HEADER):
        stored[_TRACE_HEADER_KEY] = trace_header.string_value
    if group is not None:
        stored[_GROUP_KEY] = group
    return stored


def from_stored(stored: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """The user's attributes out of what is stored, whoever published it."""
    return {name: _from_stored(value) for name, value in stored.items() if name not in _OURS}


def trace_header_of(stored: Mapping[str, Any]) -> str | None:
    """The trace header out of what is stored."""
    return _text(stored.get(_TRACE_HEADER_KEY))


def group_of(stored: Mapping[str, Any]) -> str | None:
    """The group of a message of a standard queue out of what is stored."""
    return _text(stored.get(_GROUP_KEY))


def select(attributes: Mapping[str, AttributeValue], wanted: Collection[str]) -> dict[str, AttributeValue]:
    """Those attributes that a client asks for: by name, by the beginning of a name (`trace.*`), or `All`."""
    if "All" in wanted or ".*" in wanted:
        return dict(attributes)
    beginnings = tuple(name.removesuffix("*") for name in wanted if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in wanted or name.startswith(beginnings)}


def to_answer(attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    """Attributes as an answer holds them."""
    return {
        name: (
            {"BinaryValue": value.binary_value, "DataType": value.data_type}
            if value.binary_value is not None
            else {"StringValue": value.string_value, "DataType": value.data_type}
        )
        for name, value in attributes.items()
    }


def _from_stored(stored: Any) -> AttributeValue:  # noqa: ANN401 - any JSON: others publish too
    match stored:
        case str():
            return AttributeValue(data_type="String", string_value=stored)
        case bool():
            return AttributeValue(data_type="String", string_value=str(stored).lower())
        case int() | float():
            return AttributeValue(data_type="Number", string_value=str(stored))
        case {"type": str(data_type), "value": str(value)} if _TYPE.fullmatch(data_type):
            if not data_type.startswith("Binary"):
                return AttributeValue(data_type=data_type, string_value=value)
            with suppress(ValueError):  # whoever wrote it did not mean what SQS means
                return AttributeValue(data_type=data_type, binary_value=base64.b64decode(value, validate=True))
    return AttributeValue(data_type="String", string_value=msgspec.json.encode(stored).decode())


def _text(stored: object) -> str | None:
    return stored if isinstance(stored, str) else None


def _check_name(name: str) -> None:
    wrong = (
        not _NAME.fullmatch(name)
        or len(name) > _LONGEST_NAME
        or name.lower().startswith(_RESERVED)
        or name.startswith(".")
        or name.endswith(".")
        or ".." in name
    )
    if wrong:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"The message attribute name '{name}' is invalid. A name has 1 to {_LONGEST_NAME} letters, digits, "
            "underscores, hyphens and single periods, no period first or last, and does not start with AWS. or Amazon.",
        )


def _check_value(name: str, value: AttributeValue, *, kind: str = "user") -> None:
    type_ = _TYPE.fullmatch(value.data_type)
    if type_ is None or len(value.data_type) > _LONGEST_TYPE:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"The type of message ({kind}) attribute '{name}' is invalid. You must use only the following supported "
            f"type prefixes: Binary, Number, String.",
        )
    if value.string_list_values or value.binary_list_values:
        raise SqsError(UNSUPPORTED_OPERATION, "Message attribute list values are not supported.")
    logical = type_["logical"]
    values: tuple[str | bytes | None, str | bytes | None] = value.string_value, value.binary_value
    given, other = reversed(values) if logical == "Binary" else values
    if not given or other is not None:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"Message ({kind}) attribute '{name}' must contain a non-empty value of type '{logical}'.",
        )
    if isinstance(given, str) and INVALID_CHARACTERS.search(given):
        raise SqsError(
            INVALID_PARAMETER_VALUE, f"Message ({kind}) attribute '{name}' has characters that are not allowed."
        )
    if logical == "Number" and not _NUMBER.fullmatch(str(given)):
        raise SqsError(
            INVALID_PARAMETER_VALUE, f"Can't cast the value of message ({kind}) attribute '{name}' to a number."
        )


def _logical_type(value: AttributeValue) -> str:
    return value.data_type.partition(".")[0]


def _value_bytes(value: AttributeValue) -> bytes:
    return value.binary_value if value.binary_value is not None else (value.string_value or "").encode()
