"""How the scheduler stood over time: a row per environment whenever something changed, looked at every ten seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from bellringer.kernel.database import Database
from bellringer.kernel.lease import Lease
from bellringer.kernel.service import Loop
from bellringer.kernel.tally import Tallies
from bellringer.scheduler.model import WAIT_BOUNDS_SECONDS, IncidentKind, MissCause

KEPT_SECONDS = 24 * 3600
_MOST_UNPICKED = 10_000
_MOST_WAITING = 100_000
_MINUTE_SECONDS, _HOUR_SECONDS = 60.0, 3600.0

# Index: tasks_environment_id_name_key, one look per environment.
ENVIRONMENTS = """
SELECT id FROM bellringer.environments AS environment
WHERE EXISTS (SELECT FROM bellringer.tasks WHERE environment_id = environment.id)
"""
# Index: tasks_due. Pickers take tasks in this order, so the first ones tell how late they are.
LAGS = """
SELECT environment_id, GREATEST(0, max(EXTRACT(
    epoch FROM clock_timestamp() - GREATEST(next_fire_at - make_interval(secs => $1), modified_at)
)))::double precision AS seconds
FROM (
    SELECT environment_id, next_fire_at, modified_at FROM bellringer.tasks
    WHERE next_fire_at <= (SELECT clock_timestamp()) + make_interval(secs => $1)
    ORDER BY next_fire_at LIMIT $2
) AS unpicked
GROUP BY environment_id
"""
# Index: occurrences_open.
DEPTHS = """
SELECT task.environment_id, count(*) AS occurrences
FROM (
    SELECT task FROM bellringer.occurrences
    WHERE stage < 2 AND stage = ANY ('{0,1}') AND due_at <= (SELECT clock_timestamp()) LIMIT $1
) AS waiting
JOIN bellringer.tasks AS task ON task.number = waiting.task
GROUP BY task.environment_id
"""
# Index: scheduler_samples_pkey. A row holds until the next one.
WRITE = """
INSERT INTO bellringer.scheduler_samples (
    environment_id, at, picked, started, ended, failed, skipped, missed, wait_milliseconds, run_milliseconds, waits,
    picker_lag_seconds, queue_depth
)
SELECT $1, clock_timestamp(), new.*
FROM (VALUES (
    $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::bigint[],
    $11::double precision, $12::bigint
)) AS new
LEFT JOIN LATERAL (
    SELECT picked, started, ended, failed, skipped, missed, wait_milliseconds, run_milliseconds, waits,
        picker_lag_seconds, queue_depth
    FROM bellringer.scheduler_samples WHERE environment_id = $1 ORDER BY at DESC LIMIT 1
) AS last ON true
WHERE new IS DISTINCT FROM last
"""
# The newest of the old ones still holds at the beginning of the time that is kept.
FORGET = """
DELETE FROM bellringer.scheduler_samples AS sample
USING bellringer.environments AS environment
WHERE sample.environment_id = environment.id AND sample.at < (
    SELECT max(at) FROM bellringer.scheduler_samples
    WHERE environment_id = environment.id AND at < (SELECT clock_timestamp()) - make_interval(secs => $1)
)
"""
# The clock is asked once: asked row by row, it would have every row of the environment looked at.
READ = """
(
    SELECT * FROM bellringer.scheduler_samples
    WHERE environment_id = $1 AND at <= (SELECT clock_timestamp()) - make_interval(secs => $2) ORDER BY at DESC LIMIT 1
)
UNION ALL
(
    SELECT * FROM bellringer.scheduler_samples
    WHERE environment_id = $1 AND at > (SELECT clock_timestamp()) - make_interval(secs => $2) ORDER BY at
)
ORDER BY at
"""
HELD = """
SELECT sample.* FROM unnest($1::uuid[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT * FROM bellringer.scheduler_samples
    WHERE environment_id = asked.id AND at <= (SELECT clock_timestamp()) - make_interval(secs => $2)
    ORDER BY at DESC LIMIT 1
) AS sample
"""


class SchedulerSample(msgspec.Struct, frozen=True, kw_only=True):
    """How an environment's tasks stood at one moment.

    All but the last two are totals since its beginning. `waits` has the starts by how late they were
    (`WAIT_BOUNDS_SECONDS`, one more for what was later). `picker_lag_seconds` says by how much the oldest fire time
    that no picker has taken is behind the moment when one should have; `queue_depth` counts the occurrences that are
    due and have not started.
    """

    at: datetime = datetime.fromtimestamp(0, UTC)
    picked: int = 0
    started: int = 0
    ended: int = 0
    failed: int = 0
    skipped: int = 0
    missed: int = 0
    wait_milliseconds: int = 0
    run_milliseconds: int = 0
    waits: tuple[int, ...] = (0,) * (len(WAIT_BOUNDS_SECONDS) + 1)
    picker_lag_seconds: float = 0.0
    queue_depth: int = 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The five metrics of an environment now, and its totals; averages are over the last hour, None without any.

    `incidents` counts what did not go as planned by its kind, `misses` the late starts by their cause.
    """

    pulled_per_minute: int
    wait_seconds: float | None
    completion_seconds: float | None
    now: SchedulerSample
    incidents: Mapping[IncidentKind, int]
    misses: Mapping[MissCause, int]


class Samples:
    """Reads how the tasks of environments stand, and stood."""

    def __init__(self, database: Database, *, pick_ahead_seconds: float = 120.0) -> None:
        self._database = database
        self._tallies = Tallies(database)
        self._pick_ahead_seconds = pick_ahead_seconds

    async def environments(self) -> list[UUID]:
        """Those that have tasks."""
        async with self._database.connection() as connection:
            return [row["id"] for row in await connection.fetch(ENVIRONMENTS)]

    async def now(self, environment_ids: Sequence[UUID]) -> dict[UUID, SchedulerSample]:
        """How each environment stands. Raises `Unavailable`."""
        return await self._stand(environment_ids, await self._tallies.read(environment_ids))

    async def over(self, environment_id: UUID, seconds: float) -> list[SchedulerSample]:
        """The samples of the last so many seconds, and the one that held at their beginning. Raises `Unavailable`."""
        async with self._database.connection() as connection:
            return [_stored(dict(row)) for row in await connection.fetch(READ, environment_id, seconds)]

    async def figures(self, environment_ids: Sequence[UUID]) -> dict[UUID, Figures]:
        """The metrics of each environment. Raises `Unavailable`."""
        counts = await self._tallies.read(environment_ids)
        now = await self._stand(environment_ids, counts)
        minute_ago = await self._held(environment_ids, _MINUTE_SECONDS)
        hour_ago = await self._held(environment_ids, _HOUR_SECONDS)
        nothing = SchedulerSample()
        return {
            key: _figures(now[key], minute_ago.get(key, nothing), hour_ago.get(key, nothing), counts[key])
            for key in environment_ids
        }

    async def _stand(
        self, environment_ids: Sequence[UUID], counts: Mapping[UUID, Mapping[str, int]]
    ) -> dict[UUID, SchedulerSample]:
        async with self._database.connection() as connection:
            now: datetime = await connection.fetchval("SELECT clock_timestamp()")
            lags = await connection.fetch(LAGS, self._pick_ahead_seconds, _MOST_UNPICKED)
            depths = await connection.fetch(DEPTHS, _MOST_WAITING)
        lag_of = {row["environment_id"]: row["seconds"] for row in lags}
        depth_of = {row["environment_id"]: row["occurrences"] for row in depths}
        return {key: _sample(counts[key], now, lag_of.get(key, 0.0), depth_of.get(key, 0)) for key in environment_ids}

    async def _held(self, environment_ids: Sequence[UUID], seconds: float) -> dict[UUID, SchedulerSample]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(HELD, list(environment_ids), seconds)
        return {row["environment_id"]: _stored(dict(row)) for row in rows}


class Sampler(Loop):
    """Writes down how the tasks stand, in one process at a time."""

    def __init__(self, database: Database, samples: Samples, *, interval_seconds: float = 10.0) -> None:
        super().__init__("scheduler sampler", interval_seconds=interval_seconds)
        self._database = database
        self._samples = samples
        self._lease = Lease(database, "scheduler sampler", ttl_seconds=2 * interval_seconds)

    async def run_once(self) -> bool:
        """Look once."""
        if await self._lease.hold() is None:
            return False
        found = await self._samples.now(await self._samples.environments())
        async with self._database.connection() as connection:
            for environment_id, sample in found.items():
                _, *values = msgspec.structs.astuple(sample)
                await connection.execute(WRITE, environment_id, *values)
            await connection.execute(FORGET, KEPT_SECONDS)
        return False


def _sample(counts: Mapping[str, int], now: datetime, lag_seconds: float, depth: int) -> SchedulerSample:
    def total(name: str) -> int:
        return counts.get(f"tasks.{name}", 0)

    return SchedulerSample(
        at=now,
        picked=total("picked"),
        started=total("started"),
        ended=total("ended"),
        failed=total("failed"),
        skipped=total("skipped"),
        missed=total("missed"),
        wait_milliseconds=total("wait_ms"),
        run_milliseconds=total("run_ms"),
        waits=tuple(total(f"wait_{index}") for index in range(len(WAIT_BOUNDS_SECONDS) + 1)),
        picker_lag_seconds=round(lag_seconds, 3),
        queue_depth=depth,
    )


def _stored(row: Mapping[str, Any]) -> SchedulerSample:
    values = {name: row[name] for name in SchedulerSample.__struct_fields__}
    return SchedulerSample(**values | {"waits": tuple(row["waits"])})


def _figures(
    now: SchedulerSample, minute_ago: SchedulerSample, hour_ago: SchedulerSample, counts: Mapping[str, int]
) -> Figures:
    started, ended = now.started - hour_ago.started, now.ended - hour_ago.ended
    misses = {cause: counts.get(f"tasks.missed.{cause}", 0) for cause in MissCause}
    incidents = {kind: counts.get(f"tasks.incidents.{kind}", 0) for kind in IncidentKind}
    return Figures(
        pulled_per_minute=now.picked - minute_ago.picked,
        wait_seconds=(now.wait_milliseconds - hour_ago.wait_milliseconds) / 1000 / started if started else None,
        completion_seconds=(now.run_milliseconds - hour_ago.run_milliseconds) / 1000 / ended if ended else None,
        now=now,
        incidents=incidents | {IncidentKind.MISSED: sum(misses.values())},
        misses=misses,
    )
