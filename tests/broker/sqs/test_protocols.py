"""The two protocols on the wire: what is read out of a request, and how answers and errors look."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.broker.sqs.errors import (
    INTERNAL_FAILURE,
    MALFORMED_INPUT,
    MISSING_PARAMETER,
    SqsError,
    non_existent_queue,
)
from bellringer.broker.sqs.json_protocol import JsonCall
from bellringer.broker.sqs.query_protocol import QueryCall
from bellringer.broker.sqs.requests import (
    AttributeValue,
    CreateQueue,
    QueueRequest,
    ReceiveMessage,
    Request,
    SendMessage,
    SendMessageBatch,
    SetQueueAttributes,
    TagQueue,
    UntagQueue,
)
from bellringer.edge.raw import RawExchange

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
URL = "http://localhost/123456789012/orders"


async def nothing() -> Any:  # noqa: ANN401 - these protocols never wait
    raise AssertionError


def exchange(path: str = "/", query: str = "", **headers: str) -> RawExchange:
    return RawExchange(method="POST", path=path, query=query, headers=headers, read_body=nothing, receive=nothing)


def json_call(action: str, content: object) -> JsonCall:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    headers = {"x-amz-target": f"AmazonSQS.{action}"}
    return JsonCall(
        RawExchange(method="POST", path="/", query="", headers=headers, read_body=nothing, receive=nothing), body
    )


def query_call(action: str, path: str = "/", **parameters: object) -> QueryCall:
    return query_call_of({"Action": action, **parameters}, path)


def query_call_of(parameters: dict[str, Any], path: str = "/") -> QueryCall:
    return QueryCall(exchange(path), urlencode(parameters).encode())


def tree_of(body: bytes) -> Any:  # noqa: ANN401 - XML as nested lists
    def plain(element: ET.Element) -> tuple[str, Any]:
        name = element.tag.removeprefix(NAMESPACE)
        return (name, [plain(child) for child in element] or element.text)

    return plain(ET.fromstring(body))


# Requests


def test_both_protocols_read_the_same_request() -> None:
    expected = SendMessage(
        queue_url=URL,
        message_body="a&b=ü",
        delay_seconds=5,
        message_attributes={
            "colour": AttributeValue(data_type="String", string_value="red"),
            "bytes": AttributeValue(data_type="Binary", binary_value=b"\0\xff"),
        },
        message_system_attributes={"AWSTraceHeader": AttributeValue(data_type="String", string_value="Root=1")},
        message_group_id="5",
    )
    by_json = json_call("SendMessage", msgspec.to_builtins(expected))
    by_query = query_call_of(
        {
            "Action": "SendMessage",
            "Version": "2012-11-05",
            "QueueUrl": URL,
            "MessageBody": "a&b=ü",
            "DelaySeconds": "5",
            "MessageAttribute.1.Name": "colour",
            "MessageAttribute.1.Value.StringValue": "red",
            "MessageAttribute.1.Value.DataType": "String",
            "MessageAttribute.2.Name": "bytes",
            "MessageAttribute.2.Value.BinaryValue": "AP8=",
            "MessageAttribute.2.Value.DataType": "Binary",
            "MessageSystemAttribute.1.Name": "AWSTraceHeader",
            "MessageSystemAttribute.1.Value.StringValue": "Root=1",
            "MessageSystemAttribute.1.Value.DataType": "String",
            "MessageGroupId": "5",
        }
    )
    assert by_json.action == by_query.action == "SendMessage"
    assert by_json.arguments(SendMessage) == by_query.arguments(SendMessage) == expected


def test_lists_of_the_query_protocol_are_in_the_order_of_their_numbers() -> None:
    call = query_call_of(
        {
            "Action": "SendMessageBatch",
            "QueueUrl": URL,
            **{f"SendMessageBatchRequestEntry.{number}.Id": f"id-{number}" for number in (10, 9, 1)},
            **{f"SendMessageBatchRequestEntry.{number}.MessageBody": "x" for number in (10, 9, 1)},
        }
    )
    assert [entry.id for entry in call.arguments(SendMessageBatch).entries] == ["id-1", "id-9", "id-10"]


def test_a_list_of_one_may_do_without_a_number_and_an_empty_one_without_a_value() -> None:
    one = query_call("ReceiveMessage", QueueUrl=URL, AttributeName="All").arguments(ReceiveMessage)
    assert one.attribute_names == ["All"]
    empty = query_call_of({"Action": "SendMessageBatch", "QueueUrl": URL, "Entries": ""})
    assert empty.arguments(SendMessageBatch).entries == []


def test_a_map_of_one_may_do_without_a_number() -> None:
    call = query_call_of(
        {"Action": "SetQueueAttributes", "Attribute.Name": "DelaySeconds", "Attribute.Value": "5"}, "/1/q"
    )
    assert call.arguments(SetQueueAttributes).attributes == {"DelaySeconds": "5"}


def test_tags_are_read_whatever_they_are_called() -> None:
    tags = {"Tag.1.Key": "team", "Tag.1.Value": "blue", "Tag.2.Key": "empty", "Tag.2.Value": ""}
    expected = {"team": "blue", "empty": ""}
    create = query_call_of({"Action": "CreateQueue", "QueueName": "q", **tags}).arguments(CreateQueue)
    assert create.tags == expected
    assert query_call_of({"Action": "TagQueue", "QueueUrl": URL, **tags}).arguments(TagQueue).tags == expected
    untag = query_call_of({"Action": "UntagQueue", "QueueUrl": URL, "TagKey.1": "a", "TagKey.2": "b"})
    assert untag.arguments(UntagQueue).tag_keys == ["a", "b"]
    assert json_call("CreateQueue", {"QueueName": "q", "tags": expected}).arguments(CreateQueue).tags == expected


def test_a_query_may_be_sent_to_the_url_of_a_queue_and_stand_in_the_url() -> None:
    call = query_call("PurgeQueue", "/123456789012/orders")
    assert call.arguments(QueueRequest).queue_url == "/123456789012/orders"
    call = QueryCall(exchange("/123456789012/orders", "Action=PurgeQueue"), b"")
    assert (call.action, call.arguments(QueueRequest).queue_url) == ("PurgeQueue", "/123456789012/orders")


def test_members_that_nobody_knows_are_ignored() -> None:
    assert json_call("PurgeQueue", {"QueueUrl": URL, "Colour": "red"}).arguments(QueueRequest).queue_url == URL
    assert query_call("PurgeQueue", QueueUrl=URL, Colour="red").arguments(QueueRequest).queue_url == URL


def test_what_is_missing_is_named() -> None:
    for call in (json_call("SendMessage", {"QueueUrl": URL}), query_call("SendMessage", QueueUrl=URL)):
        with pytest.raises(SqsError, match="The request must contain the parameter MessageBody") as error:
            call.arguments(SendMessage)
        assert error.value.kind is MISSING_PARAMETER


MALFORMED = [
    (json_call("SendMessage", b"{"), SendMessage),
    (json_call("SendMessage", b"\xff"), SendMessage),
    (json_call("SendMessage", b'{"MessageBody": "\\ud800"}'), SendMessage),
    (json_call("SendMessage", []), SendMessage),
    (json_call("SendMessage", b"[" * 100_000), SendMessage),
    (json_call("SendMessage", {"QueueUrl": 5, "MessageBody": "x"}), SendMessage),
    (json_call("ReceiveMessage", {"QueueUrl": URL, "MaxNumberOfMessages": "5"}), ReceiveMessage),
    (query_call("ReceiveMessage", QueueUrl=URL, MaxNumberOfMessages="many"), ReceiveMessage),
    (query_call_of({"QueueUrl": URL, "AttributeName.x": "All"}), ReceiveMessage),
    (query_call_of({"QueueUrl": URL, "AttributeName.0": "All"}), ReceiveMessage),
    (query_call_of({"QueueUrl": URL, "AttributeName.99999999999": "All"}), ReceiveMessage),
    (query_call_of({"QueueUrl": URL, "AttributeName": "All", "AttributeName.1": "All"}), ReceiveMessage),
    (query_call_of({"QueueUrl.1": URL}), QueueRequest),
    (query_call_of({".".join("a" * 10_000): "x", "QueueUrl": URL, "AttributeName.1.2": "x"}), ReceiveMessage),
]


@pytest.mark.parametrize(("call", "type_"), MALFORMED)
def test_what_cannot_be_read_is_refused(call: JsonCall | QueryCall, type_: type[Request]) -> None:
    with pytest.raises(SqsError) as error:
        call.arguments(type_)
    assert error.value.kind in {MALFORMED_INPUT, MISSING_PARAMETER}


@given(st.lists(st.tuples(st.text("AtributeNmMsgVl.123456789", max_size=30), st.text(max_size=5)), max_size=8))
def test_no_form_is_too_odd_to_be_read_or_refused(parameters: list[tuple[str, str]]) -> None:
    call = QueryCall(exchange(), urlencode([*parameters, ("QueueUrl", URL), ("MessageBody", "x")]).encode())
    for type_ in (SendMessage, SendMessageBatch, CreateQueue, ReceiveMessage):
        with suppress(SqsError):  # and no other error
            call.arguments(type_)


def test_bytes_that_are_no_form_are_no_action() -> None:
    assert QueryCall(exchange(), b"\xff\xfe\0").action == ""
    assert QueryCall(exchange(), b"").action == ""


# Answers

ANSWER = {
    "Messages": [
        {
            "MessageId": "m-1",
            "Body": "a<b>&\"c'\r\n",
            "Attributes": {"SenderId": "1"},
            "MessageAttributes": {
                "colour": {"StringValue": "red", "DataType": "String"},
                "bytes": {"BinaryValue": b"\0\xff", "DataType": "Binary"},
            },
        }
    ]
}


def test_an_answer_in_json() -> None:
    reply = json_call("ReceiveMessage", {}).answer(ANSWER, "id-1")
    assert (reply.status, reply.headers) == (
        200,
        {"content-type": "application/x-amz-json-1.0", "x-amzn-requestid": "id-1"},
    )
    (message,) = msgspec.json.decode(reply.body)["Messages"]
    assert message["Body"] == "a<b>&\"c'\r\n"
    assert message["MessageAttributes"]["bytes"]["BinaryValue"] == "AP8="


def test_an_answer_in_xml() -> None:
    reply = query_call("ReceiveMessage").answer(ANSWER, "id-1")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/xml")
    assert tree_of(reply.body) == (
        "ReceiveMessageResponse",
        [
            (
                "ReceiveMessageResult",
                [
                    (
                        "Message",
                        [
                            ("MessageId", "m-1"),
                            ("Body", "a<b>&\"c'\r\n"),
                            ("Attribute", [("Name", "SenderId"), ("Value", "1")]),
                            (
                                "MessageAttribute",
                                [("Name", "colour"), ("Value", [("StringValue", "red"), ("DataType", "String")])],
                            ),
                            (
                                "MessageAttribute",
                                [("Name", "bytes"), ("Value", [("BinaryValue", "AP8="), ("DataType", "Binary")])],
                            ),
                        ],
                    )
                ],
            ),
            ("ResponseMetadata", [("RequestId", "id-1")]),
        ],
    )


def test_lists_in_xml_are_named_after_their_elements() -> None:
    batch = {"Successful": [{"Id": "1"}], "Failed": [{"Id": "2", "SenderFault": True, "Code": "X"}]}
    result = tree_of(query_call("DeleteMessageBatch").answer(batch, "r").body)[1][0]
    assert result == (
        "DeleteMessageBatchResult",
        [
            ("DeleteMessageBatchResultEntry", [("Id", "1")]),
            ("BatchResultErrorEntry", [("Id", "2"), ("SenderFault", "true"), ("Code", "X")]),
        ],
    )
    urls = tree_of(query_call("ListQueues").answer({"QueueUrls": ["a", "b"], "NextToken": "t"}, "r").body)[1][0]
    assert urls == ("ListQueuesResult", [("QueueUrl", "a"), ("QueueUrl", "b"), ("NextToken", "t")])
    tags = tree_of(query_call("ListQueueTags").answer({"Tags": {"k": "v"}}, "r").body)[1][0]
    assert tags == ("ListQueueTagsResult", [("Tag", [("Key", "k"), ("Value", "v")])])


def test_an_empty_result_is_there_and_one_of_an_action_without_result_is_not() -> None:
    assert tree_of(query_call("ReceiveMessage").answer({}, "r").body)[1][0] == ("ReceiveMessageResult", None)
    assert tree_of(query_call("DeleteMessage").answer({}, "r").body)[1][0][0] == "ResponseMetadata"


def test_an_error_has_the_name_that_each_protocol_gives_it() -> None:
    reply = JsonCall.refusal(non_existent_queue(), "id-1")
    assert (reply.status, msgspec.json.decode(reply.body)) == (
        400,
        {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "The specified queue does not exist."},
    )
    assert reply.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    reply = QueryCall.refusal(non_existent_queue(), "id-1")
    assert (reply.status, tree_of(reply.body)) == (
        400,
        (
            "ErrorResponse",
            [
                (
                    "Error",
                    [
                        ("Type", "Sender"),
                        ("Code", "AWS.SimpleQueueService.NonExistentQueue"),
                        ("Message", "The specified queue does not exist for this wsdl version."),
                        ("Detail", None),
                    ],
                ),
                ("RequestId", "id-1"),
            ],
        ),
    )


def test_what_xml_cannot_hold_is_replaced() -> None:
    error = SqsError(MALFORMED_INPUT, "no \0\a\ufffe")
    assert ("Message", "no \ufffd\ufffd\ufffd") in tree_of(QueryCall.refusal(error, "r").body)[1][0][1]


def test_a_fault_of_the_server_is_not_the_senders() -> None:
    error = SqsError(INTERNAL_FAILURE, "no <idea>")
    assert JsonCall.refusal(error, "r").headers["x-amzn-query-error"] == "InternalFailure;Receiver"
    assert tree_of(QueryCall.refusal(error, "r").body)[1][0][1][:3] == [
        ("Type", "Receiver"),
        ("Code", "InternalFailure"),
        ("Message", "no <idea>"),
    ]
