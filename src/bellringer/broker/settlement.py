"""What becomes of claimed messages, by their receipts: finished, or put back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bellringer.broker import store
from bellringer.broker.receipts import Receipt
from bellringer.kernel.database import Connection


async def finish(connection: Connection, queue: int, receipts: Sequence[Receipt]) -> dict[Receipt, bool]:
    """Finish messages; return those that are finished, and whether it was by this call."""
    done: dict[Receipt, bool] = {}
    claims, tracked = _split(receipts)
    if claims:
        wanted = [(claim_seq, store.multirange(sorted(seqs))) for claim_seq, seqs in sorted(claims.items())]
        for (claim_seq, _), (finished, repeated) in zip(
            wanted, await store.finish(connection, queue, wanted), strict=True
        ):
            done.update((receipt, False) for receipt in _receipts(claim_seq, repeated))
            done.update((receipt, True) for receipt in _receipts(claim_seq, finished))
    if tracked:
        answers = await store.finish_tracked(
            connection, queue, [(receipt.seq, receipt.attempts) for receipt in tracked]
        )
        done.update((Receipt(0, seq, attempts), now) for (seq, attempts), now in answers.items())
    return done


async def put_back(
    connection: Connection,
    queue: int,
    receipts: Sequence[tuple[Receipt, float]],
    *,
    keep: bool,
    unseen: bool = False,
) -> set[Receipt]:
    """Return messages to their queue, each after its seconds, or hold them on for as long (`keep`).

    An attempt that was `unseen`, handed to nobody, does not count. Returns the receipts under which a message was held.
    """
    held: set[Receipt] = set()
    by_seconds: defaultdict[float, list[Receipt]] = defaultdict(list)
    for receipt, seconds in receipts:
        by_seconds[seconds].append(receipt)
    claims: list[tuple[int, str, float]] = []
    tracked: list[tuple[list[Receipt], float]] = []
    for seconds, group in by_seconds.items():
        in_claims, singles = _split(group)
        claims += [(claim_seq, store.multirange(sorted(seqs)), seconds) for claim_seq, seqs in in_claims.items()]
        if singles:
            tracked.append((singles, seconds))
    if claims:
        claims.sort()
        for (claim_seq, _, _), ranges in zip(
            claims, await store.put_back(connection, queue, claims, keep=keep, unseen=unseen), strict=True
        ):
            held.update(_receipts(claim_seq, ranges))
    for singles, seconds in tracked:
        pairs = [(receipt.seq, receipt.attempts) for receipt in singles]
        good = await store.put_back_tracked(connection, queue, pairs, seconds, keep=keep, unseen=unseen)
        held.update(receipt for receipt in singles if (receipt.seq, receipt.attempts) in good)
    return held


def _split(receipts: Sequence[Receipt]) -> tuple[dict[int, set[int]], list[Receipt]]:
    """Seqs by claim, and the receipts of tracked messages in one order for all callers."""
    claims: defaultdict[int, set[int]] = defaultdict(set)
    tracked: set[Receipt] = set()
    for receipt in receipts:
        if receipt.claim_seq:
            claims[receipt.claim_seq].add(receipt.seq)
        else:
            tracked.add(receipt)
    return claims, sorted(tracked, key=lambda receipt: (receipt.seq, receipt.attempts))


def _receipts(claim_seq: int, ranges: Sequence[tuple[int, int]]) -> list[Receipt]:
    return [Receipt(claim_seq, seq, 1) for start, end in ranges for seq in range(start, end)]
