"""What all batches share: at most ten entries with ids of their own, and an outcome for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bellringer.broker.sqs.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    TOO_MANY_ENTRIES_IN_BATCH_REQUEST,
    SqsError,
    sqs_error_of,
)

_MOST_ENTRIES = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_batch(ids: Sequence[str], kind: str) -> None:
    """Raise the `SqsError` that refuses a batch as a whole. `ids` are those of its entries, which are of that kind."""
    if not ids:
        raise SqsError(EMPTY_BATCH_REQUEST, f"There should be at least one {kind} in the request.")
    if len(ids) > _MOST_ENTRIES:
        raise SqsError(
            TOO_MANY_ENTRIES_IN_BATCH_REQUEST,
            f"Maximum number of entries per request are {_MOST_ENTRIES}. You have sent {len(ids)}.",
        )
    if not all(_ID.fullmatch(id_) for id_ in ids):
        raise SqsError(
            INVALID_BATCH_ENTRY_ID,
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long.",
        )
    ((most_frequent, times),) = Counter(ids).most_common(1)
    if times > 1:
        raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {most_frequent} repeated.")


def batch_answer(ids: Sequence[str], outcomes: Sequence[dict[str, Any] | Exception]) -> dict[str, Any]:
    """The answer to a batch: what each entry came to, under its id. A list that would be empty is left out."""
    successful, failed = [], []
    for id_, outcome in zip(ids, outcomes, strict=True):
        if isinstance(outcome, Exception):
            failed.append({"Id": id_, **_failure(sqs_error_of(outcome))})
        else:
            successful.append({"Id": id_, **outcome})
    return {name: results for name, results in (("Successful", successful), ("Failed", failed)) if results}


def _failure(error: SqsError) -> dict[str, Any]:
    return {"SenderFault": error.kind.is_senders_fault, "Code": error.kind.code, "Message": str(error)}
