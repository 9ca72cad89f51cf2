"""A Celery application whose broker is Bellringer, through Celery's own transport for Amazon SQS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import celery
import pytest
from tests.support.server import DEADLINE_SECONDS, Server, serving, until

pytestmark = pytest.mark.scenario

# Whoever comes first makes the queue, with this visibility timeout.
OPTIONS = {"region": "eu-west-1", "is_secure": False, "wait_time_seconds": 5, "visibility_timeout": 5}

APPLICATION = """
import json
import os
import time
from pathlib import Path

from celery import Celery

app = Celery(
    "tasks", broker=os.environ["BROKER_URL"], backend=os.environ["RESULTS_URL"], broker_connection_retry_on_startup=True
)
app.conf.broker_transport_options = json.loads(os.environ["TRANSPORT_OPTIONS"])
app.conf.task_default_queue = "tasks"


@app.task
def add(a, b):
    return a + b


@app.task(bind=True, max_retries=3)
def fail_twice(self):
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return self.request.retries


@app.task(acks_late=True)
def begin_and_finish(marks):
    begun = Path(marks, "begun")
    if not begun.exists():
        begun.touch()
        time.sleep(600)
    return "finished by another"
"""


class Tasks:
    """The application, from the side that asks for work, and its workers."""

    def __init__(self, server: Server, directory: Path) -> None:
        pair = dict(line.partition("=")[::2] for line in server.run("keys", "pair").stdout.splitlines())
        (directory / "tasks.py").write_text(APPLICATION)
        (directory / "results").mkdir()
        self.directory = directory
        self.environment = {
            **os.environ,
            "BROKER_URL": f"sqs://{pair['AWS_ACCESS_KEY_ID']}:{quote(pair['AWS_SECRET_ACCESS_KEY'], safe='')}"
            f"@127.0.0.1:{server.port}//",
            "RESULTS_URL": f"file://{directory / 'results'}",
            "TRANSPORT_OPTIONS": json.dumps(OPTIONS),
            "PYTHONPATH": str(directory),
        }
        self._app = celery.Celery(broker=self.environment["BROKER_URL"], backend=self.environment["RESULTS_URL"])
        self._app.conf.broker_transport_options = OPTIONS
        self._app.conf.task_default_queue = "tasks"

    def ask(self, task: str, *arguments: object, **options: Any) -> Any:  # noqa: ANN401 - what Celery gives
        """Ask for a task; return what its result will be in."""
        return self._app.send_task(f"tasks.{task}", arguments, **options)

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """A worker, gone afterwards."""
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "info"]
        log = self.directory / "worker.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command, cwd=self.directory, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            yield process
        except BaseException as error:
            error.add_note(log.read_text(errors="replace")[-4000:])
            raise
        finally:
            process.kill()
            process.wait(DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def tasks(server: Server, tmp_path: Path) -> Tasks:
    return Tasks(server, tmp_path)


def result_of(asked: Any) -> object:  # noqa: ANN401 - what Celery gives
    return asked.get(timeout=DEADLINE_SECONDS, interval=0.05)


def pending(server: Server) -> int:
    found: int = server.get("/v1/queues/tasks")["counts"]["pending"]
    return found


def test_tasks_are_run_at_once_later_and_again(tasks: Tasks, server: Server) -> None:
    with tasks.worker():
        asked = [tasks.ask("add", number, number) for number in range(25)]
        assert [result_of(one) for one in asked] == [2 * number for number in range(25)]
        assert result_of(tasks.ask("add", 20, 22, countdown=1)) == 42
        assert result_of(tasks.ask("fail_twice")) == 2
    until(lambda: pending(server) == 0, "nothing is left")


def test_a_task_whose_worker_dies_is_run_by_another(tasks: Tasks) -> None:
    asked = tasks.ask("begin_and_finish", str(tasks.directory))
    with tasks.worker():
        until((tasks.directory / "begun").exists, "the first worker has begun")
    with tasks.worker():
        assert result_of(asked) == "finished by another"
