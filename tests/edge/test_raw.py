from __future__ import annotations

from typing import Any

import msgspec
import pytest
from litestar.types import ASGIApp, Receive, Send
from litestar.types import Scope as ConnectionScope
from prometheus_client import REGISTRY
from tests.support.application import Answer, call

from bellringer.edge.keys import Keys
from bellringer.edge.model import RateLimit, Scope
from bellringer.edge.raw import RawExchange, RawProtocol, RawReply, RawRequest, RawRoute, RawRoutes
from bellringer.kernel.errors import BellringerError, InvalidInput, NotFound, Overloaded

# The database answers for the key alone here.
pytestmark = pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)

LIMIT = 1024


class Nests:
    """Routes of one's own behind the door, what they were asked, and what else came through."""

    def __init__(self, keys: Keys, api_key: str) -> None:
        self.requests: list[RawRequest] = []
        self.passed_on: list[ConnectionScope] = []
        self.error: Exception | None = None
        self.use(api_key)
        self.routes = [
            self._route("PUT", "/v1/nests/{tree}"),
            self._route("POST", "/v1/nests"),
            self._route("DELETE", "/v1/nests/{tree}/{egg}", Scope.CONSUME),
        ]
        self.app: ASGIApp = RawRoutes(self.routes, keys, max_body_bytes=LIMIT, otherwise=self._otherwise)

    async def ask(self, method: str, path: str, *chunks: bytes | None, **headers: str) -> Answer:
        more = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        return await call(self.app, method, path, *chunks, headers=[self.key, *more])

    def use(self, api_key: str) -> None:
        """Ask with another key from now on."""
        self.key = (b"authorization", f"Bearer {api_key}".encode())

    def _route(self, method: str, path: str, scope: Scope = Scope.ADMIN) -> RawRoute:
        return RawRoute(
            method=method,
            path=path,
            handle=self._handle,
            summary="",
            description="",
            tag="",
            success_status=200,
            scope=scope,
        )

    async def _handle(self, request: RawRequest) -> RawReply:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return RawReply(status=200, body=b'{"answer": 42}')

    async def _otherwise(self, scope: ConnectionScope, _receive: Receive, send: Send) -> None:
        self.passed_on.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 299, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
def nests(keys: Keys, api_key: str) -> Nests:
    return Nests(keys, api_key)


async def test_a_route_gets_the_environment_its_parameters_the_query_the_headers_and_the_body(nests: Nests) -> None:
    headers = [nests.key, (b"X-Colour", b"br\xfcn")]
    answer = await call(nests.app, "PUT", "/v1/nests/oak", b'{"a":', b"1}", headers=headers, query=b"wait=5&n=%31")
    (request,) = nests.requests
    assert str(request.environment) == "acme/production"
    assert request.parameters == ["oak"]
    assert request.query == "wait=5&n=%31"
    assert request.headers["x-colour"] == "br\xfcn"
    assert request.body == b'{"a":1}'
    assert (answer.status, answer.json()) == (200, {"answer": 42})
    assert answer.headers == {"content-type": "application/json", "content-length": "14"}


async def test_an_answer_without_a_body_has_no_content_type(nests: Nests, keys: Keys) -> None:
    async def be_silent(_request: RawRequest) -> RawReply:
        return RawReply(status=204)

    route = RawRoute(
        method="DELETE", path="/v1/eggs", handle=be_silent, summary="", description="", tag="", success_status=204
    )
    app = RawRoutes([route], keys, max_body_bytes=LIMIT, otherwise=nests.app)
    answer = await call(app, "DELETE", "/v1/eggs", headers=[nests.key])
    assert (answer.status, answer.headers, answer.body) == (204, {"content-length": "0"}, b"")


async def test_parameters_come_as_they_are(nests: Nests) -> None:
    paths = {
        ("POST", "/v1/nests"): [],
        ("DELETE", "/v1/nests/oak/5"): ["oak", "5"],
        ("PUT", "/v1/nests/"): [""],
        ("PUT", "/v1/nests/a b\0\n%2F.."): ["a b\0\n%2F.."],
        ("PUT", "/v1/nests/" + "a" * 50_000): ["a" * 50_000],
    }
    for method, path in paths:
        await nests.ask(method, path)
    assert [request.parameters for request in nests.requests] == list(paths.values())


