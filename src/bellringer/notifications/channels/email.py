"""Composes a digest: the events of one closed batch as an email that says at a glance what happened.

Pure functions: the same `DigestEmail` always gives the same bytes, so that a retry sends what was sent before. One
email goes to several people who may not see one another's address, so it names no recipient.

Whoever reads a digest by program (our tests do, to check that each event arrives exactly once) can rely on this,
whatever the events contain:

* HTML: each event has one element with the attribute `data-notification="<uuid>"`, and nothing else has it.
* Text: each event has one line that starts with its time and ends with `#<uuid>`, and no other line does both:
  `^(\\d\\d? [A-Z][a-z]{2} )?\\d\\d:\\d\\d:\\d\\d  .*  #([0-9a-f-]{36})$`. The day is there if the days differ.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.errors import MessageError
from email.header import Header
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from functools import lru_cache
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from css_inline import CSSInliner
from jinja2 import FunctionLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import escape

from bellringer.kernel.errors import InvalidInput

EVENTS_MAXIMUM = 1000
GROUPS_MAXIMUM = 16  # beyond, headings outweigh events: the rarest types share the last group
OTHER_TYPES = "Other types"

# Gmail shows the first 102 KB of HTML and hides the rest behind a link. Every event gets its line first; what is left
# of the budget pays for data, handed out evenly over the types. Sizes in bytes, measured on rendered emails.
BUDGET, SAMPLE_BUDGET = 98_000, 8_000  # the second: even a flood shows the data of some of its events
PAGE_SIZE, GROUP_SIZE, EVENT_SIZE, DATA_SIZE, LINE_SIZE = 5_500, 850, 110, 240, 45
EVENTS_WITH_DATA_MAXIMUM, FLOOD_EVENTS = 200, 50
LINES_PER_EVENT, LINES_PER_EVENT_IN_A_FLOOD = 6, 3

SENDER = re.compile(r"[!-~]+@[A-Za-z0-9.-]+")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WRAPPED = re.compile(r"(.{1,70}|\S+)(?: |$)")  # textwrap took a quarter of the time of a whole email

# Tuples, as the templates' sandbox checks every attribute that is read but not what is unpacked.
Line: TypeAlias = tuple[str, str]  # key, value
Row: TypeAlias = tuple[str, str, str, str, list[Line]]  # notification id, day or "", time, title, data
Group: TypeAlias = tuple[str, int, str, list[Row], list[Row]]  # label, count, tone, rows with data, rows without


class DigestEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. `occurred_at` is aware and in UTC; `data` is decoded JSON of any shape."""

    notification_id: UUID
    type: str
    occurred_at: datetime
    subject: str | None
    data: object


class DigestEmail(msgspec.Struct, frozen=True, kw_only=True):
    """One email to everyone who subscribed to the same events: 1 to 1000 of them, oldest first.

    `email_id` and `created_at` are made once and stored: they give the Message-ID and the Date, also of a retry.
    `sender` is a mailbox such as "Bellringer <noreply@acme.example>". A flood is split over several `parts`.
    """

    email_id: UUID
    organisation: str
    environment: str
    sender: str
    created_at: datetime
    events: tuple[DigestEvent, ...]
    part: int = 1
    parts: int = 1


def compose(email: DigestEmail) -> bytes:
    """Returns the email as an RFC 5322 message: CRLF line ends, 7-bit, lines of at most 998 octets, for SMTP DATA.

    Raises InvalidInput if there are no events or more than 1000, or if the sender is not one ASCII mailbox.
    """
    if not 1 <= len(email.events) <= EVENTS_MAXIMUM:
        raise InvalidInput(f"an email holds 1 to {EVENTS_MAXIMUM} events", field="events")
    sender, domain = parse_sender(email.sender)
    organisation, environment = _line(email.organisation, 40), _line(email.environment, 40)
    headline, groups = _headline(email.events), _groups(email.events)
    part = f" (part {email.part} of {email.parts})" if email.parts > 1 else ""
    content = {
        "origin": f"{organisation} / {environment}",
        "headline": headline,
        "part": part,
        "period": _period(email.events[0].occurred_at, email.events[-1].occurred_at),
        "preview": _preview(groups),
        "count": len(email.events),
        "groups": groups,
    }
    # Auto-Submitted (RFC 3834) is what keeps out-of-office replies away. There is no "Precedence: bulk": no standard
    # has it, and where it does count, in Sendmail, it queues a failure's email behind all other mail.
    head = (
        f"Date: {format_datetime(email.created_at)}\r\n"
        f"Message-ID: <{email.email_id}@{domain}>\r\n"
        f"{sender}"
        "To: undisclosed-recipients:;\r\n"
        f"Subject: {_encoded_subject(f'[{organisation}/{environment}] {headline}{part}')}\r\n"
        "Auto-Submitted: auto-generated\r\n"
        "MIME-Version: 1.0\r\n"
    )
    return head.encode("ascii") + _alternatives(email.email_id, text=TEXT.render(content), html=HTML.render(content))


