"""Dead letters: what was claimed too often in vain goes to another queue, whole."""

from __future__ import annotations

import pytest
from tests.support.queues import bodies_of, counts_of, make_due, move_inbox, send, sweep_all

from bellringer.broker import Broker, Message, Publication, Queue, QueueSettings
from bellringer.broker.loops import Sweeper
from bellringer.broker.model import Origin
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database

FULL = {"attributes": {"zero": "\x00", "nested": {"null": None, "list": [1, 2.5, "ü"]}}, "deduplication_id": "d"}


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
async def queues(request: pytest.FixtureRequest, broker: Broker, environment: Environment) -> tuple[Queue, Queue]:
    """A queue whose messages are claimed twice at most, and its dead letter queue."""
    fifo = request.param
    letters = await broker.create_queue(environment.id, "letters", QueueSettings(fifo=fifo))
    settings = QueueSettings(fifo=fifo, max_receives=2, dead_letter_queue="letters")
    return await broker.create_queue(environment.id, "source", settings), letters


def group_in(queue: Queue) -> str | None:
    return "g" if queue.settings.fifo else None


async def claim_and_fail(broker: Broker, database: Database, queue: Queue, how: str) -> list[Message]:
    """Claim everything and let it come back."""
    messages = await broker.claim(queue, 10)
    handles = [message.receipt_handle for message in messages]
    match how:
        case "released":
            await broker.release(queue, handles, [0.0] * len(handles))
        case "handed back":
            await broker.change_visibility(queue, [(handle, 0) for handle in handles])
        case "swept":
            await sweep_all(database, broker)
        case _:
            await broker.extend(queue, handles, 600)
            await sweep_all(database, broker)
    await move_inbox(database, broker)
    return messages


@pytest.mark.parametrize("how", ["released", "handed back", "swept", "extended and swept"])
async def test_a_message_goes_there_whole_after_so_many_attempts(
    broker: Broker, database: Database, queues: tuple[Queue, Queue], how: str
) -> None:
    queue, letters = queues
    await send(broker, queue, b"\x00\xff", group=group_in(queue), **FULL)
    for attempt in (1, 2):
        assert await broker.claim(letters, 1) == []
        (message,) = await claim_and_fail(broker, database, queue, how)
        assert message.attempts == attempt
    assert await broker.claim(queue, 1) == []
    (letter,) = await broker.claim(letters, 1)
    assert (letter.body, letter.group, letter.attempts) == (b"\x00\xff", group_in(queue), 1)
    assert (letter.attributes, letter.deduplication_id) == (FULL["attributes"], FULL["deduplication_id"])
    assert letter.origin == Origin(queue=queue.name, queue_id=queue.id, id=message.id, attempts=2)
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.in_flight, counts.deleted, counts.dead_lettered) == (0, 0, 0, 1)
    assert (counts.published, counts.redelivered) == (1, 1)
    assert (await counts_of(broker, letters)).published == 1
    assert await broker.acknowledge_each(queue, [message.receipt_handle]) == [False]
    assert await broker.extend(queue, [message.receipt_handle], 60) == 0


async def test_dead_letters_keep_their_order_and_let_the_rest_of_their_group_pass(
    broker: Broker, database: Database, queues: tuple[Queue, Queue]
) -> None:
    queue, letters = queues
    await send(broker, queue, b"0", b"1", group=group_in(queue))
    await claim_and_fail(broker, database, queue, "released")
    await send(broker, queue, b"2", group=group_in(queue))
    assert bodies_of(await claim_and_fail(broker, database, queue, "swept")) == [b"0", b"1", b"2"]
    assert bodies_of(await broker.claim(queue, 10)) == [b"2"]
    assert bodies_of(await broker.claim(letters, 10)) == [b"0", b"1"]


