"""AWS Signature Version 4: what a client signed, and whether its signature is right. Pure, without I/O.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from bellringer.broker.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    MISSING_AUTHENTICATION_TOKEN,
    SIGNATURE_DOES_NOT_MATCH,
    SqsError,
)

ALGORITHM = "AWS4-HMAC-SHA256"
LARGEST_SKEW = timedelta(minutes=15)

_SERVICE, _TERMINATOR = "sqs", "aws4_request"
_MUST_BE_SIGNED = ("host", "x-amz-target")  # who sees a request go by could send it elsewhere, or have another done
_LONGEST_PRESIGNED_SECONDS = 7 * 24 * 3600
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SPACES = re.compile(" +")


class SignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was signed. `path` and `query` are as sent, percent-encoded; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of its own signature. `expires_seconds` is that of a presigned URL."""

    access_key_id: str
    date: str
    region: str
    signed_at: str
    signed_headers: tuple[str, ...]
    signature: str
    expires_seconds: int | None = None


def read_signature(headers: Mapping[str, str], query: str) -> Signature:
    """What a request says of its signature, in its headers or its query. Raises `SqsError`."""
    authorization = headers.get("authorization")
    parameters = {} if authorization else dict(parse_qsl(query, keep_blank_values=True))
    if authorization:
        signature = _read_header(authorization, headers)
    elif "X-Amz-Signature" in parameters:
        signature = _read_query(parameters)
    else:
        raise SqsError(MISSING_AUTHENTICATION_TOKEN, "Request is missing Authentication Token")
    for name in _MUST_BE_SIGNED:
        if name in headers and name not in signature.signed_headers:
            raise _mismatch(f"'{name}' must be a 'SignedHeader' in the AWS Authorization.")
    return signature


def check_signature(request: SignedRequest, signature: Signature, secret: str, now: datetime) -> None:
    """Raise `SqsError` unless the request was signed with the secret, and not long ago."""
    _check_time(signature, now)
    expected = sign(request, signature, secret)
    if not hmac.compare_digest(expected, signature.signature):
        raise SqsError(
            SIGNATURE_DOES_NOT_MATCH,
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method. Consult the service documentation for details.",
        )


def sign(request: SignedRequest, signature: Signature, secret: str) -> str:
    """The signature that the request should have, in hexadecimal."""
    scope = f"{signature.date}/{signature.region}/{_SERVICE}/{_TERMINATOR}"
    canonical = hashlib.sha256(canonical_request(request, signature).encode()).hexdigest()
    string_to_sign = f"{ALGORITHM}\n{signature.signed_at}\n{scope}\n{canonical}"
    key = _signing_key(secret, signature.date, signature.region)
    return hmac.digest(key, string_to_sign.encode(), "sha256").hex()


def canonical_request(request: SignedRequest, signature: Signature) -> str:
    """The request in the one form that both sides hash."""
    parameters = sorted(
        (quote(unquote(name), safe="~"), quote(unquote(value), safe="~"))
        for name, _, value in (parameter.partition("=") for parameter in request.query.split("&") if parameter)
        if name != "X-Amz-Signature"
    )
    headers = "".join(
        f"{name}:{_SPACES.sub(' ', request.headers.get(name, '').strip())}\n" for name in signature.signed_headers
    )
    return "\n".join(
        (
            request.method,
            quote(request.path, safe="/~"),
            "&".join(f"{name}={value}" for name, value in parameters),
            headers,
            ";".join(signature.signed_headers),
            hashlib.sha256(request.body).hexdigest(),
        )
    )


@lru_cache(maxsize=1024)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    """Four rounds of HMAC, the same for a day: kept, or a request would pay for them each time."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, _SERVICE, _TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _read_header(authorization: str, headers: Mapping[str, str]) -> Signature:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"Authorization header must be of the algorithm {ALGORITHM}.")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    missing = [name for name in ("Credential", "SignedHeaders", "Signature") if not parts.get(name)]
    if missing:
        raise _incomplete(f"Authorization header requires '{missing[0]}' parameter.")
    signed_at = headers.get("x-amz-date", "")
    return _signature(parts["Credential"], signed_at, parts["SignedHeaders"], parts["Signature"])


def _read_query(parameters: Mapping[str, str]) -> Signature:
    names = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders")
    missing = [name for name in names if not parameters.get(name)]
    if missing:
        raise _incomplete(f"AWS query-string parameters must include '{missing[0]}'.")
    if parameters["X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    expires = parameters["X-Amz-Expires"]
    if not re.fullmatch(r"[0-9]{1,6}", expires) or not 1 <= int(expires) <= _LONGEST_PRESIGNED_SECONDS:
        raise _incomplete("X-Amz-Expires must be from 1 to 604800 seconds.")
    return _signature(
        parameters["X-Amz-Credential"],
        parameters["X-Amz-Date"],
        parameters["X-Amz-SignedHeaders"],
        parameters["X-Amz-Signature"],
        expires_seconds=int(expires),
    )


def _signature(
    credential: str, signed_at: str, signed_headers: str, signature: str, *, expires_seconds: int | None = None
) -> Signature:
    scope = credential.split("/")
    if len(scope) != 5 or not all(scope):
        raise _incomplete(f"Credential must have exactly 5 slash-delimited elements, got {credential!r}.")
    access_key_id, date, region, service, terminator = scope
    if (service, terminator) != (_SERVICE, _TERMINATOR):
        raise _mismatch(f"Credential should be scoped to the service '{_SERVICE}' and end in '{_TERMINATOR}'.")
    if not _TIME.fullmatch(signed_at) or not signed_at.startswith(date):
        raise _mismatch("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP.")
    names = tuple(signed_headers.lower().split(";"))
    if not signature.isascii():
        raise _mismatch("The signature is not one.")
    return Signature(
        access_key_id=access_key_id,
        date=date,
        region=region,
        signed_at=signed_at,
        signed_headers=names,
        signature=signature,
        expires_seconds=expires_seconds,
    )


def _check_time(signature: Signature, now: datetime) -> None:
    try:
        signed_at = datetime.fromisoformat(signature.signed_at)
    except ValueError:
        raise _mismatch(f"{signature.signed_at} is not a time.") from None
    oldest = now - LARGEST_SKEW
    if signature.expires_seconds is not None:
        oldest = now - timedelta(seconds=signature.expires_seconds)
    if signed_at < oldest:
        raise _mismatch(f"Signature expired: {signature.signed_at} is now earlier than {oldest:{_TIME_FORMAT}}.")
    if signed_at > now + LARGEST_SKEW:
        raise _mismatch(f"Signature not yet current: {signature.signed_at} is still later than {now:{_TIME_FORMAT}}.")


def _incomplete(message: str) -> SqsError:
    return SqsError(INCOMPLETE_SIGNATURE, message)


def _mismatch(message: str) -> SqsError:
    return SqsError(SIGNATURE_DOES_NOT_MATCH, message)
