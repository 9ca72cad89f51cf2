"""Fire times of cron expressions by definition and by counting: an oracle that shares no code with what it judges.

Its calendar is Python's. The rules:

- A *rhythm*, whose minutes or hours begin with `*`, fires in every minute in which the local clock shows a time named.
- Anything else names *times of day*. Each is due once, in the first minute in which the local clock shows it or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = ("", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

Offsets = tuple[tuple[int, int], ...]
"""From which minute since 1970 on which offset holds, in minutes."""


def is_rhythm(expression: str) -> bool:
    return any(field.startswith("*") for field in expression.split()[:2])


def names_day(expression: str, day: date) -> bool:
    _, _, days, months, weekdays = expression.upper().split()
    if day.month not in _numbers(months, 1, 12, _MONTHS):
        return False
    as_day = any(_is_day(term, day) for term in days.split(","))
    as_weekday = any(_is_weekday(term, day) for term in weekdays.split(","))
    if days.startswith("*") or weekdays.startswith("*"):
        return as_day and as_weekday
    return as_day or as_weekday


def minutes_of_a_day(expression: str) -> bytes:
    """A byte for every minute of a day, 1 if it is named."""
    minute_field, hour_field, *_ = expression.split()
    minutes, hours = _numbers(minute_field, 0, 59), _numbers(hour_field, 0, 23)
    return bytes(hour in hours and minute in minutes for hour in range(24) for minute in range(60))


def every_minute(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """The fire times from `start` on and before `end`, found by looking at the local clock in every minute."""
    named_minutes = minutes_of_a_day(expression)

    def is_named(shown: datetime) -> bool:
        return bool(named_minutes[shown.hour * 60 + shown.minute]) and names_day(expression, shown.date())

    found = []
    now = start - 2 * DAY
    reached = now.astimezone(zone).replace(tzinfo=None)
    while (now := now + MINUTE) < end:
        shown = now.astimezone(zone).replace(tzinfo=None)
        fires = is_rhythm(expression) and is_named(shown)
        while reached < shown:
            reached += MINUTE
            fires = fires or (not is_rhythm(expression) and is_named(reached))
        if fires and now >= start:
            found.append(now)
    return found


def offsets_of(zone: ZoneInfo, start: datetime, end: datetime) -> Offsets:
    """The offsets of a zone between two midnights: looked up every six hours, and every minute where two differ."""
    first, last = _minute(start), _minute(end)
    found = [(first, _offset(zone, first))]
    for edge in range(first + 360, last + 1, 360):
        if _offset(zone, edge) != found[-1][1]:
            for minute in range(edge - 359, edge + 1):
                offset = _offset(zone, minute)
                if found[-1][1] != offset:
                    found.append((minute, offset))
    return tuple(change for change in found if change[0] < last)


class FireTable:
    """The fire times of an expression on one clock: a byte for every minute, 1 where it fires."""

    def __init__(self, table: bytes, start: int) -> None:
        self._table = table
        self._start = start

    def between(self, start: datetime, end: datetime) -> list[datetime]:
        """The fire times from the one full minute on and before the other."""
        found = []
        last = _minute(end) - self._start
        place = self._table.find(1, max(_minute(start) - self._start, 0), last)
        while place >= 0:
            found.append(EPOCH + (self._start + place) * MINUTE)
            place = self._table.find(1, place + 1, last)
        return found


class LocalMinutes:
    """Which minutes of the local calendar an expression names, from two days before `start` to one after `end`."""

    def __init__(self, expression: str, start: datetime, end: datetime) -> None:
        self.is_rhythm = is_rhythm(expression)
        self._start = _minute(start)
        self._end = _minute(end)
        self._base = _minute(start - 2 * DAY)
        named, none = minutes_of_a_day(expression), bytes(24 * 60)
        days = range((end - start).days + 4)
        first = (start - 2 * DAY).date()
        self._named = b"".join(named if names_day(expression, first + day * DAY) else none for day in days)

    def fire_table(self, offsets: Offsets) -> FireTable:
        """As `every_minute`, with the minutes of one offset taken at once."""
        pieces = []
        reached = offsets[0][0] + offsets[0][1]
        for (first, offset), (end, _) in zip(offsets, [*offsets[1:], (self._end, 0)], strict=True):
            shown, last = first + offset, end + offset
            if self.is_rhythm:
                pieces.append(self._between(shown, last))
            elif shown >= reached:
                pieces.append(bytes([any(self._between(reached, shown + 1))]) + self._between(shown + 1, last))
            else:
                pieces.append(bytes(min(reached, last) - shown) + self._between(min(reached, last), last))
            reached = max(reached, last)
        return FireTable(b"".join(pieces), self._start)

    def _between(self, first: int, last: int) -> bytes:
        return self._named[first - self._base : last - self._base]


def changes(offsets: Offsets) -> Sequence[datetime]:
    """When the clock was put on or back."""
    return [EPOCH + minute * MINUTE for minute, _ in offsets[1:]]


def _numbers(field: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, dash, last = span.partition("-")
        if first == "*":
            first, last = str(low), str(high)
        elif not dash:
            last = str(high) if step else first
        bounds = [names.index(bound) if bound in names else int(bound) for bound in (first, last)]
        found.update(range(bounds[0], bounds[1] + 1, int(step or "1")))
    return found


def _is_day(term: str, day: date) -> bool:
    rest_of_month = [day + number * DAY for number in range(1, 31) if (day + number * DAY).month == day.month]
    if term == "L":
        return not rest_of_month
    if term == "LW":
        return day.weekday() < 5 and all(later.weekday() >= 5 for later in rest_of_month)
    return day.day in _numbers(term, 1, 31)


def _is_weekday(term: str, day: date) -> bool:
    weekday = day.isoweekday() % 7
    if term.endswith("L"):
        return int(term[:-1]) % 7 == weekday and (day + 7 * DAY).month != day.month
    if "#" in term:
        name, _, number = term.partition("#")
        return (day.day - 1) // 7 + 1 == int(number) and weekday in {n % 7 for n in _numbers(name, 0, 7, _WEEKDAYS)}
    return weekday in {number % 7 for number in _numbers(term, 0, 7, _WEEKDAYS)}


def _minute(moment: datetime) -> int:
    return (moment - EPOCH) // MINUTE


def _offset(zone: ZoneInfo, minute: int) -> int:
    offset = (EPOCH + minute * MINUTE).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // MINUTE
