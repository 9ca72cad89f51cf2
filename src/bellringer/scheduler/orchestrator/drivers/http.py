"""HTTP as drivers speak it: JSON both ways, a token from a file, and one line for whatever goes wrong."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from bellringer import __version__
from bellringer.scheduler.orchestrator.drivers.driver import DriverFailed

_SHOWN_CHARACTERS = 300


def open_client(timeout_seconds: float, certificate_authority: bytes | None = None) -> Client:
    """A client that trusts the given authority as well. Raises `DriverFailed` when it is not one."""
    builder = ClientBuilder().user_agent(f"bellringer/{__version__}").timeout(timedelta(seconds=timeout_seconds))
    builder = builder.follow_redirects(enable=False)
    try:
        if certificate_authority is not None:
            builder = builder.add_root_certificate_pem(certificate_authority)
        return builder.build()
    except PyreqwestError as error:
        raise DriverFailed(f"the certificates cannot be used: {_reason(error)}") from error


async def exchange(
    client: Client, method: str, url: str, *, called: str, token: str | None, body: object, content_type: str
) -> bytes:
    """Send JSON and return the body of an answer of 2xx. Raises `DriverFailed`, which says what is `called`: the URL
    itself may be a secret.
    """
    try:
        request = client.request(method, url).header("Accept", "application/json")
        if token is not None:
            request = request.bearer_auth(token)
        if body is not None:
            request = request.header("Content-Type", content_type).body_bytes(msgspec.json.encode(body))
        response = await request.build().send()
        content = bytes(await response.bytes())
    except PyreqwestError as error:
        raise DriverFailed(f"{method} {called}: {_reason(error)}") from error
    if not 200 <= response.status < 300:
        raise DriverFailed(f"{method} {called}: {response.status} {_said(content)}".rstrip())
    return content


def read_secret(path: str) -> str:
    """The content of a file, anew each time: such files are renewed. Raises `DriverFailed`."""
    return read_file(path).decode(errors="replace").strip()


def read_file(path: str) -> bytes:
    """The bytes of a file. Raises `DriverFailed`."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DriverFailed(f"{path} cannot be read: {error.strerror}") from error


def _said(content: bytes) -> str:
    """What an answer says in one line: its `message`, as Kubernetes has it, or its beginning."""
    try:
        text = str(msgspec.json.decode(content)["message"])
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        text = content.decode(errors="replace")
    return " ".join(text.split())[:_SHOWN_CHARACTERS]


def _reason(error: PyreqwestError) -> str:
    """The deepest cause, which tells most: the outer ones say that a request failed."""
    details = getattr(error, "details", None) or {}
    causes = [cause["message"] for cause in details.get("causes") or ()]
    return " ".join((causes[-1] if causes else str(error)).split()) or type(error).__name__