async def test_a_route_that_names_more_of_a_path_comes_first(nests: Nests, keys: Keys) -> None:
    paths = ["/v1/nests/{tree}/{egg}", "/v1/nests/{tree}/lay", "/v1/nests/{tree}/hatch", "/v1/nests/oak/{egg}/turn"]

    def route_to(path: str) -> RawRoute:
        async def tell(request: RawRequest) -> RawReply:
            return RawReply(status=200, body=f"{path} {' '.join(request.parameters)}".encode())

        return RawRoute(method="POST", path=path, handle=tell, summary="", description="", tag="", success_status=200)

    door = RawRoutes([route_to(path) for path in paths], keys, max_body_bytes=LIMIT, otherwise=nests.app)
    asked = {
        "/v1/nests/elm/5": b"/v1/nests/{tree}/{egg} elm 5",
        "/v1/nests/elm/lay": b"/v1/nests/{tree}/lay elm",
        "/v1/nests/lay/hatch": b"/v1/nests/{tree}/hatch lay",
        "/v1/nests/elm/": b"/v1/nests/{tree}/{egg} elm ",
        "/v1/nests/oak/5/turn": b"/v1/nests/oak/{egg}/turn 5",
    }
    for path, answer in asked.items():
        assert (await call(door, "POST", path, headers=[nests.key])).body == answer
    for path in ("/v1/nests/elm/5/turn", "/v1/nests/oak/5/lay"):
        assert (await call(door, "POST", path)).status == 299
        assert door.methods_at(path) == []
    assert door.methods_at("/v1/nests/oak/5/turn") == ["POST"]


async def test_every_other_request_is_handed_on(nests: Nests) -> None:
    others = [
        ("GET", "/v1/nests/oak"),
        ("PUT", "/v1/nests"),
        ("PUT", "/v1/nests/oak/5"),
        ("PUT", "/v1/nests/oak/"),
        ("PUT", "//v1/nests/oak"),
        ("PUT", "/v1/Nests/oak"),
        ("put", "/v1/nests/oak"),
        ("PUT", "/v2/nests/oak"),
        ("PUT", "*"),
        ("PUT", ""),
        ("PUT", "/"),
    ]
    for method, path in others:
        assert (await nests.ask(method, path)).status == 299
    assert [(scope["method"], scope["path"]) for scope in nests.passed_on] == others  # type: ignore[typeddict-item]
    assert not nests.requests


async def test_a_connection_that_is_no_request_is_handed_on(nests: Nests) -> None:
    scope: Any = {"type": "websocket", "path": "/v1/nests"}
    await nests.app(scope, None, None)  # type: ignore[arg-type]
    assert nests.passed_on == [scope]


async def test_the_methods_at_a_path_are_known(nests: Nests) -> None:
    assert isinstance(nests.app, RawRoutes)
    assert nests.app.methods_at("/v1/nests") == ["POST"]
    assert nests.app.methods_at("/v1/nests/oak") == ["PUT"]
    assert nests.app.methods_at("/v1/nests/oak/5") == ["DELETE"]
    assert nests.app.methods_at("/v1/trees") == []


