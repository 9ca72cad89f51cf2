"""One run of a call: its end by itself, at its time limit, or when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from bellringer.scheduler import run as run_module
from bellringer.scheduler.caller import Effect
from bellringer.scheduler.model import CallFailed, FunctionCall, Invocation, Outcome, TaskNumber
from bellringer.scheduler.occurrence_store import Dispatch, Started
from bellringer.scheduler.run import Run, read_invocation

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Calling:
    """A caller that does one thing."""

    def __init__(self, act: Callable[[], Awaitable[Effect | None]]) -> None:
        self.act = act
        self.begun = asyncio.Event()

    async def call(self, _invocation: Invocation) -> Effect | None:
        self.begun.set()
        return await self.act()


def run_of(act: Callable[[], Awaitable[Effect | None]], *, limit: float = 60.0) -> tuple[Run, Calling]:
    invocation = Invocation(
        environment_id=UUID(int=1),
        number=TaskNumber(1),
        task="report",
        fire_at=NOW,
        attempt=1,
        call=FunctionCall(name="report"),
        payload=b"null",
        time_limit_seconds=limit,
    )
    caller = Calling(act)
    return Run(caller, invocation), caller


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        raise error

    return act


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_call_that_returns_succeeds() -> None:
    run, _ = run_of(lambda: asyncio.sleep(0))
    assert await run.finish() == (Outcome.SUCCEEDED, None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no disk"), "ValueError: no disk"),
        (CallFailed("the other side said 503"), "the other side said 503"),
        (KeyError(), "KeyError: "),
        (asyncio.CancelledError(), "it was cancelled from within"),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
    ],
)
async def test_a_call_that_raises_fails(error: BaseException, text: str) -> None:
    run, _ = run_of(raising(error))
    assert await run.finish() == (Outcome.FAILED, text)


async def test_an_error_that_raises_when_it_is_shown_is_a_failure_like_any_other() -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    run, _ = run_of(raising(Shy()))
    assert await run.finish() == (Outcome.FAILED, "Shy: it cannot say what it is")


async def test_what_went_wrong_is_text_that_the_database_takes() -> None:
    run, _ = run_of(raising(CallFailed("a\x00b\ud800c" + 5000 * "x")))
    _, detail = await run.finish()
    assert detail is not None
    assert detail.startswith("a\ufffdb?c")
    assert len(detail) == 4000


async def test_the_log_says_where_a_call_failed_however_large_its_error() -> None:
    async def act() -> None:
        raise ValueError("y" * 1_000_000) from KeyError("x" * 1_000_000)

    run, _ = run_of(act)
    with capture_logs() as logs:
        outcome, _ = await run.finish()
    assert outcome is Outcome.FAILED
    (log,) = logs
    assert len(log["error"]) <= 4000
    assert len(log["exception"]) < 20_000
    assert "in act" in log["exception"]
    assert "direct cause" in log["exception"]


async def test_a_call_ends_at_its_time_limit() -> None:
    run, _ = run_of(forever, limit=0.01)
    assert await run.finish() == (Outcome.TIMED_OUT, "it took longer than its 0.01 s")


async def test_a_call_has_time_to_tidy_up_when_it_is_ended() -> None:
    tidied = asyncio.Event()

    async def act() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            tidied.set()

    run, _ = run_of(act, limit=0.01)
    await run.finish()
    assert tidied.is_set()


async def test_a_call_that_goes_on_when_it_is_ended_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "GRACE_SECONDS", 0.01)
    over = asyncio.Event()

    async def act() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    run, _ = run_of(act, limit=0.01)
    outcome, _ = await run.finish()
    assert outcome is Outcome.TIMED_OUT
    over.set()


@pytest.mark.parametrize(("end", "outcome"), [(Run.cancel, Outcome.CANCELLED), (Run.stop, Outcome.CRASHED)])
async def test_a_call_ends_when_somebody_asks_for_it(end: Callable[[Run], None], outcome: Outcome) -> None:
    run, caller = run_of(forever)
    finishing = asyncio.create_task(run.finish())
    await caller.begun.wait()
    end(run)
    assert (await finishing)[0] is outcome


async def test_who_asks_first_says_why_it_ended() -> None:
    run, caller = run_of(forever)
    finishing = asyncio.create_task(run.finish())
    await caller.begun.wait()
    run.cancel()
    run.stop()
    assert (await finishing)[0] is Outcome.CANCELLED


async def test_what_is_asked_to_end_before_it_begins_ends() -> None:
    run, _ = run_of(forever)
    run.stop()
    assert (await run.finish())[0] is Outcome.CRASHED


async def test_an_invocation_tells_attempts_at_one_fire_time_by_one_key() -> None:
    dispatch = Dispatch(task=TaskNumber(1), fire_at=NOW, attempt=2, dispatched_at=NOW, due_at=NOW)
    started = Started(
        verdict="run", environment_id=UUID(int=1), name="report", call='{"type": "function", "name": "f"}', payload="1"
    )
    invocation = read_invocation(dispatch, started)
    assert invocation.key == "report@2026-01-01T00:00:00+00:00"
    assert read_invocation(msgspec.structs.replace(dispatch, attempt=3), started).key == invocation.key


async def test_a_call_that_is_none_cannot_be_read() -> None:
    dispatch = Dispatch(task=TaskNumber(1), fire_at=NOW, attempt=2, dispatched_at=NOW, due_at=NOW)
    with pytest.raises(msgspec.DecodeError):
        read_invocation(dispatch, Started(verdict="run", environment_id=UUID(int=1), call='{"type": "fax"}'))
