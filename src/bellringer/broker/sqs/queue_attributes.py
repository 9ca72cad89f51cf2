"""The attributes of a queue: text on the wire, the broker's settings inside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from bellringer.broker.model import LARGEST_BODY_BYTES, Queue, QueueCounts, QueueSettings
from bellringer.broker.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid_value,
)
from bellringer.broker.sqs.names import Names

DEFAULTS = QueueSettings(visibility_timeout_seconds=30, retention_seconds=4 * 24 * 3600, expires=True)
"""The settings of a queue that is made over SQS: the service's own."""

_INTEGER = re.compile(r"[0-9]{1,10}")
_MOST_SOURCES = 10
_MOST_RECEIVES = 1000
_PERMISSIONS = ("allowAll", "denyAll", "byQueue")

_NUMBERS: Mapping[str, tuple[str, int, int]] = {
    "DelaySeconds": ("delay_seconds", 0, 900),
    "MaximumMessageSize": ("max_body_bytes", 1024, LARGEST_BODY_BYTES),
    "MessageRetentionPeriod": ("retention_seconds", 60, 14 * 24 * 3600),
    "ReceiveMessageWaitTimeSeconds": ("wait_seconds", 0, 20),
    "VisibilityTimeout": ("visibility_timeout_seconds", 0, 12 * 3600),
}
"""Attributes that are numbers: the setting of each, its lowest and its highest value."""

_FIFO_ONLY = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")

# What is not supported, with the values that ask for nothing.
_HARMLESS: Mapping[str, Collection[str]] = {
    "Policy": ("",),
    "KmsMasterKeyId": ("",),
    "KmsDataKeyReusePeriodSeconds": ("", "300"),
    "SqsManagedSseEnabled": ("", "false"),
    "DeduplicationScope": ("queue",),
    "FifoThroughputLimit": ("perQueue",),
}

_READ_ONLY = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)

_SETTABLE = frozenset({*_NUMBERS, *_FIFO_ONLY, *_HARMLESS, "RedrivePolicy", "RedriveAllowPolicy"})
COUNTED = frozenset(name for name in _READ_ONLY if name.startswith("ApproximateNumber"))
"""The attributes for which the queue has to be counted."""
ATTRIBUTES = frozenset({*_SETTABLE, *_READ_ONLY})
"""Every attribute that a client may ask for."""


def new_settings(attributes: Mapping[str, str], tags: Mapping[str, str], names: Names) -> QueueSettings:
    """The settings of a new queue. Raises `SqsError`."""
    is_fifo = attributes.get("FifoQueue") == "true"
    if not is_fifo:
        _refuse_fifo_attributes(attributes)
    return msgspec.structs.replace(DEFAULTS, fifo=is_fifo, tags=dict(tags), **_changes(attributes, names))


def changed_settings(settings: QueueSettings, attributes: Mapping[str, str], names: Names) -> QueueSettings:
    """The settings of a queue with some attributes set anew; an empty text sets one back. Raises `SqsError`."""
    if "FifoQueue" in attributes and attributes["FifoQueue"] != str(settings.fifo).lower():
        if not settings.fifo:
            raise _unknown("FifoQueue")
        raise _invalid("FifoQueue", "Modifying queue type is not supported")
    if not settings.fifo:
        _refuse_fifo_attributes(attributes)
    return msgspec.structs.replace(settings, **_changes(attributes, names))


def describe(queue: Queue, counts: QueueCounts | None, names: Names) -> dict[str, str]:
    """Every attribute of a queue that has a value; those that count it only with its counts."""
    settings = queue.settings
    attributes = {
        "QueueArn": names.arn(queue.name),
        "CreatedTimestamp": str(int(queue.created_at.timestamp())),
        "LastModifiedTimestamp": str(int(queue.modified_at.timestamp())),
        "SqsManagedSseEnabled": "false",
        **{name: str(math.ceil(getattr(settings, field))) for name, (field, _, _) in _NUMBERS.items()},
    }
    if counts is not None:
        attributes["ApproximateNumberOfMessages"] = str(counts.pending)
        attributes["ApproximateNumberOfMessagesDelayed"] = str(counts.delayed)
        attributes["ApproximateNumberOfMessagesNotVisible"] = str(counts.in_flight)
    if settings.fifo:
        attributes["FifoQueue"] = "true"
        attributes["ContentBasedDeduplication"] = str(settings.content_deduplication).lower()
        attributes["DeduplicationScope"] = "queue"
        attributes["FifoThroughputLimit"] = "perQueue"
    if settings.dead_letter_queue is not None:
        policy = {
            "deadLetterTargetArn": names.arn(settings.dead_letter_queue),
            "maxReceiveCount": settings.max_receives,
        }
        attributes["RedrivePolicy"] = msgspec.json.encode(policy).decode()
    if settings.redrive_allow is not None:
        attributes["RedriveAllowPolicy"] = msgspec.json.encode(settings.redrive_allow).decode()
    return attributes


def first_difference(settings: QueueSettings, wanted: Mapping[str, str], names: Names) -> str | None:
    """The first attribute that a queue with these settings would have to change to be as wanted."""
    changes = _changes(wanted, names)
    for name in wanted:
        fields = _fields_of(name)
        if any(field in changes and changes[field] != getattr(settings, field) for field in fields):
            return name
    return None


