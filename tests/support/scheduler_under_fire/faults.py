"""What strikes a run: pickers, executors and their PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.support.fire import Fire
from tests.support.postgres import ExternalPostgres
from tests.support.scheduler_under_fire.settings import PAUSE_SECONDS, SCHEDULER
from tests.support.server import Server

_PICKERS_AWAY_SECONDS = SCHEDULER.pick_ahead_seconds + SCHEDULER.start_promise_seconds + 5
"""Until fire times are missed that nobody had picked ahead."""
_EXECUTORS_AWAY_SECONDS = SCHEDULER.start_promise_seconds + 3
"""Until starts are late."""


class Faults(Fire):
    """The faults of one run."""

    def __init__(
        self, postgres: ExternalPostgres, pickers: Sequence[Server], executors: Sequence[Server], random: Random
    ) -> None:
        super().__init__(postgres, [*pickers, *executors], random, pause_seconds=PAUSE_SECONDS)
        self._pickers = pickers
        self._executors = executors
        self.faults += [
            self._kill_a_picker,
            self._kill_an_executor,
            self._terminate_an_executor,
            self._stop_a_picker,
            self._stop_an_executor,
            self._send_all_pickers_away,
            self._send_all_executors_away,
        ]

    def _kill_a_picker(self) -> None:
        self._kill_one(self._pickers)

    def _kill_an_executor(self) -> None:
        self._kill_one(self._executors)

    def _terminate_an_executor(self) -> None:
        self.terminate(self.random.choice(self._executors))

    def _stop_a_picker(self) -> None:
        self._stop_one(self._pickers)

    def _stop_an_executor(self) -> None:
        self._stop_one(self._executors)

    def _send_all_pickers_away(self) -> None:
        for picker in self._pickers:
            self.send_away(picker, _PICKERS_AWAY_SECONDS)

    def _send_all_executors_away(self) -> None:
        for executor in self._executors:
            self.send_away(executor, _EXECUTORS_AWAY_SECONDS)

    def _kill_one(self, servers: Sequence[Server]) -> None:
        server = self.random.choice(servers)
        self.kill(server)
        self.start_again(server)

    def _stop_one(self, servers: Sequence[Server]) -> None:
        running = [server for server in servers if server.is_running()]
        if running:
            self.stop(self.random.choice(running).process_id)
