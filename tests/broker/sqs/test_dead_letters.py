"""Dead letters through boto3: what is received too often goes aside, and comes back when somebody says so."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.broker.sqs.conftest import Client, Queues, error_of
from tests.support.server import until


def fail(sqs: Client, url: str, times: int) -> None:
    """Receive everything so many times and delete nothing."""
    for _ in range(times):
        assert sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, MaxNumberOfMessages=10)["Messages"]


def bodies(sqs: Client, url: str) -> list[str]:
    found: list[str] = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [message["Body"] for message in messages]
    return sorted(found)


def dead_letters(sqs: Client, queues: Queues, *texts: str) -> tuple[str, str]:
    """A queue whose messages have all failed, and the queue where they went; return their URLs."""
    source, dead = queues.make(), queues.make()
    queues.redrive(source, dead, 1)
    for text in texts:
        sqs.send_message(QueueUrl=source, MessageBody=text)
    fail(sqs, source, 1)
    until(lambda: "Messages" not in sqs.receive_message(QueueUrl=source), "all went aside")
    until(lambda: queues.attribute(dead, "ApproximateNumberOfMessages") == str(len(texts)), "all arrived")
    return source, dead


def test_what_is_received_too_often_goes_to_the_dead_letter_queue(sqs: Client, queues: Queues) -> None:
    source, dead = queues.make(), queues.make()
    queues.redrive(source, dead, 2)
    attributes = {"colour": {"DataType": "String", "StringValue": "red"}}
    sent = sqs.send_message(QueueUrl=source, MessageBody="x", MessageAttributes=attributes)
    fail(sqs, source, 2)
    assert "Messages" not in sqs.receive_message(QueueUrl=source)
    (message,) = sqs.receive_message(
        QueueUrl=dead, WaitTimeSeconds=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]
    assert message["Body"] == "x"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == queues.arn(source)
    assert message["Attributes"]["ApproximateReceiveCount"] == "3"


def test_the_sources_of_a_dead_letter_queue_are_listed(sqs: Client, queues: Queues) -> None:
    dead, sources = queues.make(), sorted(queues.make() for _ in range(3))
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == []
    for source in sources:
        queues.redrive(source, dead, 3)
    assert sorted(sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]) == sources
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )
    assert sorted(url for page in pages for url in page["queueUrls"]) == sources


def test_a_redrive_policy_names_a_queue_that_may_be_one(sqs: Client, queues: Queues) -> None:
    source, dead, fifo = queues.make(), queues.make(), queues.fifo()

    def refused(arn: str) -> str:
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
        code, status, message = error_of(
            sqs.set_queue_attributes, QueueUrl=source, Attributes={"RedrivePolicy": policy}
        )
        assert (code, status) == ("InvalidParameterValue", 400)
        return message

    assert "does not exist" in refused(queues.arn(dead) + "x")
    assert "same type" in refused(queues.arn(fifo))
    allow = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [queues.arn(dead)]})
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": allow})
    assert queues.attribute(dead, "RedriveAllowPolicy") is not None
    assert "does not allow" in refused(queues.arn(dead))
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": ""})
    queues.redrive(source, dead, 3)
    sqs.set_queue_attributes(QueueUrl=source, Attributes={"RedrivePolicy": ""})
    assert queues.attribute(source, "RedrivePolicy") is None


def test_dead_letters_go_back_to_where_they_came_from(sqs: Client, queues: Queues) -> None:
    source, dead = dead_letters(sqs, queues, "a", "b", "c")
    handle = sqs.start_message_move_task(SourceArn=queues.arn(dead))["TaskHandle"]
    assert json.loads(base64.b64decode(handle))["sourceArn"] == queues.arn(dead)
    task = completed(sqs, queues.arn(dead))
    assert task["ApproximateNumberOfMessagesMoved"] == 3
    assert task["SourceArn"] == queues.arn(dead)
    assert "DestinationArn" not in task
    assert "TaskHandle" not in task
    assert bodies(sqs, source) == ["a", "b", "c"]
    assert bodies(sqs, dead) == []


def test_dead_letters_go_where_they_are_sent(sqs: Client, queues: Queues) -> None:
    source, dead = dead_letters(sqs, queues, "a", "b")
    elsewhere = queues.make()
    sqs.start_message_move_task(
        SourceArn=queues.arn(dead), DestinationArn=queues.arn(elsewhere), MaxNumberOfMessagesPerSecond=500
    )
    task = completed(sqs, queues.arn(dead))
    assert task["DestinationArn"] == queues.arn(elsewhere)
    assert task["MaxNumberOfMessagesPerSecond"] == 500
    assert bodies(sqs, elsewhere) == ["a", "b"]
    assert bodies(sqs, source) == []


def test_dead_letters_of_a_fifo_queue_go_back_though_their_bodies_are_known(sqs: Client, queues: Queues) -> None:
    source, dead = (queues.fifo(ContentBasedDeduplication="true") for _ in range(2))
    queues.redrive(source, dead, 1)
    for body in ("a", "b"):
        sqs.send_message(QueueUrl=source, MessageBody=body, MessageGroupId="g")
    fail(sqs, source, 1)
    until(lambda: "Messages" not in sqs.receive_message(QueueUrl=source), "all went aside")
    until(lambda: queues.attribute(dead, "ApproximateNumberOfMessages") == "2", "all arrived")
    sqs.start_message_move_task(SourceArn=queues.arn(dead))
    assert completed(sqs, queues.arn(dead))["ApproximateNumberOfMessagesMoved"] == 2
    received = sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10, AttributeNames=["MessageGroupId"])
    assert [message["Body"] for message in received["Messages"]] == ["a", "b"]
    assert {message["Attributes"]["MessageGroupId"] for message in received["Messages"]} == {"g"}


def completed(sqs: Client, arn: str) -> dict[str, Any]:
    """The latest task of a queue, once it has ended well."""

    def latest() -> dict[str, Any] | None:
        (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        return task if task["Status"] == "COMPLETED" else None

    task = until(latest, "the task has ended")
    assert task is not None
    return task


def test_a_move_can_be_cancelled_and_is_the_only_one(sqs: Client, queues: Queues) -> None:
    _, dead = dead_letters(sqs, queues, *"abcdefgh")
    arn = queues.arn(dead)
    handle = sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    code, status, message = error_of(sqs.start_message_move_task, SourceArn=arn)
    assert (code, status) == ("InvalidParameterValue", 400)
    assert message.startswith("There is already a task running.")
    (running,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", handle)
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert 0 <= moved < 8
    until(lambda: sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]["Status"] == "CANCELLED", "it has stopped")
    assert error_of(sqs.cancel_message_move_task, TaskHandle=handle) == (
        "ResourceNotFoundException",
        404,
        "Task does not exist.",
    )


def test_a_move_that_makes_no_sense_is_refused(sqs: Client, queues: Queues) -> None:
    dead, plain = queues.make(), queues.make()
    queues.redrive(queues.make(), dead, 3)
    arn = queues.arn(dead)
    assert error_of(sqs.start_message_move_task, SourceArn=queues.arn(plain)) == (
        "InvalidParameterValue",
        400,
        "Source queue must be configured as a Dead Letter Queue.",
    )
    for parameter, arguments in (
        ("SourceArn", {"SourceArn": arn + "x"}),
        ("DestinationArn", {"SourceArn": arn, "DestinationArn": arn + "x"}),
    ):
        message = f"The resource that you specified for the {parameter} parameter doesn't exist."
        expected = ("ResourceNotFoundException", 404, message)
        assert error_of(sqs.start_message_move_task, **arguments) == expected
    for wrong in ({"SourceArn": "arn"}, {"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 501}):
        assert error_of(sqs.start_message_move_task, **wrong)[:2] == ("InvalidParameterValue", 400)
    assert error_of(sqs.list_message_move_tasks, SourceArn=arn, MaxResults=11)[:2] == ("InvalidParameterValue", 400)
    assert sqs.list_message_move_tasks(SourceArn=arn)["Results"] == []
    for handle in ("x", "§", base64.b64encode(b"{}").decode()):
        assert error_of(sqs.cancel_message_move_task, TaskHandle=handle) == (
            "InvalidParameterValue",
            400,
            "Value for parameter TaskHandle is invalid.",
        )
