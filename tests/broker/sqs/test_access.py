"""Who may do what: signatures and scopes through boto3, and what others get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.broker.sqs.conftest import Client, client_of, error_of, pair_in
from tests.support.server import Reply, Server, serving


def key(server: Server, *options: str) -> dict[str, str]:
    """The pair of a new key."""
    made = server.run("keys", "create", "test", *options)
    assert made.returncode == 0, made.stderr
    return pair_in(made.stdout)


def test_a_signature_with_another_secret_is_refused(server: Server, pair: dict[str, str]) -> None:
    wrong = {**pair, "aws_secret_access_key": "x" * 40}
    code, status, message = error_of(client_of(server, wrong).list_queues)
    assert (code, status) == ("SignatureDoesNotMatch", 403)
    assert pair["aws_secret_access_key"] not in message


def test_an_access_key_that_nobody_has_is_refused(server: Server, pair: dict[str, str]) -> None:
    for unknown in ("BELLXXXXXXXXXXXXXXXX", "AKIA" * 50):
        wrong = {**pair, "aws_access_key_id": unknown}
        assert error_of(client_of(server, wrong).list_queues)[:2] == ("InvalidClientTokenId", 403)


def test_a_key_does_what_its_scopes_say(server: Server, queue: str) -> None:
    publisher = client_of(server, key(server, "--scope", "publish"))
    consumer = client_of(server, key(server, "--scope", "consume"))
    entry = {"Id": "1", "MessageBody": "x"}
    publisher.send_message(QueueUrl=queue, MessageBody="x")
    publisher.send_message_batch(QueueUrl=queue, Entries=[entry])
    (message,) = consumer.receive_message(QueueUrl=queue)["Messages"]
    held: dict[str, Any] = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
    consumer.change_message_visibility(**held, VisibilityTimeout=60)
    consumer.delete_message(**held)
    for client in (publisher, consumer):
        assert client.get_queue_url(QueueName=queue.rsplit("/", maxsplit=1)[-1])["QueueUrl"] == queue
        assert client.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    for call, arguments in (
        (publisher.receive_message, {"QueueUrl": queue}),
        (publisher.delete_message, held),
        (publisher.delete_message_batch, {"QueueUrl": queue, "Entries": [{"Id": "1", "ReceiptHandle": "x"}]}),
        (publisher.change_message_visibility, {**held, "VisibilityTimeout": 0}),
        (consumer.send_message, {"QueueUrl": queue, "MessageBody": "x"}),
        (consumer.send_message_batch, {"QueueUrl": queue, "Entries": [entry]}),
        (consumer.purge_queue, {"QueueUrl": queue}),
        (publisher.create_queue, {"QueueName": "q"}),
        (publisher.delete_queue, {"QueueUrl": queue}),
        (consumer.set_queue_attributes, {"QueueUrl": queue, "Attributes": {"DelaySeconds": "1"}}),
        (consumer.list_queues, {}),
    ):
        assert error_of(call, **arguments)[:2] == ("AccessDenied", 403)


def test_a_key_sees_its_own_environment_alone(server: Server, sqs: Client, queue: str) -> None:
    foreigner = client_of(server, key(server, "--environment", "staging"))
    name = queue.rsplit("/", maxsplit=1)[-1]
    gone = ("AWS.SimpleQueueService.NonExistentQueue", 400)
    assert "QueueUrls" not in foreigner.list_queues()
    assert error_of(foreigner.get_queue_url, QueueName=name)[:2] == gone
    assert error_of(foreigner.send_message, QueueUrl=queue, MessageBody="x")[:2] == gone
    own = foreigner.create_queue(QueueName=name)["QueueUrl"]
    assert own != queue
    foreigner.send_message(QueueUrl=own, MessageBody="x")
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    foreigner.delete_queue(QueueUrl=own)


def test_a_key_over_its_limit_is_throttled(server: Server, queue: str) -> None:
    limited = client_of(server, key(server, "--rate", "0.01", "--burst", "1"))
    limited.send_message(QueueUrl=queue, MessageBody="x")
    assert error_of(limited.send_message, QueueUrl=queue, MessageBody="x")[:2] == ("RequestThrottled", 403)


def raw(server: Server, body: bytes = b"", **headers: str) -> Reply:
    """A request with no signature but what the headers say."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return server.request("POST", "/", body, headers=named)


