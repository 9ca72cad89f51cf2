"""Requests as a server hands them over, whichever interface it speaks, and what their bodies may be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from litestar.types import HTTPScope, Receive

from bellringer.kernel.errors import InvalidInput, TooLarge

_LONGEST_LENGTH = 19  # the digits of 2**63


class Incoming(Protocol):
    """A request as a server hands it over, none of its body read.

    `path` is decoded, `encoded_path` and `query` are percent-encoded. `receive` is ASGI's, to be called when the body
    has been read. `read_body` raises `TooLarge`, and `InvalidInput` when the connection closes before its end.
    """

    method: str
    path: str

    @property
    def encoded_path(self) -> str: ...

    @property
    def query(self) -> str: ...

    @property
    def authorization(self) -> str | None: ...

    @property
    def receive(self) -> Receive: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read_body(self, most_bytes: int) -> bytes: ...


class AsgiIncoming:
    """A request that came as ASGI."""

    def __init__(self, scope: HTTPScope, receive: Receive) -> None:
        self.method = str(scope["method"])
        self.path = scope["path"]
        self.encoded_path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        self.query = scope["query_string"].decode("latin-1")
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.authorization = self.headers.get("authorization")
        self.receive = receive

    async def read_body(self, most_bytes: int) -> bytes:
        """The whole body. Raises `TooLarge`, `InvalidInput`."""
        check_announced(self.headers.get("content-length", ""), most_bytes)
        return await joined(self._chunks(), most_bytes)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            event = await self.receive()
            if event["type"] != "http.request":
                raise broken_off()
            yield event["body"]
            if not event["more_body"]:
                return


def check_announced(content_length: str, most_bytes: int) -> None:
    """Raise `TooLarge` for a body that is announced as too large; what is no number announces nothing."""
    # A length of more digits is too large whatever it says, and Python refuses to read thousands of them.
    if content_length.isdecimal() and (len(content_length) > _LONGEST_LENGTH or int(content_length) > most_bytes):
        raise _too_large(most_bytes)


async def joined(chunks: AsyncIterator[bytes], most_bytes: int) -> bytes:
    """A body out of its chunks. Raises `TooLarge` as soon as there are too many."""
    taken: list[bytes] = []
    size = 0
    async for chunk in chunks:
        taken.append(chunk)
        size += len(chunk)
        if size > most_bytes:
            raise _too_large(most_bytes)
    return b"".join(taken)


def broken_off() -> InvalidInput:
    """The error of a body that ends before its end."""
    return InvalidInput("the connection closed before the body ended", field="body")


def _too_large(most_bytes: int) -> TooLarge:
    return TooLarge(f"a request body holds at most {most_bytes} bytes", field="body")
