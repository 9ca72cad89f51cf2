from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from email.message import Message
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import get
from litestar.params import FromPath
from litestar.types import ASGIApp
from tests.support.application import application, call, client_of

from bellringer.broker import Broker
from bellringer.edge.app import EdgeConfig, Routes
from bellringer.edge.keys import Keys
from bellringer.edge.model import RateLimit, Scope
from bellringer.edge.raw import RawReply, RawRequest, RawRoute
from bellringer.kernel.database import Database
from bellringer.kernel.errors import (
    BellringerError,
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    TooLarge,
    Unavailable,
    UnsupportedFormat,
)

LIMIT = 1024 * 1024


ERRORS: dict[str, tuple[Exception, int]] = {
    "invalid": (InvalidInput("no", field="eggs[1]"), 400),
    "large": (TooLarge("no", field="body"), 413),
    "format": (UnsupportedFormat("no", field="Content-Type"), 415),
    "missing": (NotFound("no"), 404),
    "conflict": (Conflict("no"), 422),
    "overloaded": (Overloaded("no"), 503),
    "unavailable": (Unavailable("no"), 503),
    "base": (BellringerError("hunter2"), 500),
    "bug": (KeyError("hunter2"), 500),
}


@get("/v1/errors/{name:str}", include_in_schema=False)
async def fail(name: FromPath[str]) -> None:
    raise ERRORS[name][0]


async def fail_raw(request: RawRequest) -> RawReply:
    raise ERRORS[request.parameters[0]][0]


FAILING = Routes(
    handlers=[fail],
    raw=[
        RawRoute(
            method="PUT",
            path="/v1/errors/{name}",
            handle=fail_raw,
            summary="Fail",
            description="",
            tag="errors",
            success_status=200,
        )
    ],
)


@pytest.fixture
async def app(database: Database, keys: Keys, broker: Broker) -> AsyncIterator[ASGIApp]:
    config = EdgeConfig(max_body_bytes=LIMIT)
    async with application(database, keys, broker, config, more=[FAILING]) as built:
        yield built


@pytest.fixture
async def client(app: ASGIApp, api_key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, api_key) as opened:
        yield opened


