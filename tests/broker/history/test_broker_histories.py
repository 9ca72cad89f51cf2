"""The broker as two processes and some clients use it at once, judged by what the clients wrote down.

Clients do what hypothesis tells them, round by round all at once, and may go away in the middle of a request. What they
are told to do can be repeated; what comes of it need not, for they run side by side.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.history.checker import check
from tests.support.history.events import Delivered, Event, NewMessage
from tests.support.history.recorder import Recorder
from tests.support.waiting import until

from bellringer.broker import Broker, Message, Publication, Queue, QueueSettings
from bellringer.broker.loops import InboxMover, Sweeper
from bellringer.broker.model import ReceiptHandle
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database, DatabaseConfig

T = TypeVar("T")

_numbers = itertools.count(1)

PUBLISH = "SELECT bellringer.publish($1, $2::bytea, delay_seconds => $3, message_group => $4)"
HOLDS_SECONDS = st.sampled_from([0.1, 0.1, 0.1, 0.02, 0.0])


class Publish(msgspec.Struct, frozen=True):
    """Send messages to these groups; `delay_seconds` is of the first."""

    groups: tuple[str, ...]
    delay_seconds: float


class Claim(msgspec.Struct, frozen=True):
    """Take messages."""

    limit: int
    visibility_timeout_seconds: float
    wait_seconds: float


class Finish(msgspec.Struct, frozen=True):
    """Acknowledge those of the client's deliveries that stand in these places, counted from the last."""

    places: tuple[int, ...]


class Hold(msgspec.Struct, frozen=True):
    """Let the holds of such deliveries end in `seconds`."""

    places: tuple[int, ...]
    seconds: float


class Sweep(msgspec.Struct, frozen=True):
    """Let what is due return to its queue, and what transactions have published come there."""


class Step(msgspec.Struct, frozen=True):
    """What a client does, at which of the brokers, and after how many turns of the loop it goes away, if it does."""

    action: Publish | Claim | Finish | Hold | Sweep
    broker: int = 0
    gone_after: int | None = None


PLACES = st.lists(st.integers(min_value=0, max_value=5), min_size=1, max_size=3, unique=True).map(tuple)
ACTIONS = st.one_of(
    st.builds(
        Publish,
        st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(tuple),
        st.sampled_from([0.0, 0.0, 0.0, 0.02]),
    ),
    *[st.builds(Claim, st.integers(min_value=1, max_value=4), HOLDS_SECONDS, st.sampled_from([0.0, 0.02]))] * 2,
    *[st.builds(Finish, PLACES)] * 2,
    st.builds(Hold, PLACES, HOLDS_SECONDS),
    st.just(Sweep()),
)
STEPS = st.builds(
    Step,
    action=ACTIONS,
    broker=st.sampled_from([0, 0, 0, 1]),
    gone_after=st.one_of(*[st.none()] * 6, st.integers(min_value=0, max_value=12)),
)
CLIENTS = 4
ROUNDS = st.lists(st.lists(STEPS, min_size=2, max_size=CLIENTS), min_size=5, max_size=15)
"""What the first clients do at once, again and again."""


