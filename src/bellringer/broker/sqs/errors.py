"""What goes wrong, in the service's own codes: one kind per code, with its name and status in both protocols."""

from __future__ import annotations

import msgspec

from bellringer.kernel.errors import (
    BellringerError,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    RateLimited,
    Unavailable,
)
from bellringer.kernel.logs import get_logger

_SQS = "com.amazonaws.sqs#"
_COMMON = "com.amazon.coral.service#"
_PREFIX = "AWS.SimpleQueueService."

_log = get_logger(__name__)


class ErrorKind(msgspec.Struct, frozen=True):
    """A code as the query protocol has it, the name of the same error in the JSON protocol, and its HTTP status."""

    code: str
    type: str
    status: int = 400

    @property
    def is_senders_fault(self) -> bool:
        """Whether the same request would fail again."""
        return self.status < 500


ACCESS_DENIED = ErrorKind("AccessDenied", f"{_COMMON}AccessDeniedException", 403)
BATCH_ENTRY_IDS_NOT_DISTINCT = ErrorKind(f"{_PREFIX}BatchEntryIdsNotDistinct", f"{_SQS}BatchEntryIdsNotDistinct")
BATCH_REQUEST_TOO_LONG = ErrorKind(f"{_PREFIX}BatchRequestTooLong", f"{_SQS}BatchRequestTooLong")
EMPTY_BATCH_REQUEST = ErrorKind(f"{_PREFIX}EmptyBatchRequest", f"{_SQS}EmptyBatchRequest")
INCOMPLETE_SIGNATURE = ErrorKind("IncompleteSignature", f"{_COMMON}IncompleteSignatureException")
INTERNAL_FAILURE = ErrorKind("InternalFailure", f"{_COMMON}InternalFailure", 500)
INVALID_ACTION = ErrorKind("InvalidAction", f"{_COMMON}InvalidAction")
INVALID_ADDRESS = ErrorKind("InvalidAddress", f"{_SQS}InvalidAddress", 404)
INVALID_ATTRIBUTE_NAME = ErrorKind("InvalidAttributeName", f"{_SQS}InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = ErrorKind("InvalidAttributeValue", f"{_SQS}InvalidAttributeValue")
INVALID_BATCH_ENTRY_ID = ErrorKind(f"{_PREFIX}InvalidBatchEntryId", f"{_SQS}InvalidBatchEntryId")
INVALID_CLIENT_TOKEN_ID = ErrorKind("InvalidClientTokenId", f"{_COMMON}UnrecognizedClientException", 403)
INVALID_MESSAGE_CONTENTS = ErrorKind("InvalidMessageContents", f"{_SQS}InvalidMessageContents")
INVALID_PARAMETER_VALUE = ErrorKind("InvalidParameterValue", f"{_COMMON}InvalidParameterValueException")
MALFORMED_INPUT = ErrorKind("MalformedInput", f"{_COMMON}SerializationException")
MISSING_AUTHENTICATION_TOKEN = ErrorKind(
    "MissingAuthenticationToken", f"{_COMMON}MissingAuthenticationTokenException", 403
)
MISSING_PARAMETER = ErrorKind("MissingParameter", f"{_COMMON}MissingRequiredParameterException")
NON_EXISTENT_QUEUE = ErrorKind(f"{_PREFIX}NonExistentQueue", f"{_SQS}QueueDoesNotExist")
QUEUE_ALREADY_EXISTS = ErrorKind("QueueAlreadyExists", f"{_SQS}QueueNameExists")
RECEIPT_HANDLE_IS_INVALID = ErrorKind("ReceiptHandleIsInvalid", f"{_SQS}ReceiptHandleIsInvalid", 404)
REQUEST_THROTTLED = ErrorKind("RequestThrottled", f"{_SQS}RequestThrottled", 403)
RESOURCE_NOT_FOUND = ErrorKind("ResourceNotFoundException", f"{_SQS}ResourceNotFoundException", 404)
SERVICE_UNAVAILABLE = ErrorKind("ServiceUnavailable", f"{_COMMON}ServiceUnavailableException", 503)
SIGNATURE_DOES_NOT_MATCH = ErrorKind("SignatureDoesNotMatch", f"{_COMMON}InvalidSignatureException", 403)
TOO_MANY_ENTRIES_IN_BATCH_REQUEST = ErrorKind(
    f"{_PREFIX}TooManyEntriesInBatchRequest", f"{_SQS}TooManyEntriesInBatchRequest"
)
UNKNOWN_OPERATION = ErrorKind("InvalidAction", f"{_COMMON}UnknownOperationException", 404)
UNSUPPORTED_OPERATION = ErrorKind(f"{_PREFIX}UnsupportedOperation", f"{_SQS}UnsupportedOperation")


class SqsError(Exception):
    """An error that the caller is to be told of."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    """A parameter whose value is not allowed; `reason` is a sentence without its full stop at the end."""
    return SqsError(INVALID_PARAMETER_VALUE, f"Value {value} for parameter {parameter} is invalid. Reason: {reason}.")


def missing_parameter(parameter: str) -> SqsError:
    """A parameter that had to be there."""
    return SqsError(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


def non_existent_queue() -> SqsError:
    """There is no such queue, or it belongs to another account."""
    return SqsError(NON_EXISTENT_QUEUE, "The specified queue does not exist.")


_KINDS: tuple[tuple[type[BellringerError], ErrorKind], ...] = (
    (InvalidInput, INVALID_PARAMETER_VALUE),
    (NotAuthenticated, INVALID_CLIENT_TOKEN_ID),
    (NotAllowed, ACCESS_DENIED),
    (RateLimited, REQUEST_THROTTLED),
    (Unavailable, SERVICE_UNAVAILABLE),
)


def sqs_error_of(error: Exception) -> SqsError:
    """The error to tell the caller of; one that nobody foresaw is logged and told without its text."""
    if isinstance(error, SqsError):
        return error
    if isinstance(error, NotFound):
        return non_existent_queue()
    for error_class, kind in _KINDS:
        if isinstance(error, error_class):
            return SqsError(kind, str(error))
    _log.error("request failed", error=repr(error), exc_info=error)
    return SqsError(INTERNAL_FAILURE, "The request processing has failed because of an unknown error.")