def _headline(events: Sequence[DigestEvent]) -> str:
    types = _by_type(events)
    names = [(_line(name, 60) or "event", len(members)) for name, members in types[:3]]
    if len(types) == 1:
        (name, count), subjects = names[0], {event.subject for event in events}
        about = _line(events[0].subject or "", 80) if len(subjects) == 1 else ""
        return (name if count == 1 else f"{count} x {name}") + (f": {about}" if about else "")
    shown = names if len(types) <= 3 else names[:2]
    parts = [f"{count} {name}" for name, count in shown]
    if others := len(events) - sum(count for _, count in shown):
        parts.append(f"{others} others")
    return f"{len(events)} events: {', '.join(parts)}"


def _period(first: datetime, last: datetime) -> str:
    first, last = first.astimezone(UTC), last.astimezone(UTC)
    start, end = f"{first:%H:%M:%S}", f"{last:%H:%M:%S}"
    if first.date() != last.date():
        end = f"{_day(last)} {last.year}, {end}"
    return f"{_day(first)} {first.year}, {start}{'' if start == end else f' to {end}'} UTC"


def _day(moment: datetime) -> str:
    # Not strftime("%b"): it follows the process's locale.
    return f"{moment.day} {MONTHS[moment.month - 1]}"


def _preview(groups: Sequence[Group]) -> str:
    """Returns what an inbox shows beside the Subject: what the events are about, or the data of a single one."""
    rows = [row for _, _, _, full, brief in groups for row in (*full, *brief)]
    if len(rows) == 1:
        return _line("; ".join(f"{key}: {value}" if key else value for key, value in rows[0][4]), 140)
    titles = list(dict.fromkeys(row[3] for row in rows))
    return _line(", ".join(titles[:3]), 120) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")


# Events, grouped and laid out within the size that a mail client shows


def _by_type(events: Sequence[DigestEvent]) -> list[tuple[str, list[DigestEvent]]]:
    """Failures first, then the most frequent: what a reader opens the email for."""
    types: dict[str, list[DigestEvent]] = {}
    for event in events:
        types.setdefault(event.type, []).append(event)
    return sorted(types.items(), key=lambda item: (_tone(item[0]) != "failure", -len(item[1])))


FAILURE = {"failed", "failure", "failing", "error", "errored", "crashed", "timeout", "aborted", "rejected", "denied"}
SUCCESS = {"succeeded", "success", "successful", "completed", "passed", "recovered", "resolved", "fixed"}


def _tone(event_type: str) -> str:
    """Returns the colour of a type's dot, told from its last word: "task.failed", "Task Failed", "build-error"."""
    word = re.split(r"[\W_]+", event_type[-40:].lower().rstrip())[-1]
    return "failure" if word in FAILURE else "success" if word in SUCCESS else "neutral"


def _sections(events: Sequence[DigestEvent]) -> list[tuple[str, list[DigestEvent]]]:
    types = _by_type(events)
    named = GROUPS_MAXIMUM - (len(types) > GROUPS_MAXIMUM)
    sections = [(_line(name, 100) or "event", members) for name, members in types[:named]]
    if rest := [event for _, members in types[named:] for event in members]:
        sections.append((OTHER_TYPES, sorted(rest, key=lambda event: event.occurred_at)))
    return sections


def _groups(events: Sequence[DigestEvent]) -> list[Group]:
    """Gives data to the first events of each type, as many as the budget allows: one of each type, then two, ..."""
    sections = _sections(events)
    show_day = len({event.occurred_at.astimezone(UTC).date() for event in events}) > 1
    titles_size = sum(len(_line(event.subject or "", 120).encode()) for event in events)
    listing = PAGE_SIZE + GROUP_SIZE * len(sections) + EVENT_SIZE * len(events) + titles_size
    room = max(BUDGET - listing, SAMPLE_BUDGET)
    lines = LINES_PER_EVENT if len(events) <= FLOOD_EVENTS else LINES_PER_EVENT_IN_A_FLOOD
    turns = sorted((turn, index) for index, (_, members) in enumerate(sections) for turn in range(len(members)))
    full: list[list[Row]] = [[] for _ in sections]
    for turn, index in turns[:EVENTS_WITH_DATA_MAXIMUM]:
        label, members = sections[index]
        row = _row(members[turn], label, lines, show_day=show_day)
        room -= DATA_SIZE + sum(LINE_SIZE + len(escape(key + value).encode()) for key, value in row[4])
        if room < 0:
            break
        full[index].append(row)
    groups = []
    for (label, members), rows in zip(sections, full, strict=True):
        brief = [_row(event, label, 0, show_day=show_day) for event in members[len(rows) :]]
        groups.append((label, len(members), _tone(label), rows, brief))
    return groups


