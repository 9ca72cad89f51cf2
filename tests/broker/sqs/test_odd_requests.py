"""Requests that nobody would send: each gets an answer of the service, and none a fault of ours."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import botocore.session
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellringer.broker import Broker
from bellringer.broker.moves import Moves
from bellringer.broker.sqs.routes import SqsConfig, sqs_routes
from bellringer.edge.keys import Keys
from bellringer.edge.raw import RawExchange, RawReply
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.database import Database

pytestmark = pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)

NAMES = ["plain", "ordered.fifo", "dead", "never-made"]
MODEL: dict[str, Any] = botocore.session.Session().get_component("data_loader").load_service_model("sqs", "service-2")
TEXTS = st.one_of(
    st.sampled_from(
        [*NAMES, "", "All", ".*", "x", "g", "0", "-1", "900", "1" * 30, "true", "\0", "a" * 300, "\ud7ff", "§"]
    ),
    st.text(max_size=5).filter(lambda text: text.isprintable()),
)
# Mostly right, or no request would come far.
URLS = st.sampled_from(["plain", "plain", "ordered.fifo", "ordered.fifo", "never-made", "", "http://h/000000000000/q"])
BODIES = st.one_of(st.just("x"), st.just("x"), TEXTS)
GROUPS = st.one_of(st.none(), st.just("g"), TEXTS)
NUMBERS = st.sampled_from([-(2**70), -1, 0, 1, 10, 43200, 43201, 2**31, 2**63, 2**70])
VALUES = st.fixed_dictionaries(
    {"DataType": st.sampled_from(["String", "Number", "Binary", "x"])},
    optional={"StringValue": TEXTS, "BinaryValue": st.sampled_from(["", "AA==", "A", "§"])},
)
ENTRIES = st.fixed_dictionaries(
    {"Id": st.sampled_from(["a", "b", "c", "", "§"])},
    optional={
        "MessageBody": BODIES,
        "ReceiptHandle": TEXTS,
        "VisibilityTimeout": NUMBERS,
        "DelaySeconds": NUMBERS,
        "MessageGroupId": GROUPS,
        "MessageDeduplicationId": TEXTS,
        "MessageAttributes": st.dictionaries(TEXTS, VALUES, max_size=2),
    },
)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        ["DelaySeconds", "VisibilityTimeout", "FifoQueue", "RedrivePolicy", "RedriveAllowPolicy", "Policy", "x"]
    ),
    st.one_of(TEXTS, st.sampled_from(["{}", "[]", '{"redrivePermission": "denyAll"}', "true", "5"])),
    max_size=2,
)
MEMBERS = {
    "QueueUrl": URLS,
    "MessageBody": BODIES,
    "MessageGroupId": GROUPS,
    "Entries": st.lists(ENTRIES, max_size=3),
    "Attributes": ATTRIBUTES,
    "tags": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "Tags": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "MessageAttributes": st.dictionaries(TEXTS, VALUES, max_size=2),
    "MessageSystemAttributes": st.dictionaries(st.sampled_from(["AWSTraceHeader", "x"]), VALUES, max_size=1),
    "WaitTimeSeconds": st.sampled_from([-1, 0, 21, 2**70]),
    **dict.fromkeys(
        ["DelaySeconds", "VisibilityTimeout", "MaxNumberOfMessages", "MaxResults", "MaxNumberOfMessagesPerSecond"],
        NUMBERS,
    ),
    **dict.fromkeys(
        ["AttributeNames", "MessageSystemAttributeNames", "MessageAttributeNames", "TagKeys"],
        st.lists(TEXTS, max_size=2),
    ),
}


class Service:
    """The protocol over a database, which believes everybody."""

    def __init__(self, database: Database, broker: Broker, keys: Keys, access_key_id: str) -> None:
        routes = sqs_routes(broker, Moves(database, broker), keys, SystemClock(), SqsConfig(verify_signatures=False))
        (self._protocol,) = routes.protocols
        credential = f"Credential={access_key_id}/20260101/r/sqs/aws4_request"
        self._headers = {
            "authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host;x-amz-target, Signature=0",
            "host": "localhost",
            "x-amz-date": "20260101T000000Z",
        }

    async def ask(self, body: bytes, *, action: str | None = None) -> RawReply:
        """Send a body, as JSON when there is an action for the header."""

        async def read_body() -> bytes:
            return body

        target = {} if action is None else {"x-amz-target": f"AmazonSQS.{action}"}
        exchange = RawExchange(
            method="POST", path="/", query="", headers=self._headers | target, read_body=read_body, receive=_stay
        )
        return await self._protocol.answer(exchange)


async def _stay() -> Any:  # noqa: ANN401 - it never hangs up
    await asyncio.Event().wait()


@pytest.fixture
async def service(database: Database, broker: Broker, keys: Keys, api_key: str) -> Service:
    made = Service(database, broker, keys, (await keys.signing_pair(api_key)).access_key_id)
    for name, attributes in (
        ("dead", {}),
        ("plain", {}),
        ("ordered.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}),
    ):
        body = msgspec.json.encode({"QueueName": name, "Attributes": attributes})
        assert (await made.ask(body, action="CreateQueue")).status == 200
    return made


def flat(name: str, value: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - any JSON
    """A value as the query protocol has it, or nearly."""
    match value:
        case dict():
            pairs = list(value.items())
            return [
                pair
                for place, (key, content) in enumerate(pairs, 1)
                for pair in [(f"{name}.{place}.Name", key), *flat(f"{name}.{place}.Value", content)]
            ]
        case list():
            return [pair for place, item in enumerate(value, 1) for pair in flat(f"{name}.{place}", item)]
    return [(name, str(value))]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """An action, and some of what its request may hold."""
    action = draw(st.sampled_from(sorted(set(MODEL["operations"]) - {"DeleteQueue"})))
    shape = MODEL["shapes"][MODEL["operations"][action]["input"]["shape"]]
    members = {name: MEMBERS.get(name, TEXTS) for name in shape["members"]}
    needed = shape.get("required", []) if draw(st.booleans()) else []
    required = {name: members.pop(name) for name in needed}
    return action, draw(st.fixed_dictionaries(required, optional=members))


@settings(max_examples=400)
@given(request=requests())
async def test_every_request_gets_an_answer_of_the_service(
    service: Service, request: tuple[str, dict[str, Any]]
) -> None:
    action, members = request
    answer = await service.ask(msgspec.json.encode(members), action=action)
    assert answer.status in {200, 400, 403, 404}, answer.body
    singular = {"Entries": f"{action}RequestEntry", "tags": "Tag", "Tags": "Tag"}
    form = [pair for name, value in members.items() for pair in flat(singular.get(name, name.removesuffix("s")), value)]
    answer = await service.ask(urlencode([("Action", action), *form]).encode())
    assert answer.status in {200, 400, 403, 404}, answer.body


@settings(max_examples=100)
@given(action=st.text(max_size=10), body=st.binary(max_size=30))
async def test_bytes_of_any_kind_get_an_answer_of_the_service(service: Service, action: str, body: bytes) -> None:
    assert (await service.ask(body, action=action)).status in {400, 404}
    assert (await service.ask(body)).status == 400
