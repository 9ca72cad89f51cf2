"""A client of several brokers on one database, who writes down what he asks and is told.

Each request goes to any of the brokers. A connection that fails, an answer that does not come in time and one of 5xx
leave it open what was done; the client goes on with other things.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import TransportError
from tests.support.history.events import Delivered, NewMessage
from tests.support.history.recorder import Recorder, recorder_to_file
from tests.support.under_fire.settings import API_KEY, Settings

WAIT_SECONDS = 1.0

_PATIENCE = timedelta(seconds=8)
_PAUSE_SECONDS = 0.1  # after a request that nobody answered
_BODY_BYTES = 100


class _Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    msg: str
    group: str | None = None
    delay_seconds: float = 0.0


class _Ids(msgspec.Struct, frozen=True):
    ids: list[int]


class _ClaimedMessage(msgspec.Struct, frozen=True):
    id: int
    msg: str
    receipt_handle: str
    attempts: int
    group: str | None = None


class _Messages(msgspec.Struct, frozen=True):
    messages: list[_ClaimedMessage]


class _Handles(msgspec.Struct, frozen=True):
    receipt_handles: Sequence[str]


class _Change(msgspec.Struct, frozen=True):
    receipt_handle: str
    seconds: float


class _Changes(msgspec.Struct, frozen=True):
    changes: list[_Change]


class _Held(msgspec.Struct, frozen=True):
    held: list[bool | None]


class _Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class RecordingClient:
    """The verbs of the broker. What a method returns is what is known for sure."""

    def __init__(self, http: Client, recorder: Recorder, urls: Sequence[str], random: Random) -> None:
        self._http = http
        self._recorder = recorder
        self._urls = urls
        self._random = random

    async def publish(self, queue: str, messages: Sequence[NewMessage]) -> bool:
        """Send messages; return whether they are stored."""
        sent = [_Sent(body_of(message.key), message.group, message.delay_seconds) for message in messages]
        operation = self._recorder.publish(queue, messages)
        answer = await self._ask(operation, "PUT", f"/v1/message/{queue}", msgspec.json.encode(sent))
        if answer is not None:
            self._recorder.published(operation, msgspec.json.decode(answer.body, type=_Ids).ids)
        return answer is not None

    async def claim(self, queue: str, limit: int, visibility_timeout_seconds: float) -> list[Delivered]:
        """Ask for messages."""
        query = f"n={limit}&wait={WAIT_SECONDS:g}&visibility_timeout={visibility_timeout_seconds:g}"
        operation = self._recorder.claim(queue, visibility_timeout_seconds)
        answer = await self._ask(operation, "GET", f"/v1/messages/{queue}?{query}")
        if answer is None:
            return []
        found = msgspec.json.decode(answer.body, type=_Messages).messages
        messages = [
            Delivered(key=key_of(one.msg), id=one.id, handle=one.receipt_handle, attempts=one.attempts, group=one.group)
            for one in found
        ]
        self._recorder.claimed(operation, messages)
        return messages

    async def acknowledge(self, queue: str, handles: Sequence[str]) -> None:
        """Report messages as done, a single one by the verb for one."""
        operation = self._recorder.acknowledge(queue, handles)
        if len(handles) == 1:
            answer = await self._ask(operation, "DELETE", f"/v1/message/{queue}/{handles[0]}")
            if answer is not None:
                self._recorder.answered(operation, [answer.status == 204])
        else:
            await self._ask_of_each(operation, f"/v1/queues/{queue}/acknowledge", _Handles(handles))

    async def hold(self, queue: str, handles: Sequence[str], seconds: float) -> None:
        """Ask for the holds to end in so many seconds."""
        changes = _Changes([_Change(handle, seconds) for handle in handles])
        operation = self._recorder.hold(queue, handles, seconds)
        await self._ask_of_each(operation, f"/v1/queues/{queue}/visibility", changes)

    async def _ask_of_each(self, operation: str, path: str, handles: _Handles | _Changes) -> None:
        answer = await self._ask(operation, "POST", path, msgspec.json.encode(handles))
        if answer is not None:
            self._recorder.answered(operation, msgspec.json.decode(answer.body, type=_Held).held)

    async def _ask(self, operation: str, method: str, path: str, body: bytes | None = None) -> _Answer | None:
        """The answer; None where none came that says what was done. 404 is the answer about a single handle."""
        builder = self._http.request(method, self._random.choice(self._urls) + path).bearer_auth(API_KEY)
        if body is not None:
            builder = builder.headers({"Content-Type": "application/json"}).body_bytes(body)
        try:
            response = await builder.build().send()
            answer = _Answer(status=response.status, body=bytes(await response.bytes()))
        except TransportError as error:
            self._recorder.unanswered(operation, type(error).__name__)
        else:
            if answer.status < 300 or (answer.status == 404 and method == "DELETE"):
                return answer
            if answer.status == 429:
                self._recorder.refused(operation, "429")
            elif answer.status >= 500:
                self._recorder.unanswered(operation, str(answer.status))
            else:
                raise AssertionError(f"{method} {path}: {answer.status} {answer.body!r}")
        await asyncio.sleep(_PAUSE_SECONDS)
        return None


def body_of(key: str) -> str:
    """The body of a message: its key and a filling."""
    return f"{key} ".ljust(_BODY_BYTES, "x")


def key_of(body: str) -> str:
    """The key in a body, or the whole of it where it was not made by `body_of`, which is no message's key."""
    key = body.partition(" ")[0]
    return key if body == body_of(key) else body


@asynccontextmanager
async def recording_client(settings: Settings, name: str) -> AsyncIterator[RecordingClient]:
    """A client that writes its history to a file of its own."""
    recorder = recorder_to_file(name, settings.file(name))
    async with ClientBuilder().timeout(_PATIENCE).no_proxy().build() as http:
        yield RecordingClient(http, recorder, settings.urls, Random(f"{settings.seed} {name}"))
