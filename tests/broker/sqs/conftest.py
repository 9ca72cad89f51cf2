"""A running server, and clients of Amazon's that believe it is theirs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import boto3
import botocore.config
import pytest
from botocore.exceptions import ClientError
from tests.support.server import Server, serving

REGION = "eu-west-1"
Client: TypeAlias = Any
"""A client of boto3, which makes its classes at run time."""

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "300"}) as running:
        yield running


@pytest.fixture(scope="package")
def pair(server: Server) -> dict[str, str]:
    """The access key id and the secret of a key that may do everything."""
    return pair_in(server.run("keys", "pair").stdout)


def pair_in(lines: str) -> dict[str, str]:
    """The pair in the lines that the command line shows of a key."""
    found = dict(line.partition("=")[::2] for line in lines.splitlines() if line.startswith("AWS_"))
    return {name.lower(): value for name, value in found.items()}


def client_of(server: Server, pair: dict[str, str], **settings: object) -> Client:
    """A client of the newest kind, which does not try again."""
    config = botocore.config.Config(retries={"total_max_attempts": 1}, **settings)
    return boto3.client("sqs", endpoint_url=server.url, region_name=REGION, config=config, **pair)


@pytest.fixture(scope="package")
def sqs(server: Server, pair: dict[str, str]) -> Client:
    return client_of(server, pair)


class Queues:
    """Makes queues of the test's own."""

    def __init__(self, sqs: Client) -> None:
        self._sqs = sqs

    def name(self, suffix: str = "") -> str:
        """A name that no queue has."""
        return f"queue-{next(_numbers)}{suffix}"

    def make(self, **attributes: str) -> str:
        """A queue; return its URL."""
        suffix = ".fifo" if attributes.get("FifoQueue") == "true" else ""
        url: str = self._sqs.create_queue(QueueName=self.name(suffix), Attributes=attributes)["QueueUrl"]
        return url

    def fifo(self, **attributes: str) -> str:
        """A FIFO queue; return its URL."""
        return self.make(FifoQueue="true", **attributes)

    def attribute(self, url: str, name: str) -> str | None:
        """An attribute of a queue."""
        found = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        value: str | None = found.get("Attributes", {}).get(name)
        return value

    def arn(self, url: str) -> str:
        """The ARN of a queue."""
        arn = self.attribute(url, "QueueArn")
        assert arn is not None
        return arn

    def redrive(self, url: str, dead_letters: str, receives: int) -> None:
        """Send what was received so often and never deleted to another queue."""
        policy = json.dumps({"deadLetterTargetArn": self.arn(dead_letters), "maxReceiveCount": receives})
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})


@pytest.fixture
def queues(sqs: Client) -> Queues:
    return Queues(sqs)


@pytest.fixture
def queue(queues: Queues) -> str:
    """The URL of a queue."""
    return queues.make()


def error_of(call: Callable[..., Any], **arguments: object) -> tuple[str, int, str]:
    """What a call ends with, which must be an error: its code, its HTTP status, its message."""
    with pytest.raises(ClientError) as raised:
        call(**arguments)
    response = raised.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Message"]
