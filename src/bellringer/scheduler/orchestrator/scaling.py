"""How many executors there should be: from what is to come and what was, within the limits. No I/O.

Up at once, as soon as the order is due for what is to come, or when runs wait that should not. Down to what the last
`quiet_seconds` needed and the next ones will, so that nothing is taken away that would be ordered again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bellringer.scheduler.orchestrator.config import OrchestratorConfig
from bellringer.scheduler.orchestrator.forecast import peak

_LATE_SHARE = 1 / 3
"""Runs that have waited for this share of the promise are a sign that executors are missing."""


class PastRound(msgspec.Struct, frozen=True, kw_only=True):
    """What a round before found and asked for; `desired` is None when nothing could be asked for."""

    at: float
    needed: int
    current: int | None
    desired: int | None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision is made from. `at` counts seconds on the clock of the past rounds, which ascend.

    `demand` is the slots needed in the window that begins so many seconds from now; `current` the executors that are
    ordered, ready or not; `waiting` the runs that are due and wait for an executor, `running` those that have one.
    """

    at: float
    current: int
    demand: Sequence[float]
    waiting: int = 0
    oldest_wait_seconds: float = 0.0
    running: int = 0
    past: Sequence[PastRound] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How many executors are needed by when new ones could be ready, how many there should be, and why."""

    slots: float
    needed: int
    desired: int
    reason: str


def is_time(since_last_seconds: float, oldest_wait_seconds: float, config: OrchestratorConfig) -> bool:
    """Whether to look ahead again: it is time for it, or runs wait that nobody foresaw."""
    return since_last_seconds >= config.interval_seconds or _is_late(oldest_wait_seconds, config)


def decide(situation: Situation, config: OrchestratorConfig) -> Decision:
    """How many executors there should be from now on."""
    slots, second = peak(situation.demand, config.lead_seconds)
    forecast = executors_for(slots, config)
    reason = f"{slots:,.1f} slots are needed in {second} s" if slots else "nothing is due soon"
    needed = forecast
    if (further := _reaction(situation, config)) > forecast:
        needed = further
        reason = f"{situation.waiting:,} runs wait, the oldest for {situation.oldest_wait_seconds:.0f} s"
    wanted, within = needed, _within(needed, config)
    if wanted > config.maximum:
        reason += f"; {wanted:,} executors would do, and {config.maximum:,} is the limit"
    desired = within
    if within < situation.current:
        desired, hold = _lowered(situation, within, config)
        reason = hold or reason
    desired = _within(desired, config)
    return Decision(slots=slots, needed=within, desired=desired, reason=reason)


def executors_for(slots: float, config: OrchestratorConfig) -> int:
    """How many executors have so many slots."""
    return math.ceil(slots / config.concurrency)


def _within(executors: int, config: OrchestratorConfig) -> int:
    return min(max(executors, config.minimum), config.maximum)


def _reaction(situation: Situation, config: OrchestratorConfig) -> int:
    """How many executors to have when runs wait although enough were ordered: half as many again.

    Not while those that were ordered last are still on their way. What waits is due now, and so a part of the demand;
    this is for runs that take longer than they did, and for executors that do less than they should.
    """
    if not situation.waiting or not _is_late(situation.oldest_wait_seconds, config):
        return 0
    raised_at = max((past.at for past in situation.past if _raised(past)), default=-math.inf)
    if situation.at - raised_at < max(config.provisioning_seconds, config.cool_down_seconds):
        return 0
    return situation.current + max(1, situation.current // 2)


def _is_late(oldest_wait_seconds: float, config: OrchestratorConfig) -> bool:
    return oldest_wait_seconds >= config.window_seconds * _LATE_SHARE


def _raised(past: PastRound) -> bool:
    return past.desired is not None and past.current is not None and past.desired > past.current


def _changed(past: PastRound) -> bool:
    return past.desired is not None and past.desired != past.current


def _lowered(situation: Situation, needed: int, config: OrchestratorConfig) -> tuple[int, str]:
    """To how many of the current executors to go down, and why not further."""
    ahead, second = peak(situation.demand, config.lead_seconds + config.quiet_seconds)
    coming = executors_for(ahead, config)
    recent = [past for past in situation.past if past.at > situation.at - config.quiet_seconds]
    past = max((past.needed for past in recent), default=needed)
    if not _is_known(situation, config):
        return situation.current, f"what the last {config.quiet_seconds} s needed is not known yet"
    changed_at = max((past.at for past in situation.past if _changed(past)), default=-math.inf)
    if situation.at - changed_at < config.cool_down_seconds:
        return situation.current, f"the last change is less than {config.cool_down_seconds} s ago"
    busy = executors_for(situation.running, config)
    kept = min(situation.current, max(needed, coming, past, busy))
    if kept == busy > max(needed, coming, past):
        return kept, f"{situation.running:,} runs go on"
    if kept == past > max(needed, coming):
        return kept, f"the last {config.quiet_seconds} s needed {past:,}"
    if kept == coming > needed:
        return kept, f"{ahead:,.1f} slots will be needed in {second} s"
    return kept, ""


def _is_known(situation: Situation, config: OrchestratorConfig) -> bool:
    """Whether somebody looked all through the quiet time, without gaps."""
    moment = situation.at
    for past in reversed(situation.past):
        if moment - past.at > 2 * config.interval_seconds:
            return False
        moment = past.at
        if moment <= situation.at - config.quiet_seconds:
            return True
    return False
