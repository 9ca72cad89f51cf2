"""The body of a message as a person reads it: JSON with line breaks and colours, text, or bytes side by side."""

from __future__ import annotations

import re
from array import array
from itertools import accumulate
from typing import Literal

import msgspec
from markupsafe import Markup

from bellringer.console.formats import coloured_json

_PREVIEW_CHARACTERS = 160
_LARGEST_SHARE = 16
_BYTES_PER_LINE = 16
# Text has no control characters but tab and line breaks. A page could not even hold the others.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_MOST_DEPTH = 50
# Of a body only its brackets stay: a step down for one that opens, and up, which is -1 as a byte, for one that closes.
_STEP_OF_BRACKET = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_SPACE = re.compile(r"\s+")


class ShownBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body made readable. `is_cut` when not all of it is shown."""

    kind: Literal["empty", "json", "text", "bytes"]
    content: Markup
    is_cut: bool


def shown(body: bytes, most_characters: int | None = None) -> ShownBody:
    """A body for a page, at most so many characters of it."""
    text = _text_of(body)
    if text is None:
        most_bytes = None if most_characters is None else most_characters // 4  # a byte takes four to five characters
        return ShownBody(kind="bytes", content=_dump(body[:most_bytes]), is_cut=len(body[:most_bytes]) < len(body))
    # A large body is not formatted for the sake of its beginning: twenty of them would hold everybody up.
    is_worth_it = most_characters is None or len(body) <= _LARGEST_SHARE * most_characters
    formatted = _format(body) if text[:1] in {"{", "["} and is_worth_it else None
    kind: Literal["empty", "json", "text"] = "json" if formatted is not None else "text" if text else "empty"
    whole = text if formatted is None else formatted
    part = whole[:most_characters]
    return ShownBody(
        kind=kind,
        content=coloured_json(part) if kind == "json" else Markup("{}").format(part),
        is_cut=len(part) < len(whole),
    )


def preview(body: bytes) -> str:
    """The beginning of a body on one line."""
    text = _text_of(body)
    if text is None:
        return body[:24].hex(" ") + (" …" if len(body) > 24 else "")
    return _SPACE.sub(" ", text[: 4 * _PREVIEW_CHARACTERS]).strip()[:_PREVIEW_CHARACTERS]


def _text_of(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def _format(body: bytes) -> str | None:
    """JSON with line breaks; None when it is none, or nested so deep that its indents would fill the memory."""
    steps = array("b", body.translate(_STEP_OF_BRACKET, _NO_BRACKETS))
    if max(accumulate(steps), default=0) > _MOST_DEPTH:
        return None
    try:
        return msgspec.json.format(body, indent=2).decode()
    except msgspec.DecodeError:
        return None


def _dump(body: bytes) -> Markup:
    lines = []
    for start in range(0, len(body), _BYTES_PER_LINE):
        part = body[start : start + _BYTES_PER_LINE]
        readable = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{3 * _BYTES_PER_LINE - 1}}  {readable}")
    return Markup("{}").format("\n".join(lines))
