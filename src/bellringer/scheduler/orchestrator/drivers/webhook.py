"""Somebody else runs the executors, and is told how many there should be."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from pyreqwest.client import Client

from bellringer.scheduler.orchestrator.config import WebhookConfig
from bellringer.scheduler.orchestrator.drivers.http import exchange, open_client, read_secret


class Webhook:
    """A driver that posts `{"desired": 3, "current": 2, "reason": "…", "at": "…"}`; an answer of 2xx is an order taken.

    The order is repeated whenever the number changes, never otherwise.
    """

    name = "webhook"

    def __init__(self, config: WebhookConfig) -> None:
        self._url = config.url or ""
        self._config = config
        self._client: Client | None = None

    async def current(self) -> int | None:
        """It is told, not asked."""
        return None

    async def scale_to(
        self,
        executors: int,
        *,
        current: int,
        reason: str,
        busy: Collection[int] = (),  # noqa: ARG002 - not ours to stop
    ) -> None:
        """Tell it. Raises `DriverFailed`."""
        token = read_secret(self._config.token_file) if self._config.token_file else None
        if self._client is None:
            self._client = open_client(self._config.timeout_seconds)
        body = {"desired": executors, "current": current, "reason": reason, "at": datetime.now(UTC)}
        await exchange(
            self._client,
            "POST",
            self._url,
            called="to the webhook",
            token=token,
            body=body,
            content_type="application/json",
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None