async def test_what_fails_at_once_after_one_attempt_was_never_tracked(
    broker: Broker, database: Database, environment: Environment
) -> None:
    letters = await broker.create_queue(environment.id, "letters", QueueSettings())
    once = QueueSettings(max_receives=1, dead_letter_queue="letters")
    queue = await broker.create_queue(environment.id, "source", once)
    await send(broker, queue, *(str(number).encode() for number in range(5)))
    messages = await broker.claim(queue, 5)
    await broker.acknowledge(queue, messages[2].receipt_handle)
    await make_due(database)
    await Sweeper(database, broker).run_once()
    await move_inbox(database, broker)
    assert bodies_of(await broker.claim(letters, 10)) == [b"0", b"1", b"3", b"4"]
    counts = await counts_of(broker, queue)
    assert (counts.deleted, counts.dead_lettered, counts.redelivered) == (1, 4, 0)


async def test_a_dead_letter_of_a_dead_letter_queue_comes_from_the_last(
    broker: Broker, database: Database, queues: tuple[Queue, Queue]
) -> None:
    queue, letters = queues
    last = await broker.create_queue(queue.environment_id, "last", letters.settings)
    settings = QueueSettings(fifo=queue.settings.fifo, max_receives=1, dead_letter_queue="last")
    letters = await broker.configure_queue(queue.environment_id, "letters", settings)
    await send(broker, queue, b"a", group=group_in(queue), **FULL)
    for found in (queue, queue, letters):
        await claim_and_fail(broker, database, found, "released")
    (letter,) = await broker.claim(last, 1)
    assert letter.attributes == FULL["attributes"]
    assert letter.origin == Origin(queue="letters", queue_id=letters.id, id=letter.id, attempts=1)


@pytest.mark.parametrize("remade_as", ["nothing", "the other kind", "the same kind"])
async def test_a_message_waits_on_while_its_dead_letter_queue_is_gone(
    broker: Broker, database: Database, queues: tuple[Queue, Queue], remade_as: str
) -> None:
    queue, letters = queues
    await broker.delete_queue(letters)
    if remade_as != "nothing":
        fifo = queue.settings.fifo == (remade_as == "the same kind")
        letters = await broker.create_queue(queue.environment_id, "letters", QueueSettings(fifo=fifo))
    await send(broker, queue, b"a", group=group_in(queue))
    for attempt in (1, 2):
        (message,) = await claim_and_fail(broker, database, queue, "released")
        assert message.attempts == attempt
    waits = remade_as != "the same kind"
    assert (await counts_of(broker, queue)).pending == waits
    if remade_as != "nothing":
        assert (await counts_of(broker, letters)).published == (not waits)


async def test_a_message_that_is_finished_at_its_last_attempt_is_no_dead_letter(
    broker: Broker, database: Database, queues: tuple[Queue, Queue]
) -> None:
    queue, letters = queues
    await send(broker, queue, b"a", group=group_in(queue))
    await claim_and_fail(broker, database, queue, "released")
    (message,) = await broker.claim(queue, 1)
    await broker.acknowledge(queue, message.receipt_handle)
    await sweep_all(database, broker)
    await move_inbox(database, broker)
    assert (await counts_of(broker, queue)).deleted == 1
    assert (await counts_of(broker, letters)).published == 0


async def test_a_limit_that_is_lowered_holds_for_what_was_claimed_before(
    broker: Broker, database: Database, environment: Environment
) -> None:
    await broker.create_queue(environment.id, "letters", QueueSettings())
    queue = await broker.ensure_queue(environment.id, "source")
    await broker.send(queue, [Publication(body=b"a")])
    for _ in range(3):
        await claim_and_fail(broker, database, queue, "released")
    settings = QueueSettings(max_receives=2, dead_letter_queue="letters")
    await broker.configure_queue(environment.id, "source", settings)
    assert (await counts_of(broker, queue)).pending == 1
    await claim_and_fail(broker, database, queue, "released")
    assert (await counts_of(broker, queue)).dead_lettered == 1