class ScriptedClient:
    """Does its steps one after the other, and writes down what it asked and was told."""

    def __init__(self, name: str, scene: Scene) -> None:
        self._scene = scene
        self._queue = scene.queue
        self._brokers = scene.brokers
        self._recorder = Recorder(name, scene.events.append)
        self._keys = (f"{name}.{number}" for number in itertools.count(1))
        self._handles: list[ReceiptHandle] = []

    async def do(self, step: Step) -> None:
        """Do a step."""
        broker = self._brokers[step.broker]
        match step.action:
            case Publish():
                await self._publish(broker, step.action, step.gone_after)
            case Claim(limit, seconds, wait_seconds):
                await self.claim(broker, limit, seconds, wait_seconds, step.gone_after)
            case Finish(places):
                await self.finish(broker, self._chosen(places), step.gone_after)
            case Hold(places, seconds):
                await self._hold(broker, self._chosen(places), seconds, step.gone_after)
            case Sweep():
                await self._scene.sweep()

    async def claim(
        self, broker: Broker, limit: int, seconds: float, wait_seconds: float = 0.0, gone_after: int | None = None
    ) -> list[ReceiptHandle]:
        """Take messages; return their handles."""
        operation = self._recorder.claim(self._queue.name, seconds)
        claiming = broker.claim(self._queue, limit, visibility_timeout_seconds=seconds, wait_seconds=wait_seconds)
        messages = await self._result(claiming, gone_after)
        if messages is None:
            return []
        self._recorder.claimed(operation, [_delivered(message) for message in messages])
        handles = [message.receipt_handle for message in messages]
        self._handles += handles
        return handles

    async def finish(self, broker: Broker, handles: Sequence[ReceiptHandle], gone_after: int | None = None) -> None:
        """Acknowledge messages."""
        if handles:
            operation = self._recorder.acknowledge(self._queue.name, handles)
            held = await self._result(broker.acknowledge_each(self._queue, handles), gone_after)
            if held is not None:
                self._recorder.answered(operation, held)

    async def _publish(self, broker: Broker, action: Publish, gone_after: int | None) -> None:
        is_fifo = self._queue.settings.fifo
        messages = [
            NewMessage(
                key=next(self._keys),
                group=group if is_fifo else None,
                delay_seconds=0.0 if place else action.delay_seconds,
            )
            for place, group in enumerate(action.groups)
        ]
        operation = self._recorder.publish(self._queue.name, messages)
        sending = self._scene.publish_by_sql(messages) if self._scene.by_sql else self._send(broker, messages)
        ids = await self._result(sending, gone_after)
        if ids is not None:
            self._recorder.published(operation, ids)

    async def _send(self, broker: Broker, messages: Sequence[NewMessage]) -> Sequence[int]:
        publications = [
            Publication(body=message.key.encode(), group=message.group, delay_seconds=message.delay_seconds)
            for message in messages
        ]
        return await broker.send(self._queue, publications)

    async def _hold(
        self, broker: Broker, handles: Sequence[ReceiptHandle], seconds: float, gone_after: int | None
    ) -> None:
        if handles:
            operation = self._recorder.hold(self._queue.name, handles, seconds)
            changing = broker.change_visibility(self._queue, [(handle, seconds) for handle in handles])
            held = await self._result(changing, gone_after)
            if held is not None:
                self._recorder.answered(operation, held)

    def _chosen(self, places: Sequence[int]) -> list[ReceiptHandle]:
        return [self._handles[-1 - place] for place in places if place < len(self._handles)]

    async def _result(self, request: Awaitable[T], gone_after: int | None) -> T | None:
        """What the request returns; None where the client has gone away before that."""
        asking = asyncio.ensure_future(request)
        if gone_after is not None:
            for _ in range(gone_after):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            if asking.cancelled():
                return None
        return await asking


def _delivered(message: Message) -> Delivered:
    return Delivered(
        key=message.body.decode(),
        id=message.id,
        handle=str(message.receipt_handle),
        attempts=message.attempts,
        group=message.group,
    )


