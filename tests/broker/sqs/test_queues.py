"""Queues through boto3: made, found, listed, shown, changed, tagged, emptied, deleted."""

from __future__ import annotations

import json

import pytest
from tests.broker.sqs.conftest import Client, Queues, error_of
from tests.support.server import Server

NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", 400, "The specified queue does not exist.")


def test_a_queue_is_found_by_its_name(sqs: Client, queues: Queues) -> None:
    name = queues.name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert url.endswith(f"/{name}")
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    account = url.split("/")[-2]
    assert sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"] == url
    assert queues.arn(url) == f"arn:aws:sqs:eu-west-1:{account}:{name}"
    sqs.send_message(QueueUrl=name, MessageBody="by its name alone")


def test_making_a_queue_again_changes_nothing(sqs: Client, queues: Queues) -> None:
    name = queues.name()
    url = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "1", "VisibilityTimeout": "5"})["QueueUrl"]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "5"})["QueueUrl"] == url
    code, status, message = error_of(sqs.create_queue, QueueName=name, Attributes={"DelaySeconds": "2"})
    assert (code, status) == ("QueueAlreadyExists", 400)
    assert message == "A queue already exists with the same name and a different value for attribute DelaySeconds"
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "2"})


@pytest.mark.parametrize("name", ["a b", "a/b", "x" * 81, "a.b", "a.fifo.fifo", "ü", "", "a\0", "-a"])
def test_a_name_that_no_queue_may_have_is_refused(sqs: Client, name: str) -> None:
    assert error_of(sqs.create_queue, QueueName=name)[:2] == ("InvalidParameterValue", 400)


def test_the_name_of_a_fifo_queue_and_no_other_ends_with_fifo(sqs: Client, queues: Queues) -> None:
    plain, fifo = queues.name(), queues.name(".fifo")
    assert error_of(sqs.create_queue, QueueName=fifo)[0] == "InvalidParameterValue"
    attributes = {"FifoQueue": "true"}
    assert error_of(sqs.create_queue, QueueName=plain, Attributes=attributes)[0] == "InvalidParameterValue"


def test_an_attribute_that_makes_no_sense_is_refused(sqs: Client, queues: Queues) -> None:
    def refused(**attributes: str) -> str:
        name = queues.name()
        code, status, _ = error_of(sqs.create_queue, QueueName=name, Attributes=attributes)
        assert status == 400
        assert error_of(sqs.get_queue_url, QueueName=name) == NO_QUEUE
        return code

    assert refused(Colour="red") == "InvalidAttributeName"
    assert refused(FifoQueue="false") == "InvalidAttributeName"
    assert refused(DelaySeconds="901") == "InvalidAttributeValue"
    assert refused(KmsMasterKeyId="alias/aws/sqs") == "AWS.SimpleQueueService.UnsupportedOperation"
    assert refused(RedrivePolicy="{}") == "InvalidParameterValue"


def test_a_queue_that_does_not_exist_is_not_found_by_any_action(sqs: Client, queue: str) -> None:
    url = queue + "x"
    for call, arguments in (
        (sqs.send_message, {"MessageBody": "x"}),
        (sqs.send_message_batch, {"Entries": [{"Id": "1", "MessageBody": "x"}]}),
        (sqs.receive_message, {}),
        (sqs.delete_message, {"ReceiptHandle": "x"}),
        (sqs.delete_message_batch, {"Entries": [{"Id": "1", "ReceiptHandle": "x"}]}),
        (sqs.change_message_visibility, {"ReceiptHandle": "x", "VisibilityTimeout": 1}),
        (sqs.get_queue_attributes, {"AttributeNames": ["All"]}),
        (sqs.set_queue_attributes, {"Attributes": {"DelaySeconds": "1"}}),
        (sqs.purge_queue, {}),
        (sqs.delete_queue, {}),
        (sqs.tag_queue, {"Tags": {"a": "b"}}),
        (sqs.untag_queue, {"TagKeys": ["a"]}),
        (sqs.list_queue_tags, {}),
        (sqs.list_dead_letter_source_queues, {}),
    ):
        assert error_of(call, QueueUrl=url, **arguments) == NO_QUEUE
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.purge_queue(QueueUrl=url)


def test_the_queue_of_another_account_is_not_there(sqs: Client, queue: str) -> None:
    account, name = queue.split("/")[-2:]
    other = f"{(int(account) + 1) % 10**12:012}"
    assert error_of(sqs.purge_queue, QueueUrl=queue.replace(account, other)) == NO_QUEUE
    assert error_of(sqs.get_queue_url, QueueName=name, QueueOwnerAWSAccountId=other) == NO_QUEUE
    assert error_of(sqs.purge_queue, QueueUrl="http://localhost/a/b/c")[:2] == ("InvalidAddress", 404)


