from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bellringer.broker.frames import MESSAGES_PER_CHUNK, Header, decode_frame, encode_frame, pack, unpack
from bellringer.broker.model import MessageId, Origin, Publication
from bellringer.kernel.database import Database

KEYS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=128)
ATTRIBUTES = st.dictionaries(
    st.text(st.characters(codec="utf-8")),
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")),
    max_size=4,
)
PUBLICATIONS = st.builds(
    Publication,
    body=st.binary(max_size=300),
    delay_seconds=st.sampled_from([None, 0.0, 1.0]),
    group=KEYS,
    deduplication_id=KEYS,
    attributes=st.just({}) | ATTRIBUTES,
)


@given(PUBLICATIONS)
def test_a_message_comes_out_of_its_frame_as_it_went_in(publication: Publication) -> None:
    header, body = decode_frame(encode_frame(publication))
    assert body == publication.body
    assert (header.group, header.deduplication_id) == (publication.group, publication.deduplication_id)
    assert header.attributes == publication.attributes
    assert header.origin is None


@given(st.lists(PUBLICATIONS | st.builds(Publication, body=st.binary(max_size=9)), max_size=30))
def test_packed_messages_come_out_in_their_order(publications: list[Publication]) -> None:
    chunks = pack(publications)
    ends = iter(chunks.ends)
    frames = []
    for count, payload in zip(chunks.counts, chunks.payloads, strict=True):
        frames += unpack(payload, 0, [next(ends) for _ in range(count)] if count > 1 else None)
    assert list(ends) == []
    assert frames == [encode_frame(publication) for publication in publications]


def test_plain_messages_share_chunks_and_any_other_stands_alone() -> None:
    plain = Publication(body=b"x")
    chunks = pack([plain] * (MESSAGES_PER_CHUNK + 1))
    assert chunks.counts == [MESSAGES_PER_CHUNK, 1]
    for other in (
        Publication(body=b"x", delay_seconds=1),
        Publication(body=b"x", group="g"),
        Publication(body=b"x", deduplication_id="d"),
    ):
        assert pack([plain, plain, other, plain]).counts == [2, 1, 1]
    assert pack([plain, Publication(body=b"x", attributes={"a": 1}), plain]).counts == [3]
    assert pack([]).counts == []


@given(st.lists(st.binary(max_size=9), min_size=2, max_size=9), st.data())
def test_a_part_of_a_chunk_is_read_alone(bodies: list[bytes], data: st.DataObject) -> None:
    chunks = pack([Publication(body=body) for body in bodies])
    (payload,) = chunks.payloads
    first = data.draw(st.integers(0, len(bodies) - 1))
    last = data.draw(st.integers(first, len(bodies) - 1))
    before = chunks.ends[first - 1] if first else 0
    part = payload[before : chunks.ends[last]]
    frames = unpack(part, before, chunks.ends[first : last + 1] if last > first else None)
    assert [decode_frame(frame)[1] for frame in frames] == bodies[first : last + 1]


async def test_the_database_adds_to_a_header_and_keeps_the_rest(database: Database) -> None:
    origin = Origin(queue="orders", queue_id=UUID(int=7), id=MessageId(42), attempts=3)
    addition = (
        '{"from": {"queue": "orders", "queue_id": "00000000-0000-0000-0000-000000000007", "id": 42, "attempts": 3}}'
    )
    async with database.connection() as connection:
        for publication in (
            Publication(body=b""),
            Publication(body=b"\x00\xff" * 70_000),
            Publication(body=b"x", group="grüße", deduplication_id="d", attributes={"zero": "\x00", "list": [1, None]}),
        ):
            frame = encode_frame(publication)
            for _ in range(2):  # a dead letter of a dead letter queue is of its last queue
                frame = await connection.fetchval(
                    "SELECT bellringer.add_to_header($1, $2::text::jsonb)", frame, addition
                )
            header, body = decode_frame(frame)
            assert body == publication.body
            assert header == Header(
                group=publication.group,
                deduplication_id=publication.deduplication_id,
                attributes=publication.attributes,
                origin=origin,
            )
