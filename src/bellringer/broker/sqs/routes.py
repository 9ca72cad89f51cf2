"""HTTP of the SQS protocol: who asks, in which of the two protocols, and what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec

from bellringer.broker.moves import Moves
from bellringer.broker.service import Broker
from bellringer.broker.sqs.actions import sqs_actions
from bellringer.broker.sqs.caller import Caller
from bellringer.broker.sqs.errors import SqsError, sqs_error_of
from bellringer.broker.sqs.json_protocol import TARGET, JsonCall
from bellringer.broker.sqs.metrics import request_counter
from bellringer.broker.sqs.names import Names
from bellringer.broker.sqs.query_protocol import QueryCall
from bellringer.broker.sqs.signature import SignedRequest, check_signature, read_signature
from bellringer.edge.app import Routes
from bellringer.edge.keys import Keys
from bellringer.edge.raw import RawExchange, RawProtocol, RawReply
from bellringer.kernel.clock import Clock
from bellringer.kernel.logs import get_logger

_log = get_logger(__name__)

_QUEUE_PATH = re.compile(r"/[0-9]{12}/[^/]+")


class SqsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the SQS protocol is served. Without verification the access key id alone opens an environment."""

    verify_signatures: bool = True


def sqs_routes(broker: Broker, moves: Moves, keys: Keys, clock: Clock, config: SqsConfig) -> Routes:
    """The routes over one broker: `POST /`, and the URLs of queues."""
    if not config.verify_signatures:
        _log.warning("signatures of SQS requests are not verified: who knows an access key id may use it")
    actions = sqs_actions(broker, moves)

    async def authenticate(exchange: RawExchange) -> tuple[Caller, bytes]:
        signature = read_signature(exchange.headers, exchange.query)
        signing_key = await keys.find_by_access_key_id(signature.access_key_id)
        body = await exchange.read_body()
        if config.verify_signatures:
            request = SignedRequest(
                method=exchange.method, path=exchange.path, query=exchange.query, headers=exchange.headers, body=body
            )
            check_signature(request, signature, signing_key.secret, clock.now())
        names = Names(
            environment_id=signing_key.access.environment.id,
            region=signature.region,
            base_url=_base_url(exchange.headers),
        )
        return Caller(access=signing_key.access, names=names, receive=exchange.receive), body

    async def act(caller: Caller, call: JsonCall | QueryCall) -> Mapping[str, Any]:
        action = actions.get(call.action)
        if action is None:
            raise SqsError(call.unknown_action, f"The action {call.action} is not valid for this endpoint.")
        keys.admit(caller.access, *action.scopes)
        return await action.handle(caller, call.arguments(action.request))

    async def answer(exchange: RawExchange) -> RawReply:
        request_id = str(uuid4())
        protocol: type[JsonCall | QueryCall] = JsonCall if TARGET in exchange.headers else QueryCall
        action, code = "unknown", "OK"
        try:
            caller, body = await authenticate(exchange)
            call = protocol(exchange, body)
            action = call.action if call.action in actions else action
            reply = call.answer(await act(caller, call), request_id)
        except Exception as error:  # noqa: BLE001 - every error becomes an answer in the protocol that asked
            refusal = sqs_error_of(error)
            code = refusal.kind.code
            reply = protocol.refusal(refusal, request_id)
        request_counter(action, code).inc()
        return reply

    return Routes(protocols=[RawProtocol(name="sqs", takes=_takes, answer=answer)])


def _takes(method: str, path: str) -> bool:
    if path == "/":
        return method == "POST"
    return method in {"GET", "POST"} and _QUEUE_PATH.fullmatch(path) is not None


def _base_url(headers: Mapping[str, str]) -> str:
    """Where the caller reached this server: queue URLs lead there. A proxy says so when it was over TLS."""
    scheme = "https" if headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{headers.get('host', 'localhost')}"