def check_attribute_names(names: Collection[str]) -> None:
    """Raise `SqsError` for a name that is no attribute's."""
    for name in names:
        if name != "All" and name not in ATTRIBUTES:
            raise _unknown(name)


def allows_source(dead_letter_settings: QueueSettings, source_arn: str) -> bool:
    """Whether a dead letter queue takes the dead letters of a queue."""
    policy = dead_letter_settings.redrive_allow or {}
    if policy.get("redrivePermission") == "byQueue":
        return source_arn in policy.get("sourceQueueArns", ())
    return policy.get("redrivePermission") != "denyAll"


def _changes(attributes: Mapping[str, str], names: Names) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in attributes.items():
        if name not in _SETTABLE:
            raise _unknown(name)
        if name in _HARMLESS:
            if value not in _HARMLESS[name]:
                raise SqsError(UNSUPPORTED_OPERATION, f"The value {value} of the attribute {name} is not supported.")
        elif name in _NUMBERS:
            changes[_NUMBERS[name][0]] = _number(name, value)
        elif name == "ContentBasedDeduplication":
            changes["content_deduplication"] = _boolean(name, value)
        elif name == "FifoQueue":
            _boolean(name, value)
        else:
            changes |= _POLICIES[name](value, names)
    return changes


def _fields_of(name: str) -> tuple[str, ...]:
    if name in _NUMBERS:
        return (_NUMBERS[name][0],)
    return {
        "ContentBasedDeduplication": ("content_deduplication",),
        "RedrivePolicy": ("dead_letter_queue", "max_receives"),
        "RedriveAllowPolicy": ("redrive_allow",),
    }.get(name, ())


def _number(name: str, value: str) -> int:
    field, lowest, highest = _NUMBERS[name]
    if value == "":
        return int(getattr(DEFAULTS, field))
    if not _INTEGER.fullmatch(value) or not lowest <= int(value) <= highest:
        raise _invalid(name)
    return int(value)


def _boolean(name: str, value: str) -> bool:
    if value not in {"true", "false"}:
        raise _invalid(name)
    return value == "true"


def _redrive_policy(value: str, names: Names) -> dict[str, Any]:
    if not value:
        return {"dead_letter_queue": None, "max_receives": None}
    policy = _json_object("RedrivePolicy", value)
    arn, most = policy.get("deadLetterTargetArn"), str(policy.get("maxReceiveCount", ""))
    for name, found in (("deadLetterTargetArn", isinstance(arn, str)), ("maxReceiveCount", bool(most))):
        if not found:
            raise invalid_value(value, "RedrivePolicy", f"Redrive policy does not contain mandatory attribute: {name}")
    if not _INTEGER.fullmatch(most) or not 1 <= int(most) <= _MOST_RECEIVES:
        raise invalid_value(
            value,
            "RedrivePolicy",
            f"Invalid value for maxReceiveCount: {most}, valid values are from 1 to {_MOST_RECEIVES} both inclusive",
        )
    return {"dead_letter_queue": names.queue_of_arn(str(arn), "RedrivePolicy"), "max_receives": int(most)}


def _redrive_allow_policy(value: str, names: Names) -> dict[str, Any]:
    if not value:
        return {"redrive_allow": None}
    policy = _json_object("RedriveAllowPolicy", value)
    permission = policy.get("redrivePermission")
    sources = policy.get("sourceQueueArns")
    if permission not in _PERMISSIONS or not policy.keys() <= {"redrivePermission", "sourceQueueArns"}:
        raise invalid_value(value, "RedriveAllowPolicy", "It needs a redrivePermission of allowAll, denyAll or byQueue")
    if permission == "byQueue":
        if not isinstance(sources, list) or not 1 <= len(sources) <= _MOST_SOURCES:
            raise invalid_value(value, "RedriveAllowPolicy", "byQueue needs 1 to 10 sourceQueueArns")
        for source in sources:
            names.queue_of_arn(str(source), "RedriveAllowPolicy")
    elif sources is not None:
        raise invalid_value(value, "RedriveAllowPolicy", "sourceQueueArns is for byQueue alone")
    return {"redrive_allow": policy}


_POLICIES: Mapping[str, Callable[[str, Names], dict[str, Any]]] = {
    "RedrivePolicy": _redrive_policy,
    "RedriveAllowPolicy": _redrive_allow_policy,
}


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise invalid_value(text, name, "It is not a JSON object") from None


def _refuse_fifo_attributes(attributes: Mapping[str, str]) -> None:
    for name in _FIFO_ONLY:
        if name not in attributes:
            continue
        if name in {"FifoQueue", "ContentBasedDeduplication"}:
            raise _unknown(name)
        raise SqsError(INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true.")


def _unknown(name: str) -> SqsError:
    return SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def _invalid(name: str, reason: str | None = None) -> SqsError:
    told = f"Invalid value for the parameter {name}."
    return SqsError(INVALID_ATTRIBUTE_VALUE, f"{told} Reason: {reason}." if reason else told)
