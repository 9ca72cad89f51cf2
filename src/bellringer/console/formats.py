"""How values are shown: times, spans, numbers, JSON. Everything returned is text or escaped markup."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import msgspec
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from bellringer.broker import QueueCounts

_FULL_BAR_POWER = 6  # a million messages fill a bar
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_LARGEST_COLOURED_JSON = 32 * 1024  # beyond, the markup would weigh several times the data
_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=:)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<literal>\b(?:true|false|null)\b)'
)


def number(value: int) -> str:
    """A count with its thousands apart."""
    return f"{value:,}"


def rate(per_second: float) -> str:
    """A pace: whole numbers, and tenths where those would say too little."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def ordinal(value: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    ending = "th" if value % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value:,}{ending}"


def amount(value: float) -> str:
    """A number that need not be whole: with tenths where they would say something."""
    return number(round(value)) if value >= 10 or value == round(value) else f"{value:.1f}"


def span(seconds: float) -> str:
    """A length of time in its one or two largest units."""
    whole = round(seconds)
    if seconds < 1:
        return "0 s" if seconds <= 0 else f"{seconds:.1f} s"
    if whole < _MINUTE:
        return f"{whole} s"
    for unit, name, smaller, smaller_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {smaller_name}" if rest else "")
    raise AssertionError("a minute is the smallest unit above")


def duration(seconds: float) -> str:
    """A length of time that may be short: milliseconds below a second."""
    return f"{seconds * 1000:.0f} ms" if 0 <= seconds < 1 else span(seconds)


def took(seconds: float) -> str:
    """How long something took: three digits at most say enough."""
    if seconds < 10:
        return duration(seconds) if seconds < 0.9995 else f"{round(seconds, 1):g} s"
    return span(seconds)


def coarse(seconds: float) -> str:
    """A length of time in its largest unit, for narrow columns."""
    return _coarse(math.floor(seconds))


def relative(moment: datetime, now: datetime) -> str:
    """How long ago, or in how long. `console.js` says the same words while a page stays open."""
    seconds = (now - moment).total_seconds()
    if seconds < 0:
        return f"in {_coarse(math.ceil(-seconds))}"
    if seconds < 5:
        return "just now"
    return f"{_coarse(math.floor(seconds))} ago"


def _coarse(seconds: int) -> str:
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def absolute(moment: datetime) -> str:
    """A moment in full, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def exact(moment: datetime) -> str:
    """A day and a time to the millisecond, in UTC."""
    return f"{moment.astimezone(UTC):%b %d, %H:%M:%S.%f}"[:-3]


def moment(value: datetime) -> str:
    """A day and a time in UTC: to the second, and to the millisecond where it has any."""
    return exact(value).removesuffix(".000")


def day(value: datetime) -> str:
    """A day in UTC."""
    return f"{value.astimezone(UTC):%b %d}"


def after(value: datetime, other: datetime) -> str:
    """How long after another moment, or before it."""
    seconds = (value - other).total_seconds()
    return f"{took(-seconds)} before" if seconds < 0 else f"{took(seconds)} after"


def instant(moment: datetime) -> str:
    """A moment as programs write it, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def clock(moment: datetime) -> str:
    """A time of day to the minute, in UTC."""
    return f"{moment.astimezone(UTC):%H:%M}"


@pass_context
def when(context: Context, moment: datetime) -> Markup:
    """A moment for a page: relative to the page's `now`, the absolute time in its title."""
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        absolute(moment),
        relative(moment, context["now"]),
    )


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a bar, in hundredths of its length."""

    kind: str
    start: float
    width: float


def segments(counts: QueueCounts) -> list[Segment]:
    """The depth of a queue as a bar: its length grows by powers of ten, its parts are in proportion."""
    parts = (("in-flight", counts.in_flight), ("pending", counts.pending), ("delayed", counts.delayed))
    depth = sum(count for _, count in parts)
    length = min(100.0, 100 * math.log10(1 + depth) / _FULL_BAR_POWER)
    drawn: list[Segment] = []
    start = 0.0
    for kind, count in parts:
        if count > 0:
            width = length * count / depth
            drawn.append(Segment(kind=kind, start=round(start, 1), width=round(width, 1)))
            start += width
    return drawn


def marked(text: str) -> Markup:
    """Prose of a docstring, with what stands between backticks as code."""
    prose, *rest = text.split("`")
    parts = [Markup("{}").format(prose)]
    for code, after in zip(rest[::2], [*rest[1::2], ""], strict=False):
        parts.append(Markup("<code>{}</code>{}").format(code, after))
    return Markup().join(parts)


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.0f} KB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"


def pretty_json(data: msgspec.Raw) -> Markup:
    """JSON with line breaks and colours; text that PostgreSQL takes for JSON and msgspec does not stays as it is."""
    raw = bytes(data)
    try:
        text = msgspec.json.format(raw, indent=2).decode("utf-8", "replace")
    except msgspec.DecodeError:
        text = raw.decode("utf-8", "replace")
    return coloured_json(text)


def as_json(value: object) -> Markup:
    """Any value as JSON with line breaks and colours."""
    return pretty_json(msgspec.Raw(msgspec.json.encode(value)))


def coloured_json(text: str) -> Markup:
    """JSON, or a part of it, with its keys, strings and literals marked."""
    if len(text) > _LARGEST_COLOURED_JSON:
        return Markup("{}").format(text)
    parts = []
    position = 0
    for token in _TOKEN.finditer(text):
        parts.append(Markup("{}").format(text[position : token.start()]))
        parts.append(Markup('<span class="json-{}">{}</span>').format(token.lastgroup, token.group()))
        position = token.end()
    parts.append(Markup("{}").format(text[position:]))
    return Markup().join(parts)
