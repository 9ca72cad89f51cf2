"""Cron expressions: which minutes of the calendar they name. Zones are the business of `fire_times`."""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import isleap
from datetime import date, datetime
from functools import lru_cache
from typing import Final

from cronsim import CronSim, CronSimError

from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.zones import LAST_YEAR

LONGEST_EXPRESSION = 500
MOST_YEARS_APART = 50
"""29 February on a given weekday comes again after at most 40 years."""

NEVER: Final = "it names a time that never comes"

_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L (the last day) or LW (the last weekday)",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, 5#2 (the second Friday) or 5L (the last Friday)",
}
_ALLOWED = re.compile(r"[0-9A-Za-z*,/#\- \t]+")
_SENSELESS = re.compile(r"(\b\d*L|\bLW|#[^,\s]*)/|\d{5}", re.IGNORECASE)
_SPAN_OF_ONE = re.compile(r"\b(\w+)-\1/\d+\b", re.IGNORECASE)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_MINUTES = 24 * 60


class Expression:
    """A parsed cron expression. Minutes are counted on the local clock, from 1970 on."""

    __slots__ = ("_days", "_hours", "_minutes", "_months", "_parsed", "is_fixed")

    def __init__(self, parsed: CronSim) -> None:
        self._parsed = parsed
        self._minutes = sorted(parsed.minutes)
        self._hours = sorted(parsed.hours)
        self._months = parsed.months
        self._days: dict[tuple[int, int], list[int]] = {}
        self.is_fixed = not parsed.parts[1].startswith("*") and not parsed.parts[2].startswith("*")
        """Whether it names times of day, as opposed to a rhythm: Debian's cron makes up for the clock being put on
        or back for the former only."""

    @property
    def words(self) -> str:
        """What it names, in English: `At 02:15 every day`."""
        return self._parsed.explain()

    def minute_after(self, minute: int) -> int | None:
        """The first minute named after that one; none when there is none in 50 years."""
        day, minute_of_day = divmod(minute, _DAY_MINUTES)
        today = date.fromordinal(_EPOCH_DAY + day)
        if today.day in self._days_of(today.year, today.month):
            later = self._later_on_a_day(minute_of_day)
            if later is not None:
                return day * _DAY_MINUTES + later
        another = self._day_after(today)
        if another is None:
            return None
        return (another - _EPOCH_DAY) * _DAY_MINUTES + self._hours[0] * 60 + self._minutes[0]

    def _later_on_a_day(self, minute_of_day: int) -> int | None:
        hour, minute = divmod(minute_of_day, 60)
        place = bisect_right(self._hours, hour)
        if place and self._hours[place - 1] == hour and minute < self._minutes[-1]:
            return hour * 60 + self._minutes[bisect_right(self._minutes, minute)]
        if place < len(self._hours):
            return self._hours[place] * 60 + self._minutes[0]
        return None

    def _day_after(self, day: date) -> int | None:
        """The ordinal of the first day named after that one."""
        year, month = day.year, day.month
        days = self._days_of(year, month)
        if days and days[-1] > day.day:
            return date(year, month, days[bisect_right(days, day.day)]).toordinal()
        for _ in range(12 * MOST_YEARS_APART):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > LAST_YEAR:
                return None
            if days := self._days_of(year, month):
                return date(year, month, days[0]).toordinal()
        return None

    def _days_of(self, year: int, month: int) -> list[int]:
        """The days named in a month, which hang on its first weekday and its length alone: found once for each."""
        if month not in self._months:
            return []
        length = 29 if month == 2 and isleap(year) else _MONTH_DAYS[month - 1]
        shape = (date(year, month, 1).weekday(), length)
        days = self._days.get(shape)
        if days is None:
            days = [day for day in range(1, length + 1) if self._parsed.match_day(date(year, month, day))]
            self._days[shape] = days
        return days


@lru_cache(maxsize=8192)
def expression_of(text: str) -> Expression:
    """Parse an expression of five fields or an alias; `InvalidInput` names `schedule.cron` and what is wrong."""
    if len(text) > LONGEST_EXPRESSION:
        raise _invalid(f"it is longer than {LONGEST_EXPRESSION} characters")
    fields = _fields_of(text)
    try:
        expression = Expression(_parsed(fields))
    except CronSimError:
        raise _invalid(_fault_of(fields)) from None
    if expression.minute_after(0) is None:
        raise _invalid(NEVER)
    return expression


def _fields_of(text: str) -> list[str]:
    alias = text.strip().lower()
    if alias == "@reboot":
        raise _invalid("@reboot names no time")
    if alias.startswith("@") and alias not in _ALIASES:
        raise _invalid(f"{alias[:64]!r} is no alias; there are {', '.join(_ALIASES)}")
    fields = _ALIASES.get(alias, text).split()
    if len(fields) == 6:
        raise _invalid("it has 6 fields; it takes five, there is no field for seconds")
    if len(fields) != 5:
        raise _invalid(f"it has {len(fields)} fields; it takes five: {' '.join(_FIELDS)}")
    if alias not in _ALIASES and not _ALLOWED.fullmatch(text):
        raise _invalid("it has characters other than letters, digits, * , - / # and blanks")
    return fields


def _parsed(fields: list[str]) -> CronSim:
    """Raises `CronSimError`, also where CronSim would fail in another way; it takes `5-5/2` for `5-59/2`."""
    text = _SPAN_OF_ONE.sub(r"\1", " ".join(fields))
    if _SENSELESS.search(text):
        raise CronSimError
    return CronSim(text, datetime(2000, 1, 1))  # noqa: DTZ001 - it iterates on local clocks; here it only parses


def _fault_of(fields: list[str]) -> str:
    """Which of the fields is wrong by itself; if none is, they name no date together."""
    for place, (name, values) in enumerate(_FIELDS.items()):
        alone = ["*"] * 5
        alone[place] = fields[place]
        try:
            _parsed(alone)
        except CronSimError:
            return f"the {name} field {fields[place][:64]!r} is none; it takes {values}, lists, ranges and steps"
    return NEVER


def _invalid(fault: str) -> InvalidInput:
    return InvalidInput(f"the cron expression is not valid: {fault}", field="schedule.cron")
