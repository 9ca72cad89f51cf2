"""An executor: claims what is due soon, holds it to its moment, runs it.

States of an occurrence here: held (claimed, not due) -> ready (due, waits for a slot) -> started (recorded, running) ->
ended (recorded) -> acknowledged. Nothing runs that was not recorded as started, and that record can be made once for
each attempt. While an occurrence is here its message is held on; when this process dies, the message comes back, and
whoever gets it finds the occurrence started and not ended.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import msgspec

from bellringer.broker import Broker, Message, Queue, ReceiptNotHeld
from bellringer.kernel.database import Database
from bellringer.kernel.errors import BellringerError, Overloaded, Unavailable
from bellringer.kernel.ids import uuid7
from bellringer.kernel.logs import get_logger
from bellringer.scheduler import executor_store, occurrence_store
from bellringer.scheduler.caller import Caller
from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.database_clock import DatabaseClock
from bellringer.scheduler.durations import Durations
from bellringer.scheduler.held import Held
from bellringer.scheduler.model import Outcome, kind_of
from bellringer.scheduler.occurrence_store import AttemptEnd, Dispatch, Started, StartRequest
from bellringer.scheduler.records import BACKOFF, Records, insist
from bellringer.scheduler.run import GRACE_SECONDS, Run, read_invocation

_MOST_HELD = 10_000
_CLAIM_LIMIT = 500
_CLAIM_WAIT_SECONDS = 1.0
_LOOK_FOR_CANCELLED_SECONDS = 1.0
_ELSEWHERE_SECONDS = 10.0
_LONG_RUN_SECONDS = 1.0
_END_SECONDS = GRACE_SECONDS + 2.0

_log = get_logger(__name__)
_decode = msgspec.json.Decoder(Dispatch).decode


class Executor:
    """Runs the occurrences of some queues, `concurrency` at a time.

    It holds more than that, as many as it expects to start in the seconds for which things are dispatched ahead; when
    runs turn out to be long it gives back what waits for them.
    """

    name = "executor"

    def __init__(
        self,
        database: Database,
        broker: Broker,
        queues: Sequence[Queue],
        callers: Mapping[str, Caller],
        config: SchedulerConfig,
        *,
        environment_id: UUID | None = None,
    ) -> None:
        self.id = uuid7()
        self._database = database
        self._broker = broker
        self._queues = queues
        self._callers = callers
        self._config = config
        self._environment_id = environment_id
        self._clock = DatabaseClock(database)
        self._durations = Durations(database)
        self._records = Records(database, self.id, config)
        self._here: dict[Dispatch, Held] = {}
        self._waiting: list[tuple[float, int, Held]] = []
        self._order = itertools.count()
        self._ready: deque[Held] = deque()
        self._running: set[Held] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._is_stopping = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set; then give back what has not started, and let what runs end in its time."""
        await insist(self._sign_on)
        claiming = [asyncio.create_task(self._claim_on(queue)) for queue in self._queues]
        rounds = [
            asyncio.create_task(self._repeat(self._beat, self._config.executor_lost_seconds / 6)),
            asyncio.create_task(self._repeat(self._keep_hold, self._config.visibility_timeout_seconds / 4)),
            asyncio.create_task(self._repeat(self._look_for_cancelled, _LOOK_FOR_CANCELLED_SECONDS)),
            asyncio.create_task(self._repeat(self._share, _LONG_RUN_SECONDS / 2)),
        ]
        try:
            await stopping.wait()
            self._is_stopping = True
            for task in claiming:
                task.cancel()
            await self._finish()
        finally:
            remaining = [*claiming, *rounds, *self._tasks]
            for task in remaining:
                task.cancel()
        await asyncio.wait(remaining)
        await self._leave()

    def standing(self) -> tuple[int, int]:
        """How many occurrences it starts or runs, and how many others it has."""
        return len(self._running), len(self._here) - len(self._running)

    # From the queue to the moment

    async def _claim_on(self, queue: Queue) -> None:
        failures = 0
        while not self._is_stopping:
            try:
                await self._claim_some(queue)
                failures = 0
            except Exception as error:  # noqa: BLE001 - whatever became of this claim, there are others
                failures += 1
                is_news = failures == 1 and not isinstance(error, Unavailable)
                _log.warning("could not claim", queue=queue.name, error=repr(error), exc_info=is_news)
                await asyncio.sleep(BACKOFF.wait_seconds(failures))

    async def _claim_some(self, queue: Queue) -> None:
        room = self._capacity() - len(self._here)
        if room <= 0:
            self._room.clear()
            await self._room.wait()
            return
        messages = await self._broker.claim(
            queue,
            min(room, _CLAIM_LIMIT),
            visibility_timeout_seconds=self._config.visibility_timeout_seconds,
            wait_seconds=_CLAIM_WAIT_SECONDS,
        )
        if unreadable := self._hold(queue, messages):
            _log.error("messages that name no occurrence", queue=queue.name, first=unreadable[0].body[:200])
            await self._broker.acknowledge_each(queue, [message.receipt_handle for message in unreadable])

    def _capacity(self) -> int:
        """How many to have here: slots, and in seconds ahead as many more as they can start."""
        rounds = self._config.dispatch_ahead_seconds / self._durations.typical_seconds
        return min(_MOST_HELD, max(self._config.concurrency, int(self._config.concurrency * rounds)))

    def _hold(self, queue: Queue, messages: Sequence[Message]) -> list[Message]:
        """Keep occurrences to their moment; return the messages that cannot be read."""
        unreadable = []
        now = asyncio.get_running_loop().time()
        for message in messages:
            try:
                dispatch = _decode(message.body)
            except msgspec.MsgspecError:
                unreadable.append(message)
                continue
            if known := self._here.get(dispatch):
                known.message = message  # the hold was lost, and the message came back to where it had been
                continue
            held = Held(queue, message, dispatch, now, self._clock.loop_time(dispatch.due_at))
            self._here[dispatch] = held
            heapq.heappush(self._waiting, (held.due_at, next(self._order), held))
        self._pump()
        return unreadable

    def _is_here(self, held: Held) -> bool:
        return self._here.get(held.dispatch) is held

    def _pump(self) -> None:
        """Start what is due, as far as there are slots, and see to it that the next of them wakes us."""
        if self._is_stopping:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            held = heapq.heappop(self._waiting)[2]
            if self._is_here(held):
                held.ready_at = now
                self._ready.append(held)
        while self._ready and len(self._running) < self._config.concurrency:
            held = self._ready.popleft()
            if self._is_here(held):
                held.ready_at = now
                self._running.add(held)
                task = asyncio.create_task(self._go(held))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._pump)

    # From the start to the end

    async def _go(self, held: Held) -> None:
        """Start an occurrence, run it, record its end, acknowledge its message."""
        try:
            started = await self._start(held)
            match started.verdict:
                case "wait" if self._is_stopping:
                    await self._hand_back([held], 0.0)
                    return
                case "wait":
                    self._wait_again(held, started.wait_seconds or 0.0)
                    return
                case "elsewhere":
                    await self._hand_back([held], _ELSEWHERE_SECONDS)
                    return
                case "run":
                    await self._run(held, started)
                case "here" if held.is_unanswered:  # nobody heard that it may run, so nobody ran it
                    await self._run(held, started)
                case "here":
                    await self._end(held, Outcome.CRASHED, "its executor lost it")
            await self._acknowledge(held)
        except Exception as error:  # noqa: BLE001 - the message comes back, and what became of it is found out then
            is_news = not isinstance(error, Unavailable)
            _log.warning("left an occurrence", task=held.dispatch.task, error=repr(error), exc_info=is_news)
            self._drop(held)
        finally:
            self._free(held)

    async def _start(self, held: Held) -> Started:
        failures = 0
        while True:
            now = asyncio.get_running_loop().time()
            request = StartRequest(
                dispatch=held.dispatch, held_seconds=now - held.claimed_at, ready_seconds=now - held.ready_at
            )
            try:
                started = await self._records.start(request)
            except Unavailable as error:
                held.is_unanswered |= not isinstance(error, Overloaded)
                if self._is_stopping:
                    raise
                failures += 1
                await asyncio.sleep(BACKOFF.wait_seconds(failures))
                continue
            waited_seconds = asyncio.get_running_loop().time() - now
            if started.verdict not in {"run", "here"} or waited_seconds < self._config.executor_lost_seconds / 2:
                return started
            # This process stood still, and may have been given up for dead meanwhile, with what it was to run.
            held.is_unanswered |= started.verdict == "run"

    async def _run(self, held: Held, started: Started) -> None:
        began = time.perf_counter()
        try:
            invocation = read_invocation(held.dispatch, started)
            caller = self._callers[kind_of(invocation.call)]
        except Exception as error:  # noqa: BLE001 - what was stored is no call (any more)
            await self._end(held, Outcome.FAILED, f"this is no call that can be run: {error!r}")
            return
        held.run = Run(caller, invocation)
        outcome, detail = await held.run.finish()
        self._free(held)
        self._durations.add(invocation, started, time.perf_counter() - began)
        if held.run.effect is not None and outcome is Outcome.SUCCEEDED:
            ended = AttemptEnd(dispatch=held.dispatch, outcome=outcome, detail=detail)
            try:
                self._check(held, await self._records.end_with(held.run.effect, ended))
            except Exception as error:  # noqa: BLE001 - a failure of this run
                outcome, detail = held.run.failure(error)
            else:
                return
        await self._end(held, outcome, detail)

    async def _end(self, held: Held, outcome: Outcome, detail: str | None) -> None:
        ended = AttemptEnd(dispatch=held.dispatch, outcome=outcome, detail=detail)
        self._check(held, await self._records.end(ended))

    def _check(self, held: Held, is_news: bool) -> None:  # noqa: FBT001 - private
        """Another record that came before it stays: this attempt was given up for dead."""
        if not is_news:
            _log.warning("an end came too late", task=held.dispatch.task, fire_at=str(held.dispatch.fire_at))

    # Giving back

    async def _acknowledge(self, held: Held) -> None:
        try:
            await self._broker.acknowledge(held.queue, held.message.receipt_handle)
        except ReceiptNotHeld:
            _log.info("a message came back while its occurrence ran", task=held.dispatch.task)
        self._drop(held)

    async def _hand_back(self, all_held: Sequence[Held], delay_seconds: float) -> None:
        for queue in self._queues:
            handles = [held.message.receipt_handle for held in all_held if held.queue is queue]
            if handles:
                await self._broker.release(queue, handles, [delay_seconds] * len(handles))
        for held in all_held:
            self._drop(held)

    def _wait_again(self, held: Held, seconds: float) -> None:
        held.due_at = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._waiting, (held.due_at, next(self._order), held))

    def _free(self, held: Held) -> None:
        """Give the slot to the next."""
        if held in self._running:
            self._running.remove(held)
            self._pump()

    def _drop(self, held: Held) -> None:
        if self._is_here(held):
            del self._here[held.dispatch]
            self._room.set()

    async def _finish(self) -> None:
        """Give back what has not started; wait for what has, and end what takes too long."""
        if self._timer is not None:
            self._timer.cancel()
        unstarted = [held for held in self._here.values() if held not in self._running and held.run is None]
        try:
            await self._hand_back(unstarted, 0.0)
        except BellringerError as error:
            _log.warning("could not give back occurrences", error=repr(error))
        self._waiting.clear()
        self._ready.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._config.finish_seconds)
        for held in list(self._running):
            if held.run is not None:
                held.run.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_SECONDS)

    # What is done every few seconds

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - what could not be done now is done the next time
                _log.warning("could not do the rounds", error=repr(error))

    async def _sign_on(self) -> bool:
        await self._beat()
        return True

    async def _beat(self) -> None:
        """Show that this executor lives; read the database's clock."""
        await self._clock.synchronise()
        running, held = self.standing()
        async with self._database.connection() as connection:
            await executor_store.beat(
                connection,
                self.id,
                concurrency=self._config.concurrency,
                environment_id=self._environment_id,
                running=running,
                held=held,
            )
        await self._durations.write()

    async def _keep_hold(self) -> None:
        """Hold on to the messages of what is here for long. Those that were lost and not started are dropped."""
        timeout = self._config.visibility_timeout_seconds
        old = asyncio.get_running_loop().time() - timeout / 4
        for queue in self._queues:
            mine = [held for held in self._here.values() if held.queue is queue and held.claimed_at <= old]
            for some in _batches(mine):
                changes = [(held.message.receipt_handle, timeout) for held in some]
                for held, is_held in zip(some, await self._broker.change_visibility(queue, changes), strict=True):
                    if not is_held and held not in self._running and held.run is None:
                        self._drop(held)

    async def _look_for_cancelled(self) -> None:
        running = [held for held in self._running if held.run is not None]
        async with self._database.connection() as connection:
            for some in _batches(running):
                asked = {
                    id(one) for one in await occurrence_store.cancelled(connection, [one.dispatch for one in some])
                }
                for held in some:
                    if id(held.dispatch) in asked and held.run is not None:
                        held.run.cancel()

    async def _share(self) -> None:
        """Give back what is due while long runs have all slots: another executor may have one free for it."""
        now = asyncio.get_running_loop().time()
        if len(self._running) < self._config.concurrency or not self._ready:
            return
        if all(now - held.ready_at > _LONG_RUN_SECONDS for held in self._running):
            self._durations.expect(self._config.dispatch_ahead_seconds)
            due = [held for held in self._ready if self._is_here(held)]
            self._ready.clear()
            try:
                await self._hand_back(due, 0.0)
            finally:  # what could not be given back is still held on to, and would start nowhere
                self._ready.extend(held for held in due if self._is_here(held))
                self._pump()

    async def _leave(self) -> None:
        try:
            await self._durations.write()
            async with self._database.connection() as connection:
                await executor_store.remove(connection, self.id)
        except BellringerError as error:
            _log.warning("could not sign off", error=repr(error))


def _batches(all_held: Sequence[Held]) -> list[Sequence[Held]]:
    return [all_held[begin : begin + _CLAIM_LIMIT] for begin in range(0, len(all_held), _CLAIM_LIMIT)]
