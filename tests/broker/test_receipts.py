from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.queues import counts_of, message_with, send

from bellringer.broker import Broker, Queue, ReceiptInvalid, ReceiptNotHeld
from bellringer.broker.model import ReceiptHandle
from bellringer.broker.receipts import Receipt, Receipts
from bellringer.kernel.database import Database

RECEIPTS = Receipts(b"a secret of this database, nobody")
QUEUES = st.integers(1, 2**31 - 1)
SEQS = st.integers(0, 2**63 - 1)
ATTEMPTS = st.integers(1, 2**31 - 1)
HANDLE = RECEIPTS.issue(7, 40, 42, 1, 1)[0]


@given(QUEUES, SEQS, SEQS, ATTEMPTS)
def test_a_handle_says_what_it_was_issued_for(queue: int, claim_seq: int, seq: int, attempts: int) -> None:
    handle = RECEIPTS.issue(queue, claim_seq, seq, 1, attempts)[0]
    assert RECEIPTS.read(queue, [handle]) == [Receipt(claim_seq, seq, attempts)]
    assert re.fullmatch("[A-Za-z0-9_-]{1,99}", handle)


@given(st.data())
def test_a_handle_that_was_changed_anywhere_is_none(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(HANDLE) - 1))
    character = data.draw(st.characters().filter(lambda drawn: drawn.lower() != HANDLE[place]))
    with pytest.raises(ReceiptInvalid) as refused:
        RECEIPTS.read(7, [HANDLE[:place] + character + HANDLE[place + 1 :]])
    assert refused.value.field == "receipt_handle"


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "hello",
        HANDLE[:-1],
        HANDLE[:-4],
        HANDLE + "A",
        HANDLE + "AAAA",
        HANDLE + "=",
        "A" * 66,
        HANDLE[:-1] + " ",
        HANDLE[:4] + " " + HANDLE[5:],
        "\ud800",
        "A" * 10_000,
    ],
)
def test_what_is_no_handle_is_refused(handle: str) -> None:
    with pytest.raises(ReceiptInvalid, match="this is not a receipt handle"):
        RECEIPTS.read(7, [handle])


def test_a_handle_is_of_one_queue_and_of_one_database() -> None:
    with pytest.raises(ReceiptInvalid, match="this receipt handle is of another queue"):
        RECEIPTS.read(8, [HANDLE])
    with pytest.raises(ReceiptInvalid, match="this is not a receipt handle"):
        Receipts(b"the secret of another one").read(7, [HANDLE])


async def test_every_process_reads_the_handles_of_the_others(
    broker: Broker, second_process: Broker, queue: Queue
) -> None:
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    await second_process.acknowledge(queue, message.receipt_handle)


async def test_a_handle_that_nobody_was_given_settles_nothing_and_spoils_nothing_else(
    broker: Broker, database: Database, queue: Queue
) -> None:
    await send(broker, queue, b"a")
    (message,) = await broker.claim(queue, 1)
    for forged in ("hello", message.receipt_handle[::-1]):
        for settle in (
            broker.acknowledge(queue, ReceiptHandle(forged)),
            broker.acknowledge_each(queue, [message.receipt_handle, ReceiptHandle(forged)]),
            broker.change_visibility(queue, [(message.receipt_handle, 0), (ReceiptHandle(forged), 0)]),
            broker.extend(queue, [ReceiptHandle(forged)], 60),
            broker.release(queue, [message.receipt_handle, ReceiptHandle(forged)], [0.0, 0.0]),
        ):
            with pytest.raises(ReceiptInvalid):
                await settle
        async with database.transaction() as connection:
            with pytest.raises(ReceiptInvalid):
                await broker.complete(connection, queue, [message, message_with(ReceiptHandle(forged))])
    assert (await counts_of(broker, queue)).in_flight == 1


async def test_a_good_handle_of_what_was_never_claimed_is_not_held(broker: Broker, queue: Queue) -> None:
    await send(broker, queue, b"a")
    receipts = await broker._open_receipts()  # noqa: SLF001 - only the broker can sign
    for claim_seq in (0, 1, 99):
        handle = receipts.issue(queue.number, claim_seq, 1, 1, 1)[0]
        with pytest.raises(ReceiptNotHeld):
            await broker.acknowledge(queue, handle)
        assert await broker.extend(queue, [handle], 60) == 0
    assert (await counts_of(broker, queue)).pending == 1
