from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.edge.decoding import decode_json, invalid_input
from bellringer.kernel.errors import InvalidInput


class Bird(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    eggs: Annotated[int, msgspec.Meta(ge=0, le=12)] = 0
    weight: float | None = None
    seen: list[Annotated[datetime, msgspec.Meta(tz=True)]] = []
    songs: dict[str, int] = {}


ONE = msgspec.json.Decoder(Bird)
MANY = msgspec.json.Decoder(list[Bird])


def fault(body: bytes, decoder: msgspec.json.Decoder[Bird] | msgspec.json.Decoder[list[Bird]] = ONE) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        decode_json(body, decoder)
    return raised.value


def test_a_valid_body_becomes_its_record() -> None:
    assert decode_json(b'{"name": "wren", "eggs": 5}', ONE) == Bird(name="wren", eggs=5)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"eggs": 1}', "name"),
        (b'{"name": 5}', "name"),
        (b'{"name": null}', "name"),
        (b'{"name": "wren", "eggs": "5"}', "eggs"),
        (b'{"name": "wren", "eggs": 1.5}', "eggs"),
        (b'{"name": "wren", "eggs": true}', "eggs"),
        (b'{"name": "wren", "eggs": -1}', "eggs"),
        (b'{"name": "wren", "eggs": 13}', "eggs"),
        (b'{"name": "wren", "eggs": 1' + b"0" * 1000 + b"}", "eggs"),
        (b'{"name": "wren", "colour": "brown"}', "colour"),
        (b'{"name": "wren", "seen": {}}', "seen"),
        (b'{"name": "wren", "seen": ["2026-01-01T00:00:00Z", "yesterday"]}', "seen[1]"),
        (b'{"name": "wren", "seen": ["2026-01-01T00:00:00"]}', "seen[0]"),
        (b'{"name": "wren", "songs": {"trill": "many"}}', "songs[...]"),
    ],
)
def test_an_invalid_field_is_named(body: bytes, field: str) -> None:
    assert fault(body).field == field
    assert fault(b'[{"name": "robin"}, ' + body + b"]", MANY).field == f"[1].{field}"


@pytest.mark.parametrize("body", [b"null", b"5", b'"wren"', b"[]", b"true"])
def test_a_body_of_another_type_is_at_fault_as_a_whole(body: bytes) -> None:
    assert fault(body).field == "body"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"name": "wren"',
        b'{"name": "wren"}}',
        b'{"name": "wren",}',
        b"{'name': 'wren'}",
        b'{"name": "wren", "weight": NaN}',
        b'{"name": "wren", "weight": 1e999}',
        b'{"name": "wren", "eggs": 01}',
        b'{"name": "\xff"}',
        b'{"name": "\xc3"}',
        b'{"name": "\xed\xa0\xbd"}',  # half of a surrogate pair, in UTF-8
        b'{"name": "\\ud83d"}',
        b'{"name": "a\nb"}',
        b'\xef\xbb\xbf{"name": "wren"}',
        '{"name": "wren"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"name": "wren", "songs": ' + b'{"a":' * 100_000,
        b"PK\x03\x04",
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    assert fault(body).field


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    anything = msgspec.json.Decoder(msgspec.Raw)
    with pytest.raises(InvalidInput, match="nested too deeply") as raised:
        decode_json(b"[" * 100_000 + b"]" * 100_000, anything)
    assert raised.value.field == "body"


def test_a_message_loses_the_path_that_became_the_field() -> None:
    error = invalid_input("Expected `int`, got `str` - at `$[2].recipients[0]`")
    assert (str(error), error.field) == ("Expected `int`, got `str`", "[2].recipients[0]")


@given(st.binary() | st.text().map(str.encode))
def test_whatever_bytes_come_they_are_a_record_or_invalid_input_with_a_field(body: bytes) -> None:
    for decoder in (ONE, MANY):
        try:
            decode_json(body, decoder)
        except InvalidInput as error:
            refused = error
        else:
            continue
        assert refused.field
        assert str(refused)
