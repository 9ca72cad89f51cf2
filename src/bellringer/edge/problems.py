"""Errors as HTTP: problem details (RFC 9457), one status and type per class of error."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from bellringer.kernel.errors import (
    BellringerError,
    Conflict,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Overloaded,
    RateLimited,
    TooLarge,
    Unavailable,
    UnsupportedFormat,
)
from bellringer.kernel.logs import get_logger

CONTENT_TYPE = "application/problem+json"
_URN = "urn:bellringer:problem:"

# The first class that fits counts, so a class stands before its base.
_STATUSES: tuple[tuple[type[BellringerError], HTTPStatus, str], ...] = (
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large"),
    (UnsupportedFormat, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-format"),
    (InvalidInput, HTTPStatus.BAD_REQUEST, "invalid-input"),
    (NotAuthenticated, HTTPStatus.UNAUTHORIZED, "not-authenticated"),
    (NotAllowed, HTTPStatus.FORBIDDEN, "not-allowed"),
    (NotFound, HTTPStatus.NOT_FOUND, "not-found"),
    (Conflict, HTTPStatus.UNPROCESSABLE_ENTITY, "conflict"),
    (RateLimited, HTTPStatus.TOO_MANY_REQUESTS, "rate-limited"),
    (Overloaded, HTTPStatus.SERVICE_UNAVAILABLE, "overloaded"),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)

_log = get_logger(__name__)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem as RFC 9457 shapes it. `field` names the part of the input that is at fault.

    `retry_after_seconds` says when it is worth trying again; the header Retry-After says the same.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    retry_after_seconds: int | None = None

    def headers(self) -> dict[str, str]:
        """The headers that belong to the answer beside its body."""
        headers = {"content-type": CONTENT_TYPE}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(self.retry_after_seconds)
        return headers

    def body(self) -> bytes:
        """The JSON to send."""
        return msgspec.json.encode(self)


def problem_of(error: Exception) -> Problem:
    """The problem that an error becomes; one that nobody foresaw is logged and becomes a 500 without its text."""
    for error_class, status, slug in _STATUSES:
        if isinstance(error, error_class):
            return Problem(
                type=_URN + slug,
                title=status.phrase,
                status=status.value,
                detail=str(error),
                field=getattr(error, "field", None),
                retry_after_seconds=getattr(error, "retry_after_seconds", None),
            )
    _log.error("request failed", error=repr(error), exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the server met an error that it did not foresee")


def problem(status: HTTPStatus, detail: str) -> Problem:
    """A problem with the standard title of its status."""
    slug = status.phrase.lower().replace(" ", "-")
    return Problem(type=_URN + slug, title=status.phrase, status=status.value, detail=detail)
