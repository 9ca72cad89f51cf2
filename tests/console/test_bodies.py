from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.html import text_of

from bellringer.console.bodies import preview, shown

BODIES = (
    st.binary() | st.text().map(str.encode) | st.recursive(st.none() | st.text(), st.lists).map(msgspec.json.encode)
)


def test_json_gets_line_breaks_and_colours() -> None:
    body = shown(b'{"order":42,"paid":true}')
    assert body.kind == "json"
    assert body.content == (
        '{\n  <span class="json-key">&#34;order&#34;</span>: 42,\n  <span class="json-key">&#34;paid&#34;</span>: '
        '<span class="json-literal">true</span>\n}'
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "empty"),
        (b"hello", "text"),
        (b"42", "text"),
        (b"line one\r\n\tline two", "text"),
        (b'{"broken": ', "text"),
        (b"[]", "json"),
        ("日本語 🔔".encode(), "text"),
        (b"\xff\xfe", "bytes"),
        (b"a zero \x00 byte", "bytes"),
        (b"\x1b[31mred", "bytes"),
    ],
)
def test_a_body_is_taken_for_what_it_is(body: bytes, kind: str) -> None:
    assert shown(body).kind == kind


def test_bytes_stand_in_rows_of_sixteen() -> None:
    dumped = shown(bytes(range(0x3C, 0x3C + 20)) + b"\xff")
    assert dumped.content.unescape().splitlines() == [
        "000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "000010  4c 4d 4e 4f ff                                   LMNO·",
    ]


def test_json_is_formatted_unless_only_a_little_of_it_is_shown() -> None:
    body = msgspec.json.encode(list(range(1000)))
    assert shown(body, most_characters=1000).content.startswith("[\n  0,\n  1,")
    assert shown(body, most_characters=100).content.startswith("[0,1,")
    assert shown(body).kind == "json"


@pytest.mark.parametrize("body", [b"[" * 100_000 + b"]" * 100_000, b"[" * 60 + b"1," * 100_000 + b"1" + b"]" * 60])
def test_json_that_is_nested_too_deep_stays_as_it_is(body: bytes) -> None:
    assert shown(body).kind == "text"
    assert shown(body).content == body.decode()


@given(BODIES, st.integers(4, 200))
def test_whatever_comes_is_escaped_and_cut(body: bytes, most: int) -> None:
    cut = shown(body, most)
    text = str(cut.content).replace("</span>", "")
    for kind in ("key", "string", "literal"):
        text = text.replace(f'<span class="json-{kind}">', "")
    assert "<" not in text
    assert ">" not in text
    assert len(cut.content.striptags()) <= max(most, 80 * (most // 64 + 1))
    assert not shown(body).is_cut
    if cut.is_cut:
        assert len(shown(body).content) > len(text)


@given(BODIES)
def test_a_preview_is_one_short_line(body: bytes) -> None:
    line = preview(body)
    assert len(line) <= 160
    assert "\n" not in line


def test_previews() -> None:
    assert preview(b"line one\n   line two\n") == "line one line two"
    assert preview(b"\x00\xff" * 20) == "00 ff " * 12 + "…"
    assert preview(b"") == ""


def test_markup_in_a_body_is_text() -> None:
    hostile = "<script>alert(1)</script>\"'&"
    assert text_of(shown(hostile.encode()).content) == hostile
    assert "<script" not in shown(msgspec.json.encode([hostile])).content
