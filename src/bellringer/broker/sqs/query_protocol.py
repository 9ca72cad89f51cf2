"""The query protocol: a form with `Action=SendMessage&…` in, XML out. Older SDKs and many small clients speak it.

Lists and maps are flattened into numbered parameters: `AttributeName.1=All`, `Attribute.2.Name=DelaySeconds`,
`SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=red`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from bellringer.broker.sqs.errors import INVALID_ACTION, MALFORMED_INPUT, NON_EXISTENT_QUEUE, SqsError
from bellringer.broker.sqs.json_protocol import invalid_arguments
from bellringer.broker.sqs.names import INVALID_CHARACTERS
from bellringer.broker.sqs.requests import Request
from bellringer.edge.raw import RawExchange, RawReply

R = TypeVar("R", bound=Request)

_CONTENT_TYPE = "text/xml"
_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_PLACE = re.compile(r"[1-9][0-9]{0,3}")
_DEEPEST = 8

_LISTS = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "StringListValue": "StringListValues",
    "BinaryListValue": "BinaryListValues",
}
"""Lists: the name of their parameters, and the member that they are."""

_MAPS = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
"""Maps: the name of their parameters, the member that they are, and what keys and values are called."""

_EMPTY: Mapping[str, Any] = {member: [] for member in _LISTS.values()} | {member: {} for member, _, _ in _MAPS.values()}
"""Members that some clients send without a number and a value when they hold nothing."""

_ELEMENTS = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
"""Lists in answers: the name of each element."""

_WITHOUT_RESULT = frozenset(
    {
        "ChangeMessageVisibility",
        "DeleteMessage",
        "DeleteQueue",
        "PurgeQueue",
        "SetQueueAttributes",
        "TagQueue",
        "UntagQueue",
    }
)
"""Actions that answer nothing but that they were done."""

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"})


class QueryCall:
    """A call in the query protocol: a form in the body, or in the URL."""

    unknown_action = INVALID_ACTION

    def __init__(self, exchange: RawExchange, body: bytes) -> None:
        self._path = exchange.path
        self._parameters = parse_qsl(body.decode("ascii", "replace") or exchange.query, keep_blank_values=True)
        self.action = dict(self._parameters).get("Action", "")

    def arguments(self, type_: type[R]) -> R:
        """What the call holds. Raises `SqsError`."""
        tree = _members(_tree(self._parameters))
        if self._path != "/":  # sent to the URL of a queue
            tree.setdefault("QueueUrl", self._path)
        if self.action == "CreateQueue":  # the one request that has them in lower case
            tree["tags"] = tree.pop("Tags", None)
        try:
            # Not strict: here every value is text, numbers too.
            return msgspec.convert(tree, type_, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_arguments(error) from None

    def answer(self, result: Mapping[str, Any], request_id: str) -> RawReply:
        """The answer to a call that was done."""
        # An empty result is an element too: parsers look for it.
        body = "" if self.action in _WITHOUT_RESULT else _content(f"{self.action}Result", result, self.action)
        metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        document = f'<{self.action}Response xmlns="{_NAMESPACE}">{body}{metadata}</{self.action}Response>'
        return _reply(200, document, request_id)

    @staticmethod
    def refusal(error: SqsError, request_id: str) -> RawReply:
        """The answer to a call that went wrong."""
        message = str(error)
        if error.kind is NON_EXISTENT_QUEUE:
            message = "The specified queue does not exist for this wsdl version."
        fault = "Sender" if error.kind.is_senders_fault else "Receiver"
        document = (
            f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{fault}</Type><Code>{error.kind.code}</Code>'
            f"<Message>{_escape(message)}</Message><Detail/></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return _reply(error.kind.status, document, request_id)


def _tree(parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parameters as a tree, one level for each dot in their names. Raises `SqsError`."""
    tree: dict[str, Any] = {}
    for name, value in parameters:
        *path, last = name.split(".")
        branch = tree
        for part in path[:_DEEPEST]:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise SqsError(MALFORMED_INPUT, f"The parameter {name} contradicts another.")
        branch[last] = value
    return tree


def _members(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of parameters as members of a request: its numbered lists and maps put together."""
    members: dict[str, Any] = {}
    for name, value in tree.items():
        if not value and name in _EMPTY:
            members[name] = _EMPTY[name]
        elif name in _LISTS:
            members[_LISTS[name]] = [_value(item) for item in _numbered(value)]
        elif name in _MAPS and isinstance(value, dict):
            member, key, content = _MAPS[name]
            # One entry may do without a number: Attribute.Name=…&Attribute.Value=…
            entries = [value] if key in value else [entry for entry in _numbered(value) if isinstance(entry, dict)]
            members[member] = {str(entry.get(key, "")): _value(entry.get(content, "")) for entry in entries}
        else:
            members[name] = _value(value)
    return members


def _value(value: Any) -> Any:  # noqa: ANN401 - a text or a tree
    return _members(value) if isinstance(value, dict) else value


def _numbered(value: Any) -> list[Any]:  # noqa: ANN401 - a text or a tree
    """The elements of a list in their order. One that is not numbered is a list of itself."""
    if not isinstance(value, dict):
        return [value]
    if not all(_PLACE.fullmatch(place) for place in value):
        raise SqsError(MALFORMED_INPUT, "The elements of a list are numbered from 1.")
    return [value[place] for place in sorted(value, key=int)]


def _elements(members: Mapping[str, Any], action: str) -> Iterator[str]:
    for name, value in members.items():
        if isinstance(value, Mapping):
            key_name = "Key" if name == "Tags" else "Name"
            for key, content in value.items():
                entry = _content(key_name, key, action) + _content("Value", content, action)
                yield f"<{name[:-1]}>{entry}</{name[:-1]}>"
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            element = f"{action}ResultEntry" if name == "Successful" else _ELEMENTS[name]
            for item in value:
                yield _content(element, item, action)
        else:
            yield _content(name, value, action)


def _content(name: str, value: Any, action: str) -> str:  # noqa: ANN401 - any value of an answer
    match value:
        case Mapping():
            text = "".join(_elements(value, action))
        case bytes():
            text = base64.b64encode(value).decode()
        case bool():
            text = str(value).lower()
        case _:
            text = _escape(str(value))
    return f"<{name}>{text}</{name}>"


def _escape(text: str) -> str:
    return INVALID_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text).translate(_ESCAPES)


def _reply(status: int, document: str, request_id: str) -> RawReply:
    return RawReply(
        status=status,
        body=f'<?xml version="1.0"?>{document}'.encode(),
        headers={"content-type": _CONTENT_TYPE, "x-amzn-requestid": request_id},
    )
