"""What is sampled every ten seconds, and read for each look at the metrics, walks indexes over a large schedule."""

from __future__ import annotations

import pytest
from tests.support.plans import MODES, PlanMode, scans_of
from tests.support.scheduler_rows import add_task

from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler import samples

TASKS, OVER, WAITING, SAMPLES = 5000, 20_000, 40, 3000

_FILL = f"""
INSERT INTO bellringer.tasks (environment_id, name, queue, cron, call, overlap, next_fire_at)
SELECT $1, 'task ' || number, 1, '0 2 * * *', '{{}}', 'skip', clock_timestamp() + interval '1 hour'
FROM generate_series(1, {TASKS}) AS number;
"""
_FILL_HISTORY = f"""
INSERT INTO bellringer.occurrences (task, fire_at, stage, due_at, picked_at)
SELECT number, fire_at, CASE WHEN place <= {WAITING} THEN 1 ELSE 2 END, fire_at, fire_at
FROM (
    SELECT place, (SELECT min(number) FROM bellringer.tasks) AS number,
        clock_timestamp() - make_interval(secs => place) AS fire_at
    FROM generate_series(1, {OVER}) AS place
) AS run
"""
_FILL_SAMPLES = f"""
INSERT INTO bellringer.scheduler_samples
SELECT $1, clock_timestamp() - make_interval(secs => 10 * place), 0, 0, 0, 0, 0, 0, 0, 0, '{{0,0,0,0,0,0,0}}', 0, place
FROM generate_series(1, {SAMPLES}) AS place
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_analyzed", [True, False], ids=["analyzed", "not analyzed"])
async def test_nothing_is_read_but_what_is_told(
    database: Database, environment: Environment, mode: PlanMode, *, is_analyzed: bool
) -> None:
    await add_task(database, environment.id, "late", fires_in=10)
    async with database.connection() as connection:
        await connection.execute(_FILL, environment.id)
        await connection.execute(_FILL_HISTORY)
        await connection.execute(_FILL_SAMPLES, environment.id)
        if is_analyzed:
            await connection.execute("ANALYZE bellringer.tasks, bellringer.occurrences, bellringer.scheduler_samples")
        cases = {
            samples.ENVIRONMENTS: ([], "tasks", 2),
            samples.LAGS: ([120.0, 10_000], "tasks", 2),
            samples.DEPTHS: ([100_000], "occurrences", WAITING),
            samples.HELD: ([[environment.id], 3600.0], "scheduler_samples", 1),
            samples.READ: ([environment.id, 3600.0], "scheduler_samples", 361),
        }
        for statement, (arguments, table, most) in cases.items():
            scans = await scans_of(connection, statement, arguments, mode)
            read = sum(scan.rows for scan in scans if scan.table == table)
            assert read <= most, f"{statement}\n{scans}"
            assert all(scan.index for scan in scans if scan.table not in {"environments", "executors"}), scans