class Scene:
    """A queue at two brokers, and what its clients write down. With `by_sql` they publish in transactions of SQL."""

    def __init__(self, brokers: Sequence[Broker], database: Database, queue: Queue, *, by_sql: bool) -> None:
        self.by_sql = by_sql
        self.brokers = brokers
        self.queue = queue
        self.events: list[Event] = []
        self._database = database
        self._sweeper = Sweeper(database, brokers[0])
        self._mover = InboxMover(database, brokers[0])

    async def publish_by_sql(self, messages: Sequence[NewMessage]) -> Sequence[int]:
        """Send messages in one transaction, which does not learn their ids."""
        async with self._database.transaction() as connection:
            for message in messages:
                await connection.execute(
                    PUBLISH, self.queue.name, message.key.encode(), message.delay_seconds, message.group
                )
        return []

    async def sweep(self) -> bool:
        """Let what is due return, and what was published in transactions arrive; return whether something did."""
        await self._sweeper.run_once()
        return await self._mover.run_once()

    async def judge(self, last: ScriptedClient) -> None:
        """Let a client finish what is left, and fail unless the record is a correct history."""

        async def is_empty() -> bool:
            has_arrived = await self.sweep()
            await last.finish(self.brokers[0], await last.claim(self.brokers[0], 1000, 60.0))
            counts = (await self.brokers[1].counts([self.queue]))[self.queue.id]
            return not (has_arrived or counts.pending + counts.in_flight + counts.delayed)

        await until(is_empty)
        Recorder("end", self.events.append).ended(self.queue.name, is_fifo=self.queue.settings.fifo)
        report = check(self.events)
        assert report.is_correct, str(report)


class Stage:
    """Makes a scene for each example, of the brokers of two processes: they share nothing but the database."""

    def __init__(self, brokers: Sequence[Broker], database: Database, environment: Environment) -> None:
        self._brokers = brokers
        self._database = database
        self._environment = environment

    async def scene(self, *, is_fifo: bool, by_sql: bool = False) -> Scene:
        """One with a queue that nobody has used."""
        settings = QueueSettings(fifo=is_fifo)
        queue = await self._brokers[0].configure_queue(self._environment.id, f"history-{next(_numbers)}", settings)
        return Scene(self._brokers, self._database, queue, by_sql=by_sql)


@pytest.fixture
async def stage(
    broker: Broker, database: Database, environment: Environment, database_arguments: dict[str, Any]
) -> AsyncIterator[Stage]:
    other_database = await Database.open(DatabaseConfig(pool_size=8), database_arguments)
    other = Broker(other_database)
    yield Stage([broker, other], database, environment)
    await other.drain()
    await other_database.close()


@settings(max_examples=60)
@given(
    backlog=st.lists(st.sampled_from("aab"), min_size=2, max_size=8),
    rounds=ROUNDS,
    is_fifo=st.booleans(),
    by_sql=st.sampled_from([False, False, True]),
)
@example(backlog=["a", "a"], rounds=[[Step(Claim(1, 0.1, 0.0))] * 2], is_fifo=True, by_sql=False)
@example(
    backlog=["a"],
    rounds=[[Step(Claim(1, 0.0, 0.0))], [Step(Sweep())], [Step(Claim(1, 0.1, 0.0))], [Step(Hold((0, 1), 0.1))]],
    is_fifo=True,
    by_sql=False,
)
async def test_whatever_clients_do_their_record_is_a_correct_history(
    stage: Stage, backlog: list[str], rounds: list[list[Step]], is_fifo: bool, by_sql: bool
) -> None:
    scene = await stage.scene(is_fifo=is_fifo, by_sql=by_sql)
    last = ScriptedClient("first-and-last", scene)
    await last.do(Step(Publish(tuple(backlog), 0.0)))
    clients = [ScriptedClient(f"client-{number}", scene) for number in range(CLIENTS)]
    for steps in rounds:
        await asyncio.gather(*(client.do(step) for client, step in zip(clients, steps, strict=False)))
    await scene.judge(last)


@settings(max_examples=20)
@given(limits=st.lists(st.integers(min_value=1, max_value=30), min_size=2, max_size=15))
async def test_a_lone_consumer_gets_the_messages_of_a_queue_in_their_order(stage: Stage, limits: list[int]) -> None:
    scene = await stage.scene(is_fifo=False)
    consumer = ScriptedClient("lone", scene)
    for _ in range(10):
        await consumer.do(Step(Publish(("a",) * 20, 0.0), broker=1))
    for limit in limits:
        await consumer.do(Step(Claim(limit, 60.0, 0.0)))
        await consumer.do(Step(Finish(tuple(range(limit)))))
    await scene.judge(consumer)
