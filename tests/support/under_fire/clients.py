"""The processes that use the brokers: producers that send until enough is stored, consumers that work till told to end.

    python -m tests.support.under_fire.clients producer-1 '{"urls": …}'

Each has a name, `producer-n` or `consumer-n.m`, m telling how often it was started before.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from random import Random

import msgspec
from tests.support.history.events import Delivered, NewMessage
from tests.support.under_fire.recording_client import RecordingClient, recording_client
from tests.support.under_fire.settings import QueueUnderFire, Settings

_TASKS_PER_QUEUE = 3
_SIZES = (1, 10, 100, 1000)
_SIZES_WEIGHED = (60, 20, 10, 10)
_DELAYED, _DELAY_SECONDS = 0.02, 1.5


class Producer:
    """Sends its part of each queue's messages, in batches of 1 to 1000; a few to the standard queue with a delay."""

    def __init__(self, client: RecordingClient, settings: Settings, name: str) -> None:
        self._client = client
        self._settings = settings
        self._keys = (f"{name}.{number}" for number in itertools.count(1))
        self._random = Random(f"{settings.seed} {name}")

    async def run(self) -> None:
        """Return when enough is stored for sure."""
        async with asyncio.TaskGroup() as group:
            for queue in self._settings.queues:
                number = -(-queue.messages // (self._settings.producers * _TASKS_PER_QUEUE))
                for _ in range(_TASKS_PER_QUEUE):
                    group.create_task(self._send(queue, number))

    async def _send(self, queue: QueueUnderFire, number: int) -> None:
        began_at = time.monotonic()
        stored = 0
        while stored < number:
            size = min(self._random.choices(_SIZES, _SIZES_WEIGHED)[0], number - stored)
            messages = [self._message(queue, key) for key in itertools.islice(self._keys, size)]
            if await self._client.publish(queue.name, messages):
                stored += size
            due_at = began_at + self._settings.least_seconds * stored / number
            await asyncio.sleep(max(due_at - time.monotonic(), 0))

    def _message(self, queue: QueueUnderFire, key: str) -> NewMessage:
        if queue.is_fifo:
            return NewMessage(key=key, group=f"group-{self._random.randrange(queue.groups)}")
        return NewMessage(key=key, delay_seconds=_DELAY_SECONDS if self._random.random() < _DELAYED else 0.0)


class Consumer:
    """Claims and finishes messages; now and then it forgets some, is late, hands back, holds on or repeats itself."""

    def __init__(self, client: RecordingClient, settings: Settings, name: str) -> None:
        self._client = client
        self._settings = settings
        self._random = Random(f"{settings.seed} {name}")
        self._whims = {self._forget: 1, self._be_late: 1, self._hand_back: 2, self._hold_on: 2, self._repeat: 2}
        self.is_diligent = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until told to stop; what is in hand then is finished."""
        async with asyncio.TaskGroup() as group:
            for queue in self._settings.queues:
                for _ in range(_TASKS_PER_QUEUE):
                    group.create_task(self._work(queue.name, stopping))

    async def _work(self, queue: str, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            limit = self._random.choices(_SIZES, (30, 30, 30, 10))[0]
            seconds = self._random.choice(self._settings.visibility_timeouts_seconds)
            messages = await self._client.claim(queue, limit, seconds)
            if not messages:
                continue
            if self.is_diligent or self._random.random() < 0.8:
                await self._finish(queue, messages, seconds)
            else:
                whim = self._random.choices(list(self._whims), list(self._whims.values()))[0]
                await whim(queue, messages, seconds)

    async def _finish(self, queue: str, messages: Sequence[Delivered], _seconds: float = 0.0) -> None:
        handles = [message.handle for message in messages]
        if self._random.random() < 0.3:  # in parts, side by side
            middle = self._random.randrange(len(handles))
            parts = [part for part in (handles[:middle], handles[middle:]) if part]
            await asyncio.gather(*(self._client.acknowledge(queue, part) for part in parts))
        else:
            await self._client.acknowledge(queue, handles)

    async def _forget(self, queue: str, messages: Sequence[Delivered], _seconds: float) -> None:
        await self._finish(queue, messages[: len(messages) // 2] or messages)

    async def _be_late(self, queue: str, messages: Sequence[Delivered], seconds: float) -> None:
        await asyncio.sleep(seconds * self._random.uniform(0.9, 1.5))
        await self._finish(queue, messages)

    async def _hand_back(self, queue: str, messages: Sequence[Delivered], _seconds: float) -> None:
        await self._client.hold(queue, [message.handle for message in messages[::2]], 0)
        await self._finish(queue, messages)  # of which every other one is not held any more

    async def _hold_on(self, queue: str, messages: Sequence[Delivered], seconds: float) -> None:
        await self._client.hold(queue, [message.handle for message in messages], 2 * seconds)
        await asyncio.sleep(seconds * self._random.uniform(0.5, 1.5))
        await self._finish(queue, messages)

    async def _repeat(self, queue: str, messages: Sequence[Delivered], _seconds: float) -> None:
        await asyncio.gather(self._finish(queue, messages), self._finish(queue, messages))


async def _main(name: str, settings: Settings) -> None:
    stopping = asyncio.Event()
    async with recording_client(settings, name) as client:
        if name.startswith("producer"):
            await Producer(client, settings, name).run()
            return
        consumer = Consumer(client, settings, name)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, setattr, consumer, "is_diligent", True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        await consumer.run(stopping)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Settings)))
    os._exit(0)  # at once: a thread of the HTTP client that is still about makes an orderly end abort