def _row(event: DigestEvent, label: str, lines: int, *, show_day: bool) -> Row:
    moment = event.occurred_at.astimezone(UTC)
    title = _line(event.subject or "", 120)
    data = _telling_lines(event.data, lines if title else max(lines, 1), known=event.subject or "")
    if not title and data:
        # Without a subject the most telling of the data is the best name that the event has.
        (key, value), data = data[0], data[1:]
        title = _line(f"{key}: {value}" if key else value, 120)
    title = title or "no details"
    if label == OTHER_TYPES:
        title = f"{_line(event.type, 60) or 'event'}: {title}"
    return str(event.notification_id), _day(moment) if show_day else "", f"{moment:%H:%M:%S}", title, data


# The data of an event: what of it tells a person most, in a few lines

# What costs least is shown first. An ordinary key costs 3 and each level of nesting 2, so that "error.message" stands
# before an ordinary key at the top, and "repository.full_name" beside it.
KEY_COST = {
    **dict.fromkeys(("error", "message", "reason", "exception", "conclusion", "result", "outcome", "success"), 0),
    **dict.fromkeys(("title", "full_name", "login"), 1),
    **dict.fromkeys(("name", "action", "status", "state", "severity", "summary", "description", "body", "ref"), 2),
}
ORDINARY_COST, LEVEL_COST, DULL_COST, EMPTY_COST = 3, 2, 100, 200
DULL_KEY_ENDINGS = ("id", "Id", "ID", "url", "Url", "uri", "href", "_at", "sha", "hash", "token", "etag")
DULL_VALUE = re.compile(r"https?://|[0-9a-fA-F-]{20,}$")
MEMBERS_MAXIMUM, NODES_MAXIMUM, DEPTH_MAXIMUM = 20, 12, 8  # what is looked at in each container, level and document

Leaf: TypeAlias = tuple[int, int, int, int, str, object]  # cost, depth, parent, place, path, value


def _telling_lines(data: object, limit: int, *, known: str) -> list[Line]:
    """Returns at most `limit` lines such as ("repository.full_name", "acme/site"), the most telling first.

    Leaves out what the subject, `known`, says already, and looks at a bounded part of the data only.
    """
    if limit == 0 or _is_empty(data):
        return []
    if not _is_container(data):
        return [("", _value(data))]
    leaves = _leaves(data, limit)
    if known:
        said = (known, known.rpartition("/")[2])
        leaves = [leaf for leaf in leaves if leaf[5] not in said]
    # Depth, parent and place differ between any two leaves: the values themselves are never compared.
    return [(_line(path, 60), _value(value)) for *_, path, value in nsmallest(limit, leaves)]


def _leaves(data: object, enough: int) -> list[Leaf]:
    leaves: list[Leaf] = []
    level: list[tuple[str, Any]] = [("", data)]
    for depth in range(DEPTH_MAXIMUM):
        below: list[tuple[str, Any]] = []
        for parent, (path, node) in enumerate(level[:NODES_MAXIMUM]):
            members = node.items() if isinstance(node, dict) else ((str(at), item) for at, item in enumerate(node))
            for place, (key, value) in enumerate(islice(members, MEMBERS_MAXIMUM)):
                if _is_container(value):
                    below.append((f"{path}{key}.", value))
                else:
                    cost = _cost(key, value) + depth * LEVEL_COST
                    leaves.append((cost, depth, parent, place, f"{path}{key}", value))
        # Below the second level nothing is more telling than what has been found.
        if depth and sum(leaf[0] < DULL_COST for leaf in leaves) >= enough:
            break
        level = below
    return leaves


def _is_container(value: object) -> bool:
    """Says whether to look inside for lines: a list of plain values is one line, and an empty one is a value."""
    if type(value) is list:
        return bool(value) and type(value[0]) in {dict, list}
    return type(value) is dict and bool(value)


def _is_empty(value: object) -> bool:
    return not value and not isinstance(value, int | float)


def _cost(key: str, value: object) -> int:
    if _is_empty(value):
        return EMPTY_COST
    if (cost := KEY_COST.get(key)) is not None:
        return cost
    if value is False or key.endswith(DULL_KEY_ENDINGS):
        return DULL_COST
    return DULL_COST if isinstance(value, str) and DULL_VALUE.match(value) else ORDINARY_COST


