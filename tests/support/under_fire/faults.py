"""What strikes a run: each fault hits one victim, chosen at random, and returns; `mend` heals what is due.

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
from tests.support.server import Server, until
from tests.support.under_fire.processes import ConsumerProcess

_TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT $1
) AS victims
"""


class Faults:
    """The faults of one run, and how often each has struck.

    Who is stopped goes on after `pause_seconds`, which should be longer than any visibility timeout.
    """

    def __init__(
        self,
        postgres: ExternalPostgres,
        brokers: Sequence[Server],
        consumers: Sequence[ConsumerProcess],
        random: Random,
        *,
        pause_seconds: float,
    ) -> None:
        self.struck = Counter[str]()
        self._postgres = postgres
        self._brokers = brokers
        self._consumers = consumers
        self._random = random
        self._pause_seconds = pause_seconds
        self._stopped: dict[int, float] = {}
        self._faults: list[Callable[[], None]] = [
            self._kill_a_broker,
            self._kill_a_consumer,
            self._terminate_backends,
            self._stop_a_broker,
            self._stop_a_consumer,
            self._restart_postgres,
            self._crash_postgres,
        ]
        self._next: list[Callable[[], None]] = []

    @property
    def round_is_over(self) -> bool:
        """Whether each fault has struck as often as the others."""
        return not self._next

    def strike(self) -> str:
        """Let the next fault strike, all of them in one random order, then in another; return its name."""
        if not self._next:
            self._next = self._random.sample(self._faults, len(self._faults))
        fault = self._next.pop()
        fault()
        name = fault.__name__.strip("_").replace("_", " ")
        self.struck[name] += 1
        return name

    def mend(self, *, everything: bool = False) -> None:
        """Let who was stopped long enough go on, and start again who has ended; with `everything` all of them."""
        for process_id, go_on_at in list(self._stopped.items()):
            if everything or time.monotonic() > go_on_at:
                self._go_on(process_id)
        for broker in self._brokers:
            self._start_again(broker)
        if everything:
            until(self._are_all_ready, "the brokers are ready")

    def _kill_a_broker(self) -> None:
        broker = self._random.choice(self._brokers)
        self._stopped.pop(broker.process_id, None)
        broker.kill()
        broker.spawn()

    def _kill_a_consumer(self) -> None:
        consumer = self._random.choice(self._consumers)
        self._stopped.pop(consumer.process_id, None)
        consumer.kill_and_start()

    def _terminate_backends(self) -> None:
        asyncio.run(self._terminate(self._random.randint(1, 5)))

    def _stop_a_broker(self) -> None:
        self._stop(self._random.choice(self._brokers).process_id)

    def _stop_a_consumer(self) -> None:
        self._stop(self._random.choice(self._consumers).process_id)

    def _restart_postgres(self) -> None:
        self._postgres.stop_fast()
        self._postgres.start()

    def _crash_postgres(self) -> None:
        self._postgres.stop_immediately()
        self._postgres.start()

    async def _terminate(self, number: int) -> None:
        connection = await asyncpg.connect(self._postgres.url)
        try:
            await connection.fetchval(_TERMINATE, number)
        finally:
            await connection.close()

    def _are_all_ready(self) -> bool:
        # One whose connection was cut while it started ends, and is started again.
        return all(not self._start_again(broker) and broker.readiness() == 200 for broker in self._brokers)

    @staticmethod
    def _start_again(broker: Server) -> bool:
        """Start a broker that has ended; return whether it had."""
        if broker.is_running():
            return False
        broker.kill()
        broker.spawn()
        return True

    def _stop(self, process_id: int) -> None:
        os.kill(process_id, signal.SIGSTOP)
        self._stopped[process_id] = time.monotonic() + self._pause_seconds

    def _go_on(self, process_id: int) -> None:
        del self._stopped[process_id]
        os.kill(process_id, signal.SIGCONT)