def test_queues_are_listed_by_prefix_and_in_pages(sqs: Client, queues: Queues) -> None:
    prefix = queues.name("-listed-")
    urls = [sqs.create_queue(QueueName=f"{prefix}{number}")["QueueUrl"] for number in range(5)]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == urls
    assert "NextToken" not in sqs.list_queues(QueueNamePrefix=prefix)
    assert set(urls) <= set(sqs.list_queues()["QueueUrls"])
    first = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2)
    assert first["QueueUrls"] == urls[:2]
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2})
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:4], urls[4:]]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=prefix + "none")
    for wrong in ({"MaxResults": 0}, {"MaxResults": 1001}, {"NextToken": "§"}, {"NextToken": "x"}):
        assert error_of(sqs.list_queues, **wrong)[:2] == ("InvalidParameterValue", 400)


def test_attributes_are_shown_as_they_were_set(sqs: Client, queues: Queues) -> None:
    url = queues.make(DelaySeconds="1", ReceiveMessageWaitTimeSeconds="2", MaximumMessageSize="1024")
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds", "VisibilityTimeout"])[
        "Attributes"
    ] == {"DelaySeconds": "1", "VisibilityTimeout": "30"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "MessageRetentionPeriod": "60"})
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    created, modified = int(attributes.pop("CreatedTimestamp")), int(attributes.pop("LastModifiedTimestamp"))
    assert created <= modified
    assert attributes == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "1",
        "MaximumMessageSize": "1024",
        "MessageRetentionPeriod": "60",
        "QueueArn": queues.arn(url),
        "ReceiveMessageWaitTimeSeconds": "2",
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": "7",
    }
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    code, status, message = error_of(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["Colour"])
    assert (code, status, message) == ("InvalidAttributeName", 400, "Unknown Attribute Colour.")


def test_messages_are_counted_where_they_are(sqs: Client, queues: Queues, queue: str) -> None:
    for delay in (0, 0, 0, 900):
        sqs.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=delay)
    sqs.receive_message(QueueUrl=queue)
    assert queues.attribute(queue, "ApproximateNumberOfMessages") == "2"
    assert queues.attribute(queue, "ApproximateNumberOfMessagesNotVisible") == "1"
    assert queues.attribute(queue, "ApproximateNumberOfMessagesDelayed") == "1"


def test_tags_are_added_and_taken(sqs: Client, queues: Queues) -> None:
    url = sqs.create_queue(QueueName=queues.name(), tags={"team": "blue"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"team": "red", "Team": "green", "empty": ""})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "red", "Team": "green", "empty": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "Team", "empty", "never"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    too_many = {str(number): "x" for number in range(51)}
    for wrong in (too_many, {"": "x"}, {"k" * 129: "x"}, {"k": "v" * 257}, {"k": "\0"}, {"\a": "v"}):
        assert error_of(sqs.tag_queue, QueueUrl=url, Tags=wrong)[0] == "InvalidParameterValue"


def test_a_purge_leaves_nothing(sqs: Client, queues: Queues, queue: str) -> None:
    for delay in (0, 0, 900):
        sqs.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=delay)
    (held,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    sqs.purge_queue(QueueUrl=queue)
    sqs.purge_queue(QueueUrl=queue)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    assert queues.attribute(queue, "ApproximateNumberOfMessages") == "0"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=held["ReceiptHandle"])
    sqs.send_message(QueueUrl=queue, MessageBody="after")
    assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "after"


def test_a_queue_that_was_deleted_is_gone_and_may_be_made_anew(sqs: Client, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.delete_queue(QueueUrl=queue)
    name = queue.rsplit("/", maxsplit=1)[-1]
    assert error_of(sqs.get_queue_url, QueueName=name) == NO_QUEUE
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == queue
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_permissions_are_not_supported(sqs: Client, queue: str) -> None:
    expected = ("AWS.SimpleQueueService.UnsupportedOperation", 400)
    add = {"Label": "all", "AWSAccountIds": ["123456789012"], "Actions": ["*"]}
    assert error_of(sqs.add_permission, QueueUrl=queue, **add)[:2] == expected
    assert error_of(sqs.remove_permission, QueueUrl=queue, Label="all")[:2] == expected
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    assert error_of(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"Policy": policy})[:2] == expected


def test_a_queue_made_over_the_other_api_is_there_with_its_messages(
    server: Server, sqs: Client, queues: Queues
) -> None:
    name = queues.name()
    assert server.request("PUT", f"/v1/message/{name}", {"msg": "hello"}).status == 201
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    (received,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert received["Body"] == "hello"
    sqs.send_message(QueueUrl=url, MessageBody="goodbye")
    (claimed,) = server.get(f"/v1/messages/{name}")["messages"]
    assert claimed["msg"] == "goodbye"
