"""Reads what there is to judge: the record of the functions, and the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import asyncpg
import msgspec
from tests.support.scheduler_history.records import (
    SECOND,
    Attempt,
    History,
    Incident,
    IncidentKind,
    Occurrence,
    Outcome,
    Request,
    Run,
    StoredTask,
)
from tests.support.scheduler_under_fire.application import Begun, Ended
from tests.support.scheduler_under_fire.settings import SCHEDULER

_MOMENTS = (
    "due_at",
    "dispatched_at",
    "started_at",
    "ended_at",
    "fire_at",
    "last_fire_at",
    "picked_at",
    "created_at",
    "once_at",
    "next_fire_at",
)


def _moments(*names: str) -> str:
    """Columns as microseconds, exactly."""
    assert set(names) <= set(_MOMENTS)
    return ", ".join(f"(EXTRACT(epoch FROM {name}) * 1000000)::bigint AS {name}" for name in names)


_ATTEMPT = f"task, attempt, outcome, detail, {_moments('fire_at', 'due_at', 'dispatched_at', 'started_at', 'ended_at')}"
_TASKS = f"SELECT number, name, {_moments('created_at', 'once_at', 'next_fire_at')} FROM bellringer.tasks"
_OCCURRENCES = f"SELECT {_ATTEMPT}, is_manual, {_moments('picked_at')} FROM bellringer.occurrences"
_PAST = f"SELECT {_ATTEMPT} FROM bellringer.past_attempts ORDER BY attempt"
_INCIDENTS = f"SELECT task, kind, attempt, cause, {_moments('fire_at', 'last_fire_at')} FROM bellringer.incidents"
_OPEN = """
SELECT (SELECT count(*) FROM bellringer.occurrences WHERE ended_at IS NULL)
    + (SELECT count(*) FROM bellringer.tasks WHERE next_fire_at IS NOT NULL)
"""


async def count_open(url: str) -> int:
    """How many occurrences have not ended, and tasks have fire times to come."""
    connection = await asyncpg.connect(url)
    try:
        number: int = await connection.fetchval(_OPEN)
        return number
    finally:
        await connection.close()


async def read_history(url: str, requests: list[Request], runs: list[Run]) -> History:
    """The history of a run that is over."""
    connection = await asyncpg.connect(url)
    try:
        names = {row["number"]: row["name"] for row in await connection.fetch(_TASKS)}
        tasks = [
            StoredTask(
                name=row["name"],
                created_at=row["created_at"],
                once_at=row["once_at"],
                next_fire_at=row["next_fire_at"],
            )
            for row in await connection.fetch(_TASKS)
        ]
        past = defaultdict[tuple[int, int], list[Attempt]](list)
        for row in await connection.fetch(_PAST):
            past[row["task"], row["fire_at"]].append(_attempt(row))
        occurrences = [
            Occurrence(
                task=names[row["task"]],
                fire_at=row["fire_at"],
                picked_at=row["picked_at"],
                attempts=[*past.pop((row["task"], row["fire_at"]), []), _attempt(row)],
                is_manual=row["is_manual"],
            )
            for row in await connection.fetch(_OCCURRENCES)
        ]
        assert not past, f"attempts without an occurrence: {past}"
        incidents = [
            Incident(
                task=names[row["task"]],
                kind=IncidentKind(row["kind"]),
                fire_at=row["fire_at"],
                last_fire_at=row["last_fire_at"],
                attempt=row["attempt"],
                cause=row["cause"],
            )
            for row in await connection.fetch(_INCIDENTS)
        ]
    finally:
        await connection.close()
    return History(
        requests=requests,
        runs=runs,
        tasks=tasks,
        occurrences=occurrences,
        incidents=incidents,
        promise=round(SCHEDULER.start_promise_seconds * SECOND),
        ahead=round(SCHEDULER.pick_ahead_seconds * SECOND),
    )


def read_runs(lines: Iterable[bytes]) -> list[Run]:
    """What the functions wrote down."""
    decode = msgspec.json.Decoder(Begun | Ended).decode
    runs: dict[str, Run] = {}
    for line in map(decode, lines):
        if isinstance(line, Begun):
            process = line.run.partition("-")[0]
            runs[line.run] = Run(
                task=line.task, fire_at=line.fire_at, attempt=line.attempt, process=process, begun_at=line.at
            )
        else:
            runs[line.run] = msgspec.structs.replace(runs[line.run], ended_at=line.at, result=line.result)
    return list(runs.values())


def _attempt(row: asyncpg.Record) -> Attempt:
    return Attempt(
        number=row["attempt"],
        due_at=row["due_at"],
        dispatched_at=row["dispatched_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=None if row["outcome"] is None else Outcome(row["outcome"]),
        detail=row["detail"],
    )
