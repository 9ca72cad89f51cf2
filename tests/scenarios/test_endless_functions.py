"""Functions that never end, or end more than themselves: each outcome is recorded, and the others run on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.server import Server, serving, until

pytestmark = pytest.mark.scenario

APPLICATION = """
import asyncio, sys, threading, time
from bellringer.scheduler import Scheduler

scheduler = Scheduler()

@scheduler.task
def spin() -> None:
    while True:
        pass

@scheduler.task
def block() -> None:
    time.sleep(3600)

@scheduler.task
async def rest() -> None:
    await asyncio.sleep(3600)

@scheduler.task
async def refuse() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@scheduler.task
def leave() -> None:
    sys.exit(3)

@scheduler.task
async def leave_async() -> None:
    sys.exit(3)

@scheduler.task
async def work(order: int) -> None:
    pass
"""
ENDLESS = ("spin", "block", "rest", "refuse")


def schedule(server: Server, name: str, payload: object = None, **fields: object) -> None:
    definition = {"schedule": {"delay_seconds": 0}, "call": {"type": "function", "name": name}, "payload": payload}
    reply = server.request("PUT", f"/v1/tasks/{name}", definition | fields)
    assert reply.status in {200, 201}, reply.body


def last_of(server: Server, name: str) -> Any:  # noqa: ANN401 - as the API shows it
    """The newest occurrence of a task when it has ended."""
    (occurrence,) = server.get(f"/v1/tasks/{name}/occurrences")["occurrences"] or [None]
    return occurrence if occurrence and occurrence["ended_at"] else None


def test_a_function_that_never_ends_is_timed_out_and_the_others_run_on(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(APPLICATION)
    settings = {
        "BELLRINGER_TASKS": "endless:scheduler",
        "BELLRINGER_EXECUTOR_CONCURRENCY": str(len(ENDLESS)),
        "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}",
    }
    with serving(settings) as server:
        for name in ENDLESS:
            schedule(server, name, time_limit_seconds=0.5)
        for name in ("leave", "leave_async"):
            schedule(server, name)
        schedule(server, "work", {"order": 7})
        for name in ENDLESS:
            occurrence = until(lambda name=name: last_of(server, name), f"{name} is over")
            assert (occurrence["outcome"], occurrence["detail"]) == ("timed_out", "it took longer than its 0.5 s")
        for name in ("leave", "leave_async"):
            occurrence = until(lambda name=name: last_of(server, name), f"{name} is over")
            assert (occurrence["outcome"], occurrence["detail"]) == ("failed", "SystemExit: 3")
        assert until(lambda: last_of(server, "work"), "work is done")["outcome"] == "succeeded"
        for name in ("block", "refuse"):
            assert server.metric(f'bellringer_scheduler_abandoned_runs{{function="{name}"}}') == 1
        assert server.metric('bellringer_scheduler_abandoned_runs{function="spin"}') == 0
        reply = server.request(
            "PUT",
            "/v1/tasks/wrong",
            {
                "schedule": {"delay_seconds": 0},
                "call": {"type": "function", "name": "work"},
                "payload": {"order": "7"},
            },
        )
        assert (reply.status, reply.json()["field"]) == (400, "payload.order")
        assert server.terminate() == 0
