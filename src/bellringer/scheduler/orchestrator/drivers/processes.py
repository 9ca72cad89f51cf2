"""Executors as processes of this host: started, kept up and stopped by the orchestrator, and not left behind by it.

Each is in one of these states: starts -> runs -> (ended by itself -> waits -> starts) | told to stop -> gone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from bellringer.kernel.backoff import Backoff
from bellringer.kernel.logs import get_logger
from bellringer.scheduler.orchestrator.config import ProcessesConfig

_log = get_logger(__name__)

_WELL_AFTER_SECONDS = 60.0
_BACKOFF = Backoff(first_seconds=1.0, cap_seconds=60.0)


class Processes:
    """A driver that runs a command once per executor. Their output is that of this process.

    When this process dies without a word, the kernel tells them to stop (Linux, by setpriv of util-linux).
    """

    name = "processes"

    def __init__(
        self,
        command: Sequence[str],
        config: ProcessesConfig,
        *,
        environment: Mapping[str, str] | None = None,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            _log.warning("without setpriv executors outlive an orchestrator that is killed")
        self._command = [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *command]
        self._environment = {**os.environ, **(environment or {})}
        self._config = config
        self._backoff = backoff
        self._children: list[_Child] = []
        self._ending: set[_Child] = set()

    async def current(self) -> int:
        """The executors that are kept up, those among them that are just restarted included."""
        return len(self._children)

    async def scale_to(
        self,
        executors: int,
        *,
        current: int,  # noqa: ARG002 - it knows
        reason: str,  # noqa: ARG002 - for others
        busy: Collection[int] = (),
    ) -> None:
        """Start some, or tell some to stop, the youngest of those that have nothing to do first. They have their time
        for it, and nobody waits for them here.
        """
        self._ending = {child for child in self._ending if not child.is_over}
        while len(self._children) < executors:
            self._children.append(_Child(self._command, self._environment, self._config, self._backoff))
        self._children.sort(key=lambda child: child.process_id not in busy)
        for child in self._children[executors:]:
            child.stop()
            self._ending.add(child)
        del self._children[executors:]

    async def close(self) -> None:
        """Stop all of them, and return when they are gone."""
        await self.scale_to(0, current=len(self._children), reason="")
        await asyncio.gather(*(child.ended() for child in self._ending))
        self._ending.clear()

    @property
    def process_ids(self) -> list[int]:
        """Of those that run now."""
        return [pid for child in self._children if (pid := child.process_id) is not None]


class _Child:
    """One executor, started anew as often as it ends, until it is told to stop."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], config: ProcessesConfig, backoff: Backoff
    ) -> None:
        self._command = command
        self._environment = environment
        self._stop_timeout_seconds = config.stop_timeout_seconds
        self._backoff = backoff
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self._task = asyncio.create_task(self._run(), name="executor process")

    @property
    def process_id(self) -> int | None:
        """None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it is gone for good."""
        return self._task.done()

    def stop(self) -> None:
        """Tell it to stop; it has its time for that."""
        self._stopping.set()

    async def ended(self) -> None:
        """Return when it is gone for good."""
        await self._task

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            started_at = time.monotonic()
            said = await self._run_once()
            if self._stopping.is_set():
                return
            failures = 1 if time.monotonic() - started_at > _WELL_AFTER_SECONDS else failures + 1
            wait_seconds = self._backoff.wait_seconds(failures)
            _log.warning("executor ended by itself", said=said, failures=failures, again_in_seconds=wait_seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_seconds)

    async def _run_once(self) -> str:
        """Run it until it ends or is to stop; say how it ended."""
        try:
            # Of its own session: a Ctrl-C in the terminal is for the orchestrator, which stops in order.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=DEVNULL, env=self._environment, start_new_session=True
            )
        except OSError as error:
            return f"{self._command[0]} cannot be run: {error.strerror}"
        _log.info("executor started", process=self._process.pid)
        ended, stopped = asyncio.create_task(self._process.wait()), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._end(self._process, ended)
            return f"exit code {self._process.returncode}"
        finally:
            ended.cancel()
            stopped.cancel()
            if self._process.returncode is None:  # cancelled: nothing waits for it any more
                self._process.kill()
            self._process = None

    async def _end(self, process: Process, ended: asyncio.Task[int]) -> None:
        """SIGTERM, and after its time SIGKILL."""
        with suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait([ended], timeout=self._stop_timeout_seconds)
        if not ended.done():
            _log.warning("executor did not stop in time", process=process.pid)
            with suppress(ProcessLookupError):
                process.kill()
            await ended
        _log.info("executor stopped", process=process.pid, exit_code=process.returncode)
