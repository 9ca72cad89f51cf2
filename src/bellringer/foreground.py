"""`bellringer up`: runs the services of a role until a signal, and tells the person who started it where things are."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from rich.console import Console

from bellringer.assembly import Assembly, assemble
from bellringer.config import Config
from bellringer.kernel.logs import get_logger
from bellringer.kernel.service import Supervisor
from bellringer.roles import Role, services_of

_KEY_FILE = "api-key"

_log = get_logger(__name__)


async def run_in_foreground(config: Config, role: Role, console: Console, *, demo: bool) -> None:
    """Start, report, run until SIGINT or SIGTERM, stop. Raises `StartupError`."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stopping.set)
    async with assemble(config) as assembly:
        key = await _first_key(config, assembly)
        supervisor = asyncio.create_task(Supervisor(services_of(role, assembly)).run(stopping))
        _welcome(config, role, key, console)
        await supervisor
        console.print("Stopping.")
    console.print("Stopped.")


async def _first_key(config: Config, assembly: Assembly) -> str | None:
    """The key to show: the one that was set, or on an embedded database one made at the first start and kept."""
    file = Path(config.data_directory) / _KEY_FILE
    if config.api_key is not None:
        await assembly.keys.create(config.organisation, config.environment, "BELLRINGER_API_KEY", config.api_key)
        return None
    if config.database.url is not None:
        return None
    if not file.exists():
        if await assembly.keys.exist():
            return None
        key = await assembly.keys.create(config.organisation, config.environment, "first key")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(key)
    return file.read_text()


def _welcome(config: Config, role: Role, key: str | None, console: Console) -> None:
    if role is Role.WORKER:
        console.print("Bellringer works on the queues. Ctrl-C stops it.")
        return
    console.print(f"Bellringer listens on http://{config.edge.host}:{config.edge.port}")
    console.print(f"API key {key or '(as set; `bellringer keys create` makes another)'}")