def test_a_request_without_a_signature_is_told_so_in_its_own_protocol(server: Server) -> None:
    for authorization, code, status in (
        ("Bearer x", "IncompleteSignature", 400),
        ("", "MissingAuthenticationToken", 403),
    ):
        answer = raw(server, b"{}", authorization=authorization, x_amz_target="AmazonSQS.ListQueues")
        assert (answer.status, answer.headers["content-type"]) == (status, "application/x-amz-json-1.0")
        assert answer.json()["__type"] == f"com.amazon.coral.service#{code}Exception"
        assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
        answer = raw(server, b"Action=ListQueues", authorization=authorization)
        assert (answer.status, answer.headers["content-type"]) == (status, "text/xml")
        assert f"<Code>{code}</Code>".encode() in answer.body


def test_a_body_that_is_too_large_is_refused_in_the_protocol(sqs: Client, queue: str) -> None:
    code, status, _ = error_of(sqs.send_message, QueueUrl=queue, MessageBody="x" * 5_000_000)
    assert (code, status) == ("InvalidParameterValue", 400)


@pytest.fixture(scope="module")
def trusting() -> Iterator[Server]:
    """A server that does not verify signatures."""
    with serving({"BELLRINGER_SQS_VERIFY_SIGNATURES": "false"}) as running:
        yield running


def test_without_verification_the_access_key_id_is_enough(trusting: Server) -> None:
    pair = pair_in(trusting.run("keys", "pair").stdout)
    client = client_of(trusting, {**pair, "aws_secret_access_key": "anything"})
    url = client.create_queue(QueueName="q")["QueueUrl"]
    assert client.send_message(QueueUrl=url, MessageBody="x")["MessageId"]
    unknown = {"aws_access_key_id": "BELLXXXXXXXXXXXXXXXX", "aws_secret_access_key": "anything"}
    assert error_of(client_of(trusting, unknown).list_queues)[:2] == ("InvalidClientTokenId", 403)
    assert "signatures of SQS requests are not verified" in trusting.log()


def test_the_error_in_json_names_the_shape_of_the_service(sqs: Client, queue: str) -> None:
    caught: list[Any] = []
    sqs.meta.events.register("response-received.sqs", lambda response_dict, **_: caught.append(response_dict))
    error_of(sqs.send_message, QueueUrl=queue + "x", MessageBody="x")
    (response,) = caught
    assert msgspec.json.decode(response["body"]) == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    assert response["headers"]["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert response["headers"]["x-amzn-requestid"]


def test_requests_are_counted_by_what_they_asked_and_what_came_of_it(server: Server, sqs: Client, queue: str) -> None:
    def count(action: str, code: str) -> float:
        return server.metric(f'bellringer_sqs_requests_total{{action="{action}",code="{code}"}}')

    missing = "AWS.SimpleQueueService.NonExistentQueue"
    before = count("SendMessage", "OK"), count("SendMessage", missing), count("unknown", "InvalidClientTokenId")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    error_of(sqs.send_message, QueueUrl=queue + "x", MessageBody="x")
    unknown = {"aws_access_key_id": "BELLXXXXXXXXXXXXXXXX", "aws_secret_access_key": "anything"}
    error_of(client_of(server, unknown).list_queues)
    after = count("SendMessage", "OK"), count("SendMessage", missing), count("unknown", "InvalidClientTokenId")
    assert after == tuple(number + 1 for number in before)
