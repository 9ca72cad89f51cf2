"""Signatures, held against botocore's own: what it signs is accepted, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode, urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from bellringer.broker.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    MISSING_AUTHENTICATION_TOKEN,
    SIGNATURE_DOES_NOT_MATCH,
    ErrorKind,
    SqsError,
)
from bellringer.broker.sqs.signature import Signature, SignedRequest, check_signature, read_signature, sign

SECRET = "wJalrXUtnFEMI-K7MDENG_bPxRfiCYEXAMPLEKEY"


def later(**span: float) -> datetime:
    """The time that long from now."""
    return datetime.now(UTC) + timedelta(**span)


def signed(
    method: str = "POST",
    url: str = "http://localhost:8080/",
    body: bytes = b'{"QueueName": "orders"}',
    headers: dict[str, str] | None = None,
    *,
    secret: str = SECRET,
    presigned_seconds: int | None = None,
) -> SignedRequest:
    """A request as botocore signs it and puts it on the wire."""
    request = AWSRequest(method, url, headers or {}, body)
    credentials = Credentials("BELLKEY", secret)
    if presigned_seconds is None:
        SigV4Auth(credentials, "sqs", "eu-west-1").add_auth(request)
    else:
        SigV4QueryAuth(credentials, "sqs", "eu-west-1", expires=presigned_seconds).add_auth(request)
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    sent = {name.lower(): str(value) for name, value in prepared.headers.items()}
    return SignedRequest(
        method=method, path=parts.path, query=parts.query, headers={"host": parts.netloc} | sent, body=body
    )


def check(request: SignedRequest, *, secret: str = SECRET, now: datetime | None = None) -> None:
    signature = read_signature(request.headers, request.query)
    check_signature(request, signature, secret, now or datetime.now(UTC))


def refused(request: SignedRequest, *, secret: str = SECRET, now: datetime | None = None) -> ErrorKind:
    with pytest.raises(SqsError) as error:
        check(request, secret=secret, now=now)
    return error.value.kind


def changed(request: SignedRequest, **changes: object) -> SignedRequest:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return SignedRequest(**{**fields, **changes})  # type: ignore[arg-type]


def test_what_botocore_signs_is_accepted() -> None:
    check(signed())
    check(signed(headers={"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}))
    check(signed(headers={"X-Odd": "  many   spaces  "}))
    check(signed("GET", "http://h/123456789012/orders?Action=GetQueueAttributes&AttributeName.1=All", b""))


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
    st.binary(max_size=50),
    st.text("abcdefXYZ019-_. ~%äß", max_size=10),
)
def test_any_query_body_and_path_is_signed_as_botocore_does(parameters: dict[str, str], body: bytes, name: str) -> None:
    url = f"http://h/123456789012/{quote('q' + name)}?{urlencode(parameters, quote_via=quote)}"
    check(signed("POST", url, body))


def test_a_presigned_url_is_accepted_until_it_expires() -> None:
    request = signed("GET", "http://h:1/123456789012/q?Action=ReceiveMessage", b"", presigned_seconds=60)
    check(request)
    check(request, now=later(seconds=55))
    assert refused(request, now=later(seconds=70)) is SIGNATURE_DOES_NOT_MATCH


def test_whatever_was_changed_since_is_refused() -> None:
    request = signed(headers={"X-Amz-Target": "AmazonSQS.SendMessage"})
    for changes in (
        {"method": "GET"},
        {"path": "/123456789012/other"},
        {"query": "a=b"},
        {"body": b"{}"},
        {"headers": {**request.headers, "x-amz-target": "AmazonSQS.PurgeQueue"}},
        {"headers": {**request.headers, "host": "elsewhere"}},
        {"headers": {**request.headers, "x-amz-date": f"{later(seconds=9):%Y%m%dT%H%M%SZ}"}},
    ):
        assert refused(changed(request, **changes)) is SIGNATURE_DOES_NOT_MATCH
    assert refused(request, secret=SECRET + "x") is SIGNATURE_DOES_NOT_MATCH


def test_a_clock_may_be_off_by_a_quarter_of_an_hour() -> None:
    request = signed()
    for minutes in (-14, 14):
        check(request, now=later(minutes=minutes))
    for minutes in (-16, 16):
        assert refused(request, now=later(minutes=minutes)) is SIGNATURE_DOES_NOT_MATCH


@pytest.mark.parametrize("name", ["host", "x-amz-target"])
def test_where_a_request_goes_and_what_it_asks_must_be_signed(name: str) -> None:
    request = signed(headers={"X-Amz-Target": "AmazonSQS.SendMessage"})
    header = request.headers["authorization"]
    names = header.partition("SignedHeaders=")[2].partition(",")[0]
    fewer = ";".join(one for one in names.split(";") if one != name)
    without = changed(request, headers={**request.headers, "authorization": header.replace(names, fewer)})
    signature = sign(without, read_signature_of(without), SECRET)
    resigned = without.headers["authorization"].rpartition("=")[0] + f"={signature}"
    assert refused(changed(without, headers={**without.headers, "authorization": resigned})) is SIGNATURE_DOES_NOT_MATCH


def read_signature_of(request: SignedRequest) -> Signature:
    """What a request says of its signature, were it to sign all that it must."""
    headers = {name: value for name, value in request.headers.items() if name in {"authorization", "x-amz-date"}}
    return read_signature(headers, request.query)


CREDENTIAL = f"Credential=BELLKEY/{later():%Y%m%d}/eu-west-1/sqs/aws4_request"

HEADERS = [
    (None, MISSING_AUTHENTICATION_TOKEN),
    ("", MISSING_AUTHENTICATION_TOKEN),
    ("Bearer bell_key", INCOMPLETE_SIGNATURE),
    ("AWS4-HMAC-SHA256", INCOMPLETE_SIGNATURE),
    (f"AWS4-HMAC-SHA256 {CREDENTIAL}", INCOMPLETE_SIGNATURE),
    (f"AWS4-HMAC-SHA256 {CREDENTIAL}, SignedHeaders=host", INCOMPLETE_SIGNATURE),
    ("AWS4-HMAC-SHA256 Credential=BELLKEY, SignedHeaders=host, Signature=00", INCOMPLETE_SIGNATURE),
    ("AWS4-HMAC-SHA256 Credential=////, SignedHeaders=host, Signature=00", INCOMPLETE_SIGNATURE),
    (f"AWS4-HMAC-SHA256 {CREDENTIAL.replace('sqs', 's3')}, SignedHeaders=host, Signature=00", SIGNATURE_DOES_NOT_MATCH),
    (f"AWS4-HMAC-SHA256 {CREDENTIAL}, SignedHeaders=host, Signature=\xe4", SIGNATURE_DOES_NOT_MATCH),
    (f"AWS4-HMAC-SHA256 {CREDENTIAL}, SignedHeaders=host, Signature=00", SIGNATURE_DOES_NOT_MATCH),
]


@pytest.mark.parametrize(("header", "kind"), HEADERS)
def test_a_header_that_says_too_little_is_refused(header: str | None, kind: ErrorKind) -> None:
    headers = {"host": "h", "x-amz-date": f"{later():%Y%m%dT%H%M%SZ}"}
    if header is not None:
        headers["authorization"] = header
    assert refused(SignedRequest(method="POST", path="/", query="", headers=headers, body=b"")) is kind


def test_a_date_that_is_none_is_refused() -> None:
    for date in ("", "20261399T256199Z", "yesterday"):
        headers = {
            "host": "h",
            "x-amz-date": date,
            "authorization": "AWS4-HMAC-SHA256 Credential=K/20261399/r/sqs/aws4_request,SignedHeaders=host,Signature=0",
        }
        request = SignedRequest(method="POST", path="/", query="", headers=headers, body=b"")
        assert refused(request) is SIGNATURE_DOES_NOT_MATCH


def test_a_presigned_url_that_says_too_little_is_refused() -> None:
    request = signed("GET", "http://h/?Action=ListQueues", b"", presigned_seconds=60)
    for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders"):
        query = request.query.replace(f"X-Amz-{name}=", "Ignored=")
        assert refused(changed(request, query=query)) is INCOMPLETE_SIGNATURE
    for expires in ("0", "604801", "-1", "soon"):
        query = request.query.replace("X-Amz-Expires=60", f"X-Amz-Expires={expires}")
        assert refused(changed(request, query=query)) is INCOMPLETE_SIGNATURE


def test_the_signature_is_that_of_botocore() -> None:
    request = signed()
    signature = read_signature(request.headers, request.query)
    assert sign(request, signature, SECRET) == signature.signature
    assert signature.access_key_id == "BELLKEY"
    assert signature.region == "eu-west-1"
    assert signature.signed_at == request.headers["x-amz-date"]
    assert botocore.auth.SIGV4_TIMESTAMP == "%Y%m%dT%H%M%SZ"
