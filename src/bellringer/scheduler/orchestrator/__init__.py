"""The orchestrator: as many executors as the next ten minutes need, before they are needed.

What will be due is known, and so is how long runs take: the look-ahead is the load. Each minute one process looks at
all tasks and occurrences that are due in the next ten minutes, works out the slots that they need (`forecast`), decides
how many executors there should be (`scaling`), asks a driver for them (`drivers`) and writes down why (`store`).

Invariants: never outside the limits; never down before the quiet time is over; every round is a row in
`scaling_decisions`, failures of the driver included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bellringer.kernel.database import Database
from bellringer.kernel.service import Service
from bellringer.scheduler.orchestrator.config import OrchestratorConfig
from bellringer.scheduler.orchestrator.drivers import EXECUTOR_COMMAND, driver_of
from bellringer.scheduler.orchestrator.loops import Orchestrator

__all__ = ["OrchestratorConfig", "orchestrator_of"]


def orchestrator_of(
    database: Database,
    config: OrchestratorConfig,
    *,
    command: Sequence[str] = EXECUTOR_COMMAND,
    environment: Mapping[str, str] | None = None,
) -> Service:
    """The service. `command` starts one executor where executors are processes of this host, with `environment` on
    top of the one of this process.
    """
    return Orchestrator(database, driver_of(config, command=command, environment=environment), config)
