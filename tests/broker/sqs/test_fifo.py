"""FIFO queues through boto3: order within a group, and no message twice."""

from __future__ import annotations

import hashlib

import pytest
from tests.broker.sqs.conftest import Client, Queues, error_of


@pytest.fixture
def fifo(queues: Queues) -> str:
    """The URL of a FIFO queue that takes the body for an id."""
    return queues.fifo(ContentBasedDeduplication="true")


def send(sqs: Client, url: str, body: str, group: str = "g", **arguments: str) -> dict[str, str]:
    sent: dict[str, str] = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **arguments)
    return sent


def receive(sqs: Client, url: str, n: int = 10, **arguments: object) -> list[dict[str, str]]:
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=n, **arguments)
    messages: list[dict[str, str]] = found.get("Messages", [])
    return messages


def test_a_group_waits_for_its_first_message(sqs: Client, fifo: str) -> None:
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        send(sqs, fifo, body, group)
    (first,) = receive(sqs, fifo, 1)
    assert first["Body"] == "a1"
    assert [message["Body"] for message in receive(sqs, fifo)] == ["b1"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
    assert [message["Body"] for message in receive(sqs, fifo)] == ["a2"]


def test_one_receive_may_take_a_group_in_order(sqs: Client, fifo: str) -> None:
    for body in "abc":
        send(sqs, fifo, body)
    assert [message["Body"] for message in receive(sqs, fifo)] == ["a", "b", "c"]
    assert receive(sqs, fifo) == []


def test_what_is_handed_back_comes_first_again(sqs: Client, fifo: str) -> None:
    for body in "ab":
        send(sqs, fifo, body)
    (first,) = receive(sqs, fifo, 1)
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    assert [message["Body"] for message in receive(sqs, fifo)] == ["a", "b"]


def test_a_message_carries_its_group_id_and_number(sqs: Client, queues: Queues) -> None:
    url = queues.fifo()
    sent = [send(sqs, url, "x", MessageDeduplicationId=str(number)) for number in range(3)]
    numbers = [one["SequenceNumber"] for one in sent]
    assert numbers == sorted(set(numbers))
    assert all(len(number) == 20 for number in numbers)
    message = receive(sqs, url, 1, MessageSystemAttributeNames=["All"])[0]
    attributes = message["Attributes"]
    assert isinstance(attributes, dict)
    assert attributes["MessageGroupId"] == "g"
    assert attributes["MessageDeduplicationId"] == "0"
    assert attributes["SequenceNumber"] == numbers[0]


def test_the_same_id_is_the_same_message(sqs: Client, queues: Queues) -> None:
    url = queues.fifo()
    first = send(sqs, url, "one", MessageDeduplicationId="1")
    again = send(sqs, url, "other", "another-group", MessageDeduplicationId="1")
    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    (message,) = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    send(sqs, url, "one", MessageDeduplicationId="1")
    assert receive(sqs, url) == []


def test_the_body_may_be_the_id(sqs: Client, fifo: str) -> None:
    sent = [send(sqs, fifo, body)["MessageId"] for body in ("x", "x", "y")]
    assert sent[0] == sent[1] != sent[2]
    message = receive(sqs, fifo, 1, AttributeNames=["MessageDeduplicationId"])[0]
    assert message["Attributes"] == {"MessageDeduplicationId": hashlib.sha256(b"x").hexdigest()}
    by_id = hashlib.sha256(b"y").hexdigest()
    assert send(sqs, fifo, "z", MessageDeduplicationId=by_id)["MessageId"] == sent[2]


def test_a_purge_forgets_the_ids(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "x")
    sqs.purge_queue(QueueUrl=fifo)
    send(sqs, fifo, "x")
    assert [message["Body"] for message in receive(sqs, fifo)] == ["x"]


def test_a_batch_is_in_order(sqs: Client, fifo: str) -> None:
    entries = [{"Id": body, "MessageBody": body, "MessageGroupId": "g"} for body in "abcdefghij"]
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    numbers = [entry["SequenceNumber"] for entry in answer["Successful"]]
    assert numbers == sorted(numbers)
    assert "".join(message["Body"] for message in receive(sqs, fifo)) == "abcdefghij"


def test_a_stale_handle_is_an_error(sqs: Client, fifo: str) -> None:
    send(sqs, fifo, "x")
    (stale,) = receive(sqs, fifo, VisibilityTimeout=1)
    (held,) = receive(sqs, fifo, WaitTimeSeconds=10)
    handle = stale["ReceiptHandle"]
    expected = (
        "InvalidParameterValue",
        400,
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
    )
    assert error_of(sqs.delete_message, QueueUrl=fifo, ReceiptHandle=handle) == expected
    change = {"QueueUrl": fifo, "ReceiptHandle": handle, "VisibilityTimeout": 5}
    assert error_of(sqs.change_message_visibility, **change) == expected
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=held["ReceiptHandle"])


def test_what_a_fifo_queue_needs_is_asked_for(sqs: Client, queues: Queues) -> None:
    url = queues.fifo()

    def refused(**arguments: object) -> tuple[str, int, str]:
        return error_of(sqs.send_message, QueueUrl=url, MessageBody="x", **arguments)

    group = "The request must contain the parameter MessageGroupId."
    assert refused(MessageDeduplicationId="1") == ("MissingParameter", 400, group)
    id_ = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    assert refused(MessageGroupId="g") == ("InvalidParameterValue", 400, id_)
    entries = [{"Id": "1", "MessageBody": "x", "MessageDeduplicationId": "1"}]
    assert error_of(sqs.send_message_batch, QueueUrl=url, Entries=entries) == ("InvalidParameterValue", 400, group)
    entries = [{"Id": "1", "MessageBody": "x", "MessageGroupId": "g"}]
    assert error_of(sqs.send_message_batch, QueueUrl=url, Entries=entries) == ("InvalidParameterValue", 400, id_)
    delay = "Value 2 for parameter DelaySeconds is invalid."
    assert refused(MessageGroupId="g", MessageDeduplicationId="1", DelaySeconds=2) == (
        "InvalidParameterValue",
        400,
        f"{delay} Reason: The request include parameter that is not valid for this queue type.",
    )
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="1", DelaySeconds=0)


@pytest.mark.parametrize("value", ["", "a" * 129, "group 123", "ü"])
@pytest.mark.parametrize("parameter", ["MessageGroupId", "MessageDeduplicationId"])
def test_an_id_is_of_visible_characters(sqs: Client, fifo: str, parameter: str, value: str) -> None:
    arguments = {"MessageGroupId": "g", "MessageDeduplicationId": "1", parameter: value}
    code, status, message = error_of(sqs.send_message, QueueUrl=fifo, MessageBody="x", **arguments)
    assert (code, status) == ("InvalidParameterValue", 400)
    reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    assert message == f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"


def test_an_entry_with_a_wrong_id_leaves_the_others_unharmed(sqs: Client, fifo: str) -> None:
    groups = {"good": "g", "wrong": "group 123"}
    entries = [{"Id": id_, "MessageBody": id_, "MessageGroupId": group} for id_, group in groups.items()]
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [("wrong", "InvalidParameterValue")]
    assert [message["Body"] for message in receive(sqs, fifo)] == ["good"]


def test_a_standard_queue_may_have_groups_too(sqs: Client, queue: str) -> None:
    send(sqs, queue, "x", "tenant-1")
    (message,) = receive(sqs, queue, AttributeNames=["MessageGroupId"])
    assert message["Attributes"] == {"MessageGroupId": "tenant-1"}
