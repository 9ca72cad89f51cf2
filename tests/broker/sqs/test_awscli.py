"""The AWS CLI against a running server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.sqs.conftest import REGION, Queues
from tests.support.server import DEADLINE_SECONDS, Server


class CommandLine:
    """`aws sqs` with a key of ours."""

    def __init__(self, server: Server, pair: dict[str, str], directory: Path) -> None:
        self._server = server
        self._environment = {
            **os.environ,
            **{name.upper(): value for name, value in pair.items()},
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": str(directory / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(directory / "credentials"),
            "AWS_MAX_ATTEMPTS": "1",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [Path(sys.executable).with_name("aws"), "--endpoint-url", self._server.url, "sqs", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def __call__(self, *arguments: str) -> Any:  # noqa: ANN401 - whatever it answers
        """Run a command, which must succeed; return its answer."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout) if done.stdout.strip() else None


@pytest.fixture
def aws(server: Server, pair: dict[str, str], tmp_path: Path) -> CommandLine:
    return CommandLine(server, pair, tmp_path)


def test_a_message_from_beginning_to_end(aws: CommandLine, queues: Queues) -> None:
    name = queues.name()
    url = aws("create-queue", "--queue-name", name, "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    colour = '{"colour": {"DataType": "String", "StringValue": "red"}}'
    sent = aws("send-message", "--queue-url", url, "--message-body", "hello", "--message-attributes", colour)
    (message,) = aws("receive-message", "--queue-url", url, "--message-attribute-names", "All")["Messages"]
    assert message["Body"] == "hello"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert aws("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"]) is None
    shown = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert (shown["VisibilityTimeout"], shown["ApproximateNumberOfMessages"]) == ("60", "0")


def test_an_error_is_told_by_its_code(aws: CommandLine) -> None:
    refused = aws.run("get-queue-url", "--queue-name", "never-made")
    assert refused.returncode != 0
    assert "(AWS.SimpleQueueService.NonExistentQueue) when calling the GetQueueUrl operation" in refused.stderr
