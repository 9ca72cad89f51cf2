"""Compare cron fire times with the oracle, in every zone and over forty years: `python -m tests.scheduler.cron_sweep`.

Zones with the same clock are taken together. Expressions of few fire times are compared over the whole time, the dense
ones around every change of a clock. Then the libraries that people know are compared in every kind of change, and
what they do otherwise is sorted by what it is.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterBadCronError, croniter
from cronsim import CronSim
from tests.support.cron_oracle import FireTable, LocalMinutes, Offsets, changes, is_rhythm, offsets_of

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
Peer = Callable[[str, datetime], Iterator[datetime]]


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


def sweep() -> dict[Offsets, list[str]]:
    """Compare everything with the oracle, and print how much that was; the zones by their clocks."""
    started = time.perf_counter()
    zones: defaultdict[Offsets, list[str]] = defaultdict(list)
    for zone in sorted(available_timezones() - {"localtime", "Factory"}):
        zones[offsets_of(ZoneInfo(zone), START, END)].append(zone)
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
    return zones


def iterate_cronsim(expression: str, moment: datetime) -> Iterator[datetime]:
    return (fire_at.astimezone(UTC) for fire_at in CronSim(expression, moment))


def iterate_croniter(expression: str, moment: datetime) -> Iterator[datetime]:
    return (fire_at.astimezone(UTC) for fire_at in croniter(expression, moment, ret_type=datetime))


def kind_of_difference(expression: str, zone: ZoneInfo, change: datetime, fire_at: datetime, *, extra: bool) -> str:
    """What another library does otherwise, in words."""
    before, after = (moment.astimezone(zone).utcoffset() for moment in (change - timedelta(minutes=1), change))
    assert before is not None
    assert after is not None
    shift = after - before
    _, hours, days, _, weekdays = expression.split()
    if days.startswith("*/") and weekdays != "*":
        return "takes days from `*/` or weekdays, where both have to be met"
    if not extra and hours == "0-23" and fire_at == change:
        return "takes 0-23 for `*`"
    if extra and is_rhythm(expression) and fire_at == change and shift > timedelta(0):
        return "makes up, after a gap, for a rhythm"
    if extra and not is_rhythm(expression) and change <= fire_at < change - shift:
        return "runs a repeated time of day twice"
    if not extra and is_rhythm(expression) and shift % timedelta(hours=1) and change <= fire_at < change + AROUND:
        return "loses minutes of a rhythm after a shift of less than an hour"
    return f"not explained, such as {expression} in {zone.key} at {fire_at}"


def compare_peers(zones: dict[Offsets, list[str]]) -> None:
    """Print what the libraries do otherwise, by kind, at one change of every kind."""
    kinds = {}
    for offsets, (zone, *_) in zones.items():
        for change in changes(offsets):
            before = (change - timedelta(minutes=1)).astimezone(ZoneInfo(zone))
            after = change.astimezone(ZoneInfo(zone))
            kinds[before.time(), after.time(), before.date() == after.date()] = (zone, change)
    for name, peer in (("cronsim", iterate_cronsim), ("croniter", iterate_croniter)):
        found: Counter[str] = Counter()
        for zone_name, change in kinds.values():
            zone = ZoneInfo(zone_name)
            for expression in (*SPARSE, *DENSE):
                found.update(set(differences(peer, expression, zone, change)))
        say(f"{name}: {len(kinds)} kinds of changes x {len(SPARSE + DENSE)} expressions")
        for kind, number in sorted(found.items()):
            say(f"  {number:5} {kind}")


def differences(peer: Peer, expression: str, zone: ZoneInfo, change: datetime) -> Iterator[str]:
    """The kinds of what a library does otherwise around a change."""
    start, end = change - AROUND, change + AROUND
    ours = set(between(fire_times(expression, zone.key).upcoming(start), end))
    try:
        theirs = set(between(peer(expression, start.astimezone(zone)), end))
    except CroniterBadCronError:
        yield "refuses L in that place"
        return
    for fire_at in ours ^ theirs:
        yield kind_of_difference(expression, zone, change, fire_at, extra=fire_at in theirs)
    for minutes in range(5, 180, 25):
        moment = change + timedelta(minutes=minutes)
        if next(peer(expression, moment.astimezone(zone))) <= moment:
            yield "asked in the repeated hour, answers with a time that has passed"


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - that is what it is for


if __name__ == "__main__":
    compare_peers(sweep())
