"""What people write on the command line about tasks: times, spans of time, payloads, headers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import typer

_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def read_schedule(
    cron: str | None,
    time_zone: str | None,
    at: str | None,
    delay: str | None,
    every: str | None,
    starting_at: str | None,
) -> dict[str, Any]:
    """A schedule as the API takes it. Raises `typer.BadParameter`, as everything here does."""
    if sum(value is not None for value in (cron, at, delay, every)) != 1:
        raise typer.BadParameter("say when the task runs: one of --cron, --at, --in, --every")
    schedule = {
        "cron": cron,
        "time_zone": time_zone,
        "at": None if at is None else read_moment(at, "--at"),
        "delay_seconds": None if delay is None else read_seconds(delay, "--in"),
        "every_seconds": None if every is None else read_seconds(every, "--every"),
        "starting_at": None if starting_at is None else read_moment(starting_at, "--starting-at"),
    }
    return {member: value for member, value in schedule.items() if value is not None}


def check_company(options: Mapping[str, tuple[bool, Mapping[str, object]]]) -> None:
    """Whether each option is there, and those that mean nothing without it: refuse what would silently be left out."""
    for option, (is_there, companions) in options.items():
        for companion, value in companions.items():
            if not is_there and value not in (None, []):
                raise typer.BadParameter(f"it goes with {option} only", param_hint=companion)


def read_moment(text: str, option: str) -> str:
    """A time in ISO 8601 with its offset. A time of day is the next such one; without an offset it is local."""
    now = datetime.now().astimezone()
    if match := _TIME_OF_DAY.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        moment = datetime.combine(now.date(), now.time().replace(hour, minute, second, 0))
        if moment.astimezone() <= now:
            moment += timedelta(days=1)
        return moment.astimezone().isoformat()
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter("a time is 14:45, 2026-01-05T10:01 or 2026-01-05T10:01Z", param_hint=option) from None


def read_seconds(text: str, option: str) -> float:
    """A span of time in seconds; a number alone is seconds too."""
    match = _SPAN.fullmatch(text)
    if not text or match is None:
        raise typer.BadParameter("a span of time is 90s, 5m, 1h30m or 2d", param_hint=option)
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 86_400 * days + 3600 * hours + 60 * minutes + seconds


def read_payload(text: str) -> msgspec.Raw:
    """JSON: the text itself, the content of `@file`, or standard input for `-`."""
    try:
        if text == "-":
            content = sys.stdin.buffer.read()
        elif text.startswith("@"):
            content = Path(text[1:]).read_bytes()
        else:
            content = text.encode()
        msgspec.json.decode(content)
    except OSError as error:
        raise typer.BadParameter(f"{text[1:]}: {error.strerror}", param_hint="--payload") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise typer.BadParameter(f"it is not JSON: {error}", param_hint="--payload") from None
    return msgspec.Raw(content)


def read_headers(texts: Sequence[str]) -> dict[str, str]:
    """Headers of a request, each given as `Name: value`."""
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon:
            raise typer.BadParameter(f"{text!r} is not like 'Name: value'", param_hint="--header")
        headers[name.strip()] = value.strip()
    return headers
