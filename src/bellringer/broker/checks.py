"""What the broker takes and what it refuses: each check names the field at fault."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bellringer.broker.model import (
    LARGEST_ATTRIBUTES_BYTES,
    LARGEST_BATCH,
    LONGEST_DELAY_SECONDS,
    LONGEST_GROUP,
    LONGEST_VISIBILITY_TIMEOUT_SECONDS,
    LONGEST_WAIT_SECONDS,
    Publication,
    Queue,
    QueueSettings,
)
from bellringer.kernel.errors import InvalidInput, TooLarge


def fill_in(queue: Queue, publication: Publication) -> Publication:
    """A message with what its queue says where it says nothing: a delay, a deduplication id."""
    if publication.delay_seconds is None and queue.settings.delay_seconds:
        publication = msgspec.structs.replace(publication, delay_seconds=queue.settings.delay_seconds)
    if publication.deduplication_id is None and queue.settings.content_deduplication:
        digest = hashlib.sha256(publication.body).hexdigest()
        publication = msgspec.structs.replace(publication, deduplication_id=digest)
    return publication


def check_publications(publications: Sequence[Publication], settings: QueueSettings) -> None:
    """Raise `InvalidInput` for an empty or too large batch, and for a message that a queue so set does not take."""
    if not 1 <= len(publications) <= LARGEST_BATCH:
        raise InvalidInput(f"a batch holds 1 to {LARGEST_BATCH} messages", field="body")
    check_each(publications, settings)


def check_each(publications: Sequence[Publication], settings: QueueSettings) -> None:
    """The same for any number of messages."""
    for index, publication in enumerate(publications):
        place = f"[{index}]." if len(publications) > 1 else ""
        if len(publication.body) > settings.max_body_bytes:
            raise TooLarge(f"a message holds at most {settings.max_body_bytes} bytes", field=f"{place}msg")
        if publication.delay_seconds is not None and not 0 <= publication.delay_seconds <= LONGEST_DELAY_SECONDS:
            raise InvalidInput(
                f"delay_seconds must be from 0 to {LONGEST_DELAY_SECONDS}", field=f"{place}delay_seconds"
            )
        if settings.fifo != (publication.group is not None):
            raise InvalidInput("a message of a FIFO queue, and no other, needs a group", field=f"{place}group")
        if publication.attributes:
            _check_attributes(publication.attributes, f"{place}attributes")
        _check_key(publication.group, f"{place}group")
        _check_key(publication.deduplication_id, f"{place}deduplication_id")


def check_claim(limit: int, wait_seconds: float) -> None:
    """Raise `InvalidInput` for a number of messages or a wait out of range."""
    if not 1 <= limit <= LARGEST_BATCH:
        raise InvalidInput(f"n must be from 1 to {LARGEST_BATCH}", field="n")
    if not 0 <= wait_seconds <= LONGEST_WAIT_SECONDS:
        raise InvalidInput(f"wait must be from 0 to {LONGEST_WAIT_SECONDS:g} seconds", field="wait")


def check_visibility_timeout(seconds: float, field: str) -> None:
    """Raise `InvalidInput` for a visibility timeout out of range."""
    if not 0 <= seconds <= LONGEST_VISIBILITY_TIMEOUT_SECONDS:
        raise InvalidInput(f"{field} must be from 0 to {LONGEST_VISIBILITY_TIMEOUT_SECONDS} seconds", field=field)


def _check_attributes(attributes: Mapping[str, Any], field: str) -> None:
    try:
        size = len(msgspec.json.encode(dict(attributes)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"attributes must be JSON: {error}", field=field) from None
    if size > LARGEST_ATTRIBUTES_BYTES:
        raise TooLarge(f"attributes take at most {LARGEST_ATTRIBUTES_BYTES} bytes as JSON", field=field)


def _check_key(key: str | None, field: str) -> None:
    # PostgreSQL's text has no zero byte.
    if key is not None and (not 1 <= len(key) <= LONGEST_GROUP or "\x00" in key):
        raise InvalidInput(f"1 to {LONGEST_GROUP} characters are needed, none of them zero", field=field)
