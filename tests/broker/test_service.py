from __future__ import annotations

import asyncio

import pytest

from bellringer.broker import Broker, Publication, ReceiptNotHeld
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database


async def _publish(broker: Broker, environment: Environment, *bodies: bytes) -> None:
    queue = await broker.ensure_queue(environment.id, "orders")
    await broker.send(queue, [Publication(body=body) for body in bodies])


async def test_messages_come_in_the_order_of_their_publication(broker: Broker, environment: Environment) -> None:
    await _publish(broker, environment, b"first", b"second")
    await _publish(broker, environment, b"third")
    queue = await broker.queue(environment.id, "orders")
    assert [message.body for message in await broker.claim(queue, 10)] == [b"first", b"second", b"third"]


async def test_a_claimed_message_is_nobody_elses(broker: Broker, environment: Environment) -> None:
    await _publish(broker, environment, b"only")
    queue = await broker.queue(environment.id, "orders")
    assert len(await broker.claim(queue, 10)) == 1
    assert await broker.claim(queue, 10) == []
