"""How messages lie in the payload of a chunk: one frame after the other.

A frame is 0 and the body; or, for a message with anything beside its body, 1, the length of a JSON header in four
bytes (big endian), the header, the body. The functions in `migrations/` read and write the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bellringer.broker.model import Origin, Publication

MESSAGES_PER_CHUNK = 250
"""Enough to share out the costs of a row, few enough that its list of ends stays small and uncompressed."""

_PLAIN = b"\x00"
_WITH_HEADER = b"\x01"
_LENGTH_BYTES = 4


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a message has beside its body."""

    group: str | None = msgspec.field(name="g", default=None)
    deduplication_id: str | None = msgspec.field(name="d", default=None)
    attributes: Mapping[str, Any] = msgspec.field(name="a", default={})
    origin: Origin | None = msgspec.field(name="from", default=None)


class Chunks(msgspec.Struct, kw_only=True):
    """Chunks of one queue as `bellringer.append` takes them, one per position of every list but `ends`."""

    counts: list[int] = []
    ends: list[int] = []
    payloads: list[bytes] = []
    delays: list[float] = []
    groups: list[str | None] = []
    deduplication_ids: list[str | None] = []


_NO_HEADER = Header()
_encode_header = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(Header).decode


def encode_frame(publication: Publication) -> bytes:
    """The frame of a message."""
    if publication.group is None and publication.deduplication_id is None and not publication.attributes:
        return _PLAIN + publication.body
    header = _encode_header(
        Header(
            group=publication.group,
            deduplication_id=publication.deduplication_id,
            attributes=dict(publication.attributes),
        )
    )
    return b"".join((_WITH_HEADER, len(header).to_bytes(_LENGTH_BYTES), header, publication.body))


def decode_frame(frame: bytes) -> tuple[Header, bytes]:
    """What `encode_frame` was given: the header and the body."""
    if frame[:1] == _PLAIN:
        return _NO_HEADER, frame[1:]
    body_from = 1 + _LENGTH_BYTES + int.from_bytes(frame[1 : 1 + _LENGTH_BYTES])
    return _decode_header(frame[1 + _LENGTH_BYTES : body_from]), frame[body_from:]


def pack(publications: Sequence[Publication]) -> Chunks:
    """Chunks of messages, in their order: runs of plain ones share chunks, any other has one of its own."""
    chunks = Chunks()
    run: list[bytes] = []
    for publication in publications:
        frame = encode_frame(publication)
        if publication.delay_seconds or publication.group is not None or publication.deduplication_id is not None:
            _close_run(chunks, run)
            _add(chunks, 1, frame, publication)
        else:
            run.append(frame)
            if len(run) == MESSAGES_PER_CHUNK:
                _close_run(chunks, run)
    _close_run(chunks, run)
    return chunks


def _close_run(chunks: Chunks, run: list[bytes]) -> None:
    if len(run) > 1:
        end = 0
        for frame in run:
            end += len(frame)
            chunks.ends.append(end)
    if run:
        _add(chunks, len(run), b"".join(run), None)
        run.clear()


def _add(chunks: Chunks, count: int, payload: bytes, single: Publication | None) -> None:
    chunks.counts.append(count)
    chunks.payloads.append(payload)
    chunks.delays.append((single.delay_seconds or 0.0) if single else 0.0)
    chunks.groups.append(single.group if single else None)
    chunks.deduplication_ids.append(single.deduplication_id if single else None)


def unpack(payload: bytes, ends_before: int, ends: Sequence[int] | None) -> list[bytes]:
    """The frames of a run of messages; `ends` are their ends in the chunk, of which the payload begins later."""
    if ends is None:
        return [payload]
    frames: list[bytes] = []
    start = 0
    for end in ends:
        frames.append(payload[start : end - ends_before])
        start = end - ends_before
    return frames
