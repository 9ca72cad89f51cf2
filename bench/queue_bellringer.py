"""Bellringer as a contestant: its broker's service in this process, with the loops that a process of it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

from bellringer.assembly import SUBSYSTEMS
from bellringer.broker import Broker, BrokerConfig, Message, Publication, Queue, QueueSettings
from bellringer.broker.loops import Collector, InboxMover, Sweeper
from bellringer.broker.model import LARGEST_BATCH
from bellringer.broker.wakeups import PendingWatcher
from bellringer.kernel.migrations import migrate
from bellringer.kernel.service import Supervisor
from bellringer.kernel.tally import TallyFolder
from bench.queue_contestants import ConnectArguments, Contestant, QueueClient, opened_database
from bench.queue_work import bodies

ENVIRONMENT = UUID(int=1)
_FILLERS = 4


class BellringerClient(QueueClient):
    """A client of one queue."""

    def __init__(self, broker: Broker, queue: Queue) -> None:
        self._broker = broker
        self._queue = queue

    async def publish(self, bodies: Sequence[bytes]) -> None:
        await self._broker.send(self._queue, [self.publication(body) for body in bodies])

    async def claim(self, limit: int) -> Sequence[Message]:
        return await self._broker.claim(self._queue, limit)

    async def acknowledge(self, claimed: Sequence[Message]) -> None:
        finished = await self._broker.acknowledge_each(self._queue, [message.receipt_handle for message in claimed])
        if not all(finished):
            raise SystemExit("Bellringer lost the hold on a message")

    def publication(self, body: bytes) -> Publication:
        """How a body is published."""
        return Publication(body=body)


class Bellringer(Contestant):
    """The product."""

    name = "Bellringer"
    config = BrokerConfig()
    settings = QueueSettings()
    client = BellringerClient

    async def install(self, arguments: ConnectArguments) -> None:
        async with opened_database(arguments) as database:
            await migrate(database, SUBSYSTEMS)

    @asynccontextmanager
    async def open(self, arguments: ConnectArguments, clients: int) -> AsyncIterator[Sequence[QueueClient]]:
        async with opened_broker(arguments, self.config) as broker:
            queue = await broker.create_queue(ENVIRONMENT, "bench", self.settings)
            yield [self.client(broker, queue) for _ in range(clients)]

    async def fill(self, arguments: ConnectArguments, messages: int) -> None:
        """Make that many messages pending, through the broker."""
        async with self.open(arguments, _FILLERS) as clients:
            share = messages // _FILLERS // LARGEST_BATCH

            async def publish(client: QueueClient) -> None:
                for _, batch in zip(range(share), bodies(LARGEST_BATCH), strict=False):
                    await client.publish(batch)

            await asyncio.gather(*(publish(client) for client in clients))


class BellringerAtOnce(Bellringer):
    """The product without claims ahead: every claim goes to the database."""

    config = BrokerConfig(ahead_seconds=0)


@asynccontextmanager
async def opened_broker(arguments: ConnectArguments, config: BrokerConfig) -> AsyncIterator[Broker]:
    """A broker with its background work."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(opened_database(arguments))
        broker = Broker(database, config)
        stack.push_async_callback(broker.drain)
        stopping = asyncio.Event()
        services = [
            TallyFolder(database),
            PendingWatcher(database, broker.wakeups),
            InboxMover(database, broker),
            Sweeper(database, broker),
            Collector(database, broker),
        ]
        running = asyncio.create_task(Supervisor(services).run(stopping))
        try:
            yield broker
        finally:
            stopping.set()
            await running
