"""Messages through boto3: sent, received, held, deleted, singly and in batches."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from typing import Any
from uuid import UUID

import pytest
from tests.broker.sqs.conftest import Client, Queues, error_of
from tests.support.server import Server, until

UNKNOWN = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
BELL = "\a"


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def receive(sqs: Client, url: str, **arguments: object) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, **arguments).get("Messages", [])
    return messages


@pytest.mark.parametrize("body", ["x", "hällo \U0001f514", '{"a": "<b>&\\""}', "a\r\nb\tc", " ", "x" * 262_144])
def test_a_message_comes_as_it_was_sent(sqs: Client, queue: str, body: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body)
    (message,) = receive(sqs, queue)
    assert message["Body"] == body
    assert sent["MD5OfMessageBody"] == message["MD5OfBody"] == md5(body)
    assert sent["MessageId"] == message["MessageId"] == str(UUID(sent["MessageId"]))
    assert set(message) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


def test_every_message_has_an_id_of_its_own(sqs: Client, queues: Queues) -> None:
    urls = [queues.make(), queues.make()]
    ids = {sqs.send_message(QueueUrl=url, MessageBody="x")["MessageId"] for url in urls * 3}
    assert len(ids) == 6


def test_attributes_come_as_they_were_sent(sqs: Client, queue: str) -> None:
    attributes = {
        "colour": {"DataType": "String", "StringValue": "red"},
        "size": {"DataType": "Number.int", "StringValue": "5"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}}
    sent = sqs.send_message(
        QueueUrl=queue, MessageBody="x", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    (message,) = receive(sqs, queue, VisibilityTimeout=0, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert "MD5OfMessageSystemAttributes" in sent
    (message,) = receive(sqs, queue, VisibilityTimeout=0, MessageAttributeNames=["col.*", "bytes"])
    assert set(message["MessageAttributes"]) == {"bytes"}
    assert message["MD5OfMessageAttributes"] != sent["MD5OfMessageAttributes"]
    (message,) = receive(sqs, queue, VisibilityTimeout=0, MessageAttributeNames=["nothing"])
    assert "MessageAttributes" not in message
    (message,) = receive(sqs, queue, AttributeNames=["AWSTraceHeader"])
    assert message["Attributes"] == {"AWSTraceHeader": "Root=1-5759e988"}


@pytest.mark.parametrize("member", ["AttributeNames", "MessageSystemAttributeNames"])
def test_the_service_knows_when_and_how_often(sqs: Client, queue: str, member: str) -> None:
    before = time.time()
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    receive(sqs, queue, VisibilityTimeout=0)
    (message,) = receive(sqs, queue, **{member: ["All"]})
    found = message["Attributes"]
    assert found["ApproximateReceiveCount"] == "2"
    assert found["SenderId"] == queue.split("/")[-2]
    sent_at, first_at = int(found["SentTimestamp"]), int(found["ApproximateFirstReceiveTimestamp"])
    assert before * 1000 - 5000 <= sent_at <= first_at <= time.time() * 1000 + 5000
    assert set(found) == {
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SenderId",
        "SentTimestamp",
    }
    assert error_of(sqs.receive_message, QueueUrl=queue, **{member: ["Colour"]})[0] == "InvalidAttributeName"


def test_messages_come_in_order_and_up_to_ten_at_once(sqs: Client, queue: str) -> None:
    for start in (0, 10):
        entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(start, start + 10)]
        assert len(sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 10
    assert [message["Body"] for message in receive(sqs, queue)] == ["0"]
    bodies = [message["Body"] for message in receive(sqs, queue, MaxNumberOfMessages=10)]
    assert bodies == [str(number) for number in range(1, 11)]


def test_a_message_that_is_not_deleted_comes_again(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    (first,) = receive(sqs, queue, VisibilityTimeout=3)
    assert receive(sqs, queue) == []
    (second,) = receive(sqs, queue, WaitTimeSeconds=10)
    assert first["MessageId"] == second["MessageId"]
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])  # a stale handle is no error
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0)
    (third,) = receive(sqs, queue)  # and deleted nothing
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=third["ReceiptHandle"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=third["ReceiptHandle"])
    assert receive(sqs, queue, WaitTimeSeconds=1) == []


def test_a_message_is_held_longer_or_handed_back(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    (message,) = receive(sqs, queue, VisibilityTimeout=4)
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=600)
    assert receive(sqs, queue, WaitTimeSeconds=6) == []
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    assert len(receive(sqs, queue)) == 1


def test_a_delay_hides_a_message(sqs: Client, queues: Queues) -> None:
    url = queues.make(DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="late")
    sqs.send_message(QueueUrl=url, MessageBody="soon", DelaySeconds=3)
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert [message["Body"] for message in receive(sqs, url, MaxNumberOfMessages=10)] == ["now"]
    assert [message["Body"] for message in receive(sqs, url, WaitTimeSeconds=10)] == ["soon"]


def test_a_long_poll_ends_when_a_message_comes(sqs: Client, queue: str) -> None:
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.extend(receive(sqs, queue, WaitTimeSeconds=20)))
    waiting.start()
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    waiting.join(10)
    assert [message["Body"] for message in found] == ["x"]


def test_a_queue_may_say_how_long_to_wait(sqs: Client, queues: Queues) -> None:
    started = time.monotonic()
    assert receive(sqs, queues.make(ReceiveMessageWaitTimeSeconds="1")) == []
    assert time.monotonic() - started > 0.9
    started = time.monotonic()
    assert receive(sqs, queues.make(ReceiveMessageWaitTimeSeconds="20"), WaitTimeSeconds=0) == []
    assert time.monotonic() - started < 15


def test_a_client_that_hangs_up_takes_no_message_along(server: Server, sqs: Client, queue: str) -> None:
    ended = 'bellringer_http_requests_total{method="POST",path="sqs",status="503"}'
    before = server.metric(ended)
    request = signed_receive(sqs, queue)

    def hang_up() -> bool:
        # A server that sees the end of the connection together with the request may not begin to answer it at all.
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(request)
        return server.metric(ended) > before

    until(hang_up, "a wait has ended")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert len(receive(sqs, queue, WaitTimeSeconds=5)) == 1


def signed_receive(sqs: Client, queue: str) -> bytes:
    """The bytes of a request that waits for a message, as boto3 would send them."""
    caught: list[bytes] = []

    def catch(request: Client, **_: object) -> None:
        lines = [
            f"{name}: {value.decode() if isinstance(value, bytes) else value}"
            for name, value in request.headers.items()
        ]
        host = request.url.split("/")[2]
        head = "\r\n".join(["POST / HTTP/1.1", f"Host: {host}", *lines, "", ""])
        caught.append(head.encode() + request.body)
        raise InterruptedError

    sqs.meta.events.register("before-send.sqs.ReceiveMessage", catch)
    try:
        with pytest.raises(InterruptedError):
            sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)
    finally:
        sqs.meta.events.unregister("before-send.sqs.ReceiveMessage", catch)
    return caught[0]


# Bad input


def test_a_message_that_may_not_be_sent_is_refused(sqs: Client, queues: Queues) -> None:
    url = queues.make(MaximumMessageSize="1024")

    def refused(**arguments: object) -> tuple[str, int, str]:
        return error_of(sqs.send_message, QueueUrl=url, **{"MessageBody": "x", **arguments})

    assert refused(MessageBody="") == (
        "MissingParameter",
        400,
        "The request must contain the parameter MessageBody.",
    )
    assert refused(MessageBody=BELL)[:2] == ("InvalidMessageContents", 400)
    too_long = (
        "InvalidParameterValue",
        400,
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
    )
    assert refused(MessageBody="x" * 1025) == too_long
    colour = {"colour": {"DataType": "String", "StringValue": "red"}}
    assert refused(MessageBody="x" * 1010, MessageAttributes=colour) == too_long
    assert refused(DelaySeconds=901) == (
        "InvalidParameterValue",
        400,
        "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
    )
    wrong = {"colour": {"DataType": "Text", "StringValue": "red"}}
    assert refused(MessageAttributes=wrong)[:2] == ("InvalidParameterValue", 400)
    assert refused(MessageDeduplicationId="1")[:2] == ("InvalidParameterValue", 400)
    assert receive(sqs, url) == []


def test_a_number_out_of_range_is_refused(sqs: Client, queue: str) -> None:
    for member, value, reason in (
        ("MaxNumberOfMessages", 0, "Must be between 1 and 10, if provided."),
        ("MaxNumberOfMessages", 11, "Must be between 1 and 10, if provided."),
        ("WaitTimeSeconds", -1, "Must be >= 0 and <= 20, if provided."),
        ("WaitTimeSeconds", 21, "Must be >= 0 and <= 20, if provided."),
        ("VisibilityTimeout", -1, "Must be >= 0 and <= 43200, if provided."),
        ("VisibilityTimeout", 43201, "Must be >= 0 and <= 43200, if provided."),
    ):
        message = f"Value {value} for parameter {member} is invalid. Reason: {reason}"
        assert error_of(sqs.receive_message, QueueUrl=queue, **{member: value}) == (
            "InvalidParameterValue",
            400,
            message,
        )


def test_a_handle_that_is_none_or_of_another_queue_is_refused(sqs: Client, queues: Queues, queue: str) -> None:
    other = queues.make()
    sqs.send_message(QueueUrl=other, MessageBody="x")
    (message,) = receive(sqs, other)
    for handle in ("x", "§", message["ReceiptHandle"]):
        expected = ("ReceiptHandleIsInvalid", 404)
        assert error_of(sqs.delete_message, QueueUrl=queue, ReceiptHandle=handle)[:2] == expected
        change = {"QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": 1}
        assert error_of(sqs.change_message_visibility, **change)[:2] == expected
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="x")


def test_a_message_that_was_deleted_cannot_be_held_longer(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    (message,) = receive(sqs, queue)
    change = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
    assert error_of(sqs.change_message_visibility, **change, VisibilityTimeout=43201)[0] == "InvalidParameterValue"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    code, status, told = error_of(sqs.change_message_visibility, **change, VisibilityTimeout=5)
    assert (code, status) == ("InvalidParameterValue", 400)
    assert "Message does not exist or is not available for visibility timeout change" in told


# Batches


def test_an_entry_that_fails_leaves_the_others_unharmed(sqs: Client, queues: Queues) -> None:
    url = queues.make(MaximumMessageSize="1024")
    wrong = {"colour": {"DataType": "Text", "StringValue": "red"}}
    answer = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {
                "Id": "first",
                "MessageBody": "first",
                "MessageAttributes": {"a": {"DataType": "String", "StringValue": "b"}},
            },
            {"Id": "bell", "MessageBody": BELL},
            {"Id": "long", "MessageBody": "x" * 1025},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
            {"Id": "wrong", "MessageBody": "x", "MessageAttributes": wrong},
            {"Id": "empty", "MessageBody": ""},
            {"Id": "last", "MessageBody": "last"},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["first", "last"]
    assert [entry["MD5OfMessageBody"] for entry in answer["Successful"]] == [md5("first"), md5("last")]
    assert "MD5OfMessageAttributes" in answer["Successful"][0]
    assert {entry["Id"]: (entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]} == {
        "bell": ("InvalidMessageContents", True),
        "long": ("InvalidParameterValue", True),
        "late": ("InvalidParameterValue", True),
        "wrong": ("InvalidParameterValue", True),
        "empty": ("MissingParameter", True),
    }
    received = receive(sqs, url, MaxNumberOfMessages=10)
    assert [message["Body"] for message in received] == ["first", "last"]
    assert [message["MessageId"] for message in received] == [entry["MessageId"] for entry in answer["Successful"]]


def test_a_batch_in_which_every_entry_fails_sends_nothing(sqs: Client, queue: str) -> None:
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "1", "MessageBody": BELL}])
    assert "Successful" not in answer
    assert len(answer["Failed"]) == 1


def entries_of(kind: str, ids: list[str]) -> list[dict[str, object]]:
    contents: dict[str, dict[str, object]] = {
        "send_message_batch": {"MessageBody": "x"},
        "delete_message_batch": {"ReceiptHandle": "x"},
        "change_message_visibility_batch": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    }
    return [{"Id": id_, **contents[kind]} for id_ in ids]


BATCHES = ["send_message_batch", "delete_message_batch", "change_message_visibility_batch"]


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_that_is_none_is_refused_as_a_whole(sqs: Client, queue: str, kind: str) -> None:
    def refused(ids: list[str]) -> tuple[str, int, str]:
        return error_of(getattr(sqs, kind), QueueUrl=queue, Entries=entries_of(kind, ids))

    service = "AWS.SimpleQueueService."
    assert refused([])[:2] == (f"{service}EmptyBatchRequest", 400)
    assert refused([str(number) for number in range(11)]) == (
        f"{service}TooManyEntriesInBatchRequest",
        400,
        "Maximum number of entries per request are 10. You have sent 11.",
    )
    assert refused(["1", "2", "1"]) == (f"{service}BatchEntryIdsNotDistinct", 400, "Id 1 repeated.")
    for wrong in ("", "a b", "a.b", "ü", "x" * 81):
        code, status, message = refused(["1", wrong])
        assert (code, status) == (f"{service}InvalidBatchEntryId", 400)
        assert message.startswith(UNKNOWN)
    assert receive(sqs, queue) == []


def test_a_batch_holds_as_much_as_one_message(sqs: Client, queue: str) -> None:
    entries = [{"Id": str(number), "MessageBody": "x" * 131_072} for number in range(2)]
    assert len(sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 2
    entries[1]["MessageBody"] += "x"
    assert error_of(sqs.send_message_batch, QueueUrl=queue, Entries=entries) == (
        "AWS.SimpleQueueService.BatchRequestTooLong",
        400,
        "Batch requests cannot be longer than 262144 bytes. You have sent 262145 bytes.",
    )


def test_a_batch_of_handles_says_of_each_what_became_of_it(sqs: Client, queue: str) -> None:
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    a, b, c = (message["ReceiptHandle"] for message in receive(sqs, queue, MaxNumberOfMessages=10))
    answer = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "a", "ReceiptHandle": a, "VisibilityTimeout": 0},
            {"Id": "no", "ReceiptHandle": "x", "VisibilityTimeout": 5},
            {"Id": "far", "ReceiptHandle": b, "VisibilityTimeout": 43201},
            {"Id": "c", "ReceiptHandle": c, "VisibilityTimeout": 600},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["a", "c"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [
        ("no", "ReceiptHandleIsInvalid"),
        ("far", "InvalidParameterValue"),
    ]
    answer = sqs.delete_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "b", "ReceiptHandle": b},
            {"Id": "no", "ReceiptHandle": "x"},
            {"Id": "c", "ReceiptHandle": c},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["b", "c"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("no", "ReceiptHandleIsInvalid", True)
    ]
    assert [message["Body"] for message in receive(sqs, queue, MaxNumberOfMessages=10)] == ["a"]


def test_a_batch_of_handles_may_hold_one_that_is_held_no_more(sqs: Client, queue: str) -> None:
    for body in ("a", "b"):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    a, b = (message["ReceiptHandle"] for message in receive(sqs, queue, MaxNumberOfMessages=10))
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=a)
    entries = [{"Id": id_, "ReceiptHandle": handle, "VisibilityTimeout": 0} for id_, handle in (("a", a), ("b", b))]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["b"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [("a", "InvalidParameterValue")]
    assert [message["Body"] for message in receive(sqs, queue)] == ["b"]
