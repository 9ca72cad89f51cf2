"""Settings of the orchestrator."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[int, msgspec.Meta(ge=1, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
DriverName = Literal["dry-run", "processes", "kubernetes", "webhook"]

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class ProcessesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Executors as processes of this host; `stop_timeout_seconds` is what one has to finish its runs when it stops."""

    stop_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 18.0


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Executors as the replicas of a deployment; what is left out is that of the pod's own service account."""

    deployment: str | None = None
    namespace: str | None = None
    url: str = "https://kubernetes.default.svc"
    token_file: str = f"{_ACCOUNT}/token"
    ca_file: str = f"{_ACCOUNT}/ca.crt"
    namespace_file: str = f"{_ACCOUNT}/namespace"
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0

    def __post_init__(self) -> None:
        if not self.url.startswith("https://"):
            raise ValueError("url must begin with https://")


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody else starts executors; the content of `token_file` goes along as a bearer token."""

    url: str | None = None
    token_file: str | None = None
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(("https://", "http://")):
            raise ValueError("url must begin with https:// or http://")


class OrchestratorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many executors there may be, how far to look ahead, and who starts them.

    A round takes place every `interval_seconds`, and earlier if runs wait: that is looked at every `watch_seconds`.
    `window_seconds` is the promise: a run starts within it. `concurrency` is how many runs one executor does at a time,
    `provisioning_seconds` how long one takes from the order to its first run, `default_duration_seconds` how long a run
    is taken to last of which nothing is known.
    """

    driver: DriverName = "dry-run"
    minimum: Count = 1
    maximum: Count = 20
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100
    interval_seconds: Seconds = 60
    watch_seconds: Annotated[int, msgspec.Meta(ge=1, le=20)] = 15
    look_ahead_seconds: Annotated[int, msgspec.Meta(ge=60, le=3600)] = 600
    window_seconds: Annotated[int, msgspec.Meta(ge=1, le=600)] = 30
    provisioning_seconds: Seconds = 90
    quiet_seconds: Seconds = 300
    cool_down_seconds: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 60
    default_duration_seconds: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    processes: ProcessesConfig = ProcessesConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    webhook: WebhookConfig = WebhookConfig()

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise ValueError("minimum must not be above maximum")
        if self.lead_seconds > self.look_ahead_seconds:
            raise ValueError("look_ahead_seconds must be at least provisioning_seconds and interval_seconds together")
        if self.driver == "kubernetes" and not self.kubernetes.deployment:
            raise ValueError("the driver kubernetes needs kubernetes.deployment")
        if self.driver == "webhook" and not self.webhook.url:
            raise ValueError("the driver webhook needs webhook.url")

    @property
    def lead_seconds(self) -> int:
        """How long before a need executors must be ordered: they take a while, and the next look may be too late."""
        return self.provisioning_seconds + self.interval_seconds
