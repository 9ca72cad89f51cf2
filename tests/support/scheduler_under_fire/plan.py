"""What is asked of the scheduler in a run: tasks of every kind, and what is done to them while they run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeVar

import msgspec
from tests.support.scheduler_history import records
from tests.support.scheduler_history.records import (
    SECOND,
    Delay,
    Interval,
    Minutes,
    Once,
    Policy,
    Verb,
)
from tests.support.scheduler_under_fire.settings import Size

from bellringer.scheduler.model import (
    FunctionCall,
    Misfire,
    MisfirePolicy,
    Overlap,
    Retry,
    Schedule,
    TaskDefinition,
)

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Zones that stand apart from UTC by other than whole hours, each the same all the year.
_ZONES = {
    "Asia/Kathmandu": 345,
    "Australia/Eucla": 525,
    "Pacific/Marquesas": -570,
    "Asia/Kolkata": 330,
    "Asia/Yangon": 390,
    "UTC": 0,
}
_BEHAVIOURS = {"succeed": 14, "block": 2, "fail": 2, "recover": 2}
_LENGTHS = {0.0: 8, 0.2: 4, 1.2: 3, 3.0: 2, 6.0: 1}
_TIME_LIMITS = {30.0: 8, 2.0: 1}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Something to ask of a task, so many seconds after the beginning."""

    seconds: float
    verb: Verb
    schedule: records.Schedule | None = None


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, what its function does and for how long, and what is asked of it. `Once` counts from when it is made."""

    name: str
    schedule: records.Schedule
    policy: Policy
    function: str
    seconds: float
    time_limit_seconds: float
    steps: list[Step]

    @property
    def is_recurring(self) -> bool:
        """Whether it has more than one fire time."""
        return not isinstance(self.schedule, Once | Delay)

    def definition(self, schedule: records.Schedule) -> TaskDefinition:
        """The task as the scheduler wants it."""
        policy = self.policy
        return TaskDefinition(
            schedule=_given(schedule),
            call=FunctionCall(name=self.function),
            payload=msgspec.Raw(msgspec.json.encode({"seconds": self.seconds})),
            misfire=MisfirePolicy(
                policy=Misfire(policy.misfire),
                limit=policy.misfire_limit,
                window_seconds=policy.misfire_window / SECOND,
            ),
            overlap=Overlap(policy.overlap),
            time_limit_seconds=self.time_limit_seconds,
            retry=Retry(max_retries=policy.max_retries, first_seconds=0.5, cap_seconds=2.0),
            rerun_after_crash=policy.rerun_after_crash,
        )


def plan(size: Size, random: Random) -> Iterator[PlannedTask]:
    """The tasks of a run."""
    for number in range(size.recurring_tasks):
        at = random.uniform(0, size.seconds / 3)
        steps = [Step(seconds=at, verb=Verb.CREATE), *_recurring_steps(size, at, random)]
        yield _task(f"recurring-{number}", _recurring_schedule(random), steps, random)
    for number in range(size.one_time_tasks):
        at = random.uniform(0, size.seconds)
        steps = [Step(seconds=at, verb=Verb.CREATE), *_one_time_steps(at, random)]
        yield _task(f"once-{number}", _one_time_schedule(random), steps, random)
    for number in range(size.crashing_tasks):
        at = random.uniform(0, size.seconds)
        steps = [Step(seconds=at, verb=Verb.CREATE)]
        schedule = Delay(length=random.randrange(SECOND, 10 * SECOND))
        yield _task(f"crashing-{number}", schedule, steps, random, random.choice(["crash", "crash_once"]))


def moment_of(microseconds: int) -> datetime:
    """A moment as the scheduler takes it."""
    return EPOCH + timedelta(microseconds=microseconds)


def microseconds_of(moment: datetime) -> int:
    """A moment as histories have it."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def _task(
    name: str, schedule: records.Schedule, steps: list[Step], random: Random, function: str | None = None
) -> PlannedTask:
    policy = Policy(
        overlap=random.choice(list(records.Overlap)),
        misfire=random.choice(list(records.Misfire)),
        misfire_limit=random.choice([1, 3, 5]),
        misfire_window=random.choice([15, 20]) * SECOND,
        max_retries=random.choice([0, 0, 1, 2]),
        rerun_after_crash=random.random() < 0.5,
    )
    return PlannedTask(
        name=name,
        schedule=schedule,
        policy=policy,
        function=function or _weighed(_BEHAVIOURS, random),
        seconds=_weighed(_LENGTHS, random),
        time_limit_seconds=_weighed(_TIME_LIMITS, random),
        steps=steps,
    )


def _recurring_schedule(random: Random) -> records.Schedule:
    if random.random() < 0.2:
        zone, ahead_minutes = random.choice(list(_ZONES.items()))
        return Minutes(step=random.choice([1, 1, 2]), zone=zone, ahead_minutes=ahead_minutes)
    every = round(random.choice([1, 1.5, 2, 3, 5]) * SECOND)
    long_ago = random.randrange(1_700_000_000 * SECOND, 1_750_000_000 * SECOND)
    return Interval(every=every, anchor=random.choice([None, long_ago]))


def _one_time_schedule(random: Random) -> records.Schedule:
    length = random.randrange(2 * SECOND, 15 * SECOND)
    return Delay(length=length) if random.random() < 0.5 else Once(at=length + 2 * SECOND)


def _recurring_steps(size: Size, made: float, random: Random) -> Iterator[Step]:
    """A few of what can be done with a task, some seconds apart, and in the end a pause or a cancellation."""
    at = made
    is_paused = False
    for _ in range(random.choice([0, 1, 2, 4])):
        at += random.uniform(2, size.seconds / 4)
        if at > size.seconds - 2:
            break
        verb = Verb.RESUME if is_paused else random.choice([Verb.PAUSE, Verb.PAUSE, Verb.CHANGE, Verb.RUN, Verb.RETRY])
        is_paused = verb is Verb.PAUSE
        schedule = _recurring_schedule(random) if verb is Verb.CHANGE else None
        yield Step(seconds=at, verb=verb, schedule=schedule)
    yield Step(seconds=size.seconds + size.calm_seconds, verb=random.choice([Verb.PAUSE, Verb.PAUSE, Verb.CANCEL]))


def _one_time_steps(made: float, random: Random) -> Iterator[Step]:
    chance = random.random()
    later = made + random.uniform(0.5, 20)
    if chance < 0.1:
        yield Step(seconds=later, verb=Verb.CANCEL)
    elif chance < 0.2:
        yield Step(seconds=later, verb=Verb.PAUSE)
        yield Step(seconds=later + random.uniform(0.5, 8), verb=Verb.RESUME)
    elif chance < 0.25:
        yield Step(seconds=later, verb=random.choice([Verb.RUN, Verb.RETRY]))


def _weighed(choices: dict[T, int], random: Random) -> T:
    return random.choices(list(choices), list(choices.values()))[0]


def _given(schedule: records.Schedule) -> Schedule:
    match schedule:
        case Once(at=at):
            return Schedule(at=moment_of(at))
        case Delay(length=length):
            return Schedule(delay_seconds=length / SECOND)
        case Interval(every=every, anchor=anchor):
            starting_at = None if anchor is None else moment_of(anchor)
            return Schedule(every_seconds=every / SECOND, starting_at=starting_at)
        case Minutes(step=step, zone=zone):
            return Schedule(cron=f"*/{step} * * * *" if step > 1 else "* * * * *", time_zone=zone)
