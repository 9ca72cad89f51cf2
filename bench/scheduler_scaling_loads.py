"""Loads for the simulation of scaling: when runs are due, when that was known, and how long they take."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bellringer.scheduler.fire_times import fire_times_of
from bellringer.scheduler.model import Schedule

HOUR = 3600.0
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
GITHUB_EVENTS = "BELLRINGER_GITHUB_EVENTS"

# What packages of Debian 12 write into /etc/crontab and /etc/cron.d: how often, and the median seconds of a run.
DEBIAN = (
    ("17 * * * *", 0.5),  # cron: hourly
    ("25 6 * * *", 45.0),  # cron: daily
    ("47 6 * * 7", 20.0),  # cron: weekly
    ("52 6 1 * *", 20.0),  # cron: monthly
    ("5-55/10 * * * *", 0.3),  # sysstat: sample
    ("59 23 * * *", 3.0),  # sysstat: summary
    ("09,39 * * * *", 1.0),  # php: sessions
    ("0 */12 * * *", 10.0),  # certbot
    ("57 0 * * 0", 60.0),  # mdadm: check
    ("30 3 * * 0", 30.0),  # e2fsprogs: scrub, weekly
    ("10 3 * * *", 5.0),  # e2fsprogs: scrub, daily
    ("2 * * * *", 8.0),  # logcheck
    ("*/5 * * * *", 6.0),  # munin: poll
    ("14 10 * * *", 2.0),  # munin: tidy up
    ("*/10 * * * *", 2.0),  # awstats
)
MACHINES = 400

_TIME = re.compile(r'"(?:created|updated|started|completed)_at":\s?"20\d\d-\d\d-\d\dT(\d\d):(\d\d):(\d\d)')
_RUNS_PER_EVENT = 20


class Run(msgspec.Struct, frozen=True):
    """One run: due at that second, known from `known_at` on, one of those of its subject."""

    due: float
    seconds: float
    subject: str
    known_at: float = -1e9


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A load from `begin` to `end`, in seconds of the day, in the order in which runs are due; and durations before."""

    name: str
    begin: float
    end: float
    runs: list[Run]
    past_seconds: dict[str, list[float]]


