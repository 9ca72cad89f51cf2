"""Roles: which services a process runs. One process runs all; a larger site splits HTTP from the work behind it,
and scales pickers and executors of tasks by themselves."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from bellringer.assembly import Assembly
from bellringer.kernel.service import Service


class Role(StrEnum):
    """What a process is for."""

    ALL = "all"
    API = "api"
    WORKER = "worker"
    PICKER = "picker"
    EXECUTOR = "executor"
    ORCHESTRATOR = "orchestrator"


def services_of(role: Role, assembly: Assembly) -> list[Service]:
    """The services of a role, in the order of their start."""
    work = [*assembly.upkeep, *assembly.workers, *assembly.pickers, *assembly.executors]
    match role:
        case Role.ALL:
            return [*assembly.foundation, *work, *assembly.api]
        case Role.API:
            return [*assembly.foundation, *assembly.api]
        case Role.WORKER:
            return [*assembly.foundation, *work]
        case Role.PICKER:
            return [*assembly.foundation, *assembly.upkeep, *assembly.pickers]
        case Role.EXECUTOR:
            return [*assembly.foundation, *assembly.executors]
        case Role.ORCHESTRATOR:
            return [*assembly.foundation, *assembly.orchestrators]
        case _:
            assert_never(role)
