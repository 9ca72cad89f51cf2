"""Function calls: what application code gets, and that none of it holds up the others."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support.scheduler_calls import KEY, invocation_of
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.scheduler.callers.function import ABANDONED_RUNS, FunctionCaller
from bellringer.scheduler.functions import Scheduler, current
from bellringer.scheduler.model import CallFailed, FunctionCall

GRACE_SECONDS = 0.05
team: ContextVar[str] = ContextVar("team")


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
async def caller(scheduler: Scheduler) -> AsyncIterator[FunctionCaller]:
    opened = FunctionCaller(scheduler, grace_seconds=GRACE_SECONDS)
    yield opened
    opened.close()


async def call(caller: FunctionCaller, name: str, payload: object = None) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await caller.call(invocation_of(FunctionCall(name=name), payload))


async def cancelled(caller: FunctionCaller, name: str, began: threading.Event) -> None:
    """Call a function and cancel the call when it has begun."""
    run = asyncio.create_task(caller.call(invocation_of(FunctionCall(name=name))))
    await until(lambda: _is_set(began))
    run.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(asyncio.CancelledError):
            await run


async def _is_set(event: threading.Event) -> bool:
    return event.is_set()


def abandoned(name: str) -> float:
    value: float = ABANDONED_RUNS.labels(function=name)._value.get()  # noqa: SLF001 - as its exporter reads it
    return value


@dataclass
class Address:
    city: str
    code: str = ""


class Order(msgspec.Struct):
    number: int
    placed_at: datetime


# Arguments


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_payload_becomes_arguments_of_the_types_that_the_hints_name(
    scheduler: Scheduler, caller: FunctionCaller, is_async: bool
) -> None:
    got: list[Any] = []

    def work(
        order: Order,
        address: Address,
        customer: UUID,
        weight: float,
        note: str | None = None,
        *,
        tags: tuple[str, ...] = (),
    ) -> None:
        got.extend([order, address, customer, weight, note, tags])

    async def work_async(
        order: Order,
        address: Address,
        customer: UUID,
        weight: float,
        note: str | None = None,
        *,
        tags: tuple[str, ...] = (),
    ) -> None:
        got.extend([order, address, customer, weight, note, tags])

    scheduler.task(name="work")(work_async if is_async else work)
    await call(
        caller,
        "work",
        {
            "order": {"number": 7, "placed_at": "2026-11-21T08:00:00+01:00"},
            "address": {"city": "Riga"},
            "customer": "0190a1e2-0000-7000-8000-000000000007",
            "weight": 3,
            "tags": ["fragile"],
        },
    )
    order, *others = got
    assert order.number == 7
    assert order.placed_at == datetime(2026, 11, 21, 7, tzinfo=UTC)
    assert others == [Address("Riga"), UUID("0190a1e2-0000-7000-8000-000000000007"), 3.0, None, ("fragile",)]


async def test_other_arguments_go_to_the_keywords_that_a_function_takes(
    scheduler: Scheduler, caller: FunctionCaller
) -> None:
    got: dict[str, Any] = {}

    @scheduler.task
    def work(first: int, **rest: datetime) -> None:
        got.update(rest, first=first)

    await call(caller, "work", {"first": 1, "second": "2026-11-21T00:00:00Z"})
    assert got == {"first": 1, "second": datetime(2026, 11, 21, tzinfo=UTC)}
    with pytest.raises(CallFailed, match=r"^payload\.second: "):
        await call(caller, "work", {"first": 1, "second": 2})


async def test_without_hints_arguments_are_what_the_json_is(scheduler: Scheduler, caller: FunctionCaller) -> None:
    got: list[Any] = []

    @scheduler.task
    def work(anything, more={"a": 1}):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, B006
        got.extend([anything, more])

    await call(caller, "work", {"anything": [1, {"two": None}]})
    assert got == [[1, {"two": None}], {"a": 1}]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({}, "payload.order: Object missing required field `order`"),
        ({"order": "7"}, "payload.order: Expected `int`, got `str`"),
        ({"order": 7, "ordre": 8}, "payload.ordre: Object contains unknown field `ordre`"),
        ({"order": 7, "address": {"city": 1}}, "payload.address.city: Expected `str`, got `int`"),
        ([7], "payload: Expected `object`, got `array`"),
        (None, "payload.order: Object missing required field `order`"),
    ],
)
async def test_a_payload_that_does_not_fit_names_the_parameter_and_the_function_is_not_run(
    scheduler: Scheduler, caller: FunctionCaller, payload: object, complaint: str
) -> None:
    @scheduler.task
    def work(order: int, address: Address | None = None) -> None:
        raise AssertionError(order, address)

    with pytest.raises(CallFailed) as failed:
        await call(caller, "work", payload)
    assert str(failed.value) == complaint


async def test_parameters_may_have_any_name(scheduler: Scheduler, caller: FunctionCaller) -> None:
    got: list[int] = []

    @scheduler.task
    def work(self: int, function: int, field_0: int, __init__: int, name: int = 5) -> None:
        got.extend([self, function, field_0, __init__, name])

    await call(caller, "work", {"self": 1, "function": 2, "field_0": 3, "__init__": 4})
    assert got == [1, 2, 3, 4, 5]


async def test_a_function_that_does_not_exist_is_named(caller: FunctionCaller) -> None:
    with pytest.raises(CallFailed, match=r"^there is no function gone in this application$"):
        await call(caller, "gone")


# What a run ends


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "type_", "text"),
    [
        (ValueError("no such order"), ValueError, "no such order"),
        (CallFailed("the printer is out of paper"), CallFailed, "the printer is out of paper"),
        (StopIteration(3), RuntimeError, "coroutine raised StopIteration"),
        (SystemExit(3), CallFailed, "SystemExit: 3"),
        (KeyboardInterrupt(), CallFailed, "KeyboardInterrupt"),
        (GeneratorExit(), CallFailed, "GeneratorExit"),
        (asyncio.CancelledError(), CallFailed, "CancelledError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_whatever_a_function_raises_is_a_failure_of_this_run_alone(
    scheduler: Scheduler,
    caller: FunctionCaller,
    error: BaseException,
    type_: type[Exception],
    text: str,
    is_async: bool,
) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    scheduler.task(name="fail")(fail_async if is_async else fail)
    with pytest.raises(type_, match=f"^{text}$"):
        await call(caller, "fail")


async def test_what_a_function_returns_is_awaited_where_it_can_be(scheduler: Scheduler, caller: FunctionCaller) -> None:
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    @scheduler.task
    def wrapped() -> object:
        return work()

    await call(caller, "wrapped")
    assert done.is_set()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_knows_its_run_and_the_context_of_the_executor(
    scheduler: Scheduler, caller: FunctionCaller, is_async: bool
) -> None:
    got: list[str] = []

    def work() -> None:
        got.extend([current().key, team.get()])

    async def work_async() -> None:
        work()

    scheduler.task(name="work")(work_async if is_async else work)
    team.set("billing")
    await call(caller, "work")
    assert got == [KEY, "billing"]
    with pytest.raises(LookupError, match="no task runs here"):
        current()


# Threads


async def test_functions_that_block_run_beside_each_other(scheduler: Scheduler, caller: FunctionCaller) -> None:
    together = threading.Barrier(20)

    @scheduler.task
    def meet() -> None:
        together.wait(PATIENCE_SECONDS)

    await asyncio.gather(*(call(caller, "meet") for _ in range(20)))


async def test_functions_one_after_the_other_share_a_thread(scheduler: Scheduler, caller: FunctionCaller) -> None:
    threads = set()

    @scheduler.task
    def note() -> None:
        threads.add(threading.get_ident())

    for _ in range(10):
        await call(caller, "note")
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


async def test_an_endless_loop_ends_when_it_is_cancelled_and_cleans_up(scheduler: Scheduler) -> None:
    began = threading.Event()
    cleaned_up = threading.Event()
    threads = []

    @scheduler.task
    def spin() -> None:
        threads.append(threading.current_thread())
        try:
            began.set()
            while True:
                pass
        finally:
            cleaned_up.set()

    @scheduler.task
    def note() -> None:
        threads.append(threading.current_thread())

    patient = FunctionCaller(scheduler, grace_seconds=PATIENCE_SECONDS)
    await cancelled(patient, "spin", began)
    assert cleaned_up.is_set()
    assert abandoned("spin") == 0
    await call(patient, "note")
    assert threads[0] is threads[1]  # the thread is as good as new
    patient.close()


async def test_a_function_that_waits_in_the_system_is_abandoned_and_its_thread_replaced(
    scheduler: Scheduler, caller: FunctionCaller
) -> None:
    began, released = threading.Event(), threading.Event()
    threads = []

    @scheduler.task
    def block() -> None:
        threads.append(threading.current_thread())
        began.set()
        released.wait()

    @scheduler.task
    def note() -> None:
        threads.append(threading.current_thread())

    with capture_logs() as logs:
        await cancelled(caller, "block", began)
    assert [(log["event"], log["function"]) for log in logs] == [("function does not end", "block")]
    assert abandoned("block") == 1
    await call(caller, "note")
    assert threads[0] is not threads[1]
    released.set()
    await until(lambda: _equals(lambda: abandoned("block"), 0))


async def _equals(read: Callable[[], float], value: float) -> bool:
    return read() == value


async def test_an_async_function_is_cancelled(scheduler: Scheduler, caller: FunctionCaller) -> None:
    began, ended = threading.Event(), threading.Event()

    @scheduler.task
    async def rest() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await cancelled(caller, "rest", began)
    assert ended.is_set()
    assert abandoned("rest") == 0


async def test_an_async_function_that_will_not_end_is_abandoned(scheduler: Scheduler, caller: FunctionCaller) -> None:
    began = threading.Event()
    released = asyncio.Event()

    @scheduler.task
    async def refuse() -> None:
        began.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    await cancelled(caller, "refuse", began)
    assert abandoned("refuse") == 1
    released.set()
    await until(lambda: _equals(lambda: abandoned("refuse"), 0))


async def test_an_async_function_that_holds_up_the_others_is_interrupted(scheduler: Scheduler) -> None:
    @scheduler.task
    async def spin() -> None:
        await asyncio.sleep(0)
        while True:
            pass

    @scheduler.task
    async def rest() -> None:
        for _ in range(20):
            await asyncio.sleep(0.01)

    strict = FunctionCaller(scheduler, most_held_up_seconds=0.05)
    resting = asyncio.create_task(call(strict, "rest"))
    with capture_logs() as logs, pytest.raises(CallFailed) as failed:
        await call(strict, "spin")
    assert str(failed.value) == "it held up all others for 0.05 s: a function that blocks must not be async"
    assert [(log["event"], log["function"]) for log in logs] == [("function holds up the event loop", "spin")]
    await resting
    strict.close()


async def test_a_call_that_is_cancelled_again_while_it_waits_abandons_at_once(scheduler: Scheduler) -> None:
    began, released = threading.Event(), threading.Event()

    @scheduler.task
    def block_twice() -> None:
        began.set()
        released.wait()

    patient = FunctionCaller(scheduler, grace_seconds=PATIENCE_SECONDS)
    run = asyncio.create_task(patient.call(invocation_of(FunctionCall(name="block_twice"))))
    await until(lambda: _is_set(began))
    run.cancel()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert abandoned("block_twice") == 1
    released.set()
    await until(lambda: _equals(lambda: abandoned("block_twice"), 0))
    patient.close()


async def test_interruptions_hit_the_function_that_they_are_meant_for(scheduler: Scheduler) -> None:
    """Cancelled around the moment at which functions end, threads go on and no later function is interrupted."""
    count = 0

    @scheduler.task
    def step() -> None:
        nonlocal count
        for _ in range(200):
            pass
        count += 1

    eager = FunctionCaller(scheduler, grace_seconds=PATIENCE_SECONDS)
    ended = 0
    for number in range(300):
        run = asyncio.create_task(eager.call(invocation_of(FunctionCall(name="step"))))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
            ended += 1
        await eager.call(invocation_of(FunctionCall(name="step")))
    assert count >= 300 + ended
    assert abandoned("step") == 0
    eager.close()


PROGRAM = """
import asyncio, threading, time
from tests.support.scheduler_calls import invocation_of
from bellringer.scheduler.callers.function import FunctionCaller
from bellringer.scheduler.functions import Scheduler
from bellringer.scheduler.model import FunctionCall