@pytest.fixture
async def stranger(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key."""
    async with client_of(app) as opened:
        yield opened


TABLES = ["notifications", "idempotency_keys", "workflows", "queues", "chunks", "tracked", "tally_entries"]


async def stored(database: Database) -> tuple[int, ...]:
    """How many rows there are of everything that a request may store."""
    counts = ", ".join(f"(SELECT count(*) FROM bellringer.{table})" for table in TABLES)
    async with database.connection() as connection:
        return tuple(await connection.fetchrow(f"SELECT {counts}") or ())


def assert_problem(answer: httpx.Response, status: int, field: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:bellringer:problem:")
    assert problem["title"]
    assert problem["detail"]
    assert problem.get("field") == field, problem


async def test_a_process_that_runs_is_alive_and_one_with_its_database_is_ready(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/livez")).text == "alive\n"
    assert (await stranger.get("/readyz")).text == "ready\n"


async def test_a_process_without_its_database_is_alive_and_not_ready(
    client: httpx.AsyncClient, database: Database
) -> None:
    await database.close()
    assert (await client.get("/livez")).status_code == 200
    assert_problem(await client.get("/readyz"), 503)
    for answer in (await client.get("/v1/queues"), await client.put("/v1/message/q", content=b'{"msg": "a"}')):
        assert_problem(answer, 503)
        assert answer.headers["retry-after"] == "1"


async def test_metrics_come_in_prometheus_own_format(client: httpx.AsyncClient) -> None:
    await client.put("/v1/message/nests", content=b'{"msg": "a"}')
    answer = await client.get("/metrics")
    header = Message()
    header["content-type"] = answer.headers["content-type"]
    assert header.get_params() == [("text/plain", ""), ("version", "1.0.0"), ("charset", "utf-8")]
    assert 'bellringer_http_requests_total{method="PUT",path="/v1/message/{queue}",status="201"}' in answer.text


async def test_what_clients_invent_is_not_kept_in_the_metrics(client: httpx.AsyncClient, app: ASGIApp) -> None:
    for number in range(3):
        await call(app, f"INVENTED{number}", "/v1/queues")
        await call(app, "GET", f"/invented/{number}")
    metrics = (await client.get("/metrics")).text.lower()
    assert "invented" not in metrics
    assert 'method="other"' in metrics


async def test_an_unknown_path_is_not_found(client: httpx.AsyncClient) -> None:
    for path in ("/", "/v1", "/v1/", "/v2/queues", "/v1/queues/a/b", "/v1/events/5", "/v1/nests"):
        assert_problem(await client.get(path), 404)


METHODS = [
    ("GET", "/v1/events", {"POST"}),
    ("DELETE", "/v1/events", {"POST"}),
    ("POST", "/v1/message/nests", {"PUT"}),
    ("GET", "/v1/message/nests/5", {"DELETE"}),
    ("POST", "/v1/queues", {"GET", "OPTIONS"}),
    ("POST", "/v1/queues/nests", {"DELETE", "GET", "OPTIONS", "PUT"}),
    ("PATCH", "/v1/workflows/eggs", {"DELETE", "OPTIONS", "PUT"}),
    ("POST", "/livez", {"GET", "OPTIONS"}),
]


async def test_a_wrong_method_is_told_the_right_ones(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for method, path, allowed in METHODS:
        with subtests.test(f"{method} {path}"):
            answer = await client.request(method, path)
            assert_problem(answer, 405)
            assert set(answer.headers["allow"].split(", ")) == allowed


async def test_every_class_of_error_is_the_same_problem_from_the_framework_and_from_a_raw_route(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    for method, name in [(method, name) for method in ("GET", "PUT") for name in ERRORS]:
        with subtests.test(f"{method} {name}"):
            error, status = ERRORS[name]
            answer = await client.request(method, f"/v1/errors/{name}")
            assert_problem(answer, status, getattr(error, "field", None))
            assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
            assert "hunter2" not in answer.text


REQUESTS = [
    ("GET", "/v1/queues"),
    ("GET", "/v1/messages/nests"),
    ("GET", "/v1/notifications?limit=none"),
    ("DELETE", "/v1/workflows/eggs"),
    ("POST", "/v1/events"),
    ("PUT", "/v1/message/nests"),
    ("PUT", "/v1/queues/nests"),
    ("PUT", "/v1/workflows/eggs"),
    ("DELETE", "/v1/message/nests/01890a5d-ac96-774b-bcce-b302099a8057"),
]


async def test_without_a_valid_key_nothing_is_told_and_nothing_stored(
    stranger: httpx.AsyncClient, database: Database, subtests: pytest.Subtests
) -> None:
    before = await stored(database)
    for authorization in (None, b"", b"Bearer", b"Bearer wrong", b"Basic YTpi", b"Bearer \xff"):
        headers = {} if authorization is None else {"authorization": authorization}
        with subtests.test(authorization=authorization):
            for method, path in REQUESTS:
                answer = await stranger.request(method, path, headers=headers, content=b'{"msg": "a"}')
                assert_problem(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
    assert await stored(database) == before


async def test_a_revoked_key_is_refused(client: httpx.AsyncClient, keys: Keys) -> None:
    (listed,) = await keys.list_keys()
    await keys.revoke(listed.id)
    for method, path in REQUESTS:
        assert_problem(await client.request(method, path), 401)


def path_to(path: str, operation: dict[str, Any]) -> str:
    """A path of the OpenAPI document with something of the right type for each parameter."""
    for parameter in operation.get("parameters") or []:
        if parameter["in"] == "path":
            value = "5" if parameter["schema"]["type"] == "integer" else str(UUID(int=5))
            path = path.replace(f"{{{parameter['name']}}}", value)
    return path


async def test_what_a_key_may_not_do_is_refused_with_the_scope_and_changes_nothing(
    app: ASGIApp, client: httpx.AsyncClient, keys: Keys, database: Database
) -> None:
    document = (await client.get("/v1/openapi.json")).json()
    needs = {
        (method.upper(), path_to(path, operation)): Scope(operation["security"][0]["key"][0])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if operation.get("security")
    }
    before = await stored(database)
    for scope in (Scope.PUBLISH, Scope.CONSUME):
        async with client_of(app, await keys.create("acme", "production", "less", scopes=[scope])) as less:
            for (method, path), needed in needs.items():
                if needed is not scope:
                    answer = await less.request(method, path, content=b"{}")
                    assert_problem(answer, 403)
                    assert answer.json()["detail"] == f"the API key lacks the scope {needed}"
    assert await stored(database) == before


async def test_a_key_for_publishing_sends_events(app: ASGIApp, keys: Keys) -> None:
    async with client_of(app, await keys.create("acme", "production", "less", scopes=[Scope.PUBLISH])) as less:
        assert (await less.post("/v1/events", content=event())).status_code == 202
        assert (await less.get("/v1/overview")).json()["events"] == 1
        assert_problem(await less.get("/v1/notifications"), 403)


async def test_both_sides_of_the_door_count_towards_one_limit(app: ASGIApp, keys: Keys) -> None:
    limit = RateLimit(requests_per_second=0.01, burst=2)
    async with client_of(app, await keys.create("acme", "production", "slow", rate_limit=limit)) as slow:
        assert (await slow.get("/v1/overview")).status_code == 200
        assert (await slow.post("/v1/events", content=event())).status_code == 202
        for answer in (await slow.get("/v1/overview"), await slow.post("/v1/events", content=event())):
            assert_problem(answer, 429)
            assert 98 <= int(answer.headers["retry-after"]) <= 100


async def test_a_key_sees_nothing_of_another_environment(
    app: ASGIApp, client: httpx.AsyncClient, keys: Keys, database: Database
) -> None:
    await client.put("/v1/queues/nests", content=b"{}")
    await client.put("/v1/message/nests", content=b'{"msg": "a"}')
    (message,) = (await client.get("/v1/messages/nests")).json()["messages"]
    event = {"type": "egg.laid", "recipients": ["wren@birds.example"]}
    notification_id = (await client.post("/v1/events", json=event)).json()["id"]
    await client.put("/v1/workflows/egg.laid", content=b'{"digest_window_seconds": 5}')
    before = await stored(database)

    async with client_of(app, await keys.create("acme", "staging", "another")) as foreign:
        for path in ("/v1/queues/nests", "/v1/messages/nests", f"/v1/notifications/{notification_id}"):
            assert_problem(await foreign.get(path), 404)
        assert_problem(await foreign.delete(f"/v1/message/nests/{message['receipt_handle']}"), 404)
        assert_problem(await foreign.delete("/v1/workflows/egg.laid"), 404)
        assert (await foreign.get("/v1/queues")).json() == {"queues": []}
        assert (await foreign.get("/v1/workflows")).json() == {"workflows": []}
        assert (await foreign.get("/v1/notifications")).json()["notifications"] == []
        assert set((await foreign.get("/v1/overview")).json().values()) == {0}

    assert await stored(database) == before
    assert (await client.delete(f"/v1/message/nests/{message['receipt_handle']}")).status_code == 204


def event(**changes: object) -> bytes:
    return json.dumps({"type": "egg.laid", "recipients": ["wren@birds.example"], **changes}).encode()


def cloud_event(**changes: object) -> bytes:
    attributes = {"specversion": "1.0", "id": "1", "source": "/nests", "type": "egg.laid"}
    return json.dumps({**attributes, "recipients": "wren@birds.example", **changes}).encode()


PLAIN = "application/json"
CLOUD = "application/cloudevents+json"
CLOUD_BATCH = "application/cloudevents-batch+json"
TEXT_OF_256_KIB = "x" * 256 * 1024

BAD_EVENTS: list[tuple[str, bytes, int, str]] = [
    (PLAIN, b"", 400, "body"),
    (PLAIN, b"{", 400, "body"),
    (PLAIN, b"[]", 400, "body"),
    (PLAIN, b"null", 400, "body"),
    (PLAIN, b"[" * 100_000, 400, "[0]"),
    (PLAIN, event()[:-1] + b', "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "body"),
    (PLAIN, b'{"type": "egg\xff"}', 400, "body"),
    (PLAIN, b'{"recipients": []}', 400, "type"),
    (PLAIN, b'{"type": "egg.laid"}', 400, "recipients"),
    (PLAIN, event(type=5), 400, "type"),
    (PLAIN, event(type=""), 400, "type"),
    (PLAIN, event(type="x" * 201), 400, "type"),
    (PLAIN, event(type="nul \0"), 400, "type"),
    (PLAIN, event(type=None), 400, "type"),
    (PLAIN, event(recipients="wren@birds.example"), 400, "recipients"),
    (PLAIN, event(recipients=[]), 400, "recipients"),
    (PLAIN, event(recipients=["wren@birds.example", 5]), 400, "recipients[1]"),
    (PLAIN, event(recipients=["wren@birds.example", "wren"]), 400, "recipients[1]"),
    (PLAIN, event(recipients=["wren@birds.example\0"]), 400, "recipients[0]"),
    (PLAIN, event(recipients=["wren@birds.example"] * 10_001), 400, "recipients"),
    (PLAIN, event(subject=""), 400, "subject"),
    (PLAIN, event(source="a\nb"), 400, "source"),
    (PLAIN, event(time="yesterday"), 400, "time"),
    (PLAIN, event(time="2026-01-01T00:00:00"), 400, "time"),
    (PLAIN, event(time=-1), 400, "time"),
    (PLAIN, event(colour="brown"), 400, "colour"),
    (PLAIN, event(data=TEXT_OF_256_KIB), 413, "data"),
    (PLAIN, b"[" + event() + b", " + event(type=5) + b"]", 400, "[1].type"),
    (PLAIN, b"[" + event() + b", " + event(recipients=["wren"]) + b"]", 400, "[1].recipients[0]"),
    (PLAIN, b"[" + b", ".join([event()] * 1001) + b"]", 400, "body"),
    (CLOUD, event(), 400, "specversion"),
    (CLOUD, cloud_event(specversion="0.3"), 400, "specversion"),
    (CLOUD, cloud_event(id=""), 400, "id"),
    (CLOUD, cloud_event(source=5), 400, "source"),
    (CLOUD, cloud_event(recipients=None), 400, "recipients"),
    (CLOUD, cloud_event(recipients="wren"), 400, "recipients[0]"),
    (CLOUD, cloud_event(recipients=None, data=5), 400, "recipients"),
    (CLOUD, cloud_event(data=5, data_base64="NQ=="), 400, "data_base64"),
    (CLOUD, cloud_event(data_base64="?"), 400, "data_base64"),
    (CLOUD_BATCH, cloud_event(), 400, "body"),
    (CLOUD_BATCH, b"[]", 400, "body"),
    (CLOUD_BATCH, b"[" + cloud_event() + b", " + cloud_event(type="") + b"]", 400, "[1].type"),
    ("text/plain", event(), 415, "Content-Type"),
    ("multipart/form-data; boundary=x", event(), 415, "Content-Type"),
]

BAD_BODIES: list[tuple[str, bytes, int, str]] = [
    ("/v1/message/nests", b"", 400, "body"),
    ("/v1/message/nests", b'"a"', 400, "body"),
    ("/v1/message/nests", b"{}", 400, "msg"),
    ("/v1/message/nests", b'{"msg": 5}', 400, "msg"),
    ("/v1/message/nests", b'{"msg": {"a": 1}}', 400, "msg"),
    ("/v1/message/nests", b'{"msg": "\xff"}', 400, "body"),
    ("/v1/message/nests", b'{"msg": "a", "message": "b"}', 400, "message"),
    ("/v1/message/nests", b'{"msg": "a", "delay_seconds": "5"}', 400, "delay_seconds"),
    ("/v1/message/nests", b'{"msg": "a", "delay_seconds": -1}', 400, "delay_seconds"),
    ("/v1/message/nests", b'{"msg": "a", "delay_seconds": 1e300}', 400, "delay_seconds"),
    ("/v1/message/nests", json.dumps({"msg": TEXT_OF_256_KIB + "x"}).encode(), 413, "msg"),
    ("/v1/message/nests", b"[]", 400, "body"),
    ("/v1/message/nests", b'[{"msg": "a"}, {"msg": 5}]', 400, "[1].msg"),
    ("/v1/message/nests", b"[" + b", ".join([b'{"msg": "a"}'] * 1001) + b"]", 400, "body"),
    ("/v1/queues/nests", b"", 400, "body"),
    ("/v1/queues/nests", b"[]", 400, "body"),
    ("/v1/queues/nests", b'{"visibility_timeout_seconds": "5"}', 400, "visibility_timeout_seconds"),
    ("/v1/queues/nests", b'{"visibility_timeout_seconds": -1}', 400, "visibility_timeout_seconds"),
    ("/v1/queues/nests", b'{"visibility_timeout_seconds": 1e400}', 400, "visibility_timeout_seconds"),
    ("/v1/queues/nests", b'{"visibility_timeout_seconds": 1' + b"0" * 4500 + b"}", 400, "visibility_timeout_seconds"),
    ("/v1/queues/nests", b'{"retention_seconds": -1}', 400, "retention_seconds"),
    ("/v1/queues/nests", b'{"retention_seconds": 9223372036854775808}', 400, "retention_seconds"),
    ("/v1/queues/nests", b'{"retention": 5}', 400, "retention"),
    ("/v1/workflows/eggs", b"{}", 400, "digest_window_seconds"),
    ("/v1/workflows/eggs", b'{"digest_window_seconds": 1.5}', 400, "digest_window_seconds"),
    ("/v1/workflows/eggs", b'{"digest_window_seconds": true}', 400, "digest_window_seconds"),
    ("/v1/workflows/eggs", b'{"digest_window_seconds": 604801}', 400, "digest_window_seconds"),
    ("/v1/workflows/eggs", b'{"digest_window_seconds": -9223372036854775809}', 400, "digest_window_seconds"),
]


async def test_an_event_that_cannot_be_taken_is_refused_with_its_field(
    client: httpx.AsyncClient, database: Database, subtests: pytest.Subtests
) -> None:
    before = await stored(database)
    for content_type, body, status, field in BAD_EVENTS:
        with subtests.test(content_type=content_type, body=body[:80]):
            answer = await client.post("/v1/events", content=body, headers={"content-type": content_type})
            assert_problem(answer, status, field)
            assert await stored(database) == before


async def test_a_body_that_cannot_be_taken_is_refused_with_its_field(
    client: httpx.AsyncClient, database: Database, subtests: pytest.Subtests
) -> None:
    before = await stored(database)
    for path, body, status, field in BAD_BODIES:
        with subtests.test(path=path, body=body[:80]):
            assert_problem(await client.put(path, content=body), status, field)
            assert await stored(database) == before


BAD_HEADERS = [
    ("Idempotency-Key", "", 400),
    ("Idempotency-Key", "x" * 256, 400),
    ("Idempotency-Key", "tab\there", 400),
    ("ce-specversion", "1.0", 415),
]


async def test_a_header_that_cannot_be_taken_is_named(client: httpx.AsyncClient, database: Database) -> None:
    before = await stored(database)
    for header, value, status in BAD_HEADERS:
        assert_problem(await client.post("/v1/events", content=event(), headers={header: value}), status, header)
    assert await stored(database) == before


BAD_PARAMETERS = [
    ("/v1/notifications?limit=many", "limit"),
    ("/v1/notifications?limit=0", "limit"),
    ("/v1/notifications?limit=1e3", "limit"),
    ("/v1/notifications?limit=" + "9" * 100, "limit"),
    ("/v1/notifications?before=yesterday", "before"),
    ("/v1/captured-mail?limit=-1", "limit"),
    ("/v1/messages/nests?n=0", "n"),
    ("/v1/messages/nests?n=all", "n"),
    ("/v1/messages/nests?wait=21", "wait"),
    ("/v1/messages/nests?wait=nan", "wait"),
    ("/v1/messages/nests?visibility_timeout=inf", "visibility_timeout"),
]


async def test_a_parameter_that_cannot_be_taken_is_named(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    await client.put("/v1/queues/nests", content=b"{}")
    for path, field in BAD_PARAMETERS:
        with subtests.test(path):
            assert_problem(await client.get(path), 400, field)


async def test_a_body_above_the_limit_is_refused_announced_or_not(
    client: httpx.AsyncClient, database: Database
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(LIMIT // 65536 + 1):
            yield b"x" * 65536

    before = await stored(database)
    for path in ("/v1/events", "/v1/message/nests", "/v1/queues/nests", "/v1/workflows/eggs"):
        method = "POST" if path == "/v1/events" else "PUT"
        assert_problem(await client.request(method, path, content=b"x" * (LIMIT + 1)), 413, "body")
        assert_problem(await client.request(method, path, content=chunks()), 413, "body")
    assert await stored(database) == before


WEIRD_NAMES = [
    "", " ", "a b", "a/b", "a\0b", "\0", "é", "a\nb", "..", ".", "%2F", "%00", "-a", "\N{REPLACEMENT CHARACTER}",
    "\N{RIGHT-TO-LEFT OVERRIDE}", "a" * 81, "a" * 60_000, "🐦", "'; DROP TABLE messages; --",
]  # fmt: skip


NAMED = [
    ("PUT", "/v1/queues/{}", b"{}"),
    ("PUT", "/v1/message/{}", b'{"msg": "a"}'),
    ("GET", "/v1/queues/{}", b""),
    ("GET", "/v1/messages/{}", b""),
    ("DELETE", "/v1/message/{}/01890a5d-ac96-774b-bcce-b302099a8057", b""),
    ("DELETE", "/v1/message/nests/{}", b""),
    ("GET", "/v1/notifications/{}", b""),
    ("GET", "/v1/captured-mail/{}", b""),
]


async def test_a_name_that_is_none_is_refused(
    app: ASGIApp, client: httpx.AsyncClient, database: Database, subtests: pytest.Subtests
) -> None:
    await client.put("/v1/queues/nests", content=b"{}")
    before = await stored(database)
    for method, path, body in NAMED:
        for name in WEIRD_NAMES:
            with subtests.test(f"{method} {path}", name=name[:81]):
                answer = await call(app, method, path.format(name), body, headers=client.headers.raw)
                is_list = not name and method == "GET"  # the framework overlooks a slash at the end
                assert 400 <= answer.status < 500 or is_list
    assert await stored(database) == before


async def test_an_event_type_that_is_none_gets_no_settings(
    app: ASGIApp, client: httpx.AsyncClient, database: Database
) -> None:
    before = await stored(database)
    settings = b'{"digest_window_seconds": 5}'
    for name in ("", "a\0b", "a\nb", "\N{REPLACEMENT CHARACTER}", "\x7f", "x" * 201):
        answer = await call(app, "PUT", f"/v1/workflows/{name}", settings, headers=client.headers.raw)
        assert answer.status == 400
        assert answer.json()["field"] in {"type", "path"}
    assert await stored(database) == before


async def test_an_event_type_that_is_none_has_no_settings_to_delete(app: ASGIApp, client: httpx.AsyncClient) -> None:
    answer = await call(app, "DELETE", "/v1/workflows/a\0b", headers=client.headers.raw)
    assert 400 <= answer.status < 500


async def test_recipients_that_cannot_be_read_out_of_the_data_are_refused(client: httpx.AsyncClient) -> None:
    start = cloud_event(recipients=None)[:-1] + b', "data": {"recipients": '
    not_utf8 = [start + b'["\xff@birds.example"]}}']
    deep = [start + b"[]" + b', "more": ' + b"[" * depth + b"]" * depth + b"}}" for depth in range(850, 1000)]
    for body in [*not_utf8, *deep]:
        answer = await client.post("/v1/events", content=body, headers={"content-type": CLOUD})
        assert_problem(answer, 400, answer.json().get("field"))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary().map(lambda raw: raw.decode("latin-1")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def record_of(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Records that are nearly right: a field may be anything, or missing, and others may be there."""
    nearly = {name: st.one_of(right, right, right, JSON_VALUES) for name, right in {**required, **optional}.items()}
    known = st.fixed_dictionaries({}, optional=nearly)
    return st.builds(
        lambda fields, more: {**more, **fields}, known, st.dictionaries(st.text(), JSON_VALUES, max_size=1)
    )


ADDRESSES = st.sampled_from(
    ["wren@birds.example", "WREN@birds.example", "wren", "", "wren@bïrds.example", "\0@b.example"]
)
TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026"])
EVENT = record_of(
    {"type": st.text(), "recipients": st.lists(ADDRESSES, max_size=3)},
    {"data": JSON_VALUES, "subject": st.text(), "source": st.text(), "time": TIMES},
)
CLOUD_EVENT = record_of(
    {"specversion": st.just("1.0"), "id": st.text(), "source": st.text(), "type": st.text()},
    {
        "recipients": ADDRESSES | st.lists(ADDRESSES, max_size=3),
        "data": st.fixed_dictionaries({"recipients": st.lists(ADDRESSES | JSON_VALUES)}),
        "time": TIMES,
        "data_base64": st.text(),
    },
)
MESSAGE = record_of({"msg": st.text()}, {"delay_seconds": st.floats() | st.integers()})
QUEUE = record_of({}, {"visibility_timeout_seconds": st.integers(), "retention_seconds": st.integers()})
WORKFLOW = record_of({"digest_window_seconds": st.integers()}, {})


@st.composite
def bodies(draw: st.DrawFn, record: st.SearchStrategy[dict[str, Any]]) -> bytes:
    """One record, a batch, any JSON, any bytes; and sometimes a byte of them is another."""
    value = draw(st.one_of(record, record, st.lists(record, max_size=3), JSON_VALUES))
    body = (
        draw(st.binary())
        if draw(st.integers(0, 9)) == 0
        else json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    )
    if body and draw(st.integers(0, 4)) == 0:
        position = draw(st.integers(0, len(body) - 1))
        body = body[:position] + bytes([draw(st.integers(0, 255))]) + body[position + 1 :]
    return body


NAMES = st.one_of(st.just("nests"), st.just("eggs"), st.text(), st.text(max_size=3).map(quote))
ATTEMPTS = st.one_of(
    st.tuples(st.just("POST"), st.just("/v1/events"), st.just(""), bodies(EVENT), st.just(PLAIN)),
    st.tuples(
        st.just("POST"), st.just("/v1/events"), st.just(""), bodies(CLOUD_EVENT), st.sampled_from([CLOUD, CLOUD_BATCH])
    ),
    st.tuples(st.just("PUT"), st.just("/v1/message/"), NAMES, bodies(MESSAGE), st.just(PLAIN)),
    st.tuples(st.just("PUT"), st.just("/v1/queues/"), NAMES, bodies(QUEUE), st.just(PLAIN)),
    st.tuples(st.just("PUT"), st.just("/v1/workflows/"), NAMES, bodies(WORKFLOW), st.just(PLAIN)),
)


@given(st.lists(ATTEMPTS, min_size=1, max_size=8))
async def test_whatever_is_sent_the_server_does_not_fail_and_what_it_refuses_is_not_stored(
    client: httpx.AsyncClient, database: Database, attempts: Sequence[tuple[str, str, str, bytes, str]]
) -> None:
    before = await stored(database)
    for method, path, name, body, content_type in attempts:
        url = path + quote(name, safe="%", errors="replace")
        answer = await client.request(method, url, content=body, headers={"content-type": content_type})
        assert answer.status_code < 500, (method, url, content_type, body)
        if answer.status_code >= 400:
            assert_problem(answer, answer.status_code, answer.json().get("field"))
            assert await stored(database) == before, (method, url, content_type, body)
        else:
            before = await stored(database)


async def test_a_flood_of_every_kind_at_once_is_served(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(client.put("/v1/message/nests", content=b'{"msg": "a"}') for _ in range(100)),
        *(client.put("/v1/message/nests", content=b'{"msg": 5}') for _ in range(50)),
        *(client.post("/v1/events", content=event()) for _ in range(100)),
    )
    assert [answer.status_code for answer in answers] == [201] * 100 + [400] * 50 + [202] * 100


@pytest.mark.parametrize(
    "setting",
    [
        {"host": "localhost"}, {"host": ""}, {"host": "127.0.0.1:80"}, {"host": "::1]"}, {"port": 0}, {"port": 65536},
        {"max_body_bytes": 1023},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(setting, EdgeConfig)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "::", "::1"])
def test_a_host_is_an_address(host: str) -> None:
    assert msgspec.convert({"host": host}, EdgeConfig).host == host
