"""Fire times: the moments that a schedule names, each found from nothing but the one before it.

A cron expression counts on the clock of its zone, with the rules of Debian's cron for a clock that is put on or back.
One that names times of day runs each of them once: at the first moment at which the local clock shows that time or a
later one. One whose minutes or hours begin with `*` follows real time: it runs whenever the local clock shows it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.cron import MOST_YEARS_APART, NEVER, Expression, expression_of
from bellringer.scheduler.model import LONGEST_DELAY_SECONDS, SHORTEST_INTERVAL_SECONDS, Schedule
from bellringer.scheduler.zones import EPOCH, LAST_YEAR, stretches_from, zone_of

FIRST_YEAR = 2000

_SECOND = timedelta(seconds=1)
_KINDS = ("at", "delay_seconds", "cron", "every_seconds")


class FireTimes(ABC):
    """The moments that a schedule names. Takes aware moments, answers in UTC; never changes."""

    __slots__ = ()

    @abstractmethod
    def after(self, moment: datetime) -> datetime | None:
        """The first fire time after that moment; none when there is none."""

    def first_from(self, moment: datetime) -> datetime | None:
        """The first fire time at that moment or after it."""
        return self.after(moment - timedelta.resolution)

    def upcoming(self, moment: datetime) -> Iterator[datetime]:
        """The fire times after that moment, one by one."""
        following = self.after(moment)
        while following is not None:
            yield following
            following = self.after(following)


class Once(FireTimes):
    """One moment."""

    __slots__ = ("_at",)

    def __init__(self, at: datetime) -> None:
        self._at = at.astimezone(UTC)

    def after(self, moment: datetime) -> datetime | None:
        return self._at if self._at > moment else None


class Interval(FireTimes):
    """Moments that lie equally far apart: the anchor and every whole number of intervals after it."""

    __slots__ = ("_anchor", "_every")

    def __init__(self, anchor: datetime, every: timedelta) -> None:
        self._anchor = anchor.astimezone(UTC)
        self._every = every

    def after(self, moment: datetime) -> datetime | None:
        if moment < self._anchor:
            return self._anchor
        try:
            return self._anchor + ((moment - self._anchor) // self._every + 1) * self._every
        except OverflowError:
            return None


class Cron(FireTimes):
    """The minutes that a cron expression names on the clock of a zone. None from the year 9999 on."""

    __slots__ = ("_expression", "_zone")

    def __init__(self, expression: Expression, zone: ZoneInfo) -> None:
        self._expression = expression
        self._zone = zone

    def after(self, moment: datetime) -> datetime | None:
        second = (moment - EPOCH) // _SECOND
        found = self._fixed_after(second) if self._expression.is_fixed else self._rhythm_after(second)
        return None if found is None else EPOCH + timedelta(seconds=found)

    def _fixed_after(self, second: int) -> int | None:
        """The first moment at which the local clock has come to the next time that it had not come to by then."""
        local: int | None = None
        for stretch in stretches_from(self._zone, second, years=MOST_YEARS_APART + 1):
            if local is None:
                local = self._named_after(max(second + stretch.offset, stretch.reached - 1))
            if local is None:
                return None
            if local - stretch.offset < stretch.end:
                return max(local - stretch.offset, stretch.start)
        return None

    def _rhythm_after(self, second: int) -> int | None:
        """The first moment at which the local clock shows a time that is named."""
        since = local = second  # no time is named after the one and before the other
        for stretch in stretches_from(self._zone, second, years=MOST_YEARS_APART + 1):
            showing = max(second, stretch.start - 1) + stretch.offset
            if not since <= showing < local:
                found = self._named_after(showing)
                if found is None:
                    return None
                since, local = showing, found
            if local - stretch.offset < stretch.end:
                return local - stretch.offset
        return None

    def _named_after(self, local: int) -> int | None:
        """The first named minute that begins after that second of the local clock."""
        minute = self._expression.minute_after(local // 60)
        return None if minute is None else minute * 60


def fire_times_of(schedule: Schedule, *, created_at: datetime) -> FireTimes:
    """The fire times of a schedule of a task that was made then. Raises `InvalidInput` that names what is wrong."""
    given = [kind for kind in _KINDS if getattr(schedule, kind) is not None]
    if len(given) > 1:
        raise InvalidInput(f"a schedule has one of {', '.join(_KINDS)}; this has {len(given)}", field="schedule")
    if schedule.time_zone != "UTC" and schedule.cron is None:
        raise InvalidInput("a time zone goes with cron only; times carry their own", field="schedule.time_zone")
    if schedule.starting_at is not None and schedule.every_seconds is None:
        raise InvalidInput("a start goes with every_seconds only", field="schedule.starting_at")
    if schedule.at is not None:
        return Once(_checked(schedule.at, "schedule.at"))
    if schedule.delay_seconds is not None:
        if not 0 <= schedule.delay_seconds <= LONGEST_DELAY_SECONDS:
            raise InvalidInput("a delay is between 0 seconds and 10 years", field="schedule.delay_seconds")
        return Once(created_at + timedelta(seconds=schedule.delay_seconds))
    if schedule.cron is not None:
        return Cron(expression_of(schedule.cron), zone_of(schedule.time_zone))
    if schedule.every_seconds is not None:
        every = _interval(schedule.every_seconds)
        start = schedule.starting_at
        return Interval(created_at if start is None else _checked(start, "schedule.starting_at"), every)
    raise InvalidInput(f"a schedule needs one of {', '.join(_KINDS)}", field="schedule")


def check_schedule(schedule: Schedule, *, now: datetime) -> None:
    """Raise `InvalidInput` unless a task can be made of the schedule now."""
    fire_times = fire_times_of(schedule, created_at=now)
    if schedule.at is not None and schedule.at < now:
        raise InvalidInput(f"{schedule.at.isoformat()} lies in the past", field="schedule.at")
    if schedule.cron is not None and fire_times.after(now) is None:
        raise InvalidInput(f"the cron expression is not valid: {NEVER}", field="schedule.cron")


def _checked(moment: datetime, field: str) -> datetime:
    if moment.tzinfo is None:
        raise InvalidInput("the time lacks an offset from UTC, such as Z or +02:00", field=field)
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise InvalidInput(f"the time lies outside the years {FIRST_YEAR} to {LAST_YEAR}", field=field)
    return moment


def _interval(seconds: float) -> timedelta:
    if not SHORTEST_INTERVAL_SECONDS <= seconds <= LONGEST_DELAY_SECONDS:
        raise InvalidInput("an interval is between 1 second and 10 years", field="schedule.every_seconds")
    every = timedelta(seconds=seconds)
    if every % timedelta(milliseconds=1):
        raise InvalidInput("an interval is a whole number of milliseconds", field="schedule.every_seconds")
    return every