def _value(value: object) -> str:
    if isinstance(value, str):
        return _line(value, 200) or '""'
    if isinstance(value, list) and value:
        shown = ["\u2026" if isinstance(item, dict | list) else _value(item) for item in value[:8]]
        return _line(", ".join(shown) + (", \u2026" if len(value) > 8 else ""), 200)
    return _line(json.dumps(value), 200)


# Text that others wrote, made safe to stand in one line

# Control characters, and the invisible ones that reorder text (bidirectional overrides, embeddings and isolates) or
# hide in it. The zero-width joiners stay: emoji and several scripts need them.
INVISIBLE = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]+")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
UNPAIRED_OR_NONCHARACTER = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def _line(text: str, limit: int) -> str:
    """Returns at most `limit` characters of the text as one line of visible, encodable characters; can be empty."""
    head = text[: 4 * limit]
    line = head
    if not (head.isascii() and head.isprintable()):
        line = CONTROL.sub(" ", INVISIBLE.sub("", UNPAIRED_OR_NONCHARACTER.sub("\ufffd", head)))
    line = " ".join(line.split())
    if len(line) <= limit and len(head) == len(text):
        return line
    return line[: limit - 1].rstrip() + "\u2026"


def _source(name: str) -> str:
    """Returns a template, with its style sheet inlined: once, as doing it to each email would add 0.3 ms."""
    source = (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
    if name == "digest.txt.jinja":
        return source
    inliner = CSSInliner(keep_at_rules=True, minify_css=True, load_remote_stylesheets=False)
    return re.sub(r"\n\s*", "\n", inliner.inline(source))


def _indented(key: str, value: str) -> str:
    return "    " + "\n      ".join(WRAPPED.findall(f"{key}: {value}" if key else value))


TEMPLATES = SandboxedEnvironment(
    loader=FunctionLoader(_source),
    autoescape=lambda name: name != "digest.txt.jinja",
    undefined=StrictUndefined,
    block_start_string="<!--%",
    block_end_string="%-->",
    comment_start_string="<!--#",
    comment_end_string="#-->",
    trim_blocks=True,
)
TEMPLATES.globals["indented"] = _indented
HTML, TEXT = (TEMPLATES.get_template(f"digest.{kind}.jinja") for kind in ("html", "txt"))


# The wire format: 0.2 ms for an email of ten events. EmailMessage encodes bodies in Python and takes 2.0 ms.


def _alternatives(email_id: UUID, *, text: str, html: str) -> bytes:
    # "=_" cannot occur in quoted-printable or base64, so no content can close a part.
    boundary = f"=_{email_id.hex}"
    pieces = [f'Content-Type: multipart/alternative;\r\n boundary="{boundary}"\r\n\r\n'.encode()]
    for subtype, content in (("plain", text), ("html", html)):
        encoding, body = _encoded_body(content)
        kind = f"Content-Type: text/{subtype}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n"
        pieces += (f"--{boundary}\r\n{kind}\r\n".encode(), body)
    return b"".join([*pieces, f"--{boundary}--\r\n".encode()])


def _encoded_body(content: str) -> tuple[str, bytes]:
    """Returns quoted-printable, which a person can read, unless base64 is smaller, as it is for Chinese."""
    octets = content.replace("\n", "\r\n").encode()
    quoted = binascii.b2a_qp(octets)
    if len(quoted) <= len(octets) * 3 // 2:
        return "quoted-printable", quoted + b"\r\n"
    return "base64", base64.encodebytes(octets).replace(b"\n", b"\r\n")


def _encoded_subject(subject: str) -> str:
    # "=?" in plain text would be read as an encoded word, and a word beyond the line cannot be folded.
    plain = subject.isascii() and "=?" not in subject and max(map(len, subject.split())) <= 60
    return Header(subject, "us-ascii" if plain else "utf-8", 76, "Subject").encode(linesep="\r\n")


@lru_cache(maxsize=256)
def parse_sender(sender: str) -> tuple[str, str]:
    """The From header with its line end, and the domain of the address. Raises `InvalidInput`."""
    message = EmailMessage(policy=SMTP)
    with suppress(ValueError, LookupError, AttributeError, MessageError):  # what the parser raises on nonsense
        message["From"] = _line(sender, 320)
        (address,) = message["From"].addresses
        if SENDER.fullmatch(address.addr_spec) and not message["From"].defects:
            return bytes(message).decode("ascii").removesuffix("\r\n"), address.domain
    raise InvalidInput("the sender is not one email address, in ASCII and with a domain", field="sender")
