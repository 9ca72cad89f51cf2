"""Faults to seed into the history of a correct queue: each returns it as a broker with that fault could have left it.

Each takes a history and a source of choices, and raises `NotApplicable` where the history has no place for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
from tests.support.history.events import (
    AcknowledgeBegun,
    Answered,
    Claimed,
    Delivered,
    HoldBegun,
    PublishBegun,
    Published,
    Refused,
)
from tests.support.history.reference import QUEUE
from tests.support.history.story import NotApplicable, Story, Taken, changed
from tests.support.history.violations import Kind


def _lose_what_was_delivered(story: Story) -> None:
    key = story.choose(taken.delivered.key for taken in story.taken)
    if math.isinf(story.sent[key].stored_at):
        raise NotApplicable
    story.rewrite(lambda delivered: [delivered] * (delivered.key != key))
    story.replace(story.end, msgspec.structs.replace(story.end, remaining=[k for k in story.end.remaining if k != key]))


def _lose_what_remains(story: Story) -> None:
    keys = {taken.delivered.key for taken in story.taken if taken.finished}
    key = story.choose(
        key for key in story.end.remaining if key not in keys and not math.isinf(story.sent[key].stored_at)
    )
    story.replace(story.end, msgspec.structs.replace(story.end, remaining=[k for k in story.end.remaining if k != key]))
    unknown = [taken.delivered.handle for taken in story.taken if taken.delivered.key == key]
    story.events = [
        event
        for event in story.events
        if not isinstance(event, AcknowledgeBegun | Answered) or not _names(story, event, unknown)
    ]


def _names(story: Story, event: AcknowledgeBegun | Answered, handles: Sequence[str]) -> bool:
    return any(
        isinstance(other, AcknowledgeBegun) and other.operation == event.operation and set(other.handles) & set(handles)
        for other in story.events
    )


def _deliver_what_is_finished(story: Story) -> None:
    taken = story.choose(taken for taken in story.taken if taken.is_finished)
    done_at = min(answer.at for _, answer, held in taken.finished if held)
    again = changed(taken.delivered, handle="again", attempts=taken.delivered.attempts + 1)
    story.deliver(again, done_at + 0.1, done_at + 1)


def _keep_what_is_finished(story: Story) -> None:
    taken = story.choose(taken for taken in story.taken if taken.is_finished)
    remaining = [*story.end.remaining, taken.delivered.key]
    story.replace(story.end, msgspec.structs.replace(story.end, remaining=remaining))


def _finish_with_a_stale_handle(story: Story) -> None:
    taken, after = story.choose(story.pairs())
    story.finish(taken.delivered.handle, after.answer.at + 0.1)


def _hold_on_with_a_stale_handle(story: Story) -> None:
    taken, after = story.choose(story.pairs())
    hold = HoldBegun(
        at=after.answer.at + 0.1, operation="fault/hold", queue=QUEUE, handles=[taken.delivered.handle], seconds=1
    )
    story.events[:0] = [hold, Answered(at=hold.at + 1, operation="fault/hold", held=[True])]


def _finish_with_an_invented_handle(story: Story) -> None:
    story.finish("invented", 200)


def _refuse_the_owner(story: Story) -> None:
    def refusable() -> Iterator[tuple[Taken, Answered, int]]:
        for taken in story.taken:
            for begun, answer, held in taken.finished:
                if held and not taken.is_held_on and answer.at < taken.held_until - 0.1:
                    yield taken, answer, begun.handles.index(taken.delivered.handle)

    _, answer, index = story.choose(refusable())
    held = [*answer.held[:index], False, *answer.held[index + 1 :]]
    story.replace(answer, msgspec.structs.replace(answer, held=held))


def _deliver_to_a_second_owner(story: Story) -> None:
    taken = story.choose(
        taken for taken in story.last_deliveries() if not taken.is_held_on and taken.answer.at < taken.held_until - 0.5
    )
    again = changed(taken.delivered, handle="again", attempts=taken.delivered.attempts + 1)
    story.deliver(again, taken.answer.at + 0.1, taken.held_until - 0.1)


def _deliver_in_one_claim_and_another(story: Story) -> None:
    """Two claims that overlap take the same message."""
    taken = story.choose(taken for taken in story.last_deliveries() if not taken.is_held_on)
    again = changed(taken.delivered, handle="again", attempts=taken.delivered.attempts + 1)
    if taken.answer.at > taken.held_until - 0.1:
        raise NotApplicable
    story.deliver(again, taken.begun.at, taken.answer.at)


def _count_an_attempt_twice(story: Story) -> None:
    taken, after = story.choose(story.pairs())
    wrong = changed(after.delivered, attempts=taken.delivered.attempts)
    story.rewrite(lambda delivered: [wrong if delivered == after.delivered else delivered])


def _count_attempts_down(story: Story) -> None:
    taken, after = story.choose((one, other) for one, other in story.pairs() if one.answer.at < other.begun.at)
    attempts = {taken.delivered.handle: after.delivered.attempts, after.delivered.handle: taken.delivered.attempts}
    story.rewrite(lambda found: [changed(found, attempts=attempts.get(found.handle, found.attempts))])


def _give_two_deliveries_one_handle(story: Story) -> None:
    taken = story.choose(iter(story.taken))
    other = story.choose(other for other in story.taken if other != taken)
    wrong = changed(other.delivered, handle=taken.delivered.handle)
    story.rewrite(lambda delivered: [wrong if delivered == other.delivered else delivered])


def _deliver_what_nobody_sent(story: Story) -> None:
    story.deliver(Delivered(key="invented", id=10**6, handle="invented", attempts=1), 100, 200)


def _deliver_what_was_refused(story: Story) -> None:
    taken = story.choose(iter(story.taken))
    operation = story.sent[taken.delivered.key].begun.operation
    story.events = [
        event for event in story.events if not (isinstance(event, Published) and event.operation == operation)
    ]
    story.events.insert(-1, Refused(at=story.end.at, operation=operation, reason="too much"))


def _deliver_before_it_is_sent(story: Story) -> None:
    sent = story.sent[story.choose(iter(story.taken)).delivered.key]
    late = {PublishBegun: story.end.at - 1, Published: story.end.at}
    story.events = [
        msgspec.structs.replace(event, at=late[type(event)])
        if isinstance(event, PublishBegun | Published) and event.operation == sent.begun.operation
        else event
        for event in story.events
    ]


def _deliver_before_the_delay_is_over(story: Story) -> None:
    taken = story.choose(taken for taken in story.taken if taken.delivered.attempts == 1)
    sent = story.sent[taken.delivered.key]
    delay_seconds = taken.answer.at - sent.begun.at + 0.1
    messages = [
        msgspec.structs.replace(message, delay_seconds=delay_seconds) if message == sent.message else message
        for message in sent.begun.messages
    ]
    story.replace(sent.begun, msgspec.structs.replace(sent.begun, messages=messages))


def _deliver_to_another_group(story: Story) -> None:
    wrong = story.choose(iter(story.taken)).delivered
    story.rewrite(lambda found: [changed(found, group="another") if found == wrong else found])


def _store_one_twice(story: Story) -> None:
    taken = story.choose(taken for taken in story.taken if not math.isinf(story.sent[taken.delivered.key].stored_at))
    copy = changed(taken.delivered, id=10**6, handle="copy", attempts=1)
    story.deliver(copy, story.end.at - 2, story.end.at - 1)


def _give_two_one_id(story: Story) -> None:
    one = story.choose(iter(story.taken)).delivered
    other = story.choose(taken.delivered for taken in story.taken if taken.delivered.id != one.id)
    story.renumber({one.id: other.id})


def _number_against_time(story: Story) -> None:
    one = story.choose(iter(story.taken))
    stored_at = story.sent[one.delivered.key].stored_at
    other = story.choose(other for other in story.taken if stored_at < story.sent[other.delivered.key].begun.at)
    story.renumber({one.delivered.id: other.delivered.id, other.delivered.id: one.delivered.id})


def _overtake_in_a_group(story: Story) -> None:
    first = {taken.delivered.key: taken for taken in reversed(story.taken)}.values()
    one, other = story.choose(
        (one, other)
        for one in first
        for other in first
        if one.delivered.group == other.delivered.group is not None
        and one.delivered.id < other.delivered.id
        and one.answer.at < other.answer.at
    )
    story.renumber({one.delivered.id: other.delivered.id, other.delivered.id: one.delivered.id})


def _answer_a_group_backwards(story: Story) -> None:
    def backwards() -> Iterator[tuple[Claimed, list[Delivered]]]:
        for event in story.events:
            if isinstance(event, Claimed):
                for one, other in zip(event.messages, event.messages[1:], strict=False):
                    if one.group == other.group is not None:
                        exchanged = {one.key: other, other.key: one}
                        yield event, [exchanged.get(found.key, found) for found in event.messages]

    answer, messages = story.choose(backwards())
    story.replace(answer, msgspec.structs.replace(answer, messages=messages))


def _overtake_in_a_queue(story: Story) -> None:
    first = [taken for taken in story.taken if taken.delivered.attempts == 1]
    one, other = story.choose(
        (one, other)
        for one in first
        for other in first
        if one.answer.at < other.begun.at
        and one.delivered.id < other.delivered.id
        and story.sent[other.delivered.key].stored_at < one.begun.at
        and not story.sent[one.delivered.key].message.delay_seconds
        and not story.sent[other.delivered.key].message.delay_seconds
    )
    story.renumber({one.delivered.id: other.delivered.id, other.delivered.id: one.delivered.id})


Fault = Callable[[Story], None]
FAULTS: dict[Kind, tuple[Fault, ...]] = {
    Kind.LOST: (_lose_what_was_delivered, _lose_what_remains),
    Kind.PHANTOM: (
        _deliver_what_nobody_sent,
        _deliver_what_was_refused,
        _deliver_before_it_is_sent,
        _deliver_to_another_group,
    ),
    Kind.TWICE: (_store_one_twice, _give_two_one_id),
    Kind.EARLY: (_deliver_before_the_delay_is_over,),
    Kind.AFTER_ACKNOWLEDGEMENT: (_deliver_what_is_finished, _keep_what_is_finished),
    Kind.STALE_HANDLE: (
        _finish_with_a_stale_handle,
        _hold_on_with_a_stale_handle,
        _finish_with_an_invented_handle,
    ),
    Kind.HELD_HANDLE_REFUSED: (_refuse_the_owner,),
    Kind.TWO_OWNERS: (_deliver_to_a_second_owner, _deliver_in_one_claim_and_another),
    Kind.ATTEMPTS: (_count_an_attempt_twice, _count_attempts_down),
    Kind.HANDLES: (_give_two_deliveries_one_handle,),
    Kind.NUMBERING: (_number_against_time,),
    Kind.GROUP_ORDER: (_overtake_in_a_group, _answer_a_group_backwards),
    Kind.QUEUE_ORDER: (_overtake_in_a_queue,),
}
"""Per promise the faults that break it."""
