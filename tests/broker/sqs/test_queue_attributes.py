"""Attributes of queues: what clients set becomes settings of the broker, and is shown as the service shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from bellringer.broker.model import Queue, QueueCounts, QueueSettings
from bellringer.broker.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    INVALID_PARAMETER_VALUE,
    UNSUPPORTED_OPERATION,
    ErrorKind,
    SqsError,
)
from bellringer.broker.sqs.names import Names
from bellringer.broker.sqs.queue_attributes import (
    ATTRIBUTES,
    allows_source,
    changed_settings,
    check_attribute_names,
    describe,
    first_difference,
    new_settings,
)

NAMES = Names(environment_id=UUID(int=7), region="eu-west-1", base_url="http://localhost:8080")
ARN = "arn:aws:sqs:eu-west-1:000000000007:"
AT = datetime(2026, 1, 1, tzinfo=UTC)


def make(**attributes: str) -> QueueSettings:
    return new_settings(attributes, {}, NAMES)


def change(settings: QueueSettings, **attributes: str) -> QueueSettings:
    return changed_settings(settings, attributes, NAMES)


def shown(settings: QueueSettings, counts: QueueCounts | None = None) -> dict[str, str]:
    queue = Queue(
        id=UUID(int=1),
        number=1,
        environment_id=UUID(int=7),
        name="orders",
        settings=settings,
        paused=False,
        created_at=AT,
        modified_at=AT,
    )
    return describe(queue, counts, NAMES)


def refused(settings: QueueSettings | None, **attributes: str) -> tuple[ErrorKind, str]:
    with pytest.raises(SqsError) as error:
        make(**attributes) if settings is None else change(settings, **attributes)
    return error.value.kind, str(error.value)


def policy(queue: str = "dead", receives: object = 3) -> str:
    return msgspec.json.encode({"deadLetterTargetArn": ARN + queue, "maxReceiveCount": receives}).decode()


def test_a_new_queue_has_the_defaults_of_the_service() -> None:
    assert shown(make()) == {
        "QueueArn": ARN + "orders",
        "CreatedTimestamp": "1767225600",
        "LastModifiedTimestamp": "1767225600",
        "SqsManagedSseEnabled": "false",
        "DelaySeconds": "0",
        "MaximumMessageSize": "262144",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
    }


def test_a_fifo_queue_shows_what_others_do_not_have() -> None:
    attributes = shown(make(FifoQueue="true", ContentBasedDeduplication="true"))
    assert attributes["FifoQueue"] == "true"
    assert attributes["ContentBasedDeduplication"] == "true"
    assert attributes["DeduplicationScope"] == "queue"
    assert attributes["FifoThroughputLimit"] == "perQueue"
    assert shown(make(FifoQueue="true"))["ContentBasedDeduplication"] == "false"


RANGES = [
    ("DelaySeconds", 0, 900),
    ("MaximumMessageSize", 1024, 262144),
    ("MessageRetentionPeriod", 60, 1209600),
    ("ReceiveMessageWaitTimeSeconds", 0, 20),
    ("VisibilityTimeout", 0, 43200),
]


@pytest.mark.parametrize(("name", "lowest", "highest"), RANGES)
def test_a_number_has_a_range(name: str, lowest: int, highest: int) -> None:
    for value in (lowest, highest):
        assert shown(make(**{name: str(value)}))[name] == str(value)
        assert shown(change(make(), **{name: str(value)}))[name] == str(value)
    for wrong in (str(lowest - 1), str(highest + 1), "many", "1.5", " 1", "9" * 400, "\u0663"):
        assert refused(None, **{name: wrong}) == (
            INVALID_ATTRIBUTE_VALUE,
            f"Invalid value for the parameter {name}.",
        )


@pytest.mark.parametrize(("name", "_lowest", "highest"), RANGES)
def test_an_empty_text_sets_a_number_back(name: str, _lowest: int, highest: int) -> None:
    assert change(make(**{name: str(highest)}), **{name: ""}) == make()


def test_what_is_no_attribute_is_refused() -> None:
    for name in ("Colour", "QueueArn", "ApproximateNumberOfMessages", "delaySeconds", "All"):
        assert refused(None, **{name: "1"}) == (INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
        assert refused(make(), **{name: "1"}) == (INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    check_attribute_names([*ATTRIBUTES, "All"])
    with pytest.raises(SqsError):
        check_attribute_names(["All", "Colour"])


def test_what_is_not_supported_is_refused_unless_it_asks_for_nothing() -> None:
    for name, value in (
        ("Policy", '{"Version": "2012-10-17"}'),
        ("KmsMasterKeyId", "alias/aws/sqs"),
        ("KmsDataKeyReusePeriodSeconds", "60"),
        ("SqsManagedSseEnabled", "true"),
    ):
        assert refused(None, **{name: value})[0] is UNSUPPORTED_OPERATION
        assert refused(make(), **{name: value})[0] is UNSUPPORTED_OPERATION
    assert make(Policy="", KmsMasterKeyId="", SqsManagedSseEnabled="false") == make()
    fifo = make(FifoQueue="true")
    assert refused(fifo, DeduplicationScope="messageGroup")[0] is UNSUPPORTED_OPERATION
    assert change(fifo, DeduplicationScope="queue", FifoThroughputLimit="perQueue") == fifo


def test_attributes_of_fifo_queues_are_for_those_alone() -> None:
    assert refused(None, FifoQueue="false") == (INVALID_ATTRIBUTE_NAME, "Unknown Attribute FifoQueue.")
    for name in ("FifoQueue", "ContentBasedDeduplication"):
        assert refused(make(), **{name: "true"}) == (INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    for name, value in (("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")):
        message = f"You can specify the {name} only when FifoQueue is set to true."
        assert refused(None, **{name: value}) == (INVALID_ATTRIBUTE_NAME, message)


def test_a_queue_stays_of_its_type() -> None:
    fifo = make(FifoQueue="true")
    assert change(fifo, FifoQueue="true") == fifo
    message = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    assert refused(fifo, FifoQueue="false") == (INVALID_ATTRIBUTE_VALUE, message)
    assert change(fifo, ContentBasedDeduplication="true").content_deduplication
    assert refused(fifo, ContentBasedDeduplication="yes")[0] is INVALID_ATTRIBUTE_VALUE


def test_a_redrive_policy_names_a_queue_and_a_number() -> None:
    for receives in (3, "3"):
        settings = make(RedrivePolicy=policy(receives=receives))
        assert (settings.dead_letter_queue, settings.max_receives) == ("dead", 3)
        assert msgspec.json.decode(shown(settings)["RedrivePolicy"]) == {
            "deadLetterTargetArn": ARN + "dead",
            "maxReceiveCount": 3,
        }
    settings = change(make(RedrivePolicy=policy()), RedrivePolicy="")
    assert settings == make()
    assert "RedrivePolicy" not in shown(settings)


BAD_POLICIES = [
    "{",
    "[]",
    "3",
    "{}",
    '{"deadLetterTargetArn": 3, "maxReceiveCount": 3}',
    '{"maxReceiveCount": 3}',
    f'{{"deadLetterTargetArn": "{ARN}dead"}}',
    '{"deadLetterTargetArn": "dead", "maxReceiveCount": 3}',
    '{"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:000000000008:dead", "maxReceiveCount": 3}',
    '{"deadLetterTargetArn": "arn:aws:sns:eu-west-1:000000000007:dead", "maxReceiveCount": 3}',
    policy(receives=0),
    policy(receives=1001),
    policy(receives="many"),
    policy(receives=None),
    "[" * 100_000,
]


@pytest.mark.parametrize("text", BAD_POLICIES)
def test_a_redrive_policy_that_says_too_little_is_refused(text: str) -> None:
    assert refused(make(), RedrivePolicy=text)[0] is INVALID_PARAMETER_VALUE


def test_a_dead_letter_queue_says_whose_letters_it_takes() -> None:
    everybody, nobody = '{"redrivePermission":"allowAll"}', '{"redrivePermission":"denyAll"}'
    some = f'{{"redrivePermission":"byQueue","sourceQueueArns":["{ARN}one"]}}'
    one, other = ARN + "one", ARN + "other"

    def allowed(text: str) -> tuple[bool, bool]:
        settings = make(RedriveAllowPolicy=text)
        assert shown(settings).get("RedriveAllowPolicy", "") == text
        return allows_source(settings, one), allows_source(settings, other)

    assert allowed("") == (True, True)
    assert allowed(everybody) == (True, True)
    assert allowed(nobody) == (False, False)
    assert allowed(some) == (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"redrivePermission":"some"}',
        '{"redrivePermission":"byQueue"}',
        '{"redrivePermission":"byQueue","sourceQueueArns":[]}',
        '{"redrivePermission":"byQueue","sourceQueueArns":["x"]}',
        f'{{"redrivePermission":"byQueue","sourceQueueArns":["{ARN}a\\u0000"]}}',
        '{"redrivePermission":"allowAll","sourceQueueArns":[]}',
        '{"redrivePermission":"allowAll","colour":"red"}',
        msgspec.json.encode({"redrivePermission": "byQueue", "sourceQueueArns": [ARN + "a"] * 11}).decode(),
    ],
)
def test_a_redrive_allow_policy_that_makes_no_sense_is_refused(text: str) -> None:
    assert refused(make(), RedriveAllowPolicy=text)[0] is INVALID_PARAMETER_VALUE


def test_the_first_attribute_that_differs_is_named() -> None:
    settings = make(DelaySeconds="5", RedrivePolicy=policy())

    def difference(**wanted: str) -> str | None:
        return first_difference(settings, wanted, NAMES)

    assert difference() is None
    assert difference(DelaySeconds="5", RedrivePolicy=policy(receives="3")) is None
    assert difference(VisibilityTimeout="30", DelaySeconds="6") == "DelaySeconds"
    assert difference(RedrivePolicy=policy(receives=4)) == "RedrivePolicy"
    assert difference(RedriveAllowPolicy='{"redrivePermission":"denyAll"}') == "RedriveAllowPolicy"


def test_counts_are_shown_when_they_were_read() -> None:
    counts = QueueCounts(
        **dict.fromkeys(QueueCounts.__struct_fields__, 0) | {"pending": 5, "in_flight": 2, "delayed": 1}
    )
    attributes = shown(make(), counts)
    assert attributes["ApproximateNumberOfMessages"] == "5"
    assert attributes["ApproximateNumberOfMessagesNotVisible"] == "2"
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"


def test_a_fraction_of_a_second_is_shown_as_a_whole_one() -> None:
    assert shown(QueueSettings(delay_seconds=0.25))["DelaySeconds"] == "1"
