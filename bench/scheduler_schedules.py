"""How long does it take to find and store the next fire times of 1,000,000 recurring schedules, and in what memory?

A mix as people have it: times of day in two dozen zones, weekdays, first days of a month, rhythms of a few minutes,
intervals. They are computed from what is stored, then picked by one picker as when they are due: it reads a task,
plans, makes the occurrence and stores the next fire time, in transactions of 1,000. Baselines, in the same run and on
the same cron expressions: what other libraries compute in a second, from what they store.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import resource
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import uvloop
from apscheduler.triggers.cron import CronTrigger
from croniter import croniter
from cronsim import CronSim

from bellringer.scheduler.fire_times import fire_times_of
from bellringer.scheduler.model import Schedule
from bench.queue_contestants import ConnectArguments, connected
from bench.queue_work import running_postgres
from bench.scheduler_bellringer import Bellringer
from bench.support import print_table, scratch_directory

SCHEDULES = 1_000_000
SAMPLE = 20_000
BATCH = 1000
DUE_WITHIN_SECONDS = 40.0  # after a minute: within the two that a picker looks ahead, and missed by none
CRONS = (
    "{minute} {hour} * * *",
    "{minute} {hour} * * *",
    "{minute} {hour} * * *",
    "{minute} {hour} * * mon-fri",
    "{minute} {hour} * * mon-fri",
    "{minute} {hour} 1 * *",
    "{minute} * * * *",
    "*/15 * * * *",
    "*/5 * * * *",
)
TYPICAL = ("*/5 * * * *", "0 2 * * *", "0 9 * * 1-5", "0 0 29 2 *")
ZONES = (
    "UTC", "Europe/Berlin", "Europe/London", "Europe/Paris", "Europe/Madrid", "Europe/Warsaw", "Europe/Istanbul",
    "Africa/Cairo", "Africa/Lagos", "Africa/Johannesburg", "America/New_York", "America/Chicago", "America/Denver",
    "America/Los_Angeles", "America/Sao_Paulo", "America/Mexico_City", "Asia/Kolkata", "Asia/Tokyo", "Asia/Shanghai",
    "Asia/Singapore", "Asia/Dubai", "Asia/Jakarta", "Australia/Sydney", "Pacific/Auckland",
)  # fmt: skip
COLUMNS = (
    "environment_id", "name", "queue", "cron", "time_zone", "every_seconds", "starting_at", "call", "overlap",
    "next_fire_at",
)  # fmt: skip


def schedules(number: int, now: datetime) -> Iterator[Schedule]:
    """Schedules, the same ones every time; none of them is kept."""
    for place in range(number):
        kind = place % (len(CRONS) + 1)
        spread = place * 2_654_435_761 >> 8
        if kind == len(CRONS):
            yield Schedule(every_seconds=60.0 * (1 + spread % 1440), starting_at=now - timedelta(days=30))
        else:
            cron = CRONS[kind].format(minute=spread % 60, hour=spread // 60 % 24)
            yield Schedule(cron=cron, time_zone=ZONES[spread // 1440 % len(ZONES)])


def compute(number: int, now: datetime) -> float:
    """Seconds to find the next fire times of so many schedules."""
    seconds = 0.0
    rest = schedules(number, now)
    while batch := list(itertools.islice(rest, BATCH)):
        started = time.perf_counter()
        for schedule in batch:
            if fire_times_of(schedule, created_at=now).after(now) is None:
                raise SystemExit(f"no fire time of {schedule}")
        seconds += time.perf_counter() - started
    return seconds


def rates(now: datetime) -> dict[str, float]:
    """Next fire times that are found in a second, each from what the library stores of a schedule."""
    crons = [schedule for schedule in schedules(SAMPLE, now) if schedule.cron is not None]
    pairs = [(schedule.cron, ZoneInfo(schedule.time_zone)) for schedule in crons]
    triggers = [pickle.dumps(CronTrigger.from_crontab(cron, start_time=now, timezone=zone)) for cron, zone in pairs]
    return {
        "Bellringer": _rate([lambda s=schedule: fire_times_of(s, created_at=now).after(now) for schedule in crons]),
        "cronsim": _rate([lambda c=c, z=z: next(CronSim(c, now.astimezone(z))) for c, z in pairs]),
        "APScheduler": _rate([lambda t=trigger: pickle.loads(t).next() for trigger in triggers]),
        "croniter": _rate([lambda c=c, z=z: croniter(c, now.astimezone(z)).get_next(datetime) for c, z in pairs]),
    }


def typical(now: datetime) -> list[list[str]]:
    """Microseconds for the next fire time of one schedule: again, from what is stored, and as libraries find it."""
    zone = ZoneInfo("Europe/Berlin")
    local = now.astimezone(zone)
    rows = []
    for cron in TYPICAL:
        schedule = Schedule(cron=cron, time_zone=zone.key)
        fire_times = fire_times_of(schedule, created_at=now)
        trigger = pickle.dumps(CronTrigger.from_crontab(cron, start_time=now, timezone=zone))
        ways: list[Callable[[], object]] = [
            lambda f=fire_times: f.after(now),
            lambda s=schedule: fire_times_of(s, created_at=now).after(now),
            lambda c=cron: next(CronSim(c, local)),
            lambda t=trigger: pickle.loads(t).next(),
            lambda c=cron: croniter(c, local).get_next(datetime),
        ]
        times = [min(timeit.repeat(way, number=200, repeat=20)) / 200 for way in ways]
        rows.append([cron, *(f"{seconds * 1e6:.1f}" for seconds in times)])
    return rows


def _rate(calls: Sequence[Callable[[], object]]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return len(calls) / (time.perf_counter() - started)


async def fill(arguments: ConnectArguments, number: int) -> None:
    """Store so many tasks, due from a minute on."""
    first = datetime.now(UTC) + timedelta(seconds=60)
    async with connected(arguments) as connection:
        environment, queue = await connection.fetchrow(
            "SELECT environments.id, queues.number FROM bellringer.environments, bellringer.queues "
            "WHERE environments.name = 'bench' AND queues.name = 'scheduler.calls'"
        )
        records = (
            (
                environment, f"task-{place}", queue, schedule.cron, schedule.time_zone, schedule.every_seconds,
                schedule.starting_at, '{"type": "message", "queue": "bench"}', "skip",
                first + place * timedelta(seconds=DUE_WITHIN_SECONDS) / number,
            )
            for place, schedule in enumerate(schedules(number, first))
        )  # fmt: skip
        await connection.copy_records_to_table(
            "tasks", schema_name="bellringer", columns=COLUMNS, records=records, timeout=600
        )
        await connection.execute("VACUUM ANALYZE bellringer.tasks", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)


async def store(number: int) -> tuple[float, int, int]:
    """Seconds to pick so many tasks, and how many bytes tasks and occurrences take with their indexes."""
    contestant = Bellringer()
    with scratch_directory() as directory:
        async with running_postgres(directory) as postgres, postgres.fresh_database(contestant) as arguments:
            await fill(arguments, number)
            async with contestant.picker(arguments) as pick:
                started = time.perf_counter()
                for _ in range(number // BATCH):
                    await pick()
                seconds = time.perf_counter() - started
            async with connected(arguments) as connection:
                picked = await connection.fetchval("SELECT count(DISTINCT task) FROM bellringer.occurrences")
                if picked != number:
                    raise SystemExit(f"{picked} of {number} tasks were picked")
                task_bytes, occurrence_bytes = await connection.fetchrow(
                    "SELECT pg_total_relation_size('bellringer.tasks'), "
                    "pg_total_relation_size('bellringer.occurrences')"
                )
                return seconds, task_bytes, occurrence_bytes


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    number = parser.parse_args(arguments).schedules
    now = datetime.now(UTC)
    before = _peak_megabytes()
    computed = compute(number, now)
    after_compute = _peak_megabytes()
    stored, task_bytes, occurrence_bytes = uvloop.run(store(number))
    after_store = _peak_megabytes()
    print_table(
        f"Next fire times of {number:,} recurring schedules",
        ["", "seconds", "per second", "peak MB", "more than at start"],
        [
            [name, f"{seconds:.1f}", f"{number / seconds:,.0f}", f"{peak:.0f}", f"{peak - before:.0f}"]
            for name, seconds, peak in (
                ("found", computed, after_compute),
                ("found and stored, with an occurrence each", stored, after_store),
            )
        ],
    )
    print(f"  on disk: {task_bytes / number:,.0f} bytes a task, {occurrence_bytes / 2**20:,.0f} MB of occurrences")
    found = rates(now)
    print_table(
        f"Next fire times found in a second, of the cron expressions among {SAMPLE:,} of them",
        ["", "per second", "Bellringer against it"],
        [[name, f"{rate:,.0f}", f"{found['Bellringer'] / rate:.1f}x"] for name, rate in found.items()],
    )
    print_table(
        "Microseconds for the next fire time, the best of 20 rounds",
        ["", "Bellringer, kept", "Bellringer, stored", "cronsim", "APScheduler", "croniter"],
        typical(now),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
