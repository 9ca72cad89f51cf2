"""One run of a call: its time limit, its cancellation, and what became of it in words."""

from __future__ import annotations

import asyncio
import traceback

import msgspec

from bellringer.kernel.errors import Unavailable
from bellringer.kernel.logs import get_logger
from bellringer.scheduler.caller import Caller, Effect
from bellringer.scheduler.model import Call, CallFailed, Invocation, Outcome
from bellringer.scheduler.occurrence_store import Dispatch, Started

GRACE_SECONDS = 5.0
"""How long a call has to end once it was cancelled."""

_MOST_CHARACTERS = 4000
_MOST_LINES = 20

_log = get_logger(__name__)
_CALL: msgspec.json.Decoder[Call] = msgspec.json.Decoder(Call)


class Run:
    """A call under way. It ends by itself, at its time limit, or when somebody asks it to.

    A call that does not end when it is cancelled is left alone after a while: its slot goes to the next.
    """

    def __init__(self, caller: Caller, invocation: Invocation) -> None:
        self.effect: Effect | None = None
        self._caller = caller
        self._invocation = invocation
        self._ended_for: tuple[Outcome, str] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def finish(self) -> tuple[Outcome, str | None]:
        """Run the call; return its outcome, and why it is no success."""
        loop = asyncio.get_running_loop()
        limit = self._invocation.time_limit_seconds
        task = asyncio.create_task(self._call())
        task.add_done_callback(lambda _task: self._end())
        timer = loop.call_later(limit, self._ask, Outcome.TIMED_OUT, f"it took longer than its {limit:g} s")
        try:
            await self._over
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            timer.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=GRACE_SECONDS)
            if not task.done():
                _log.error("a call goes on after it was cancelled", task=self._invocation.task)
        return self._ended_for or self._result(task)

    def cancel(self) -> None:
        """End it because somebody asked for that."""
        self._ask(Outcome.CANCELLED, "it was cancelled while it ran")

    def stop(self) -> None:
        """End it because this process ends."""
        self._ask(Outcome.CRASHED, "its executor was stopped while it ran")

    def failure(self, error: BaseException) -> tuple[Outcome, str]:
        """An error as an outcome, in text that the database takes."""
        text = _text(error) if isinstance(error, CallFailed) else f"{type(error).__name__}: {_text(error)}"
        text = text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode().replace("\x00", "�")
        if not isinstance(error, CallFailed | Unavailable):
            _log.warning("a call failed", task=self._invocation.task, error=text, exception=_traceback(error))
        return Outcome.FAILED, text

    async def _call(self) -> None:
        self.effect = await self._caller.call(self._invocation)

    def _ask(self, outcome: Outcome, why: str) -> None:
        if self._ended_for is None and not self._over.done():
            self._ended_for = (outcome, why)
            self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _result(self, task: asyncio.Task[None]) -> tuple[Outcome, str | None]:
        if task.cancelled():
            return Outcome.FAILED, "it was cancelled from within"
        error = task.exception()
        return (Outcome.SUCCEEDED, None) if error is None else self.failure(error)


def _traceback(error: BaseException) -> str:
    """Where it was raised. Shortened, for errors may hold megabytes, and recursions a thousand lines."""
    parts = traceback.format_exception(error, limit=-_MOST_LINES)
    return "".join(part if len(part) <= _MOST_CHARACTERS else f"{part[:_MOST_CHARACTERS]}…\n" for part in parts)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - errors are what people write, too
        return "it cannot say what it is"


def read_invocation(dispatch: Dispatch, started: Started) -> Invocation:
    """What a caller gets. Raises `msgspec.DecodeError` for a definition that is none."""
    assert started.environment_id is not None  # noqa: S101 - whatever is to be run has one
    return Invocation(
        environment_id=started.environment_id,
        number=dispatch.task,
        task=started.name,
        fire_at=dispatch.fire_at,
        attempt=dispatch.attempt,
        call=_CALL.decode(started.call),
        payload=started.payload.encode(),
        time_limit_seconds=started.time_limit_seconds,
    )
