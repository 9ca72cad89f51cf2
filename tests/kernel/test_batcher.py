from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.kernel.batcher import BatcherConfig, MicroBatcher, Room
from bellringer.kernel.database import ITEM_FAULTS, Database
from bellringer.kernel.errors import Overloaded, Unavailable

PATIENCE_SECONDS = 5


class BadItem(Exception):
    """What a write raises because of one item's content: its transaction was rolled back."""


class Crash(Exception):
    """What a write raises for any other reason."""


class Table:
    """What a batcher writes to: a write waits while the gate is shut, and commits all of a batch or nothing."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.rows: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()

    async def write(self, items: Sequence[str]) -> list[str | Exception]:
        self.batches.append(list(items))
        self.begun.set()
        await self.gate.wait()
        if any(item.startswith("crash") for item in items):
            raise Crash
        if any(item.startswith("bad") for item in items):
            raise BadItem
        self.rows += [item for item in items if not item.startswith("refused")]
        return [KeyError(item) if item.startswith("refused") else f"{item} written" for item in items]


def batcher_to(table: Table, **bounds: int) -> MicroBatcher[str, str]:
    return MicroBatcher[str, str]("test", table.write, config=BatcherConfig(**bounds), weigh=len, isolate=(BadItem,))


def submit_all(batcher: MicroBatcher[str, str], *items: str) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(batcher.submit(item)) for item in items]


async def answers_of(*waiting: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await asyncio.gather(*waiting, return_exceptions=True)


async def let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def sharing(room: Room, table: Table) -> MicroBatcher[str, str]:
    """A batcher that shares room with others."""
    return MicroBatcher[str, str]("test", table.write, weigh=len, isolate=(BadItem,), room=room)


async def while_writing(batcher: MicroBatcher[str, str], table: Table, first: str) -> asyncio.Task[str]:
    """Submit an item and return when its write has begun and waits at the gate."""
    table.gate.clear()
    (task,) = submit_all(batcher, first)
    await table.begun.wait()
    return task


async def test_a_lone_item_waits_for_nobody() -> None:
    table = Table()
    assert await answers_of(batcher_to(table).submit("one")) == ["one written"]
    assert table.batches == [["one"]]


async def test_callers_that_come_together_share_the_first_write() -> None:
    table = Table()
    answers = await answers_of(*submit_all(batcher_to(table), "one", "two", "three"))
    assert answers == ["one written", "two written", "three written"]
    assert table.batches == [["one", "two", "three"]]


async def test_while_one_batch_commits_the_next_one_fills() -> None:
    table = Table()
    batcher = batcher_to(table)
    first = await while_writing(batcher, table, "one")
    rest = submit_all(batcher, "two", "three", "four")
    await let_others_run()
    assert table.batches == [["one"]]
    table.gate.set()
    await answers_of(first, *rest)
    assert table.batches == [["one"], ["two", "three", "four"]]


async def test_nobody_is_answered_before_the_write_is_done() -> None:
    table = Table()
    waiting = await while_writing(batcher_to(table), table, "one")
    await let_others_run()
    assert not waiting.done()
    table.gate.set()
    assert await answers_of(waiting) == ["one written"]


async def test_a_batch_holds_no_more_items_than_its_bound() -> None:
    table = Table()
    await answers_of(*submit_all(batcher_to(table, max_batch_items=3), *"abcdefg"))
    assert table.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


async def test_a_batch_weighs_no_more_than_its_bound_unless_one_item_does() -> None:
    table = Table()
    await answers_of(*submit_all(batcher_to(table, max_batch_weight=4), "aa", "bb", "c", "dddddd", "e"))
    assert table.batches == [["aa", "bb"], ["c"], ["dddddd"], ["e"]]


async def test_when_too_many_wait_a_caller_is_refused_at_once_and_taken_again_after_the_write() -> None:
    table = Table()
    batcher = batcher_to(table, max_waiting_items=2)
    first = await while_writing(batcher, table, "one")
    waiting = submit_all(batcher, "two", "three")
    await let_others_run()
    with pytest.raises(Overloaded):
        await batcher.submit("four")
    table.gate.set()
    assert await answers_of(first, *waiting) == ["one written", "two written", "three written"]
    assert await answers_of(batcher.submit("five")) == ["five written"]
    assert table.rows == ["one", "two", "three", "five"]


async def test_a_flood_is_refused_rather_than_kept() -> None:
    table = Table()
    batcher = batcher_to(table, max_waiting_items=10)
    first = await while_writing(batcher, table, "first")
    flood = submit_all(batcher, *(f"item {number}" for number in range(1000)))
    await let_others_run()
    assert sum(task.done() for task in flood) == 990
    table.gate.set()
    answers = Counter(type(answer) for answer in await answers_of(first, *flood))
    assert answers == {str: 11, Overloaded: 990}


async def test_when_too_much_weight_waits_a_caller_is_refused() -> None:
    table = Table()
    batcher = batcher_to(table, max_waiting_weight=10)
    first = await while_writing(batcher, table, "not counted: it is being written")
    heavy = submit_all(batcher, "eight...")
    await let_others_run()
    with pytest.raises(Overloaded):
        await batcher.submit("six...")
    light = submit_all(batcher, "2.")
    table.gate.set()
    await answers_of(first, *heavy, *light)
    assert table.rows == ["not counted: it is being written", "eight...", "2."]


async def test_an_item_above_every_bound_is_taken_when_nobody_else_waits() -> None:
    table = Table()
    batcher = batcher_to(table, max_batch_weight=4, max_waiting_weight=8)
    assert await answers_of(batcher.submit("a" * 100)) == ["a" * 100 + " written"]


@pytest.mark.parametrize("bound", ["max_batch_items", "max_batch_weight", "max_waiting_items", "max_waiting_weight"])
def test_a_bound_below_one_is_no_bound(bound: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({bound: 0}, BatcherConfig)


async def test_a_bad_item_fails_alone() -> None:
    table = Table()
    items = ["one", "two", "bad three", "four", "five"]
    answers = await answers_of(*submit_all(batcher_to(table), *items))
    assert [type(answer) for answer in answers] == [str, str, BadItem, str, str]
    assert table.rows == ["one", "two", "four", "five"]


@given(st.lists(st.booleans(), min_size=1, max_size=40))
async def test_whichever_items_are_bad_the_others_are_written_once_and_in_order(are_bad: list[bool]) -> None:
    table = Table()
    items = [f"bad {number}" if is_bad else f"good {number}" for number, is_bad in enumerate(are_bad)]
    answers = await answers_of(*submit_all(batcher_to(table), *items))
    assert [isinstance(answer, BadItem) for answer in answers] == are_bad
    assert table.rows == [item for item in items if item.startswith("good")]


async def test_an_item_that_the_write_answers_with_an_error_raises_it_to_its_own_caller() -> None:
    table = Table()
    one, refused, three = await answers_of(*submit_all(batcher_to(table), "one", "refused two", "three"))
    assert (one, three) == ("one written", "three written")
    assert isinstance(refused, KeyError)
    assert table.batches == [["one", "refused two", "three"]]


async def test_a_write_that_fails_for_another_reason_fails_for_its_batch_and_no_later_one() -> None:
    table = Table()
    batcher = batcher_to(table)
    crashed = await answers_of(*submit_all(batcher, "one", "crash"))
    assert [type(answer) for answer in crashed] == [Crash, Crash]
    assert table.batches == [["one", "crash"]]
    assert await answers_of(batcher.submit("two")) == ["two written"]


async def test_a_write_that_forgets_an_item_leaves_no_caller_waiting() -> None:
    async def forget_the_last(items: Sequence[str]) -> list[str | Exception]:
        return list(items[:-1])

    batcher = MicroBatcher[str, str]("test", forget_the_last)
    answers = await answers_of(*submit_all(batcher, "one", "two"))
    assert [type(answer) for answer in answers] == [RuntimeError, RuntimeError]
    assert isinstance((await answers_of(batcher.submit("three")))[0], RuntimeError)


async def test_a_drain_answers_everybody_and_refuses_new_items() -> None:
    table = Table()
    batcher = batcher_to(table, max_batch_items=2)
    first = await while_writing(batcher, table, "one")
    waiting = submit_all(batcher, "two", "three", "four")
    await let_others_run()
    draining = asyncio.create_task(batcher.drain())
    await let_others_run()
    assert not draining.done()
    with pytest.raises(Overloaded):
        await batcher.submit("five")
    table.gate.set()
    await answers_of(draining)
    assert [task.result() for task in (first, *waiting)] == [f"{n} written" for n in ("one", "two", "three", "four")]
    assert table.rows == ["one", "two", "three", "four"]


async def test_a_drain_of_nothing_returns_at_once_and_may_be_repeated() -> None:
    batcher = batcher_to(Table())
    assert await answers_of(batcher.drain(), batcher.drain()) == [None, None]
    with pytest.raises(Overloaded):
        await batcher.submit("too late")


async def test_a_drain_that_is_given_up_does_not_break_the_write_off() -> None:
    table = Table()
    batcher = batcher_to(table)
    writing = await while_writing(batcher, table, "one")
    draining = asyncio.create_task(batcher.drain())
    await let_others_run()
    draining.cancel()
    await let_others_run()
    table.gate.set()
    assert await answers_of(writing) == ["one written"]


async def test_a_caller_that_goes_away_harms_nobody() -> None:
    table = Table()
    batcher = batcher_to(table)
    in_the_write = await while_writing(batcher, table, "one")
    gone, stayed = submit_all(batcher, "two", "three")
    await let_others_run()
    in_the_write.cancel()
    gone.cancel()
    await let_others_run()
    table.gate.set()
    assert await answers_of(stayed) == ["three written"]
    assert await answers_of(batcher.submit("four")) == ["four written"]


async def test_a_caller_that_goes_away_from_a_write_that_fails_harms_nobody() -> None:
    table = Table()
    batcher = batcher_to(table)
    gone = await while_writing(batcher, table, "bad one")
    stayed = submit_all(batcher, "bad two", "three")
    await let_others_run()
    gone.cancel()
    table.gate.set()
    bad, good = await answers_of(*stayed)
    assert isinstance(bad, BadItem)
    assert good == "three written"


def writer_among(tasks_before: set[asyncio.Task[Any]], *others: asyncio.Task[Any]) -> asyncio.Task[Any]:
    (writer,) = asyncio.all_tasks() - tasks_before - set(others)
    return writer


async def test_a_writer_that_is_cancelled_in_its_write_leaves_nobody_waiting() -> None:
    table = Table()
    batcher = batcher_to(table)
    before = asyncio.all_tasks()
    first = await while_writing(batcher, table, "one")
    waiting = submit_all(batcher, "two", "three")
    await let_others_run()
    writer_among(before, first, *waiting).cancel()
    answers = await answers_of(first, *waiting)
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    table.gate.set()
    assert await answers_of(batcher.submit("four"), batcher.drain()) == ["four written", None]
    assert table.rows == ["four"]


async def test_a_writer_that_is_cancelled_before_its_first_step_leaves_nobody_waiting() -> None:
    table = Table()
    batcher = batcher_to(table)
    before = asyncio.all_tasks()
    (waiting,) = submit_all(batcher, "one")
    await asyncio.sleep(0)  # the caller's turn; the writer is made in it and has had none
    writer_among(before, waiting).cancel()
    assert isinstance((await answers_of(waiting))[0], Unavailable)
    assert await answers_of(batcher.submit("two")) == ["two written"]
    assert table.rows == ["two"]


async def test_a_writer_that_is_cancelled_while_it_looks_for_a_bad_item_leaves_nobody_waiting() -> None:
    looking = asyncio.Event()
    batches: list[list[str]] = []

    async def refuse_then_hang(items: Sequence[str]) -> list[str | Exception]:
        batches.append(list(items))
        if len(batches) == 1:
            raise BadItem
        looking.set()
        await asyncio.Event().wait()
        return []

    batcher = MicroBatcher[str, str]("test", refuse_then_hang, isolate=(BadItem,))
    before = asyncio.all_tasks()
    waiting = submit_all(batcher, "one", "two", "three", "four")
    await looking.wait()
    writer_among(before, *waiting).cancel()
    answers = await answers_of(*waiting)
    assert batches == [["one", "two", "three", "four"], ["one", "two"]]
    assert [type(answer) for answer in answers] == [Unavailable] * 4


CREATE = "CREATE TABLE names (position bigint GENERATED ALWAYS AS IDENTITY, name text UNIQUE)"
INSERT = "INSERT INTO names (name) SELECT * FROM unnest($1::text[])"


async def test_postgresql_refuses_one_item_and_stores_the_rest(database: Database) -> None:
    async def write(names: Sequence[str]) -> list[str | Exception]:
        async with database.connection() as connection:
            await connection.execute(INSERT, names)
        return list(names)

    async with database.connection() as connection:
        await connection.execute(CREATE)
    batcher = MicroBatcher[str, str]("test", write, isolate=ITEM_FAULTS)
    names = ["ann", "nul \0 inside", "bob", "half a \ud83d surrogate", "ann", "eve"]

    ann, nul, bob, surrogate, again, eve = await answers_of(*submit_all(batcher, *names))

    assert (ann, bob, eve) == ("ann", "bob", "eve")
    assert isinstance(nul, asyncpg.CharacterNotInRepertoireError)
    assert isinstance(surrogate, asyncpg.DataError)
    assert isinstance(again, asyncpg.UniqueViolationError)
    async with database.connection() as connection:
        stored = await connection.fetch("SELECT name FROM names ORDER BY position")
    assert [row["name"] for row in stored] == ["ann", "bob", "eve"]


async def test_a_database_that_is_away_is_the_fault_of_no_item(database: Database) -> None:
    writes = []

    async def write(items: Sequence[str]) -> list[str | Exception]:
        writes.append(list(items))
        async with database.connection() as connection:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return list(items)

    batcher = MicroBatcher[str, str]("test", write, isolate=ITEM_FAULTS)
    answers = await answers_of(*submit_all(batcher, "one", "two", "three"))
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert writes == [["one", "two", "three"]]


class Submit(msgspec.Struct, frozen=True):
    kind: str
    weight: int


class Leave(msgspec.Struct, frozen=True):
    caller: int


class Turns(msgspec.Struct, frozen=True):
    number: int


class Gate(msgspec.Struct, frozen=True):
    is_open: bool


class CancelWriter(msgspec.Struct, frozen=True):
    pass


async def test_one_batcher_gets_half_of_the_room_and_the_others_find_some() -> None:
    room = Room(6, 1000)
    busy_table, other_table = Table(), Table()
    busy, other = sharing(room, busy_table), sharing(room, other_table)
    for batcher, table in ((busy, busy_table), (other, other_table)):
        await while_writing(batcher, table, "first")
    waiting = submit_all(busy, "a", "b", "c", "d", "e")
    waiting += submit_all(other, "f", "g", "h", "i")
    await let_others_run()
    busy_table.gate.set()
    other_table.gate.set()
    answers = await answers_of(*waiting)
    assert [answer if isinstance(answer, str) else type(answer) for answer in answers] == [
        "a written", "b written", "c written", Overloaded, Overloaded,
        "f written", "g written", "h written", Overloaded,
    ]  # fmt: skip


async def test_room_is_by_weight_too_and_is_free_again_after_the_write() -> None:
    room = Room(100, 20)
    table = Table()
    batcher = sharing(room, table)
    for _ in range(3):
        table.begun.clear()
        await while_writing(batcher, table, "first")
        waiting = submit_all(batcher, "12345", "12345", "1")
        await let_others_run()
        table.gate.set()
        assert [isinstance(answer, Overloaded) for answer in await answers_of(*waiting)] == [False, False, True]


async def test_a_batcher_in_which_nothing_waits_takes_an_item_however_full_the_room_is() -> None:
    room = Room(2, 20)
    tables = [Table() for _ in range(4)]
    batchers = [sharing(room, table) for table in tables]
    for batcher, table in zip(batchers, tables, strict=True):
        await while_writing(batcher, table, "first")
    waiting = submit_all(batchers[0], "a") + submit_all(batchers[1], "b") + submit_all(batchers[2], "x" * 500)
    await let_others_run()
    refused = submit_all(batchers[0], "c") + submit_all(batchers[2], "d")
    await let_others_run()
    for table in tables:
        table.gate.set()
    assert all(isinstance(answer, str) for answer in await answers_of(*waiting))
    assert all(isinstance(answer, Overloaded) for answer in await answers_of(*refused))


async def test_a_batcher_is_idle_when_nothing_waits_and_nothing_is_written() -> None:
    table = Table()
    batcher = batcher_to(table)
    assert batcher.is_idle
    writing = await while_writing(batcher, table, "first")
    assert not batcher.is_idle
    table.gate.set()
    await answers_of(writing, batcher.drain())
    assert batcher.is_idle


STEPS = st.lists(
    st.one_of(
        st.builds(Submit, st.sampled_from(["good", "good", "good", "bad", "refused", "crash"]), st.integers(0, 30)),
        st.builds(Leave, st.integers(0, 30)),
        st.builds(Turns, st.integers(1, 5)),
        st.builds(Gate, st.booleans()),
        st.builds(CancelWriter),
    ),
    max_size=60,
)


@given(STEPS)
async def test_in_any_interleaving_an_item_is_written_once_or_its_caller_has_an_error(
    steps: list[Submit | Leave | Turns | Gate | CancelWriter],
) -> None:
    table = Table()
    batcher = batcher_to(table, max_batch_items=4, max_batch_weight=60, max_waiting_items=8, max_waiting_weight=120)
    before = asyncio.all_tasks()
    callers: dict[str, asyncio.Task[str]] = {}
    for number, step in enumerate(steps):
        match step:
            case Submit(kind, weight):
                item = f"{kind} {number} {'.' * weight}"
                (callers[item],) = submit_all(batcher, item)
            case Leave(caller) if caller < len(callers):
                list(callers.values())[caller].cancel()
            case Turns(turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
            case Gate(is_open):
                table.gate.set() if is_open else table.gate.clear()
            case CancelWriter():
                for writer in asyncio.all_tasks() - before - set(callers.values()):
                    writer.cancel()
    await asyncio.sleep(0)  # a caller that has not had its first turn has not submitted anything
    table.gate.set()
    await answers_of(batcher.drain())

    answers = dict(zip(callers, await answers_of(*callers.values()), strict=True))
    written = Counter(table.rows)
    for item, answer in answers.items():
        if isinstance(answer, str):
            assert answer == f"{item} written"
            assert written[item] == 1
        elif isinstance(answer, asyncio.CancelledError):  # it left without waiting for the outcome
            assert written[item] <= 1
        else:
            assert isinstance(answer, BadItem | Crash | KeyError | Overloaded | Unavailable)
            assert written[item] == 0
    assert table.rows == [item for item in callers if written[item]], "in the order of their submission"
    assert all(len(batch) <= 4 for batch in table.batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= 60 for batch in table.batches)
