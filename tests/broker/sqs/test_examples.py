"""The examples run as their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.broker.sqs.conftest import REGION, Client
from tests.support.server import DEADLINE_SECONDS, Server, until

ROOT = Path(__file__).parents[3]


def environment(server: Server, pair: dict[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        **{name.upper(): value for name, value in pair.items()},
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_SQS": server.url,
        "BELLRINGER_ADDRESS": f"127.0.0.1:{server.port}",
    }


def test_a_queue_through_boto3(server: Server, pair: dict[str, str], sqs: Client) -> None:
    done = subprocess.run(
        [sys.executable, "examples/sqs_boto3.py"],
        cwd=ROOT,
        env=environment(server, pair),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "order 42 of acme\n"), done.stderr
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_celery_application(server: Server, pair: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    application = ["-m", "celery", "--app", "examples.sqs_celery"]
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, *application, "worker", "--pool", "solo"],
            cwd=ROOT,
            env=environment(server, pair),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        code = 'from examples.sqs_celery import greet; greet.delay("world")'
        asked = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment(server, pair),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert asked.returncode == 0, asked.stderr
        until(lambda: "hello world" in log.read_text(), "the task was run")
    finally:
        worker.kill()
        worker.wait(DEADLINE_SECONDS)