scheduler = Scheduler()
began = threading.Event()

@scheduler.task
def block():
    began.set()
    time.sleep(3600)

@scheduler.task
async def refuse():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    caller = FunctionCaller(scheduler, grace_seconds=0.01)
    for name in ("block", "refuse"):
        run = asyncio.create_task(caller.call(invocation_of(FunctionCall(name=name))))
        if name == "block":
            await asyncio.to_thread(began.wait)
        else:
            await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.wait({run})
    print("done")

asyncio.run(main())
"""


def test_abandoned_functions_do_not_hold_up_the_end_of_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.endswith(b"done\n")


FORKING_PROGRAM = """
import asyncio, os, sys
from tests.support.scheduler_calls import invocation_of
from bellringer.scheduler.callers.function import FunctionCaller
from bellringer.scheduler.functions import Scheduler
from bellringer.scheduler.model import FunctionCall

scheduler = Scheduler()
children = []

@scheduler.task
def fork() -> None:
    children.append(os.fork())
    if not children[-1]:
        raise ValueError("in the child")

@scheduler.task
async def fork_in_the_loop() -> None:
    children.append(os.fork())

async def main():
    caller = FunctionCaller(scheduler)
    for name in ("fork", "fork_in_the_loop"):
        await caller.call(invocation_of(FunctionCall(name=name)))
    print(os.getpid(), [os.waitpid(child, 0)[0] == child for child in children])

asyncio.run(main())
"""


def test_a_child_that_a_function_forks_ends_with_the_function() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_PROGRAM],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.endswith(b" [True, True]\n")
    assert ended.stdout.count(b"\n") == 1
