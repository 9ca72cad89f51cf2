from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bellringer.broker import Broker, Publication, Queue
from bellringer.broker.wakeups import PendingWatcher, Wakeups
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database

ORDERS, OTHERS = UUID(int=1), UUID(int=2)


def test_the_first_in_line_is_woken_first_and_nobody_of_another_queue() -> None:
    wakeups = Wakeups()
    with wakeups.waiter(ORDERS) as first, wakeups.waiter(ORDERS) as second, wakeups.waiter(OTHERS) as other:
        wakeups.wake(ORDERS)
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, False, False)
        wakeups.wake(ORDERS)
        assert (second.is_set(), other.is_set()) == (True, False)


def test_as_many_are_woken_as_messages_came() -> None:
    wakeups = Wakeups()
    with wakeups.waiter(ORDERS) as a, wakeups.waiter(ORDERS) as b, wakeups.waiter(ORDERS) as c:
        wakeups.wake(ORDERS, 2)
        assert (a.is_set(), b.is_set(), c.is_set()) == (True, True, False)
        wakeups.wake(ORDERS, 1000)
        assert c.is_set()


def test_a_wake_for_nobody_is_forgotten() -> None:
    wakeups = Wakeups()
    wakeups.wake(ORDERS)
    with wakeups.waiter(ORDERS) as woken:
        assert not woken.is_set()


def test_who_leaves_does_not_take_along_those_who_came_after_a_wake() -> None:
    wakeups = Wakeups()
    first, second = wakeups.waiter(ORDERS), wakeups.waiter(ORDERS)
    first.__enter__()
    second.__enter__()
    wakeups.wake(ORDERS, 2)
    first.__exit__(None, None, None)
    with wakeups.waiter(ORDERS) as later:
        second.__exit__(None, None, None)
        assert wakeups.queues() == [ORDERS]
        wakeups.wake(ORDERS)
        assert later.is_set()


def test_closing_wakes_everybody_now_and_later() -> None:
    wakeups = Wakeups()
    with wakeups.waiter(ORDERS) as order, wakeups.waiter(OTHERS) as other:
        wakeups.close()
        assert (order.is_set(), other.is_set(), wakeups.closed) == (True, True, True)
    with wakeups.waiter(ORDERS) as late:
        assert late.is_set()
    assert wakeups.queues() == []


class Line(RuleBasedStateMachine):
    """Claims come, are woken and leave in any order; the model is one list per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.wakeups = Wakeups()
        self.lines: dict[UUID, list[asyncio.Event]] = {ORDERS: [], OTHERS: []}
        self.inside: list[tuple[UUID, asyncio.Event, AbstractContextManager[asyncio.Event]]] = []

    @rule(queue_id=st.sampled_from([ORDERS, OTHERS]))
    def come(self, queue_id: UUID) -> None:
        waiter = self.wakeups.waiter(queue_id)
        woken = waiter.__enter__()
        self.lines[queue_id].append(woken)
        self.inside.append((queue_id, woken, waiter))

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        queue_id, woken, waiter = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        waiter.__exit__(None, None, None)
        if woken in self.lines[queue_id]:
            self.lines[queue_id].remove(woken)

    @rule(queue_id=st.sampled_from([ORDERS, OTHERS]), number=st.integers(1, 3))
    def wake(self, queue_id: UUID, number: int) -> None:
        self.wakeups.wake(queue_id, number)
        woken, self.lines[queue_id] = self.lines[queue_id][:number], self.lines[queue_id][number:]
        assert all(event.is_set() for event in woken)

    @invariant()
    def whoever_waits_is_known_and_was_not_woken(self) -> None:
        waited_for = {queue_id for queue_id, line in self.lines.items() if line}
        assert waited_for <= set(self.wakeups.queues()) <= {queue_id for queue_id, _, _ in self.inside}
        assert not any(event.is_set() for line in self.lines.values() for event in line)


TestLine = Line.TestCase


async def test_the_watcher_wakes_one_claim_per_queue_with_a_message(
    database: Database, broker: Broker, environment: Environment
) -> None:
    full = await broker.ensure_queue(environment.id, "full")
    empty = await broker.ensure_queue(environment.id, "empty")
    await broker.send(full, [Publication(body=b"x")] * 5)
    wakeups = Wakeups()
    with wakeups.waiter(full.id) as first, wakeups.waiter(full.id) as second, wakeups.waiter(empty.id) as other:
        assert await PendingWatcher(database, wakeups).run_once() is False
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, False, False)


async def test_the_watcher_asks_nothing_while_nobody_waits(database: Database) -> None:
    await database.close()
    assert await PendingWatcher(database, Wakeups()).run_once() is False


async def test_a_claim_that_ends_leaves_no_trace(broker: Broker, environment: Environment) -> None:
    queue: Queue = await broker.ensure_queue(environment.id, "orders")
    claims = [asyncio.create_task(broker.claim(queue, 1, wait_seconds=20)) for _ in range(3)]
    await asyncio.sleep(0)
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)
    assert broker.wakeups.queues() == []
