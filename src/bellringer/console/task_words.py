"""Schedules and calls in words."""

from __future__ import annotations

from functools import lru_cache

from bellringer.console.formats import absolute
from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.cron import expression_of
from bellringer.scheduler.model import Call, FunctionCall, HttpCall, MessageCall, NotificationCall, Schedule

_SMALL_WORDS = ("Every", "At", "On")


def schedule_words(schedule: Schedule) -> str:
    """When a task runs, as part of a sentence: `at 02:15 every day`."""
    if schedule.at is not None:
        return f"once, {absolute(schedule.at)}"
    if schedule.every_seconds is not None:
        return f"every {interval_words(schedule.every_seconds)}"
    if schedule.cron is not None:
        return cron_words(schedule.cron)
    return f"once, {interval_words(schedule.delay_seconds or 0)} after it was made"


def schedule_zone(schedule: Schedule) -> str:
    """The time zone that it counts in, when that is not UTC."""
    return schedule.time_zone if schedule.cron is not None and schedule.time_zone != "UTC" else ""


@lru_cache(maxsize=1024)
def cron_words(expression: str) -> str:
    """A cron expression in words; one that is not valid stands for itself."""
    try:
        words = expression_of(expression).words
    except InvalidInput:
        return expression
    first, _, rest = words.partition(" ")
    return f"{first.lower()} {rest}" if first in _SMALL_WORDS else words


def interval_words(seconds: float) -> str:
    """A length of time in full: `1 h 30 min 5 s`."""
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (round(rest, 3), "s"))
    return " ".join(f"{value:g} {unit}" for value, unit in parts if value)


def call_words(call: Call) -> tuple[str, str]:
    """What a task calls: its kind, and what tells it apart."""
    match call:
        case HttpCall(url=url, method=method):
            return "HTTP", f"{method} {url}"
        case MessageCall(queue=queue, group=group):
            return "message", f"to {queue}" + (f", group {group}" if group else "")
        case NotificationCall(event_type=event_type, recipients=recipients):
            return "notification", f"{event_type} to {len(recipients):,}"
        case FunctionCall(name=name):
            return "function", name
