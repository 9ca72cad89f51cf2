"""Queues themselves: their names, settings, pauses, and who sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.queues import bodies_of, counts_of, send
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.broker import Broker, BrokerConfig, Publication, Queue, QueueSettings
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import Conflict, InvalidInput, NotFound, TooLarge

DAY = 24 * 3600


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ä", "a" * 81, "a\n"])
async def test_a_name_that_no_queue_can_have_is_refused(broker: Broker, environment: Environment, name: str) -> None:
    for asking in (
        broker.queue(environment.id, name),
        broker.ensure_queue(environment.id, name),
        broker.create_queue(environment.id, name, QueueSettings()),
        broker.configure_queue(environment.id, name, QueueSettings()),
    ):
        with pytest.raises(InvalidInput) as refused:
            await asking
        assert refused.value.field == "queue"
    assert await broker.list_queues() == []


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"visibility_timeout_seconds": -1}, "visibility_timeout_seconds"),
        ({"visibility_timeout_seconds": 12 * 3600 + 1}, "visibility_timeout_seconds"),
        ({"retention_seconds": 59}, "retention_seconds"),
        ({"retention_seconds": 366 * DAY + 1}, "retention_seconds"),
        ({"delay_seconds": -0.1}, "delay_seconds"),
        ({"delay_seconds": 12 * 3600 + 1}, "delay_seconds"),
        ({"delay_seconds": float("nan")}, "delay_seconds"),
        ({"wait_seconds": 20.1}, "wait_seconds"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"max_body_bytes": 256 * 1024 + 1}, "max_body_bytes"),
        ({"max_receives": 0, "dead_letter_queue": "letters"}, "max_receives"),
        ({"max_receives": 1001, "dead_letter_queue": "letters"}, "max_receives"),
        ({"max_receives": 3}, "dead_letter_queue"),
        ({"dead_letter_queue": "letters"}, "dead_letter_queue"),
        ({"max_receives": 3, "dead_letter_queue": "a b"}, "dead_letter_queue"),
        ({"max_receives": 3, "dead_letter_queue": "nowhere"}, "dead_letter_queue"),
        ({"max_receives": 3, "dead_letter_queue": "orders"}, "dead_letter_queue"),
        ({"max_receives": 3, "dead_letter_queue": "letters", "fifo": True}, "dead_letter_queue"),
        ({"content_deduplication": True}, "content_deduplication"),
    ],
)
async def test_settings_that_are_not_allowed_name_their_field_and_change_nothing(
    broker: Broker, environment: Environment, settings: dict[str, Any], field: str
) -> None:
    letters = await broker.ensure_queue(environment.id, "letters")
    for make in (broker.create_queue, broker.configure_queue):
        with pytest.raises(InvalidInput) as refused:
            await make(environment.id, "orders", QueueSettings(**settings))
        assert refused.value.field == field
    assert await broker.list_queues() == [letters]


async def test_all_settings_are_kept(broker: Broker, second_process: Broker, environment: Environment) -> None:
    await broker.create_queue(environment.id, "letters.fifo", QueueSettings(fifo=True))
    settings = QueueSettings(
        visibility_timeout_seconds=0,
        retention_seconds=60,
        delay_seconds=1.5,
        wait_seconds=20,
        max_body_bytes=1,
        fifo=True,
        content_deduplication=True,
        max_receives=3,
        dead_letter_queue="letters.fifo",
        redrive_allow={"redrivePermission": "byQueue", "sourceQueueArns": ["a", "b"]},
        tags={"team": "grüße", "": ""},
    )
    made = await broker.create_queue(environment.id, "orders.fifo", settings)
    assert made.settings == settings
    assert await second_process.read_queue(environment.id, "orders.fifo") == made
    assert await broker.list_sources(await broker.queue(environment.id, "letters.fifo")) == [made]


async def test_making_a_queue_again_needs_the_same_settings(broker: Broker, environment: Environment) -> None:
    settings = QueueSettings(visibility_timeout_seconds=7)
    made = await broker.create_queue(environment.id, "orders", settings)
    assert await broker.create_queue(environment.id, "orders", settings) == made
    with pytest.raises(Conflict):
        await broker.create_queue(environment.id, "orders", QueueSettings(visibility_timeout_seconds=8))
    assert await broker.read_queue(environment.id, "orders") == made


async def test_a_queue_is_made_with_the_defaults_by_whoever_comes_first(
    broker: Broker, second_process: Broker, environment: Environment
) -> None:
    made = await asyncio.gather(
        *(process.ensure_queue(environment.id, "orders") for process in (broker, second_process) for _ in range(5))
    )
    assert len({queue.id for queue in made}) == 1
    defaults = BrokerConfig()
    assert made[0].visibility_timeout_seconds == defaults.visibility_timeout_seconds
    assert made[0].retention_seconds == defaults.retention_seconds
    assert len(await broker.list_queues()) == 1


async def test_new_settings_hold_for_every_process(broker: Broker, second_process: Broker, queue: Queue) -> None:
    settings = QueueSettings(visibility_timeout_seconds=7, max_body_bytes=1)
    configured = await broker.configure_queue(queue.environment_id, queue.name, settings)
    assert configured.modified_at > queue.modified_at
    assert await second_process.read_queue(queue.environment_id, queue.name) == configured
    assert await broker.configure_queue(queue.environment_id, queue.name, settings) == configured
    assert await broker.queue(queue.environment_id, queue.name) == configured


async def test_a_queue_is_fifo_from_its_beginning_or_never(broker: Broker, queue: Queue, fifo: Queue) -> None:
    for found in (queue, fifo):
        settings = msgspec.structs.replace(found.settings, fifo=not found.settings.fifo)
        with pytest.raises(Conflict):
            await broker.configure_queue(found.environment_id, found.name, settings)
        assert await broker.read_queue(found.environment_id, found.name) == found


async def test_what_a_message_does_not_say_its_queue_says(
    broker: Broker, database: Database, environment: Environment
) -> None:
    slow = QueueSettings(delay_seconds=60, visibility_timeout_seconds=7, wait_seconds=0.01)
    queue = await broker.create_queue(environment.id, "slow", slow)
    await broker.send(queue, [Publication(body=b"late"), Publication(body=b"now", delay_seconds=0)])
    assert bodies_of(await broker.claim(queue, 10)) == [b"now"]
    assert (await counts_of(broker, queue)).delayed == 1
    async with database.connection() as connection:
        held = await connection.fetchval("SELECT expires_at - claimed_at FROM bellringer.claims")
    assert held.total_seconds() == pytest.approx(7, abs=0.01)


@pytest.mark.parametrize(
    ("publication", "field"),
    [
        (Publication(body=b"1234"), "[1].msg"),
        (Publication(body=b"", group="g"), "[1].group"),
        (Publication(body=b"", deduplication_id=""), "[1].deduplication_id"),
        (Publication(body=b"", deduplication_id="d" * 129), "[1].deduplication_id"),
        (Publication(body=b"", deduplication_id="\x00"), "[1].deduplication_id"),
    ],
)
async def test_a_message_that_its_queue_does_not_take_names_its_field_and_nothing_of_its_batch_is_stored(
    broker: Broker, database: Database, environment: Environment, publication: Publication, field: str
) -> None:
    queue = await broker.create_queue(environment.id, "orders", QueueSettings(max_body_bytes=3))
    batch = [Publication(body=b"123"), publication]
    with pytest.raises(InvalidInput) as refused:
        await broker.send(queue, batch)
    assert refused.value.field == field
    assert isinstance(refused.value, TooLarge) == field.endswith("msg")
    async with database.transaction() as connection:
        with pytest.raises(InvalidInput) as refused:
            await broker.publish(connection, queue, batch)
    assert refused.value.field == field
    assert (await counts_of(broker, queue)).published == 0


async def test_a_pause_holds_back_claims_of_every_process_and_no_publisher(
    broker: Broker, second_process: Broker, queue: Queue
) -> None:
    await send(broker, queue, b"a")
    paused = await broker.pause_queue(queue)
    assert paused.paused
    assert (await second_process.read_queue(queue.environment_id, queue.name)).paused
    await send(second_process, queue, b"b")
    for process in (broker, second_process):
        assert await process.claim(queue, 10) == []
    assert (await counts_of(broker, queue)).pending == 2

    waiting = asyncio.create_task(broker.claim(queue, 10, wait_seconds=20))
    await asyncio.sleep(0)
    assert not (await broker.resume_queue(queue)).paused
    assert bodies_of(await asyncio.wait_for(waiting, PATIENCE_SECONDS / 4)) == [b"a", b"b"]


async def test_what_is_held_is_finished_or_returned_during_a_pause(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a", b"b")
    done, failed = await broker.claim(queue, 2)
    await broker.pause_queue(queue)
    await broker.acknowledge(queue, done.receipt_handle)
    await broker.release(queue, [failed.receipt_handle], [0.0])
    counts = await counts_of(broker, queue)
    assert (counts.pending, counts.in_flight, counts.deleted) == (1, 0, 1)


async def test_a_queue_that_is_gone_is_not_found(broker: Broker, second_process: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    await second_process.queue(queue.environment_id, queue.name)
    await broker.delete_queue(queue)
    with pytest.raises(NotFound):
        await broker.queue(queue.environment_id, queue.name)
    for process in (broker, second_process):  # one of them still knows it
        with pytest.raises(NotFound, match="there is no queue orders"):
            await send(process, queue, b"b")
        for operation in (process.pause_queue, process.resume_queue):
            with pytest.raises(NotFound):
                await operation(queue)
        assert await process.claim(queue, 1) == []
    assert await broker.counts([queue]) == {}
    assert await broker.acknowledge_each(queue, [message.receipt_handle]) in ([True], [False])

    anew = await broker.ensure_queue(queue.environment_id, queue.name)
    assert await broker.claim(anew, 1) == []
    assert (await counts_of(broker, anew)).published == 0


async def test_what_is_oldest_and_stuck_and_how_long_a_message_took_is_told(
    broker: Broker, database: Database, queue: Queue
) -> None:
    counts = await counts_of(broker, queue)
    assert (counts.oldest_pending_age_seconds, counts.stuck, counts.seconds_to_deletion) == (0, 0, 0)
    await send(broker, queue, b"a", b"b", b"c")
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.chunks SET sent_at = sent_at - interval '1 min'")
    assert (await counts_of(broker, queue)).oldest_pending_age_seconds == pytest.approx(60, abs=5)
    done, stuck, returned = await broker.claim(queue, 3)
    assert (await counts_of(broker, queue)).oldest_pending_age_seconds == 0
    await broker.acknowledge(queue, done.receipt_handle)
    await broker.release(queue, [returned.receipt_handle], [0.0])
    assert (await counts_of(broker, queue)).oldest_pending_age_seconds == pytest.approx(60, abs=5)
    async with database.connection() as connection:
        await connection.execute("UPDATE bellringer.claims SET claimed_at = claimed_at - interval '6 min'")
    assert (await counts_of(broker, queue)).stuck == 1
    await broker.acknowledge(queue, stuck.receipt_handle)
    counts = await counts_of(broker, queue)
    assert counts.stuck == 0
    assert counts.seconds_to_deletion == pytest.approx(360, abs=5)
