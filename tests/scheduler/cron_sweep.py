"""Compare cron fire times with the oracle, in every zone and over forty years: `python -m tests.scheduler.cron_sweep`.

Zones with the same clock are taken together. Expressions of few fire times are compared over the whole time, the dense
ones around every change of a clock. Then the libraries that people know are compared in every kind of change, and
what they do otherwise is sorted by what it is.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo, available_timezones

from tests.support.cron_oracle import FireTable, LocalMinutes, Offsets, changes, offsets_of

from bellringer.scheduler.fire_times import FireTimes, fire_times_of
from bellringer.scheduler.model import Schedule

START, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
AROUND = timedelta(hours=24)
MOMENT = timedelta.resolution
SPARSE = (
    "30 2 * * *",
    "0,30 2 * * *",
    "0 0 * * *",
    "15 0 * * *",
    "59 23 * * *",
    "0 3 * * *",
    "45 1 * * 0",
    "0 9 * * 1-5",
    "0 0 1 * *",
    "0 0 29 2 *",
    "0 12 L * *",
    "0 6 LW * *",
    "0 8 * * MON#1",
    "0 8 * * 5L",
    "0 0 13 * FRI",
    "0 2 */2 * 0",
    "*/30 2 * * 0,6",
    "*/20 0 * * 5",
)
DENSE = (
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "0 */2 * * *",
    "5 */3 * * *",
    "* 2 * * *",
    "0 0-23 * * *",
    "*/10 1-4 * * *",
    "10-50/20 0-3 * * *",
)


def fire_times(expression: str, zone: str) -> FireTimes:
    return fire_times_of(Schedule(cron=expression, time_zone=zone), created_at=START)


def between(upcoming: Iterator[datetime], end: datetime) -> list[datetime]:
    return list(takewhile(lambda fire_at: fire_at < end, upcoming))


def compare_whole(expression: str, zone: str, oracle: FireTable) -> int:
    """Compare the fire times of all the years; how many there were."""
    found, right = between(fire_times(expression, zone).upcoming(START - MOMENT), END), oracle.between(START, END)
    if found != right:
        raise AssertionError(f"{expression} in {zone}: {sorted(set(found) ^ set(right))[:5]}")
    return len(found)


def compare_around(expression: str, zone: str, change: datetime, oracle: FireTable) -> int:
    """Compare the fire times around a change of the clock, each found from the one before and from any moment."""
    schedule = fire_times(expression, zone)
    start, end = max(change - AROUND, START), min(change + AROUND, END)
    found, right = between(schedule.upcoming(start - MOMENT), end), oracle.between(start, end)
    if found != right:
        raise AssertionError(f"{expression} in {zone}, {change}: {sorted(set(found) ^ set(right))[:5]}")
    for minutes in range(-150, 151, 7):
        moment = change + timedelta(minutes=minutes, seconds=minutes % 3)
        place = bisect_right(right, moment)
        if place < len(right) and schedule.after(moment) != right[place]:
            raise AssertionError(f"{expression} in {zone} after {moment}: {schedule.after(moment)}, not {right[place]}")
    return len(found)


def zones_by_clock() -> dict[Offsets, list[str]]:
    """All zones, those together whose clocks show the same over the years."""
    zones: defaultdict[Offsets, list[str]] = defaultdict(list)
    for zone in sorted(available_timezones() - {"localtime", "Factory"}):
        zones[offsets_of(ZoneInfo(zone), START, END)].append(zone)
    return zones


def sweep() -> None:
    """Compare everything with the oracle, and print how much that was."""
    started = time.perf_counter()
    zones = zones_by_clock()
    say(f"{sum(map(len, zones.values()))} zones with {len(zones)} clocks, {sum(len(o) - 1 for o in zones)} changes")
    compared = 0
    for expression in (*SPARSE, *DENSE):
        minutes = LocalMinutes(expression, START, END)
        for offsets, (zone, *_) in zones.items():
            oracle = minutes.fire_table(offsets)
            if expression in SPARSE:
                compared += compare_whole(expression, zone, oracle)
            compared += sum(compare_around(expression, zone, change, oracle) for change in changes(offsets))
        seconds = time.perf_counter() - started
        say(f"  {expression:18}  equal; {compared:,} fire times compared in {seconds:.0f} s")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - that is what it is for


if __name__ == "__main__":
    sweep()
