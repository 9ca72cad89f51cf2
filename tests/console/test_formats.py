from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.html import text_of

from bellringer.broker import QueueCounts
from bellringer.console.formats import marked, number, pretty_json, relative, segments, size, span
from bellringer.console.reference import reference_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def counts(**given_counts: int) -> QueueCounts:
    return QueueCounts(**(dict.fromkeys(QueueCounts.__struct_fields__, 0) | given_counts))


@pytest.mark.parametrize(
    ("seconds_ago", "words"),
    [
        (0, "just now"),
        (4.9, "just now"),
        (5, "5 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (86_399, "23 h ago"),
        (86_400, "1 d ago"),
        (40 * 86_400, "40 d ago"),
        (-0.2, "in 1 s"),
        (-59.5, "in 1 min"),
        (-300, "in 5 min"),
    ],
)
def test_moments_are_told_relative_to_now(seconds_ago: float, words: str) -> None:
    assert relative(NOW - timedelta(seconds=seconds_ago), NOW) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (59.4, "59 s"),
        (90, "1 min 30 s"),
        (600, "10 min"),
        (3660, "1 h 1 min"),
        (7 * 86_400, "7 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_spans_have_their_two_largest_units(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_numbers_and_sizes() -> None:
    assert number(1_234_567) == "1,234,567"
    assert [size(count) for count in (12, 256 * 1024, 3_500_000)] == ["12 bytes", "256 KB", "3.3 MB"]


@given(st.builds(counts, pending=st.integers(0, 10**9), in_flight=st.integers(0, 10**9), delayed=st.integers(0, 10**9)))
def test_a_bar_is_never_longer_than_its_place(state: QueueCounts) -> None:
    drawn = segments(state)
    assert len(drawn) == sum(count > 0 for count in (state.pending, state.in_flight, state.delayed))
    assert sum(segment.width for segment in drawn) <= 100.2
    assert bool(drawn) == (state.pending + state.in_flight + state.delayed > 0)


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_any_json_is_escaped_and_complete(value: object) -> None:
    markup = str(pretty_json(msgspec.Raw(msgspec.json.encode(value))))
    without_colours = markup.replace("</span>", "")
    for kind in ("key", "string", "literal"):
        without_colours = without_colours.replace(f'<span class="json-{kind}">', "")
    assert "<" not in without_colours
    assert ">" not in without_colours


def test_json_that_only_postgresql_takes_stays_as_it_is() -> None:
    assert text_of(pretty_json(msgspec.Raw(b'{"a": "\\ud800"'))) == '{ "a" : "\\ud800"'


def test_code_in_prose() -> None:
    assert marked("Say `a < b` or <b>") == "Say <code>a &lt; b</code> or &lt;b&gt;"
    assert marked("one ` alone") == "one <code> alone</code>"


def test_types_are_told_in_words() -> None:
    properties = {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "names": {"type": "array", "items": {"type": "string"}},
        "data": {"oneOf": [{}, {"type": "null"}]},
        "state": {"enum": ["sent", "failed"]},
        "other": {"anyOf": [{"$ref": "#/components/schemas/Thing"}, {"type": "null"}], "default": None},
        "count": {"type": "integer", "default": 3},
    }
    document = {
        "info": {"title": "T", "version": "1"},
        "paths": {},
        "components": {"schemas": {"Thing": {"properties": properties, "required": ["id"]}}},
    }
    (schema,) = reference_of(document).schemas
    told = {field.name: "".join(piece.text for piece in field.type) for field in schema.fields}
    assert told == {
        "id": "UUID",
        "at": "time (RFC 3339)",
        "names": "list of text",
        "data": "any JSON",
        "state": '"sent" or "failed"',
        "other": "Thing or null",
        "count": "integer",
    }
    assert [field.name for field in schema.fields if field.is_required] == ["id"]
    assert [field.default for field in schema.fields if field.default is not None] == ["3"]
