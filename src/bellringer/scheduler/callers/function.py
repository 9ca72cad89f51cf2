"""Function calls: Python functions of the application that the executor was started with."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, cast

from prometheus_client import Gauge

from bellringer.kernel.errors import InvalidInput
from bellringer.kernel.logs import get_logger
from bellringer.scheduler.callers.loop_guard import LoopGuard
from bellringer.scheduler.callers.threads import Threads
from bellringer.scheduler.functions import Function, Scheduler, running
from bellringer.scheduler.model import CallFailed, FunctionCall, Invocation

ABANDONED_RUNS = Gauge(
    "bellringer_scheduler_abandoned_runs", "Runs of functions that were cancelled and go on all the same", ["function"]
)

_log = get_logger(__name__)


class FunctionCaller:
    """Runs function calls: async functions in the event loop, others in threads.

    A function that does not end within `grace_seconds` of its cancellation is abandoned: nobody waits for it any more,
    neither the executor nor the end of the process. An async one that has the event loop for itself for
    `most_held_up_seconds` fails.
    """

    def __init__(self, scheduler: Scheduler, *, grace_seconds: float = 1.0, most_held_up_seconds: float = 10.0) -> None:
        self._scheduler = scheduler
        self._grace_seconds = grace_seconds
        self._threads = Threads()
        self._loop_guard = LoopGuard(most_seconds=most_held_up_seconds)
        self._abandoned: set[asyncio.Task[BaseException | None]] = set()

    async def call(self, invocation: Invocation) -> None:
        """Call the function. Raises `CallFailed` for a function or a payload that does not fit, or what it raises."""
        name = cast("FunctionCall", invocation.call).name
        function = self._scheduler.functions.get(name)
        if function is None:
            raise CallFailed(f"there is no function {name} in this application")
        try:
            arguments = function.signature.read(invocation.payload)
        except InvalidInput as error:
            raise CallFailed(f"{error.field}: {error}") from None
        run = asyncio.create_task(self._run(function, arguments, invocation), name=f"function {name}")
        try:
            await asyncio.wait({run})
        except asyncio.CancelledError:
            await self._end(run, name)
            raise
        raised = run.result()
        if isinstance(raised, Exception):
            raise raised
        if raised is not None:  # what would end more than this run, were it raised
            raise CallFailed(f"{type(raised).__name__}: {raised}".removesuffix(": "))

    def close(self) -> None:
        """Let the threads that have nothing to do end."""
        self._threads.close()
        self._loop_guard.close()

    async def _run(
        self, function: Function[..., Any], arguments: dict[str, Any], invocation: Invocation
    ) -> BaseException | None:
        """Call a function; return what it raised. Nothing that it raises may end more than this run."""
        running.set(invocation)
        try:
            if function.is_async:
                returned = function(**arguments)
            else:
                returned = await self._threads.run(functools.partial(function, **arguments))
            if inspect.iscoroutine(returned):
                await self._loop_guard.guard(returned, function.name)
            elif inspect.isawaitable(returned):
                await returned
        except BaseException as error:  # noqa: BLE001 - SystemExit would end the process
            return error
        return None

    async def _end(self, run: asyncio.Task[BaseException | None], name: str) -> None:
        """Cancel a run; return when it ended, or is abandoned."""
        run.cancel()
        try:
            await asyncio.wait({run}, timeout=self._grace_seconds)
        finally:
            if not run.done():
                self._abandon(run, name)

    def _abandon(self, run: asyncio.Task[BaseException | None], name: str) -> None:
        _log.error("function does not end", function=name)
        abandoned = ABANDONED_RUNS.labels(function=name)
        abandoned.inc()
        self._abandoned.add(run)
        run.add_done_callback(self._abandoned.discard)
        run.add_done_callback(lambda _: abandoned.dec())
        # Or `asyncio.run` would wait for it when everything else is done.
        asyncio._unregister_task(run)  # noqa: SLF001 - documented, for those who keep tasks of their own
