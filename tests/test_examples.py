"""The examples do what they say, against a database of Bellringer."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.postgres import Cluster
from tests.support.queues import bodies_of, move_inbox
from tests.support.scheduler_engine import Engine
from tests.support.server import serving
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.broker import Broker
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.scheduler.model import TaskState
from bellringer.scheduler.service import Tasks

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("client", ["psycopg", "asyncpg", "sqlalchemy"])
async def test_a_message_is_published_with_the_row_that_it_tells_of_or_not_at_all(
    cluster: Cluster,
    database: Database,
    database_arguments: dict[str, Any],
    broker: Broker,
    environment: Environment,
    client: str,
) -> None:
    queue = await broker.ensure_queue(environment.id, "orders")
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / f"publish_in_transaction_{client}.py"),
        env={**os.environ, "DATABASE_URL": cluster.url(database_arguments["database"])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        told, complaint = await program.communicate()
    assert (program.returncode, complaint) == (0, b"")
    assert told.decode() == "ordered 1\nrefused: an order needs an item\n"
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT number, item FROM example_orders")
    assert [tuple(row) for row in rows] == [(1, "bell")]
    await move_inbox(database, broker)
    (body,) = bodies_of(await broker.claim(queue, 10))
    assert msgspec.json.decode(body) == {"order": 1, "item": "bell"}


@pytest.mark.scenario
async def test_a_function_is_called_that_the_transaction_of_an_order_scheduled(
    cluster: Cluster, database: Database, database_arguments: dict[str, Any]
) -> None:
    url = cluster.url(database_arguments["database"])
    settings = {
        "BELLRINGER_DATABASE_URL": url,
        "BELLRINGER_API_KEY": "0123456789abcdef",
        "DATABASE_URL": url,
        "BELLRINGER_TASKS": "examples.scheduled_functions:scheduler",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), *sys.path]),
    }
    with serving(settings) as server:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "examples.scheduled_functions",
            env={**os.environ, **settings},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, complaint = await program.communicate()
        assert (program.returncode, told.decode()) == (0, "ordered 1\nrefused: an order needs an item\n"), complaint
        (name, key) = await until(lambda: reminder_of_an_order(database))
        assert name == "remind:1"
        assert "/remind:1@" in key
        tasks = {task["name"] for task in server.get("/v1/tasks")["tasks"]}
        assert tasks == {"remind:1", "tidy"}
        assert {function["name"] for function in server.get("/v1/functions")["functions"]} == {"remind", "tidy"}


async def reminder_of_an_order(database: Database) -> tuple[str, str] | None:
    """The task that succeeded and the run that left its mark on an order, when there is one."""
    async with database.connection() as connection:
        row = await connection.fetchrow(
            "SELECT task.name, example.reminded_by FROM bellringer.occurrences AS occurrence "
            "JOIN bellringer.tasks AS task ON task.number = occurrence.task "
            "JOIN example_orders AS example ON example.reminded_by LIKE '%/' || task.name || '@%' "
            "WHERE occurrence.outcome = 'succeeded'"
        )
    return None if row is None else (row["name"], row["reminded_by"])


async def test_a_task_is_scheduled_with_the_row_that_it_is_about_or_not_at_all(
    cluster: Cluster,
    database: Database,
    database_arguments: dict[str, Any],
    broker: Broker,
    environment: Environment,
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / "schedule_in_transaction.py"),
        env={**os.environ, "DATABASE_URL": cluster.url(database_arguments["database"])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        told, complaint = await program.communicate()
    assert (program.returncode, complaint) == (0, b"")
    assert told.decode().splitlines() == [
        "reminder scheduled: ann",
        "reminder scheduled: bob",
        "refused: a trial needs a customer",
        "reminder cancelled: bob",
    ]
    async with database.connection() as connection:
        assert [row["customer"] for row in await connection.fetch("SELECT * FROM example_trials")] == ["ann"]
    await Engine(database, broker).pick()
    tasks = await Tasks(database, broker).list(environment.id)
    assert [(task.name, task.state) for task in tasks] == [
        ("trial-ends:ann", TaskState.ACTIVE),
        ("trial-ends:bob", TaskState.CANCELLED),
    ]
    (occurrence,) = await Tasks(database, broker).occurrences(environment.id, "trial-ends:ann")
    assert occurrence.fire_at == tasks[0].definition.schedule.at
