"""What strikes servers and their PostgreSQL: each fault hits a victim chosen at random, and returns; `mend` heals.

Servers and PostgreSQL are started by the thread that calls: it must be the main one, for they end with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import asyncpg
from tests.support.postgres import ExternalPostgres
from tests.support.server import Server

Fault = Callable[[], None]

_TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT $1
) AS victims
"""


class Fire:
    """The faults of one run, and how often each has struck. A run adds its own to `faults`.

    Who is stopped goes on after `pause_seconds`.
    """

    def __init__(
        self, postgres: ExternalPostgres, servers: Sequence[Server], random: Random, *, pause_seconds: float
    ) -> None:
        self.struck = Counter[str]()
        self.faults: list[Fault] = [self._terminate_backends, self._restart_postgres, self._crash_postgres]
        self.random = random
        self._postgres = postgres
        self._servers = servers
        self._pause_seconds = pause_seconds
        self._stopped: dict[int, float] = {}
        self._away: dict[Server, float] = {}
        self._next: list[Fault] = []

    @property
    def have_all_struck(self) -> bool:
        """Whether each fault has struck."""
        return len(self.struck) == len(self.faults)

    @property
    def round_is_over(self) -> bool:
        """Whether each fault has struck as often as the others."""
        return not self._next

    def strike(self) -> str:
        """Let the next fault strike, all of them in one random order, then in another; return its name."""
        if not self._next:
            self._next = self.random.sample(self.faults, len(self.faults))
        fault = self._next.pop()
        fault()
        name = fault.__name__.strip("_").replace("_", " ")
        self.struck[name] += 1
        return name

    def mend(self, *, everything: bool = False) -> None:
        """Let go on who was stopped or away long enough, and start who has ended; with `everything` all of them."""
        for process_id, go_on_at in list(self._stopped.items()):
            if everything or time.monotonic() > go_on_at:
                self._go_on(process_id)
        for server, back_at in list(self._away.items()):
            if everything or time.monotonic() > back_at:
                del self._away[server]
        for server in self._servers:
            self.start_again(server)

    def start_again(self, server: Server) -> bool:
        """Start a server that has ended, unless it is to stay away; return whether it had ended."""
        if server.is_running() or server in self._away:
            return False
        server.kill()
        server.spawn()
        return True

    def forget(self, process_id: int) -> None:
        """A process is gone: it need not go on."""
        self._stopped.pop(process_id, None)

    def kill(self, server: Server) -> None:
        """End a server as a power cut would."""
        if server.is_running():
            self.forget(server.process_id)
        server.kill()

    def send_away(self, server: Server, seconds: float) -> None:
        """Kill a server, and start it again so much later."""
        self.kill(server)
        self._away[server] = time.monotonic() + seconds

    def terminate(self, server: Server) -> None:
        """Let a server finish what it does; it is started again when it has ended."""
        if server.is_running():
            os.kill(server.process_id, signal.SIGTERM)

    def stop(self, process_id: int) -> None:
        """Let a process stand still for a while."""
        os.kill(process_id, signal.SIGSTOP)
        self._stopped[process_id] = time.monotonic() + self._pause_seconds

    def _go_on(self, process_id: int) -> None:
        del self._stopped[process_id]
        os.kill(process_id, signal.SIGCONT)

    def _terminate_backends(self) -> None:
        asyncio.run(self._terminate(self.random.randint(1, 5)))

    async def _terminate(self, number: int) -> None:
        connection = await asyncpg.connect(self._postgres.url)
        try:
            await connection.fetchval(_TERMINATE, number)
        finally:
            await connection.close()

    def _restart_postgres(self) -> None:
        self._postgres.stop_fast()
        self._postgres.start()

    def _crash_postgres(self) -> None:
        self._postgres.stop_immediately()
        self._postgres.start()
