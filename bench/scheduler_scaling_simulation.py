"""A site with a clock of its own: runs, executors that take a while to come up, and somebody who orders them.

What is due waits in one queue for a free slot. An executor is paid for from the order to the end of its last run; it
is ready 60 to 90 seconds after the order. One that is to go takes no new run.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from bellringer.scheduler.orchestrator.config import OrchestratorConfig
from bellringer.scheduler.orchestrator.forecast import Due, demand, loads
from bellringer.scheduler.orchestrator.scaling import PastRound, Situation, decide, is_time
from bench.scheduler_scaling_loads import MIDNIGHT, Run, Story

CONFIG = OrchestratorConfig(concurrency=10, minimum=2, maximum=120)
PROMISE_SECONDS = 30.0
PROVISIONING_SECONDS = (60.0, 90.0)

_KEPT = 200


class Site:
    """What there is at a moment, as those who order executors see it."""

    def __init__(self, story: Story) -> None:
        self.runs = story.runs
        self.dues = [run.due for run in story.runs]
        self.queue: deque[Run] = deque()
        self.running = 0
        self.ordered = 0
        self.durations = {subject: deque(past, _KEPT) for subject, past in story.past_seconds.items()}

    def mean_seconds(self, subject: str) -> float:
        """How long runs took lately, on the average."""
        return sum(self.durations[subject]) / len(self.durations[subject])

    def coming(self, now: float, look_ahead_seconds: float) -> Sequence[Run]:
        """What will be due, known or not."""
        return self.runs[bisect_left(self.dues, now) : bisect_left(self.dues, now + look_ahead_seconds)]


class Policy(Protocol):
    """Somebody who orders executors, every so often."""

    name: str
    interval_seconds: float

    def executors(self, now: float, site: Site) -> int:
        """How many there should be from now on."""
        ...


class Fixed:
    """Always as many."""

    interval_seconds = 3600.0

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self._number = number

    def executors(self, now: float, site: Site) -> int:  # noqa: ARG002 - it knows the answer
        return self._number


class Reactive:
    """By the queue, as KEDA and Kubernetes' HPA do: looks every 15 s, goes up at once and as far as it takes (by
    default they only double every 15 s), and down to the most of the last five minutes. It aims at slots that are 70 %
    busy, and counts what waits as well as what runs, so that a long queue asks for all that are missing at once.
    """

    name = "reactive"
    interval_seconds = 15.0

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()

    def executors(self, now: float, site: Site) -> int:
        wanted = math.ceil(self._wanted(site))
        self._recent.append((now, min(max(wanted, CONFIG.minimum), CONFIG.maximum)))
        while self._recent[0][0] < now - 300:
            self._recent.popleft()
        return max(number for _, number in self._recent)

    def _wanted(self, site: Site) -> float:
        return (len(site.queue) + site.running) / (0.7 * CONFIG.concurrency)


class Tuned(Reactive):
    """The same, by somebody who knows how long these runs take, and orders no more than clears the queue in 30 s."""

    name = "reactive, tuned"

    def _wanted(self, site: Site) -> float:
        work = sum(site.mean_seconds(run.subject) for run in site.queue)
        return (site.running / 0.7 + work / PROMISE_SECONDS) / CONFIG.concurrency


class Predictive:
    """Bellringer's own forecast and decision."""

    name = "predictive"

    def __init__(self, config: OrchestratorConfig = CONFIG) -> None:
        self.interval_seconds = float(config.watch_seconds)
        self._config = config
        self._looked_at = -math.inf
        self._past: deque[PastRound] = deque(maxlen=50)

    def executors(self, now: float, site: Site) -> int:
        config = self._config
        waits_seconds = now - site.queue[0].due if site.queue else 0.0
        if not is_time(now - self._looked_at, waits_seconds, config):
            return site.ordered
        self._looked_at = now
        known = Counter(
            (int(run.due - now), run.subject)
            for run in site.coming(now, config.look_ahead_seconds)
            if run.known_at <= now
        )
        known.update((-1, run.subject) for run in site.queue)
        p95 = {subject: _p95(site.durations[subject]) for _, subject in known}
        dues = [Due(second=second, tasks=tasks, seconds=p95[subject]) for (second, subject), tasks in known.items()]
        moment, ahead = MIDNIGHT + timedelta(seconds=now), config.look_ahead_seconds
        decision = decide(
            Situation(
                at=now,
                current=site.ordered,
                demand=demand(loads(dues, moment, ahead), ahead, config.window_seconds),
                waiting=len(site.queue),
                oldest_wait_seconds=waits_seconds,
                running=site.running,
                past=tuple(self._past),
            ),
            config,
        )
        self._past.append(PastRound(at=now, needed=decision.needed, current=site.ordered, desired=decision.desired))
        return decision.desired


