"""Drivers: who runs the executors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import assert_never

from bellringer.scheduler.orchestrator.config import OrchestratorConfig
from bellringer.scheduler.orchestrator.drivers.driver import Driver, DriverFailed
from bellringer.scheduler.orchestrator.drivers.dry_run import DryRun
from bellringer.scheduler.orchestrator.drivers.kubernetes import Kubernetes
from bellringer.scheduler.orchestrator.drivers.processes import Processes
from bellringer.scheduler.orchestrator.drivers.webhook import Webhook

__all__ = ["EXECUTOR_COMMAND", "Driver", "DriverFailed", "driver_of"]

EXECUTOR_COMMAND = (sys.executable, "-m", "bellringer", "up", "--role", "executor")


def driver_of(
    config: OrchestratorConfig,
    *,
    command: Sequence[str] = EXECUTOR_COMMAND,
    environment: Mapping[str, str] | None = None,
) -> Driver:
    """The driver that the settings name. `command` runs one executor, with `environment` on top of our own."""
    match config.driver:
        case "dry-run":
            return DryRun()
        case "processes":
            return Processes(command, config.processes, environment=environment)
        case "kubernetes":
            return Kubernetes(config.kubernetes)
        case "webhook":
            return Webhook(config.webhook)
        case _:
            assert_never(config.driver)
