"""The schedulers that are measured side by side, and the first of them: the seed's table and statements by the letter.

Each stores tasks that are due at one moment, and says which processes run them: two that execute on each side.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg
import uvloop

from bench.queue_contestants import ConnectArguments, connected
from bench.scheduler_work import Job, Marks, command, job_of_this_process

EXECUTORS = 2

Pick = Callable[[], Awaitable[int | bool]]
"""Picks a batch; false or 0 when none is due."""


class Scheduler(ABC):
    """A scheduler under measurement.

    `due_seconds` is how far ahead its pickers find tasks, at least; `picked` a query that counts what they picked.
    `lead_seconds` is how long before their moment tasks are stored; `unfinished` a query that counts those whose end
    is not recorded. Where they are kept: `recorded`, when each task started, and `ended`, when the last one ended, in
    seconds since 1970. `leaves_marks`: its tasks call the no-op of the benchmark.
    """

    name: str
    lead_seconds = 20.0
    due_seconds = 0.0
    picked: str
    unfinished: str
    ended: str | None = None
    recorded: str | None = None
    leaves_marks = True

    @abstractmethod
    async def install(self, arguments: ConnectArguments) -> None:
        """Make the tables in an empty database."""

    @abstractmethod
    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float, spread_seconds: float = 0) -> None:
        """Store that many one-time tasks, the fastest way there is.

        The first is due at `fire_at`, in seconds since 1970, the others evenly in the `spread_seconds` after.
        """

    @abstractmethod
    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """The processes that pick and execute."""

    def settings(self, job: Job) -> dict[str, str]:  # noqa: ARG002 - of most
        """What the processes find in their environment."""
        return {}

    @abstractmethod
    def picker(self, arguments: ConnectArguments) -> AbstractAsyncContextManager[Pick]:
        """What picks due tasks, a batch at a time."""


class Seed(Scheduler):
    """The seed: picked ten at a time, pushed one by one, a statement for each start and each end.

    What it leaves open is decided in its favour: unpicked tasks have an index by time; the queue is pgmq's table,
    which shows a message from the task's moment on; an executor works on 16 tasks at a time, each over a connection
    with prepared statements, and looks for more every 20 ms.
    """

    name = "seed"
    due_seconds = 60.0
    picked = "SELECT count(*) FROM tasks WHERE picked_at IS NOT NULL"
    pick = 10
    pull = 1
    slots = 16
    unfinished = "SELECT count(*) FROM tasks WHERE ended_at IS NULL"
    ended = "SELECT extract(epoch FROM max(ended_at))::float8 FROM tasks"
    recorded = "SELECT extract(epoch FROM started_at)::float8 FROM tasks WHERE started_at IS NOT NULL"
    schema = """
        CREATE TABLE tasks (
            id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            task text,
            scheduled_at timestamptz,
            picked_at timestamptz,
            started_at timestamptz,
            ended_at timestamptz
        );
        CREATE INDEX tasks_unpicked ON tasks (scheduled_at) WHERE picked_at IS NULL;
        CREATE TABLE queue (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            vt timestamptz NOT NULL,
            message jsonb NOT NULL
        );
        CREATE INDEX queue_vt ON queue (vt);
    """

    async def install(self, arguments: ConnectArguments) -> None:
        async with connected(arguments) as connection:
            await connection.execute(self.schema)

    async def store(self, arguments: ConnectArguments, tasks: int, fire_at: float, spread_seconds: float = 0) -> None:
        async with connected(arguments) as connection:
            await connection.execute(
                "INSERT INTO tasks (task, scheduled_at) SELECT 'no_op:' || number, to_timestamp($2 + $3 * number)"
                " FROM generate_series(0, $1 - 1) number",
                tasks,
                fire_at,
                spread_seconds / tasks,
                timeout=3600,
            )
            await connection.execute("VACUUM ANALYZE tasks", timeout=3600)

    @asynccontextmanager
    async def picker(self, arguments: ConnectArguments) -> AsyncIterator[Pick]:
        async with connected(arguments) as connection:
            yield lambda: pick_once(connection, self.pick)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        parts = ["pick", "pick", *["execute"] * EXECUTORS]
        return [command(__name__, job.for_part(f"{part} {self.pick} {self.pull} {self.slots}")) for part in parts]


class BatchedSeed(Seed):
    """The same statements, picked a thousand at a time, pushed together, and pulled ten at a time."""

    name = "seed, batched"
    pick = 1000
    pull = 10


async def pick_once(connection: asyncpg.Connection[asyncpg.Record], limit: int) -> int:
    """The seed's pick and push; returns how many."""
    async with connection.transaction():
        rows = await connection.fetch(
            "SELECT * FROM tasks WHERE scheduled_at <= (NOW() + INTERVAL '2 MINUTE') AND picked_at IS NULL"
            f" ORDER BY scheduled_at ASC LIMIT {limit} FOR UPDATE SKIP LOCKED"
        )
        if not rows:
            return 0
        await connection.execute(
            "UPDATE tasks SET picked_at = NOW() WHERE id = ANY($1::integer[])", [row["id"] for row in rows]
        )
    push = (
        "INSERT INTO queue (vt, message)"
        " SELECT vt, jsonb_build_object('task_id', id, 'payload', task, 'scheduled_at', vt)"
        " FROM unnest($1::integer[], $2::text[], $3::timestamptz[]) AS pushed (id, task, vt)"
    )
    together = limit > 10
    for part in [rows] if together else [[row] for row in rows]:
        await connection.execute(
            push, [row["id"] for row in part], [row["task"] for row in part], [row["scheduled_at"] for row in part]
        )
    return len(rows)


async def pick_for_ever(arguments: ConnectArguments, limit: int) -> None:
    async with connected(arguments) as connection:
        while True:
            if await pick_once(connection, limit) == 0:
                await asyncio.sleep(0.1)


async def execute_for_ever(job: Job, pull: int, slots: int) -> None:
    marks = Marks(job.marks)

    async def work() -> None:
        async with connected(job.arguments) as connection:
            while True:
                messages = await connection.fetch(
                    "WITH visible AS (SELECT id FROM queue WHERE vt <= clock_timestamp() ORDER BY id"
                    f" LIMIT {pull} FOR UPDATE SKIP LOCKED)"
                    " UPDATE queue SET vt = clock_timestamp() + interval '600 s' FROM visible"
                    " WHERE queue.id = visible.id RETURNING queue.id, (message->>'task_id')::integer AS task_id"
                )
                for message in messages:
                    task = await connection.fetchrow("SELECT * FROM tasks WHERE id = $1", message["task_id"])
                    assert task is not None
                    await connection.execute("UPDATE tasks SET started_at = NOW() WHERE id = $1", task["id"])
                    marks.add()
                    await connection.execute("UPDATE tasks SET ended_at = NOW() WHERE id = $1", task["id"])
                    await connection.execute("DELETE FROM queue WHERE id = $1", message["id"])
                if not messages:
                    await asyncio.sleep(0.02)

    await asyncio.gather(*(work() for _ in range(slots)))


async def main(job: Job) -> None:
    part, pick, pull, slots = job.part.split()
    if part == "pick":
        await pick_for_ever(job.arguments, int(pick))
    else:
        await execute_for_ever(job, int(pull), int(slots))


if __name__ == "__main__":
    uvloop.run(main(job_of_this_process()))
