"""The JSON protocol (`X-Amz-Target: AmazonSQS.SendMessage`, application/x-amz-json-1.0): what SDKs speak today."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from bellringer.broker.sqs.errors import MALFORMED_INPUT, UNKNOWN_OPERATION, SqsError, missing_parameter
from bellringer.broker.sqs.requests import Request
from bellringer.edge.raw import RawExchange, RawReply

R = TypeVar("R", bound=Request)

TARGET = "x-amz-target"
"""The header that names the action, and tells this protocol from the other."""

_CONTENT_TYPE = "application/x-amz-json-1.0"
_TARGET_PREFIX = "AmazonSQS."
_MISSING = "Object missing required field `"

_encode = msgspec.json.Encoder().encode


class JsonCall:
    """A call in the JSON protocol."""

    unknown_action = UNKNOWN_OPERATION

    def __init__(self, exchange: RawExchange, body: bytes) -> None:
        self._body = body
        self.action = exchange.headers.get(TARGET, "").removeprefix(_TARGET_PREFIX)

    def arguments(self, type_: type[R]) -> R:
        """What the call holds. Raises `SqsError`."""
        decoder: msgspec.json.Decoder[R] = _decoder(type_)
        try:
            return decoder.decode(self._body or b"{}")
        except msgspec.ValidationError as error:
            raise invalid_arguments(error) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise SqsError(MALFORMED_INPUT, f"The request is not valid JSON: {error}") from None

    def answer(self, result: Mapping[str, Any], request_id: str) -> RawReply:
        """The answer to a call that was done."""
        return RawReply(status=200, body=_encode(result), headers=_headers(request_id))

    @staticmethod
    def refusal(error: SqsError, request_id: str) -> RawReply:
        """The answer to a call that went wrong."""
        fault = "Sender" if error.kind.is_senders_fault else "Receiver"
        return RawReply(
            status=error.kind.status,
            body=_encode({"__type": error.kind.type, "message": str(error)}),
            headers={**_headers(request_id), "x-amzn-query-error": f"{error.kind.code};{fault}"},
        )


def invalid_arguments(error: msgspec.ValidationError) -> SqsError:
    """What is wrong with the members of a request."""
    message = str(error)
    if message.startswith(_MISSING):
        return missing_parameter(message.removeprefix(_MISSING).partition("`")[0])
    return SqsError(MALFORMED_INPUT, message)


@cache
def _decoder(type_: type[R]) -> msgspec.json.Decoder[R]:
    return msgspec.json.Decoder(type_)


def _headers(request_id: str) -> dict[str, str]:
    return {"content-type": _CONTENT_TYPE, "x-amzn-requestid": request_id}