def _p95(seconds: deque[float]) -> float:
    """As the database has it: the smallest that 95 % do not exceed, upwards in steps of 2 %."""
    exact = sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]
    return math.exp(math.ceil(50 * math.log(exact)) / 50)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Lags in seconds, ascending."""

    lags: list[float]
    executor_minutes: float

    @property
    def missed(self) -> int:
        """Starts later than promised."""
        return len(self.lags) - bisect_left(self.lags, PROMISE_SECONDS + 1e-9)

    @property
    def p99_seconds(self) -> float:
        return self.lags[math.ceil(0.99 * len(self.lags)) - 1]


class _Executor:
    """`gone_at` is when it was told to go, and `busy` the runs that it still has."""

    __slots__ = ("busy", "is_going", "is_ready", "ordered_at")

    def __init__(self, ordered_at: float) -> None:
        self.ordered_at = ordered_at
        self.is_ready = False
        self.is_going = False
        self.busy = 0


class Simulation:
    """One policy through one story; the same seed for all of them."""

    def __init__(self, story: Story, policy: Policy) -> None:
        self._story = story
        self._policy = policy
        self._site = Site(story)
        self._random = random.Random(0)
        self._executors: list[_Executor] = []
        self._slots: deque[_Executor] = deque()
        self._events: list[tuple[float, int, _Executor, Run | None]] = []
        self._sequence = 0
        self._lags: list[float] = []
        self._paid_seconds = 0.0

    def run(self) -> Outcome:
        story, site = self._story, self._site
        first = self._policy.executors(story.begin, site)
        for _ in range(first):  # they were there before
            executor = _Executor(story.begin)
            self._executors.append(executor)
            self._make_ready(executor)
        site.ordered = first
        now, place, look_at = story.begin, 0, story.begin + self._policy.interval_seconds
        while place < len(site.runs) or site.queue or self._events or now < story.end:
            due = site.dues[place] if place < len(site.runs) else math.inf
            event = self._events[0][0] if self._events else math.inf
            now = min(due, event, look_at)
            if now >= story.end and not site.queue and place == len(site.runs) and not site.running:
                break
            if event == now:
                self._happen(now)
            elif due == now:
                site.queue.append(site.runs[place])
                place += 1
            else:
                self._scale(now, self._policy.executors(now, site))
                look_at += self._policy.interval_seconds
            self._start(now)
        end = max(now, story.end)
        paid = self._paid_seconds + sum(end - executor.ordered_at for executor in self._executors)
        return Outcome(lags=sorted(self._lags), executor_minutes=paid / 60)

    def _start(self, now: float) -> None:
        site = self._site
        while site.queue and self._slots:
            executor = self._slots.popleft()
            if executor.is_going:
                continue
            run = site.queue.popleft()
            self._lags.append(now - run.due)
            site.running += 1
            executor.busy += 1
            self._plan(now + run.seconds, executor, run)

    def _plan(self, at: float, executor: _Executor, run: Run | None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, executor, run))

    def _happen(self, now: float) -> None:
        _, _, executor, run = heapq.heappop(self._events)
        if run is None:
            if not executor.is_going:
                self._make_ready(executor)
            return
        self._site.running -= 1
        self._site.durations[run.subject].append(run.seconds)
        executor.busy -= 1
        if not executor.is_going:
            self._slots.append(executor)
        elif not executor.busy:
            self._pay(now, executor)

    def _make_ready(self, executor: _Executor) -> None:
        executor.is_ready = True
        self._slots.extend([executor] * CONFIG.concurrency)

    def _scale(self, now: float, number: int) -> None:
        staying = [executor for executor in self._executors if not executor.is_going]
        for _ in range(number - len(staying)):
            executor = _Executor(now)
            self._executors.append(executor)
            self._plan(now + self._random.uniform(*PROVISIONING_SECONDS), executor, None)
        for executor in staying[number:]:
            executor.is_going = True
            if not executor.busy:
                self._pay(now, executor)
        self._site.ordered = number

    def _pay(self, now: float, executor: _Executor) -> None:
        self._paid_seconds += now - executor.ordered_at
        self._executors.remove(executor)
