"""Executors as the replicas of a deployment, through the Kubernetes API as the pod's own service account.

The account needs `get` and `patch` on `deployments/scale`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote

import msgspec
from pyreqwest.client import Client

from bellringer.scheduler.orchestrator.config import KubernetesConfig
from bellringer.scheduler.orchestrator.drivers.driver import DriverFailed
from bellringer.scheduler.orchestrator.drivers.http import exchange, open_client, read_file, read_secret


class _ScaleSpec(msgspec.Struct, frozen=True):
    replicas: int = 0  # zero is left out


class _Scale(msgspec.Struct, frozen=True):
    spec: _ScaleSpec


class Kubernetes:
    """A driver that patches the scale of a deployment."""

    name = "kubernetes"

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._deployment = config.deployment or ""
        self._client: Client | None = None

    async def current(self) -> int:
        """The replicas that the deployment is to have. Raises `DriverFailed`."""
        return _replicas(await self._exchange("GET"))

    async def scale_to(
        self,
        executors: int,
        *,
        current: int,  # noqa: ARG002 - it is asked
        reason: str,  # noqa: ARG002 - for others
        busy: Collection[int] = (),  # noqa: ARG002 - Kubernetes chooses
    ) -> None:
        """Change the replicas of the deployment. Raises `DriverFailed`."""
        replicas = _replicas(await self._exchange("PATCH", {"spec": {"replicas": executors}}))
        if replicas != executors:
            raise DriverFailed(f"{self._deployment} was to have {executors} replicas, and is to have {replicas}")

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _exchange(self, method: str, body: object = None) -> bytes:
        config = self._config
        namespace = config.namespace or read_secret(config.namespace_file)
        path = f"/apis/apps/v1/namespaces/{quote(namespace)}/deployments/{quote(self._deployment)}/scale"
        # Read for each request: the token in the file is renewed every hour.
        token = read_secret(config.token_file)
        if self._client is None:
            self._client = open_client(config.timeout_seconds, read_file(config.ca_file))
        try:
            return await exchange(
                self._client,
                method,
                config.url.rstrip("/") + path,
                called=path,
                token=token,
                body=body,
                content_type="application/merge-patch+json",
            )
        except DriverFailed:
            await self.close()  # the next round reads the authority anew: it may be what has changed
            raise


def _replicas(content: bytes) -> int:
    try:
        return msgspec.json.decode(content, type=_Scale).spec.replicas
    except msgspec.DecodeError as error:
        raise DriverFailed(f"the answer is no scale: {error}") from error
