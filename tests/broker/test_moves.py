"""Moves: what waits in a queue goes to another, or as dead letters back to where it came from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.queues import bodies_of, counts_of, move_inbox, send, sweep_all

from bellringer.broker import Broker, Publication, Queue, QueueSettings
from bellringer.broker.model import MoveState, MoveTask
from bellringer.broker.moves import Mover, Moves
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound


@pytest.fixture
def moves(database: Database, broker: Broker) -> Moves:
    return Moves(database, broker)


@pytest.fixture
async def letters(broker: Broker, environment: Environment) -> Queue:
    return await broker.create_queue(environment.id, "letters", QueueSettings())


@pytest.fixture
async def sources(broker: Broker, environment: Environment, letters: Queue) -> Sequence[Queue]:
    """Two queues that hand what failed once to `letters`."""
    settings = QueueSettings(max_receives=1, dead_letter_queue=letters.name)
    return [await broker.create_queue(environment.id, name, settings) for name in ("orders", "others")]


@pytest.fixture
def mover(database: Database, second_process: Broker) -> Mover:
    """In a process that claims nothing ahead."""
    return Mover(database, second_process)


async def carry_out(mover: Mover, moves: Moves, task: MoveTask) -> MoveTask:
    while await mover.run_once():
        pass
    return await moves.find(task.id)


async def fail_all(broker: Broker, database: Database, queue: Queue, *bodies: bytes) -> None:
    await broker.send(queue, [Publication(body=body, attributes={"of": queue.name}) for body in bodies])
    messages = await broker.claim(queue, 10)
    await broker.release(queue, [message.receipt_handle for message in messages], [0.0] * len(messages))
    await move_inbox(database, broker)


async def test_dead_letters_go_back_to_where_each_came_from(
    broker: Broker, database: Database, moves: Moves, mover: Mover, letters: Queue, sources: Sequence[Queue]
) -> None:
    for source in sources:
        await fail_all(broker, database, source, b"0", b"1")
    done = await carry_out(mover, moves, await moves.start(letters, None))
    assert (done.state, done.to_move, done.moved, done.failure) == (MoveState.COMPLETED, 4, 4, None)
    for source in sources:
        messages = await broker.claim(source, 10)
        assert bodies_of(messages) == [b"0", b"1"]
        assert [(one.attempts, one.attributes, one.origin) for one in messages] == [(1, {"of": source.name}, None)] * 2
    counts = await counts_of(broker, letters)
    assert (counts.pending, counts.in_flight, counts.deleted) == (0, 0, 4)


async def test_messages_go_to_another_queue_in_their_order_and_only_those_that_were_there(
    broker: Broker, moves: Moves, mover: Mover, queue: Queue, environment: Environment
) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    bodies = [str(number).encode() for number in range(600)]
    await send(broker, queue, *bodies)
    task = await moves.start(queue, other)
    assert (task.state, task.to_move, task.moved) == (MoveState.RUNNING, 600, 0)
    await send(broker, queue, b"later")
    done = await carry_out(mover, moves, task)
    assert (done.state, done.moved) == (MoveState.COMPLETED, 600)
    assert bodies_of(await broker.claim(other, 1000)) == bodies
    assert (await counts_of(broker, queue)).pending == 1
    assert await moves.list(queue) == [done]


async def test_a_fifo_queue_keeps_its_groups(
    broker: Broker, moves: Moves, mover: Mover, fifo: Queue, environment: Environment
) -> None:
    other = await broker.create_queue(environment.id, "others.fifo", QueueSettings(fifo=True))
    for group in "ab":
        await send(broker, fifo, b"0", b"1", b"2", group=group)
    await carry_out(mover, moves, await moves.start(fifo, other))
    messages = await broker.claim(other, 10)
    for group in "ab":
        assert [one.body for one in messages if one.group == group] == [b"0", b"1", b"2"]


async def test_a_pace_is_kept(
    broker: Broker, moves: Moves, mover: Mover, queue: Queue, environment: Environment
) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    await send(broker, queue, *(b"x" for _ in range(20)))
    task = await moves.start(queue, other, max_per_second=7)
    for moved in (7, 14, 20):
        assert await mover.run_once() is False  # not at once again: a second later
        assert (await moves.find(task.id)).moved == moved


async def test_a_move_is_cancelled_and_what_is_moved_stays_moved(
    broker: Broker, moves: Moves, mover: Mover, queue: Queue, environment: Environment
) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    await send(broker, queue, *(b"x" for _ in range(20)))
    task = await moves.start(queue, other, max_per_second=5)
    await mover.run_once()
    cancelled = await moves.cancel(task.id)
    assert (cancelled.state, cancelled.moved) == (MoveState.CANCELLED, 5)
    await mover.run_once()
    assert (await counts_of(broker, queue)).pending == 15
    assert (await counts_of(broker, other)).pending == 5
    with pytest.raises(Conflict, match="cancelled already"):
        await moves.cancel(task.id)


async def test_a_move_that_cannot_go_on_fails_and_loses_nothing(
    broker: Broker, database: Database, moves: Moves, mover: Mover, queue: Queue, environment: Environment
) -> None:
    await send(broker, queue, b"a", b"b")
    nowhere = await carry_out(mover, moves, await moves.start(queue, None))
    assert nowhere.state == MoveState.FAILED
    assert nowhere.failure == "message 1 came from no other queue: a destination is needed"
    other = await broker.ensure_queue(environment.id, "others")
    task = await moves.start(queue, other)
    await broker.delete_queue(other)
    gone = await carry_out(mover, moves, task)
    assert (gone.state, gone.failure) == (MoveState.FAILED, "the destination is gone")
    await sweep_all(database, broker)
    assert bodies_of(await broker.claim(queue, 10)) == [b"a", b"b"]


async def test_one_move_of_a_queue_runs_at_a_time_and_a_bad_one_is_refused(
    broker: Broker, moves: Moves, queue: Queue, fifo: Queue, environment: Environment
) -> None:
    other = await broker.ensure_queue(environment.id, "others")
    for destination, pace, field in (
        (queue, None, "destination"),
        (fifo, None, "destination"),
        (other, 0, "max_per_second"),
        (other, 501, "max_per_second"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await moves.start(queue, destination, pace)
        assert refused.value.field == field
    task = await moves.start(queue, other)
    with pytest.raises(Conflict):
        await moves.start(queue, None)
    assert await moves.list(queue) == [task]
    with pytest.raises(NotFound):
        await moves.find(queue.id)
