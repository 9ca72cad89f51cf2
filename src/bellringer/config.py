"""Settings: read once, from `bellringer.toml` and the environment, into frozen records.

The environment wins over the file. A setting `[notifications.smtp] url` of the file is `BELLRINGER_SMTP_URL` in the
environment: `VARIABLES` lists every one. What is not known or not valid is refused in one line that names it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from bellringer.broker import BrokerConfig
from bellringer.broker.sqs.routes import SqsConfig
from bellringer.edge.app import EdgeConfig
from bellringer.edge.model import check_key, check_name
from bellringer.kernel.database import DatabaseConfig
from bellringer.kernel.errors import InvalidInput, StartupError
from bellringer.kernel.logs import LogFormat, LogLevel
from bellringer.notifications.service import NotificationsConfig
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.orchestrator.config import OrchestratorConfig

DEFAULT_FILE = Path("bellringer.toml")


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the process speaks."""

    level: LogLevel = "info"
    format: LogFormat | Literal["auto"] = "auto"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting. The organisation and environment are those of the first API key."""

    data_directory: Annotated[str, msgspec.Meta(min_length=1)] = ".bellringer"
    api_key: str | None = None
    organisation: str = "default"
    environment: str = "production"
    log: LogConfig = LogConfig()
    database: DatabaseConfig = DatabaseConfig()
    edge: EdgeConfig = EdgeConfig()
    broker: BrokerConfig = BrokerConfig()
    sqs: SqsConfig = SqsConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    notifications: NotificationsConfig = NotificationsConfig()

    def __post_init__(self) -> None:
        check_name(self.organisation, "organisation")
        check_name(self.environment, "environment")
        if self.orchestrator.concurrency not in {OrchestratorConfig().concurrency, self.scheduler.concurrency}:
            raise ValueError("scheduler.concurrency says what one executor does, to the orchestrator too")
        if self.api_key is not None:
            check_key(self.api_key)


VARIABLES: Mapping[str, str] = {
    "BELLRINGER_DATA_DIRECTORY": "data_directory",
    "BELLRINGER_API_KEY": "api_key",
    "BELLRINGER_ORGANISATION": "organisation",
    "BELLRINGER_ENVIRONMENT": "environment",
    "BELLRINGER_LOG_LEVEL": "log.level",
    "BELLRINGER_LOG_FORMAT": "log.format",
    "BELLRINGER_DATABASE_URL": "database.url",
    "BELLRINGER_DATABASE_POOL_SIZE": "database.pool_size",
    "BELLRINGER_HOST": "edge.host",
    "BELLRINGER_PORT": "edge.port",
    "BELLRINGER_MAX_BODY_BYTES": "edge.max_body_bytes",
    "BELLRINGER_QUEUE_VISIBILITY_TIMEOUT_SECONDS": "broker.visibility_timeout_seconds",
    "BELLRINGER_QUEUE_RETENTION_SECONDS": "broker.retention_seconds",
    "BELLRINGER_SQS_VERIFY_SIGNATURES": "sqs.verify_signatures",
    "BELLRINGER_TASKS": "scheduler.tasks",
    "BELLRINGER_EXECUTOR_CONCURRENCY": "scheduler.concurrency",
    "BELLRINGER_EXECUTOR_FINISH_SECONDS": "scheduler.finish_seconds",
    "BELLRINGER_START_PROMISE_SECONDS": "scheduler.start_promise_seconds",
    "BELLRINGER_TASK_RETENTION_SECONDS": "scheduler.retention_seconds",
    "BELLRINGER_ORCHESTRATOR_DRIVER": "orchestrator.driver",
    "BELLRINGER_ORCHESTRATOR_MINIMUM": "orchestrator.minimum",
    "BELLRINGER_ORCHESTRATOR_MAXIMUM": "orchestrator.maximum",
    "BELLRINGER_ORCHESTRATOR_DEPLOYMENT": "orchestrator.kubernetes.deployment",
    "BELLRINGER_ORCHESTRATOR_NAMESPACE": "orchestrator.kubernetes.namespace",
    "BELLRINGER_ORCHESTRATOR_WEBHOOK_URL": "orchestrator.webhook.url",
    "BELLRINGER_ORCHESTRATOR_WEBHOOK_TOKEN_FILE": "orchestrator.webhook.token_file",
    "BELLRINGER_DIGEST_WINDOW_SECONDS": "notifications.digest_window_seconds",
    "BELLRINGER_RECIPIENTS_PER_EMAIL": "notifications.recipients_per_email",
    "BELLRINGER_EVENTS_PER_EMAIL": "notifications.events_per_email",
    "BELLRINGER_RETENTION_SECONDS": "notifications.retention_seconds",
    "BELLRINGER_GIVE_UP_AFTER_SECONDS": "notifications.give_up_after_seconds",
    "BELLRINGER_VISIBILITY_TIMEOUT_SECONDS": "notifications.visibility_timeout_seconds",
    "BELLRINGER_EMAIL_FROM": "notifications.email_from",
    "BELLRINGER_SMTP_URL": "notifications.smtp.url",
    "BELLRINGER_SMTP_CONNECTIONS": "notifications.smtp.connections",
}


def read_config(environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Read the settings. Raises `StartupError` in one line that names the setting at fault."""
    tree = _read_file(file or DEFAULT_FILE, must_exist=file is not None)
    origins = {}
    for variable, value in environ.items():
        if not variable.startswith("BELLRINGER_"):
            continue
        if variable not in VARIABLES:
            raise StartupError(f"unknown setting {variable}; `bellringer check-config --list` names them all")
        path = VARIABLES[variable]
        origins[path] = variable
        _set(tree, path.split("."), value)
    try:
        # Not strict: the environment has text where a number is meant.
        return msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as error:
        raise StartupError(_explain(str(error), origins)) from None
    except InvalidInput as error:
        raise StartupError(f"{origins.get(error.field or '', error.field)}: {error}") from None


def _read_file(file: Path, *, must_exist: bool) -> dict[str, Any]:
    if not file.exists() and not must_exist:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartupError(f"{file} cannot be read: {error}") from None


def _set(tree: dict[str, Any], path: list[str], value: str) -> None:
    for name in path[:-1]:
        branch = tree.setdefault(name, {})
        if not isinstance(branch, dict):
            raise StartupError(f"{name} must be a table")
        tree = branch
    tree[path[-1]] = value


def _explain(message: str, origins: Mapping[str, str]) -> str:
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if not path:
        return text
    return f"{origins.get(path, path)}: {text[:1].lower()}{text[1:]}"