async def test_without_a_valid_key_nothing_is_handled_and_no_body_is_read(nests: Nests) -> None:
    for header in (None, b"", b"Bearer", b"Bearer \xff\xfe\xfd", b"Basic YTpi", b"Bearer wrong"):
        headers = [] if header is None else [(b"authorization", header)]
        answer = await call(nests.app, "POST", "/v1/nests", b"{}", headers=headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.received == 0
    assert not nests.requests


async def test_a_body_of_just_the_limit_is_taken(nests: Nests) -> None:
    answer = await nests.ask("POST", "/v1/nests", b"x" * (LIMIT - 1), b"x", content_length=str(LIMIT))
    assert answer.status == 200
    assert [len(request.body) for request in nests.requests] == [LIMIT]


async def test_a_body_that_is_announced_as_too_large_is_not_read(nests: Nests) -> None:
    for length in (str(LIMIT + 1), "9" * 5000, "0" * 30):
        answer = await nests.ask("POST", "/v1/nests", b"x", content_length=length)
        assert (answer.status, answer.json()["field"], answer.received) == (413, "body", 0)
    assert not nests.requests


async def test_a_body_that_turns_out_too_large_is_read_no_further(nests: Nests) -> None:
    chunks = [b"x" * 512] * 100
    answer = await nests.ask("POST", "/v1/nests", *chunks, transfer_encoding="chunked")
    assert (answer.status, answer.json()["field"], answer.received) == (413, "body", 3)
    assert not nests.requests


async def test_a_length_that_says_nothing_is_not_believed(nests: Nests) -> None:
    for length in ("", "-1", "1e9", "\xb2", "many", "0x10"):
        assert (await nests.ask("POST", "/v1/nests", b"{}", content_length=length)).status == 200
        assert (await nests.ask("POST", "/v1/nests", b"x" * (LIMIT + 1), content_length=length)).status == 413


async def test_a_body_that_breaks_off_is_not_handled(nests: Nests) -> None:
    answer = await nests.ask("POST", "/v1/nests", b'{"a":', None)
    assert (answer.status, answer.json()["field"]) == (400, "body")
    assert not nests.requests


async def test_a_path_that_is_not_utf8_is_refused(nests: Nests) -> None:
    answer = await nests.ask("PUT", "/v1/nests/oak\N{REPLACEMENT CHARACTER}")
    assert (answer.status, answer.json()["field"]) == (400, "path")
    assert not nests.requests


async def test_a_key_without_the_scope_of_a_route_is_told_which_it_lacks_and_no_body_is_read(
    nests: Nests, keys: Keys
) -> None:
    for scopes, status in [({Scope.PUBLISH}, 403), ({Scope.CONSUME}, 200), ({Scope.ADMIN}, 200)]:
        nests.use(await keys.create("acme", "production", "test", scopes=scopes))
        answer = await nests.ask("DELETE", "/v1/nests/oak/5")
        assert answer.status == status
        if status == 403:
            assert answer.json()["type"] == "urn:bellringer:problem:not-allowed"
            assert answer.json()["detail"] == "the API key lacks the scope consume"
            assert answer.received == 0
    assert len(nests.requests) == 2


async def test_a_route_that_names_no_scope_is_for_admins(nests: Nests, keys: Keys) -> None:
    nests.use(await keys.create("acme", "production", "test", scopes=[Scope.PUBLISH, Scope.CONSUME]))
    answer = await nests.ask("POST", "/v1/nests")
    assert (answer.status, answer.json()["detail"]) == (403, "the API key lacks the scope admin")


async def test_a_key_over_its_limit_is_told_when_to_try_again(nests: Nests, keys: Keys) -> None:
    limit = RateLimit(requests_per_second=0.01, burst=2)
    nests.use(await keys.create("acme", "production", "test", rate_limit=limit))
    statuses = [(await nests.ask("POST", "/v1/nests")).status for _ in range(3)]
    refused = await nests.ask("PUT", "/v1/nests/oak")
    assert [*statuses, refused.status] == [200, 200, 429, 429]
    assert refused.json()["type"] == "urn:bellringer:problem:rate-limited"
    assert 98 <= int(refused.headers["retry-after"]) <= 100
    assert refused.received == 0
    assert len(nests.requests) == 2


ERRORS = [
    (InvalidInput("no", field="eggs"), 400),
    (NotFound("no"), 404),
    (Overloaded("no"), 503),
    (BellringerError("no"), 500),
    (KeyError("no"), 500),
    (msgspec.ValidationError("no"), 500),
    (RecursionError(), 500),
]


async def test_an_error_of_a_route_becomes_a_problem(nests: Nests) -> None:
    for error, status in ERRORS:
        nests.error = error
        answer = await nests.ask("POST", "/v1/nests")
        assert answer.status == answer.json()["status"] == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["content-length"] == str(len(answer.body))


class Telegraph:
    """A protocol of its own behind the door, which reads requests as they were sent and answers in dashes."""

    def __init__(self, keys: Keys, nests: Nests) -> None:
        self.exchanges: list[RawExchange] = []
        self.is_broken = False
        protocol = RawProtocol(name="telegraph", takes=self._takes, answer=self._answer)
        self.app = RawRoutes(nests.routes, keys, max_body_bytes=LIMIT, otherwise=nests.app, protocols=[protocol])

    def _takes(self, method: str, path: str) -> bool:
        return method in {"PUT", "POST"} and path.count("/") == 3

    async def _answer(self, exchange: RawExchange) -> RawReply:
        self.exchanges.append(exchange)
        if self.is_broken:
            raise KeyError("hunter2")
        try:
            body = await exchange.read_body()
        except InvalidInput as error:
            return RawReply(status=499, body=f"-{error.field}-".encode(), headers={"content-type": "text/dashes"})
        headers = {"content-type": "text/dashes", "x-request-id": "5"}
        return RawReply(status=200, body=b"-" + body + b"-", headers=headers)


@pytest.fixture
def telegraph(keys: Keys, nests: Nests) -> Telegraph:
    return Telegraph(keys, nests)


async def test_a_protocol_reads_a_request_as_it_was_sent_and_answers_in_its_own_words(telegraph: Telegraph) -> None:
    headers = [(b"X-Password", b"br\xfcn")]
    answer = await call(telegraph.app, "POST", "/a%20b/c/d", b"da", b"sh", headers=headers, query=b"e=%2F&f")
    (exchange,) = telegraph.exchanges
    assert (exchange.method, exchange.path, exchange.query) == ("POST", "/a%20b/c/d", "e=%2F&f")
    assert exchange.headers == {"x-password": "br\xfcn"}
    assert (answer.status, answer.body) == (200, b"-dash-")
    assert answer.headers == {"content-type": "text/dashes", "x-request-id": "5", "content-length": "6"}


async def test_a_protocol_words_the_refusal_of_a_body_that_is_too_large(telegraph: Telegraph) -> None:
    announced = await call(telegraph.app, "POST", "/a/b/c", headers=[(b"content-length", b"9999")])
    assert (announced.status, announced.body, announced.received) == (499, b"-body-", 0)
    turned_out = await call(telegraph.app, "POST", "/a/b/c", *[b"x" * 512] * 100)
    assert (turned_out.status, turned_out.body, turned_out.received) == (499, b"-body-", 3)


async def test_a_protocol_takes_what_is_no_route_and_leaves_what_it_does_not_know(
    telegraph: Telegraph, nests: Nests
) -> None:
    assert (await call(telegraph.app, "PUT", "/v1/nests/oak", headers=[nests.key])).json() == {"answer": 42}
    assert (await call(telegraph.app, "GET", "/v1/nests/oak")).status == 299
    assert not telegraph.exchanges
    assert telegraph.app.methods_at("/a/b/c") == ["POST", "PUT"]
    assert telegraph.app.methods_at("/a/b") == []


async def test_a_fault_of_a_protocol_is_told_without_its_text(telegraph: Telegraph) -> None:
    telegraph.is_broken = True
    answer = await call(telegraph.app, "POST", "/a/b/c")
    assert (answer.status, answer.headers["content-type"]) == (500, "application/problem+json")
    assert b"hunter2" not in answer.body


async def test_requests_of_a_protocol_are_counted_under_its_name(telegraph: Telegraph) -> None:
    labels = {"method": "POST", "path": "telegraph", "status": "200"}
    before = REGISTRY.get_sample_value("bellringer_http_requests_total", labels) or 0
    for path in ("/a/b/c", "/d/e/f"):
        await call(telegraph.app, "POST", path)
    assert REGISTRY.get_sample_value("bellringer_http_requests_total", labels) == before + 2


async def test_requests_are_counted_by_route_and_status(nests: Nests) -> None:
    labels = {"method": "DELETE", "path": "/v1/nests/{tree}/{egg}", "status": "200"}
    before = REGISTRY.get_sample_value("bellringer_http_requests_total", labels) or 0
    await nests.ask("DELETE", "/v1/nests/oak/1")
    await nests.ask("DELETE", "/v1/nests/elm/2")
    assert REGISTRY.get_sample_value("bellringer_http_requests_total", labels) == before + 2
