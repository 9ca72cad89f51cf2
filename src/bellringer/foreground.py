"""`bellringer up`: runs the services of a role until a signal, and tells the person who started it where things are."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.text import Text

from bellringer import __version__
from bellringer.assembly import Assembly, assemble
from bellringer.config import Config
from bellringer.demo.run import DIGEST_WINDOW_SECONDS, run_demo
from bellringer.edge.keys import new_key
from bellringer.kernel.errors import BellringerError, StartupError
from bellringer.kernel.service import Supervisor
from bellringer.replay import url_of
from bellringer.roles import Role, services_of

KEY_FILE = "api-key"
_KEY_VARIABLE = "BELLRINGER_API_KEY"
_DEMO = "demo"
_STOP_SECONDS = 12.0
"""How long a service may take to stop beyond the time that executors give to their runs."""
_WITH_HTTP = {Role.ALL, Role.API}
_WORK = {
    Role.WORKER: "works on the queues and the tasks",
    Role.PICKER: "picks tasks",
    Role.EXECUTOR: "executes tasks",
    Role.ORCHESTRATOR: "sees to it that there are executors",
}
_GUESTS = {Role.PICKER, Role.EXECUTOR, Role.ORCHESTRATOR}
"""What may run beside a process that has started the embedded database, and use it."""


async def run_in_foreground(
    config: Config, role: Role, console: Console, *, demo: bool, executor_arguments: Sequence[str] = ()
) -> None:
    """Start, report, run until SIGINT or SIGTERM, stop. Raises `StartupError`.

    `executor_arguments` are for the command line of executors that an orchestrator starts.
    """
    if demo and role is not Role.ALL:
        raise StartupError("the demo needs HTTP and the work behind it: leave --role out")
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stopping.set)
    async with AsyncExitStack() as stack:
        with console.status("Starting PostgreSQL and Bellringer" if config.database.url is None else "Starting"):
            assembly = await stack.enter_async_context(
                assemble(config, shared=role in _GUESTS, executor_arguments=executor_arguments)
            )
        if role in _WITH_HTTP:  # the others share a host with the process that has the port
            for server in assembly.api:
                server.check_port()
        key = await _first_key(config, assembly)
        is_lasting = key is not None or config.api_key is not None
        if demo and not is_lasting:
            key = await stack.enter_async_context(_temporary_key(config, assembly))
        supervisor = asyncio.create_task(
            Supervisor(
                services_of(role, assembly), stop_timeout_seconds=config.scheduler.finish_seconds + _STOP_SECONDS
            ).run(stopping)
        )
        front = Front(config=config, key=key, is_lasting=is_lasting, console=console)
        presenting = asyncio.create_task(front.present(role, stopping, demo=demo))
        await asyncio.wait([supervisor, presenting], return_when=asyncio.FIRST_COMPLETED)
        if presenting.done() and presenting.exception():
            stopping.set()
        try:
            await supervisor
        finally:
            presenting.cancel()
        with suppress(asyncio.CancelledError):
            await presenting
        console.print("Stopping.")
    console.print("Stopped.")


async def _first_key(config: Config, assembly: Assembly) -> str | None:
    """The key to show: the one that was set, or on an embedded database one made at the first start and kept."""
    file = Path(config.data_directory) / KEY_FILE
    if config.api_key is not None:
        await assembly.keys.create(config.organisation, config.environment, _KEY_VARIABLE, config.api_key)
        return None
    if config.database.url is not None:
        return None
    if not await assembly.keys.exist():
        # The file first, and whole: a start that is cut off before the key is stored is completed by the next.
        if not file.exists():
            _write_private(file, new_key())
        await assembly.keys.create(config.organisation, config.environment, "first key", file.read_text())
    return file.read_text() if file.exists() else None


def _write_private(file: Path, text: str) -> None:
    unfinished = file.with_suffix(".new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    unfinished.replace(file)


@asynccontextmanager
async def _temporary_key(config: Config, assembly: Assembly) -> AsyncIterator[str]:
    """A key for the demo where no key is known, revoked at the end.

    An external database may hold the events of others: there the demo gets an environment of its own.
    """
    environment = config.environment if config.database.url is None else _DEMO
    key = await assembly.keys.create(config.organisation, environment, _DEMO)
    try:
        yield key
    finally:
        with suppress(BellringerError):
            listed = [stored for stored in await assembly.keys.list_keys() if stored.name == _DEMO]
            await assembly.keys.revoke(next(stored.id for stored in reversed(listed) if stored.hint == key[-4:]))


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """What the person who started Bellringer sees. `key` is None where it is theirs: they know it."""

    config: Config
    key: str | None
    is_lasting: bool
    console: Console

    async def present(self, role: Role, stopping: asyncio.Event, *, demo: bool) -> None:
        """Say where things are as soon as they are there, then show the demo if that was asked for."""
        if role not in _WITH_HTTP:
            self.console.print(f"Bellringer {_WORK[role]}. Ctrl-C stops it.")
            return
        await self._until_listening()
        if stopping.is_set():
            return
        self._say()
        self._say(f"Bellringer {__version__}", style="bold")
        self._say()
        for label, value in self._facts(demo=demo):
            self.console.print(Text.assemble("  ", (f"{label:<9}", "dim"), " ", value), soft_wrap=True)
        self._say()
        if demo:
            await self._show_demo(stopping)
        if not stopping.is_set():
            self._say("Ctrl-C stops Bellringer. The data stays.")
            self._say()

    async def _show_demo(self, stopping: asyncio.Event) -> None:
        try:
            await run_demo(self._url, self._known_key(), self.console, stopping, afresh=self._afresh())
        except BellringerError as error:
            self._say(f"The demo ended early: {error}", style="red")
        if stopping.is_set():
            return
        self._say()
        self._say(f"Try next, and find its mail in the console {DIGEST_WINDOW_SECONDS} seconds later:")
        self._say()
        self.console.print(Text(self._curl()), soft_wrap=True)
        self._say()

    def _facts(self, *, demo: bool) -> Iterator[tuple[str, Text]]:
        config = self.config
        yield "Console", Text(f"{self._url}/console", "bold cyan")
        # Not into a log: there it would stay. The demo is for looking, and its reader needs it.
        shown_key = self.key if demo or self.console.is_terminal else None
        yield "API key", Text(shown_key or self._where_the_key_is())
        if self.key and not self.is_lasting:
            environment = config.environment if config.database.url is None else _DEMO
            yield "", Text(f"made for {config.organisation}/{environment}, and revoked when this process stops")
        if config.database.url is None:
            yield "Data", Text(str(Path(config.data_directory).resolve()))
        else:
            yield "Data", Text(f"PostgreSQL at {_host_of(config.database.url)}")
        smtp_url = config.notifications.smtp.url
        mail = f"sent through {_host_of(smtp_url)}" if smtp_url else "captured instead of sent: read it in the console"
        yield "Mail", Text(mail)

    def _where_the_key_is(self) -> str:
        if self.key is not None:
            return f"in {(Path(self.config.data_directory) / KEY_FILE).resolve()}"
        if self.config.api_key is None:
            return "`bellringer keys create NAME` makes one"
        return f"the one in {'BELLRINGER_API_KEY' if _KEY_VARIABLE in os.environ else 'bellringer.toml'}"

    def _curl(self) -> str:
        if self.key is None and _KEY_VARIABLE in os.environ:
            authorization = f'"Authorization: Bearer ${_KEY_VARIABLE}"'
        else:
            authorization = f"'Authorization: Bearer {self.key or 'YOUR-API-KEY'}'"
        event = '{"type": "task.failed", "recipients": ["you@acme.example"], "subject": "Hello"}'
        return (
            f"curl {self._url}/v1/events \\\n"
            f"  -H {authorization} \\\n"
            "  -H 'Content-Type: application/json' \\\n"
            f"  -d '{event}'"
        )

    def _afresh(self) -> str:
        if self.config.database.url is None:
            return f"Ctrl-C, then rm -r {shlex.quote(self.config.data_directory)}, and start again."
        return "Ctrl-C, and start again on an empty database."

    def _known_key(self) -> str:
        key = self.key or self.config.api_key
        assert key is not None  # noqa: S101 - the demo makes one where none is known
        return key

    @property
    def _url(self) -> str:
        return url_of(self.config.edge.host, self.config.edge.port)

    async def _until_listening(self) -> None:
        address = urlsplit(self._url)
        while True:
            try:
                _, writer = await asyncio.open_connection(address.hostname, address.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return

    def _say(self, text: str = "", style: str = "") -> None:
        self.console.print(Text(f"  {text}" if text else "", style=style), soft_wrap=True)


def _host_of(url: str) -> str:
    """The server that a URL names, without the password that may stand beside it."""
    return urlsplit(url).netloc.rpartition("@")[2] or "the address in the settings"
