"""What is a task and what is not: each check names the field at fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec
from pyreqwest.http import Url

from bellringer.broker.model import LONGEST_GROUP, check_queue_name
from bellringer.kernel.errors import InvalidInput, TooLarge
from bellringer.kernel.text import check_text
from bellringer.scheduler.fire_times import check_schedule
from bellringer.scheduler.model import (
    LARGEST_PAYLOAD_BYTES,
    LONGEST_DELAY_SECONDS,
    LONGEST_TIME_LIMIT_SECONDS,
    MOST_MISFIRES,
    MOST_RETRIES,
    Call,
    FunctionCall,
    HttpCall,
    MessageCall,
    NotificationCall,
    TaskDefinition,
    check_task_name,
)

_SHORTEST_SECONDS = 0.001
_LONGEST_URL = 2000
_MOST_HEADERS = 50
_LONGEST_HEADERS = 8000
_LONGEST_EVENT_TYPE = 200
_LONGEST_SUBJECT = 500
_LONGEST_ADDRESS = 320
_MOST_RECIPIENTS = 10_000

_URL = re.compile(r"https?://(?P<authority>[^/?#]*)", re.IGNORECASE)
_URL_CHARACTERS = re.compile(r"[!-\[\]-~]+")  # visible ASCII but the backslash, which some take for a slash
_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
_REFUSED_METHODS = frozenset({"CONNECT", "TRACE"})
_OWN_HEADERS = frozenset(
    {
        "idempotency-key",
        "bellringer-task",
        "bellringer-fire-time",
        "bellringer-attempt",
        # Those of the connection rather than the request.
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def check_definition(definition: TaskDefinition, *, now: datetime) -> None:
    """Raise `InvalidInput` for the first thing that is wrong with a task; `TooLarge` for its payload."""
    check_schedule(definition.schedule, now=now)
    check_call(definition.call)
    _check_payload(bytes(definition.payload), definition.call)
    _check_range("time_limit_seconds", definition.time_limit_seconds, _SHORTEST_SECONDS, LONGEST_TIME_LIMIT_SECONDS)
    _check_range("misfire.limit", definition.misfire.limit, 1, MOST_MISFIRES)
    _check_range("misfire.window_seconds", definition.misfire.window_seconds, 0, LONGEST_DELAY_SECONDS)
    retry = definition.retry
    _check_range("retry.max_retries", retry.max_retries, 0, MOST_RETRIES)
    _check_range("retry.first_seconds", retry.first_seconds, _SHORTEST_SECONDS, LONGEST_DELAY_SECONDS)
    _check_range("retry.cap_seconds", retry.cap_seconds, retry.first_seconds, LONGEST_DELAY_SECONDS)


def check_call(call: Call) -> None:
    """Raise `InvalidInput` for the first thing that is wrong with a call, as far as that can be said now."""
    match call:
        case HttpCall():
            _check_url(call.url)
            if not _METHOD.fullmatch(call.method) or call.method in _REFUSED_METHODS:
                raise InvalidInput("method must be that of a request, such as POST or GET", field="call.method")
            _check_headers(call.headers)
        case MessageCall():
            _check_queue(call.queue)
            if call.group is not None:
                check_text(call.group, "call.group", LONGEST_GROUP)
        case NotificationCall():
            check_text(call.event_type, "call.event_type", _LONGEST_EVENT_TYPE)
            check_text(call.subject, "call.subject", _LONGEST_SUBJECT)
            _check_recipients(call.recipients)
        case FunctionCall():
            _check_function(call.name)


def _check_url(url: str) -> None:
    field = "call.url"
    if len(url) > _LONGEST_URL:
        raise InvalidInput(f"a URL has at most {_LONGEST_URL} characters", field=field)
    if not _URL_CHARACTERS.fullmatch(url):
        raise InvalidInput("a URL consists of visible ASCII characters; others are percent-encoded", field=field)
    match = _URL.match(url)
    if match is None:
        raise InvalidInput("a URL begins with http:// or https://", field=field)
    if not match["authority"]:
        raise InvalidInput("the URL names no host", field=field)
    if "@" in match["authority"]:
        raise InvalidInput("a URL must not hold a user name or password; send a header instead", field=field)
    try:
        parsed = Url(url)  # what will be asked to open it
    except ValueError as error:
        raise InvalidInput(f"the URL is not valid: {error}", field=field) from None
    if parsed.port == 0:
        raise InvalidInput("the URL is not valid: no server has port 0", field=field)


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > _MOST_HEADERS or sum(map(len, headers)) + sum(map(len, headers.values())) > _LONGEST_HEADERS:
        raise InvalidInput(
            f"a request has at most {_MOST_HEADERS} headers of {_LONGEST_HEADERS} characters in all",
            field="call.headers",
        )
    seen = set()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name of a header", field="call.headers")
        field = f"call.headers.{name}"
        if name.lower() in _OWN_HEADERS:
            raise InvalidInput(f"{name} is set for each request", field=field)
        if name.lower() in seen:
            raise InvalidInput(f"{name} is given twice", field=field)
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidInput("a header has ASCII characters, no line breaks, no spaces at its ends", field=field)
        seen.add(name.lower())


def _check_queue(name: str) -> None:
    try:
        check_queue_name(name)
    except InvalidInput as error:
        raise InvalidInput(str(error), field="call.queue") from None


def _check_recipients(recipients: list[str]) -> None:
    if not 1 <= len(recipients) <= _MOST_RECIPIENTS:
        raise InvalidInput(f"an event has 1 to {_MOST_RECIPIENTS} recipients", field="call.recipients")
    for index, address in enumerate(recipients):
        field = f"call.recipients[{index}]"
        check_text(address, field, _LONGEST_ADDRESS)
        name, _, domain = address.rpartition("@")
        if not name or not domain:
            raise InvalidInput("not an email address", field=field)


def _check_function(name: str) -> None:
    try:
        check_task_name(name)
    except InvalidInput as error:
        raise InvalidInput(str(error).replace("a task name", "the name of a function"), field="call.name") from None


def _check_payload(payload: bytes, call: Call) -> None:
    if len(payload) > LARGEST_PAYLOAD_BYTES:
        raise TooLarge(f"a payload holds at most {LARGEST_PAYLOAD_BYTES} bytes", field="payload")
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the payload is not valid JSON: {error}", field="payload") from None
    except RecursionError:
        raise InvalidInput("the payload is nested too deeply", field="payload") from None
    if isinstance(call, FunctionCall) and not isinstance(value, dict | None):
        raise InvalidInput("the payload of a function is an object with its arguments", field="payload")


def _check_range(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidInput(f"{field} must be from {least:g} to {most:g}", field=field)
