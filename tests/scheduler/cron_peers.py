"""Compare cron fire times with what other libraries say: `python -m tests.scheduler.cron_peers`.

At one change of every kind that clocks knew in forty years. What is different is sorted by what it is.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import FrameType
from zoneinfo import ZoneInfo

from croniter import CroniterBadCronError, croniter
from cronsim import CronSim
from tests.scheduler.cron_sweep import AROUND, DENSE, SPARSE, between, fire_times, say, zones_by_clock
from tests.support.cron_oracle import changes, is_rhythm

HOUR = timedelta(hours=1)
COMPUTING_SECONDS = 5
NEVER_ANSWERS = "computes for ever"
STANDS_STILL = "comes upon the same time again and again"
GOES_BACK = "asked in the repeated hour, names a time that has passed"
UNEXPLAINED = "not explained"

Peer = Callable[[str, datetime], Iterator[datetime]]


class TookTooLongError(Exception):
    """A library computed for longer than it may."""


class StoodStillError(Exception):
    """The next fire time was not later than the one before."""


def iterate_cronsim(expression: str, moment: datetime) -> Iterator[datetime]:
    return (fire_at.astimezone(UTC) for fire_at in CronSim(expression, moment))


def iterate_croniter(expression: str, moment: datetime) -> Iterator[datetime]:
    return (fire_at.astimezone(UTC) for fire_at in croniter(expression, moment, ret_type=datetime))


def differences(peer: Peer, expression: str, zone: ZoneInfo, change: datetime) -> set[str]:
    """The kinds of what a library does otherwise around a change."""
    start, end = change - AROUND, change + AROUND
    ours = set(between(fire_times(expression, zone.key).upcoming(start), end))
    try:
        theirs = set(between(while_ascending(peer(expression, start.astimezone(zone))), end))
    except CroniterBadCronError:
        return {"refuses L in that place"}
    except StoodStillError:
        return {STANDS_STILL}
    kinds = {kind_of_difference(expression, zone, change, at, extra=at in theirs) for at in ours ^ theirs}
    for minutes in range(5, 180, 25):
        moment = change + timedelta(minutes=minutes)
        if next(peer(expression, moment.astimezone(zone))) <= moment:
            kinds.add(GOES_BACK)
    return kinds


def kind_of_difference(expression: str, zone: ZoneInfo, change: datetime, fire_at: datetime, *, extra: bool) -> str:
    """In words; a time that the library has and we have not is `extra`."""
    minute = timedelta(minutes=1)
    before, after = (moment.astimezone(zone).replace(tzinfo=None) for moment in (change - minute, change))
    shift = after - before - minute
    is_odd = abs(shift) != HOUR or after.minute != 0
    _, hours, days, _, weekdays = expression.split()
    if days.startswith("*/") and weekdays != "*":
        return "takes days from `*/` or weekdays, where both have to be met"
    if not extra and hours == "0-23" and fire_at == change:
        return "takes 0-23 for `*`"
    if extra and is_rhythm(expression) and fire_at == change and shift > timedelta(0):
        return "makes up, after a gap, for a rhythm"
    if extra and not is_rhythm(expression) and change <= fire_at < change - shift:
        return "runs a repeated time of day twice"
    if not extra and is_rhythm(expression) and is_odd and change <= fire_at < change + AROUND:
        return "loses times of a rhythm after a change other than by one hour at the full hour"
    return UNEXPLAINED


def while_ascending(upcoming: Iterator[datetime]) -> Iterator[datetime]:
    before = datetime.min.replace(tzinfo=UTC)
    for fire_at in upcoming:
        if fire_at <= before:
            raise StoodStillError
        yield fire_at
        before = fire_at


def limited(work: Callable[[], set[str]]) -> set[str]:
    """The work, if it is done in a few seconds of computing."""

    def give_up(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise TookTooLongError

    signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, COMPUTING_SECONDS)
    try:
        return work()
    except TookTooLongError:
        return {NEVER_ANSWERS}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def kinds_of_changes() -> dict[object, tuple[ZoneInfo, datetime]]:
    """The newest change of each kind, by what the clock showed before and after it."""
    kinds: dict[object, tuple[ZoneInfo, datetime]] = {}
    for offsets, (name, *_) in zones_by_clock().items():
        zone = ZoneInfo(name)
        for change in changes(offsets):
            before, after = (change - timedelta(minutes=1)).astimezone(zone), change.astimezone(zone)
            kinds[before.time(), after.time(), before.date() == after.date()] = (zone, change)
    return kinds


def compare_peers() -> None:
    """Print what the libraries do otherwise: in how many of the cases, and an example."""
    kinds = kinds_of_changes()
    for name, peer in (("cronsim", iterate_cronsim), ("croniter", iterate_croniter)):
        found: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for zone, change in kinds.values():
            for expression in (*SPARSE, *DENSE):
                for kind in limited(lambda p=peer, e=expression, z=zone, c=change: differences(p, e, z, c)):
                    found[kind] += 1
                    examples[kind] = f"{expression} in {zone.key}, {change:%Y-%m-%d %H:%M}"
        say(f"{name}: {len(kinds)} kinds of changes x {len(SPARSE + DENSE)} expressions")
        for kind, number in found.most_common():
            say(f"  {number:5} {kind} ({examples[kind]})")


if __name__ == "__main__":
    compare_peers()