class Work:
    """Durations of subjects: lognormal about a median, so that the p95 is 2.3 times that."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.past: dict[str, list[float]] = {}

    def seconds(self, median: float) -> float:
        return median * self.random.lognormvariate(0.0, 0.5)

    def remember(self, subject: str, median: float) -> None:
        """Let there have been runs before the story begins."""
        self.past.setdefault(subject, [self.seconds(median) for _ in range(200)])

    def burst(self, due: float, runs: int, median: float, subject: str, known_at: float = -1e9) -> Iterator[Run]:
        """So many runs due in the same second."""
        for _ in range(runs):
            yield Run(due, self.seconds(median), subject, known_at)

    def steady(self, begin: float, end: float, per_second: float, median: float, subject: str) -> Iterator[Run]:
        """Intervals of many tasks: they lie anywhere, and are known."""
        for _ in range(int((end - begin) * per_second)):
            yield Run(float(int(self.random.uniform(begin, end))), self.seconds(median), subject)

    def cron(self, expression: str, tasks: int, median: float, begin: float, end: float) -> Iterator[Run]:
        """So many tasks with the same schedule."""
        self.remember(expression, median)
        fire_times = fire_times_of(Schedule(cron=expression), created_at=MIDNIGHT)
        for moment in fire_times.upcoming(MIDNIGHT):
            due = (moment - MIDNIGHT).total_seconds()
            if due >= end:
                return
            if due >= begin:
                yield from self.burst(due, tasks, median, expression)

    def story(self, name: str, begin: float, end: float, runs: Iterable[Run]) -> Story:
        ordered = sorted(runs, key=lambda run: run.due)
        return Story(name=name, begin=begin, end=end, runs=ordered, past_seconds=self.past)


def nine_o_clock() -> Story:
    """10,000 runs at 9:00 over a steady two per second."""
    work = Work(1)
    work.remember("report", 1.0)
    work.remember("steady", 1.0)
    begin, end = 8 * HOUR, 11 * HOUR
    runs = [*work.burst(9 * HOUR, 10_000, 1.0, "report"), *work.steady(begin, end, 2, 1.0, "steady")]
    return work.story("9:00, 10,000 runs", begin, end, runs)


def exact() -> Story:
    """10,000 runs at 9:00 of one second each: the 95th percentile is no margin."""
    work = Work(1)
    work.past = {"report": [1.0] * 200, "steady": [1.0] * 200}
    begin, end = 8 * HOUR, 11 * HOUR
    dues = [9 * HOUR] * 10_000 + [float(int(work.random.uniform(begin, end))) for _ in range(21_600)]
    runs = [Run(due, 1.0, "report" if due == 9 * HOUR else "steady") for due in dues]
    return work.story("9:00, each exactly 1 s", begin, end, runs)


def hourly() -> Story:
    """3,000 runs on the hour."""
    work = Work(2)
    work.remember("steady", 1.0)
    begin, end = 8.5 * HOUR, 14.5 * HOUR
    runs = [*work.cron("0 * * * *", 3000, 1.0, begin, end), *work.steady(begin, end, 1, 1.0, "steady")]
    return work.story("hourly, 3,000 runs", begin, end, runs)


def round_minutes() -> Story:
    """Cron as people write it: most of it on round minutes."""
    work = Work(3)
    begin, end = 8.25 * HOUR, 12.25 * HOUR
    schedules = (("* * * * *", 50), ("*/5 * * * *", 400), ("*/15 * * * *", 500), ("*/30 * * * *", 800))
    runs = [run for cron, tasks in schedules for run in work.cron(cron, tasks, 2.0, begin, end)]
    runs += [run for minute in range(60) for run in work.cron(f"{minute} * * * *", 20, 2.0, begin, end)]
    runs += work.cron("0 * * * *", 1500, 2.0, begin, end)
    return work.story("cron on round minutes", begin, end, runs)


def surge() -> Story:
    """5,000 runs that somebody asks for at once: nobody knew."""
    work = Work(4)
    work.remember("steady", 1.0)
    work.remember("surge", 1.0)
    begin, end = 8 * HOUR, 10 * HOUR
    at = 9 * HOUR + 7
    runs = [*work.burst(at, 5000, 1.0, "surge", known_at=at), *work.steady(begin, end, 2, 1.0, "steady")]
    return work.story("surge that nobody knew", begin, end, runs)


def growing_surge() -> Story:
    """Work that comes in unannounced and grows to eight times within half an hour."""
    work = Work(5)
    work.remember("orders", 2.0)
    begin, end = 8 * HOUR, 11 * HOUR
    runs = []
    for second in range(int(begin), int(end)):
        rate = 5.0 + 35.0 * max(0.0, 1.0 - abs(second - 9.5 * HOUR) / 1800)
        runs += [
            Run(float(second), work.seconds(2.0), "orders", float(second))
            for _ in range(int(rate) + (work.random.random() < rate % 1))
        ]
    return work.story("unannounced, grows 8-fold", begin, end, runs)


def drift() -> Story:
    """Hourly bursts whose runs take 30 % longer each time."""
    work = Work(6)
    work.remember("report", 1.0)
    work.remember("steady", 1.0)
    begin, end = 8.5 * HOUR, 16.5 * HOUR
    runs = [*work.steady(begin, end, 1, 1.0, "steady")]
    for hour in range(9, 17):
        runs += work.burst(hour * HOUR, 2000, 1.3 ** (hour - 9), "report")
    return work.story("durations that drift", begin, end, runs)


def long_runs() -> Story:
    """200 runs of ten minutes on the hour, among short ones."""
    work = Work(7)
    work.remember("steady", 1.0)
    begin, end = 8.5 * HOUR, 13.5 * HOUR
    runs = [*work.cron("0 * * * *", 200, 600.0, begin, end), *work.steady(begin, end, 3, 1.0, "steady")]
    return work.story("hourly, 200 long runs", begin, end, runs)


def debian() -> Story:
    """The stock schedules of Debian on 400 machines that keep the same time."""
    work = Work(8)
    begin, end = 0.0, 24 * HOUR
    runs = [run for cron, median in DEBIAN for run in work.cron(cron, MACHINES, median, begin, end)]
    return work.story("Debian's crontabs, 400 hosts", begin, end, runs)


def github() -> Story | None:
    """The times of day in recorded events of GitHub, twenty runs each, which begin when the event comes."""
    file = Path(os.environ.get(GITHUB_EVENTS, Path(__file__).parents[2] / "shared" / "data" / "github-events.jsonl"))
    if not file.exists():
        return None
    work = Work(9)
    work.remember("event", 3.0)
    runs = []
    for hours, minutes, seconds in _TIME.findall(file.read_text()):
        due = int(hours) * HOUR + int(minutes) * 60 + int(seconds)
        runs += work.burst(due, _RUNS_PER_EVENT, 3.0, "event", known_at=due)
    return work.story("recorded events of GitHub", 0.0, 24 * HOUR, runs)


def stories() -> list[Story]:
    """All of them; the recorded one where its file is."""
    made = [
        nine_o_clock(),
        exact(),
        hourly(),
        round_minutes(),
        long_runs(),
        drift(),
        surge(),
        growing_surge(),
        debian(),
    ]
    recorded = github()
    return made if recorded is None else [*made, recorded]
