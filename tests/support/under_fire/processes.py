"""Producers and consumers as their parent sees them. Started by the main thread: they end when their starter does."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from tests.support.server import DEADLINE_SECONDS, ended_with_us
from tests.support.under_fire.settings import Settings

_ROOT = Path(__file__).parents[3]


class ClientProcess:
    """A process that uses the brokers. Inside its block it runs, and afterwards it is gone."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._settings = settings
        self._start(name)

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it by force, if it has not ended."""
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)

    @property
    def process_id(self) -> int:
        """The id of the process that runs now."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it has done all it had to do. Fails when it has failed."""
        code = self._process.poll()
        assert not code, f"{self._name} ended with {code}:\n{self._settings.log(self._name).read_text()[-3000:]}"
        return code is not None

    def _start(self, name: str) -> None:
        self._name = name
        settings = msgspec.json.encode(self._settings).decode()
        command = [sys.executable, "-m", "tests.support.under_fire.clients", name, settings]
        # Kept for the process until it can take it: it may be told to be diligent before it has begun.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        with self._settings.log(name).open("wb") as log:
            self._process = subprocess.Popen(
                [*ended_with_us(), *command], cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProducerProcess(ClientProcess):
    """A producer: it ends when it has sent its part."""

    def __init__(self, number: int, settings: Settings) -> None:
        super().__init__(f"producer-{number}", settings)


class ConsumerProcess(ClientProcess):
    """A consumer, which is killed and started again, each time under a new name."""

    def __init__(self, number: int, settings: Settings) -> None:
        self._names = (f"consumer-{number}.{start}" for start in itertools.count(1))
        super().__init__(next(self._names), settings)

    def kill_and_start(self) -> None:
        """End it as a power cut would, and start the next."""
        self.check()
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        self._start(next(self._names))

    def check(self) -> None:
        """Fail unless it runs."""
        assert not self.has_ended(), f"{self._name} ended by itself"

    def be_diligent(self) -> None:
        """Let it finish from now on what it claims, at once."""
        self._process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """Let it finish what it has, and end."""
        self._process.terminate()
        self._process.wait(DEADLINE_SECONDS)
        assert self.has_ended()
