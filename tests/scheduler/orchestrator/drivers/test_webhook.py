from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bellringer.scheduler.orchestrator.config import WebhookConfig
from bellringer.scheduler.orchestrator.drivers.driver import DriverFailed
from bellringer.scheduler.orchestrator.drivers.webhook import Webhook


class Receiver(ThreadingHTTPServer):
    """Notes what it is told, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 204
        self.told: list[tuple[str | None, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/scale"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.append((self.headers.get("Authorization"), body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"no room\nfor more" if self.server.status >= 400 else b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has
        """Nobody reads it."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


async def test_it_is_told_how_many_there_should_be_and_why(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    driver = Webhook(WebhookConfig(url=receiver.url, token_file=str(tmp_path / "token")))
    assert await driver.current() is None
    await driver.scale_to(5, current=2, reason="500.0 slots are needed in 80 s")
    await driver.close()
    ((authorization, body),) = receiver.told
    assert authorization == "Bearer secret"
    assert datetime.fromisoformat(body.pop("at")).tzinfo is not None
    assert body == {"desired": 5, "current": 2, "reason": "500.0 slots are needed in 80 s"}


async def test_a_refusal_is_told_in_one_line(receiver: Receiver) -> None:
    receiver.status = 503
    driver = Webhook(WebhookConfig(url=receiver.url))
    with pytest.raises(DriverFailed, match=r"^POST to the webhook: 503 no room for more$"):
        await driver.scale_to(5, current=2, reason="")
    await driver.close()


async def test_an_address_that_cannot_be_reached_is_not_written_down_for_it_may_be_a_secret() -> None:
    driver = Webhook(WebhookConfig(url="http://secret.invalid/secret"))
    with pytest.raises(DriverFailed, match=r"^POST to the webhook: (?!.*secret)"):
        await driver.scale_to(5, current=2, reason="")
    await driver.close()
