"""A client of the query protocol, as SDKs were before 2023 and many small ones still are: forms in, XML out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as ET

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.broker.sqs.conftest import REGION, Queues
from tests.support.server import Reply, Server

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


class Answer:
    """An answer in XML."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self._root = ET.fromstring(reply.body)
        self.name = self._root.tag.removeprefix(NAMESPACE)
        assert reply.headers["content-type"] == "text/xml"

    def all(self, name: str) -> list[str]:
        """The texts of all elements of that name."""
        return [element.text or "" for element in self._root.iter(NAMESPACE + name)]

    def one(self, name: str) -> str:
        """The text of the one element of that name."""
        (text,) = self.all(name)
        return text

    def map(self, name: str, key: str = "Name") -> dict[str, str]:
        """The keys and values of all elements of that name."""
        return {
            element.findtext(NAMESPACE + key, ""): element.findtext(NAMESPACE + "Value", "")
            for element in self._root.iter(NAMESPACE + name)
        }


class QueryClient:
    """Signs with botocore what it makes by itself."""

    def __init__(self, server: Server, pair: Mapping[str, str]) -> None:
        self._server = server
        credentials = Credentials(pair["aws_access_key_id"], pair["aws_secret_access_key"])
        self._auth = SigV4Auth(credentials, "sqs", REGION)
        self._presign = SigV4QueryAuth(credentials, "sqs", REGION, expires=60)

    def post(self, action: str, parameters: Mapping[str, object] | None = None, url: str | None = None) -> Answer:
        """Send a form to the service, or to the URL of a queue."""
        url = url or f"{self._server.url}/"
        body = urlencode({"Action": action, "Version": "2012-11-05", **(parameters or {})}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        request = AWSRequest("POST", url, headers, body)
        self._auth.add_auth(request)
        return self._answer(request, body)

    def get(self, url: str, parameters: Mapping[str, object]) -> Answer:
        """Ask the URL of a queue, which is signed as a whole."""
        request = AWSRequest("GET", f"{url}?{urlencode(parameters)}")
        self._presign.add_auth(request)
        return self._answer(request, b"")

    def _answer(self, request: AWSRequest, body: bytes) -> Answer:
        prepared = request.prepare()
        parts = urlsplit(prepared.url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        headers = {name: str(value) for name, value in prepared.headers.items()}
        headers.setdefault("Authorization", "")
        reply = self._server.request(request.method, path, body, headers=headers)
        return Answer(reply)


@pytest.fixture
def client(server: Server, pair: dict[str, str]) -> QueryClient:
    return QueryClient(server, pair)


def test_a_queue_and_a_message_from_beginning_to_end(client: QueryClient, queues: Queues) -> None:
    name = queues.name()
    made = client.post(
        "CreateQueue",
        {
            "QueueName": name,
            "Attribute.1.Name": "VisibilityTimeout",
            "Attribute.1.Value": "60",
            "Tag.1.Key": "team",
            "Tag.1.Value": "blue",
        },
    )
    assert (made.status, made.name) == (200, "CreateQueueResponse")
    assert made.one("RequestId")
    url = made.one("QueueUrl")
    assert client.post("GetQueueUrl", {"QueueName": name}).one("QueueUrl") == url
    assert client.post("ListQueues", {"QueueNamePrefix": name}).all("QueueUrl") == [url]
    assert client.post("ListQueueTags", url=url).map("Tag", "Key") == {"team": "blue"}

    body = "hällo & <goodbye>\r\n"
    sent = client.post(
        "SendMessage",
        {
            "MessageBody": body,
            "MessageAttribute.1.Name": "colour",
            "MessageAttribute.1.Value.DataType": "String",
            "MessageAttribute.1.Value.StringValue": "red",
        },
        url,
    )
    assert sent.one("MD5OfMessageBody") == hashlib.md5(body.encode()).hexdigest()
    received = client.post(
        "ReceiveMessage", {"QueueUrl": url, "AttributeName.1": "All", "MessageAttributeName.1": "All"}
    )
    assert received.one("Body") == body
    assert received.one("MessageId") == sent.one("MessageId")
    assert received.map("Attribute")["ApproximateReceiveCount"] == "1"
    assert (received.one("StringValue"), received.one("DataType")) == ("red", "String")
    assert received.one("MD5OfMessageAttributes") == sent.one("MD5OfMessageAttributes")

    handle = received.one("ReceiptHandle")
    held = client.post("ChangeMessageVisibility", {"ReceiptHandle": handle, "VisibilityTimeout": "90"}, url)
    assert (held.status, held.name) == (200, "ChangeMessageVisibilityResponse")
    deleted = client.post("DeleteMessage", {"ReceiptHandle": handle}, url)
    assert (deleted.status, deleted.name) == (200, "DeleteMessageResponse")
    assert client.post("ReceiveMessage", url=url).all("Message") == []
    assert client.post("DeleteQueue", url=url).status == 200


def test_a_batch(client: QueryClient, queue: str) -> None:
    answer = client.post(
        "SendMessageBatch",
        {
            "SendMessageBatchRequestEntry.1.Id": "a",
            "SendMessageBatchRequestEntry.1.MessageBody": "a",
            "SendMessageBatchRequestEntry.2.Id": "b",
            "SendMessageBatchRequestEntry.2.MessageBody": "\a",
        },
        queue,
    )
    assert answer.all("Id") == ["a", "b"]
    assert answer.one("Code") == "InvalidMessageContents"
    assert answer.one("SenderFault") == "true"
    handle = client.post("ReceiveMessage", url=queue).one("ReceiptHandle")
    entries = {"DeleteMessageBatchRequestEntry.1.Id": "a", "DeleteMessageBatchRequestEntry.1.ReceiptHandle": handle}
    assert client.post("DeleteMessageBatch", entries, queue).all("Id") == ["a"]


def test_a_presigned_url_shows_a_queue(client: QueryClient, queue: str) -> None:
    shown = client.get(queue, {"Action": "GetQueueAttributes", "AttributeName.1": "VisibilityTimeout"})
    assert shown.map("Attribute") == {"VisibilityTimeout": "30"}


def error(answer: Answer) -> tuple[int, str, str]:
    assert answer.name == "ErrorResponse"
    assert answer.one("Type") == "Sender"
    return answer.status, answer.one("Code"), answer.one("Message")


def test_errors_have_the_codes_of_the_service(client: QueryClient, queue: str) -> None:
    assert error(client.post("SendMessage", {"MessageBody": "x"}, queue + "x")) == (
        400,
        "AWS.SimpleQueueService.NonExistentQueue",
        "The specified queue does not exist for this wsdl version.",
    )
    assert error(client.post("SendMessage", url=queue)) == (
        400,
        "MissingParameter",
        "The request must contain the parameter MessageBody.",
    )
    for action in ("Dance", ""):
        message = f"The action {action} is not valid for this endpoint."
        assert error(client.post(action)) == (400, "InvalidAction", message)
    assert error(client.post("SendMessageBatch", url=queue))[:2] == (
        400,
        "AWS.SimpleQueueService.EmptyBatchRequest",
    )
    assert error(client.post("ReceiveMessage", {"MaxNumberOfMessages": "11"}, queue)) == (
        400,
        "InvalidParameterValue",
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
    )
    assert error(client.post("ReceiveMessage", {"MaxNumberOfMessages": "many"}, queue))[:2] == (400, "MalformedInput")
    assert error(client.post("DeleteMessage", {"ReceiptHandle": "x"}, queue))[:2] == (404, "ReceiptHandleIsInvalid")
    assert error(client.post("AddPermission", {"Label": "x"}, queue))[:2] == (
        400,
        "AWS.SimpleQueueService.UnsupportedOperation",
    )


def test_a_wrong_secret_is_refused(server: Server, pair: dict[str, str]) -> None:
    client = QueryClient(server, {**pair, "aws_secret_access_key": "x" * 40})
    assert error(client.post("ListQueues"))[:2] == (403, "SignatureDoesNotMatch")
    assert error(client.get(server.url + "/123456789012/q", {"Action": "ListQueues"}))[:2] == (
        403,
        "SignatureDoesNotMatch",
    )
