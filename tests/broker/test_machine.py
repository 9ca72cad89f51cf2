"""Any sequence of operations on a queue, against a list of messages in memory: its answers and counts are the same."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.support.queues import counts_of, make_due, make_older, message_with, move_inbox, unfinished
from tests.support.waiting import PATIENCE_SECONDS

from bellringer.broker import Broker, BrokerConfig, Publication, Queue, QueueSettings, ReceiptNotHeld, store
from bellringer.broker.loops import Sweeper
from bellringer.broker.model import MessageId, ReceiptHandle
from bellringer.kernel.database import Database
from bellringer.kernel.errors import NotFound
from bellringer.kernel.tally import TallyFolder

RETENTION_SECONDS = 3600
MAX_RECEIVES = 3
OVER = ("finished", "dead_lettered", "expired", "purged")
SEQS_LEFT = "SELECT generate_series(first_seq, first_seq + messages - 1) AS seq FROM bellringer.chunks WHERE queue = $1"
SQL_PUBLISH = "SELECT bellringer.publish($1, $2::bytea, $3, $4, $5, environment => $6)"

T = TypeVar("T")

GROUPS = st.sampled_from("gh")
DEDUPLICATION_IDS = st.sampled_from([None, None, "a", "b"])
_STATES = {
    "lane": "pending",
    "queued": "pending",
    "delayed": "delayed",
    "ready": "pending",
    "held": "in_flight",
}
DELAYS = st.sampled_from([0.0, 0.0, 0.0, 600.0])


class Entry(msgspec.Struct, kw_only=True):
    """What the model knows of a message.

    `state`: lane (nothing ever happened to it), queued behind others of its group, delayed, ready, held, or how it
    ended. `is_late`: its hold or its delay goes on. `is_known` until its history is removed.
    """

    id: int
    group: str | None
    state: str
    attempts: int = 0
    handle: ReceiptHandle | None = None
    is_late: bool = False
    is_old: bool = False
    is_known: bool = True


class QueueMachine(RuleBasedStateMachine):
    """One queue and its dead letter queue; `fifo` says of which kind."""

    handles = Bundle[ReceiptHandle]("handles")

    fifo: ClassVar[bool]
    loop: ClassVar[asyncio.AbstractEventLoop]
    database: ClassVar[Database]
    examples = itertools.count(1)

    def do(self, operation: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(operation, self.loop).result(PATIENCE_SECONDS)

    @initialize(expires=st.booleans())
    def open(self, *, expires: bool) -> None:
        self.entries: list[Entry] = []
        self.by_deduplication_id: dict[str, int] = {}
        self.redelivered = 0
        self.is_paused = False
        self.expires = expires
        self.broker = Broker(self.database, BrokerConfig(ahead_seconds=0))
        self.letters, self.queue = self.do(self._make_queues(UUID(int=next(self.examples))))

    def teardown(self) -> None:
        self.do(self._check_letters_and_close())

    # Publishing

    @rule(messages=st.lists(st.tuples(DELAYS, GROUPS, DEDUPLICATION_IDS), min_size=1, max_size=4))
    def send(self, messages: list[tuple[float, str, str | None]]) -> None:
        publications = [
            Publication(body=b"x", delay_seconds=delay, group=group if self.fifo else None, deduplication_id=key)
            for delay, group, key in messages
        ]
        assert self.do(self.broker.send(self.queue, publications)) == [self._publish(one) for one in publications]

    @rule(number=st.integers(1, 4), delay=DELAYS, group=GROUPS)
    def publish_in_a_transaction(self, number: int, delay: float, group: str) -> None:
        publication = Publication(body=b"x", delay_seconds=delay, group=group if self.fifo else None)
        self.do(self._publish_with_sql([publication] * number))
        for _ in range(number):
            self._publish(publication)

    def _publish(self, publication: Publication) -> int:
        key = publication.deduplication_id
        if key in self.by_deduplication_id:
            return self.by_deduplication_id[key]
        state = "queued" if self.fifo else "delayed" if publication.delay_seconds else "lane"
        seq = len(self.entries) + 1
        late = bool(publication.delay_seconds)
        self.entries.append(Entry(id=seq, group=publication.group, state=state, is_late=late))
        if key is not None:
            self.by_deduplication_id[key] = seq
        self._settle_groups()
        return seq

    # Consuming

    @rule(target=handles, limit=st.integers(1, 4))
    def claim(self, limit: int) -> Any:  # noqa: ANN401 - hypothesis does not say what `multiple` returns
        expected = [] if self.is_paused else self._next_of_groups(limit) if self.fifo else self._next(limit)
        claimed = self.do(self.broker.claim(self.queue, limit))
        assert [(message.id, message.attempts, message.group) for message in claimed] == [
            (entry.id, entry.attempts + 1, entry.group) for entry in expected
        ]
        for entry, message in zip(expected, claimed, strict=True):
            entry.state, entry.is_late = "held", True
            entry.attempts, entry.handle = message.attempts, message.receipt_handle
        return multiple(*(message.receipt_handle for message in claimed))

    @rule(asked=st.lists(handles, min_size=1, max_size=4))
    def acknowledge(self, asked: list[ReceiptHandle]) -> None:
        answers = self.do(self.broker.acknowledge_each(self.queue, asked))
        entries = [self._of(handle) for handle in asked]
        for entry, answer in zip(entries, answers, strict=True):
            if entry is None or entry.is_known:
                assert answer == (entry is not None and entry.state in {"held", "finished", "purged"})
        self._finish([entry for entry in entries if entry is not None and entry.state == "held"])

    @rule(asked=st.lists(handles, min_size=1, max_size=4, unique=True))
    def complete(self, asked: list[ReceiptHandle]) -> None:
        held = [entry for entry in map(self._of, asked) if entry is not None and entry.state == "held"]
        assert self.do(self._complete(asked)) == (len(held) == len(asked))
        if len(held) == len(asked):
            self._finish(held)

    @rule(asked=st.lists(handles, min_size=1, max_size=4, unique=True), seconds=st.sampled_from([0.0, 600.0]))
    def change_visibility(self, asked: list[ReceiptHandle], seconds: float) -> None:
        held = [entry is not None and entry.state == "held" for entry in map(self._of, asked)]
        assert self.do(self.broker.change_visibility(self.queue, [(handle, seconds) for handle in asked])) == held
        if not seconds:
            self._return(asked, is_late=False)

    @rule(asked=st.lists(handles, min_size=1, max_size=4), delay_seconds=st.sampled_from([0.0, 600.0]))
    def release(self, asked: list[ReceiptHandle], delay_seconds: float) -> None:
        self.do(self.broker.release(self.queue, asked, [delay_seconds] * len(asked)))
        self._return(asked, is_late=bool(delay_seconds))

    @rule(asked=st.lists(handles, min_size=1, max_size=4))
    def let_time_pass_for_all_but(self, asked: list[ReceiptHandle]) -> None:
        self.let_time_pass()
        self.do(self.broker.extend(self.queue, asked, 600.0))
        for entry in map(self._of, asked):
            if entry is not None and entry.state == "held":
                entry.is_late = True

    @rule()
    def let_time_pass(self) -> None:
        self.do(make_due(self.database))
        for entry in self.entries:
            entry.is_late = False

    @rule()
    def sweep(self) -> None:
        self.do(Sweeper(self.database, self.broker).run_once())
        for entry in self.entries:
            if entry.state == "delayed" and not entry.is_late:
                entry.state = "ready"
        self._give_back([entry for entry in self.entries if entry.state == "held" and not entry.is_late], is_late=False)

    # The queue

    @rule()
    def purge(self) -> None:
        self.do(self.broker.purge_queue(self.queue))
        for entry in self.entries:
            if entry.state not in OVER:
                entry.state = "purged"
        self.by_deduplication_id.clear()

    @rule()
    def pause_or_resume(self) -> None:
        self.is_paused = not self.is_paused
        self.do((self.broker.pause_queue if self.is_paused else self.broker.resume_queue)(self.queue))

    @rule()
    def let_messages_grow_old(self) -> None:
        self.do(make_older(self.database, self.queue, RETENTION_SECONDS + 60))
        for entry in self.entries:
            entry.is_old = True

    @rule()
    def collect(self) -> None:
        kept = self.do(self._collect())
        for entry in self.entries:
            if entry.is_old and self.expires and entry.state not in {*OVER, "held"}:
                entry.state = "expired"
            if entry.id not in kept:
                assert entry.is_old
                assert entry.state in OVER
                entry.is_known = False
        if all(entry.state in OVER for entry in self.entries if entry.is_old):
            assert not any(entry.is_known for entry in self.entries if entry.is_old)
        self._settle_groups()

    @rule()
    def fold(self) -> None:
        self.do(TallyFolder(self.database).run_once())

    @rule()
    def let_deduplication_windows_pass(self) -> None:
        self.do(self._forget_deduplications())
        self.by_deduplication_id.clear()

    @rule(data=st.data())
    def read_a_history(self, data: st.DataObject) -> None:
        if not self.entries:
            return
        entry = data.draw(st.sampled_from(self.entries))
        try:
            told = self.do(self.broker.history(self.queue, MessageId(entry.id))).message
        except NotFound:
            assert not entry.is_known
        else:
            assert entry.is_known
            assert (told.id, told.state, told.group) == (entry.id, _STATES.get(entry.state, entry.state), entry.group)
            assert told.attempts == entry.attempts

    @rule(limit=st.integers(1, 4))
    def peek(self, limit: int) -> None:
        told = self.do(self.broker.peek(self.queue, limit))
        waiting = [entry for entry in self.entries if entry.state in {"lane", "queued", "delayed", "ready"}][:limit]
        assert [(one.id, one.state, one.attempts, one.group) for one in told] == [
            (entry.id, _STATES[entry.state], entry.attempts, entry.group) for entry in waiting
        ]

    @invariant()
    def counts_are_true(self) -> None:
        counts = self.do(counts_of(self.broker, self.queue))
        states = Counter(entry.state for entry in self.entries)
        assert counts.published == len(self.entries)
        assert counts.pending == states["lane"] + states["queued"] + states["ready"]
        assert (counts.delayed, counts.in_flight) == (states["delayed"], states["held"])
        assert [counts.deleted, counts.dead_lettered, counts.expired, counts.purged] == [states[end] for end in OVER]
        assert counts.redelivered == self.redelivered
        assert list(self.do(unfinished(self.database, self.queue))) == [
            entry.id for entry in self.entries if entry.state not in OVER
        ]

    # The model

    def _of(self, handle: ReceiptHandle) -> Entry | None:
        return next((entry for entry in self.entries if entry.handle == handle), None)

    def _next(self, limit: int) -> list[Entry]:
        ready = [entry for entry in self.entries if entry.state == "ready"][:limit]
        if len(ready) < limit and self.expires:
            for entry in self.entries:
                if entry.state == "lane" and entry.is_old:
                    entry.state = "expired"
        return ready + [entry for entry in self.entries if entry.state == "lane"][: limit - len(ready)]

    def _next_of_groups(self, limit: int) -> list[Entry]:
        heads = [entry for entry in self.entries if entry.state == "ready"][:limit]
        placed = [(0, head.id, head) for head in heads]
        for head in heads:
            waiting = [entry for entry in self.entries if entry.state == "queued" and entry.group == head.group]
            on_time = itertools.takewhile(lambda entry: not entry.is_late, waiting[: limit // len(heads)])
            placed += [(place, entry.id, entry) for place, entry in enumerate(on_time, 1)]
        return sorted((entry for _, _, entry in sorted(placed)[:limit]), key=lambda entry: entry.id)

    def _finish(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entry.state = "finished"
        self._settle_groups()

    def _return(self, asked: Sequence[ReceiptHandle], *, is_late: bool) -> None:
        found = {entry.id: entry for entry in map(self._of, asked) if entry is not None and entry.state == "held"}
        self._give_back(list(found.values()), is_late=is_late)

    def _give_back(self, entries: Sequence[Entry], *, is_late: bool) -> None:
        for entry in entries:
            if entry.attempts >= MAX_RECEIVES:
                entry.state = "dead_lettered"
            else:
                entry.state = "queued" if self.fifo else "delayed" if is_late else "ready"
                entry.is_late, entry.handle = is_late, None
                self.redelivered += 1
        self._settle_groups()

    def _settle_groups(self) -> None:
        for group in {entry.group for entry in self.entries if self.fifo}:
            members = [entry for entry in self.entries if entry.group == group and entry.state not in OVER]
            if members and all(entry.state == "queued" for entry in members):
                members[0].state = "delayed" if members[0].is_late else "ready"

    # The broker

    async def _make_queues(self, environment_id: UUID) -> tuple[Queue, Queue]:
        async with self.database.connection() as connection:
            await connection.execute(
                "INSERT INTO bellringer.environments (id, organisation, name) VALUES ($1, 'acme', $2)",
                environment_id,
                str(environment_id),
            )
        letters = await self.broker.create_queue(environment_id, "letters", QueueSettings(fifo=self.fifo))
        queue_settings = QueueSettings(
            fifo=self.fifo,
            expires=self.expires,
            retention_seconds=RETENTION_SECONDS,
            max_receives=MAX_RECEIVES,
            dead_letter_queue="letters",
        )
        return letters, await self.broker.create_queue(environment_id, "orders", queue_settings)

    async def _publish_with_sql(self, publications: Sequence[Publication]) -> None:
        environment = f"acme/{self.queue.environment_id}"
        async with self.database.transaction() as connection:
            for one in publications:
                await connection.execute(
                    SQL_PUBLISH, "orders", one.body, one.delay_seconds, one.group, one.deduplication_id, environment
                )
        await move_inbox(self.database, self.broker)

    async def _complete(self, handles: Sequence[ReceiptHandle]) -> bool:
        try:
            async with self.database.transaction() as connection:
                await self.broker.complete(connection, self.queue, [message_with(handle) for handle in handles])
        except ReceiptNotHeld:
            return False
        return True

    async def _collect(self) -> set[int]:
        """Collect, and return the ids that are left."""
        async with self.database.connection() as connection:
            start: int | None = 0
            while start is not None:
                start, _ = await store.collect(connection, self.queue.number, start, 3)
            rows = await connection.fetch(SEQS_LEFT, self.queue.number)
        return {row["seq"] for row in rows}

    async def _forget_deduplications(self) -> None:
        async with self.database.connection() as connection:
            await connection.execute("UPDATE bellringer.deduplications SET expires_at = now() - interval '1 s'")

    async def _check_letters_and_close(self) -> None:
        await move_inbox(self.database, self.broker)
        letters = []
        while messages := await self.broker.claim(self.letters, 1000):
            letters += [(one.origin.id, one.origin.attempts, one.group) for one in messages if one.origin is not None]
            await self.broker.acknowledge_each(self.letters, [message.receipt_handle for message in messages])
        dead = [entry for entry in self.entries if entry.state == "dead_lettered"]
        assert sorted(letters) == [(entry.id, MAX_RECEIVES, entry.group) for entry in dead]
        for queue in (self.queue, self.letters):
            await self.broker.delete_queue(queue)
        await self.broker.drain()


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
async def test_a_queue_answers_and_counts_as_a_list_in_memory_does(database: Database, *, fifo: bool) -> None:
    members = {"loop": asyncio.get_running_loop(), "database": database, "fifo": fifo}
    machine = type("Machine", (QueueMachine,), members)
    await asyncio.to_thread(run_machine, machine, settings=settings(max_examples=30, stateful_step_count=30))
