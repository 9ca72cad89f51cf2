"""A server for `bench.accept_events`: the product's own, or the same with one transaction per request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from uuid import UUID

import uvloop

from bellringer.assembly import assemble
from bellringer.config import read_config
from bellringer.kernel.service import Supervisor
from bellringer.notifications import service
from bellringer.notifications.model import Submission
from bellringer.roles import Role, services_of


async def main(mode: str) -> None:
    config = read_config(os.environ)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with assemble(config) as assembly:
        await assembly.keys.create("bench", "bench", "bench", config.api_key)
        if mode == "single":
            notifications = assembly.notifications

            async def accept(environment_id: UUID, submissions: tuple[Submission, ...]) -> list[UUID]:
                request = service._Request(environment_id=environment_id, submissions=submissions)
                (answer,) = await notifications._write([request])
                if isinstance(answer, Exception):
                    raise answer
                return answer

            notifications.accept = accept
        role = Role.ALL if mode == "with workers" else Role.API
        await Supervisor(services_of(role, assembly)).run(stopping)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
