"""The messages of one queue beside each other: the order of their ids, and of their deliveries.

Each rule is one pass over the messages or the claims, and a message that breaks it is told once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter

from tests.support.history.messages import Delivery, Message
from tests.support.history.operations import Claim
from tests.support.history.violations import Kind, Violation


def judge_ids(queue: str, messages: Sequence[Message]) -> Iterator[Violation]:
    """A message that was sent after another was stored has the higher id. `messages` are in the order of their ids."""
    latest: Message | None = None  # of those with lower ids, the one that was sent last
    before: Message | None = None
    for message in messages:
        if message.publish is None:
            continue
        if before is not None and before.id == message.id:
            yield _violation(Kind.TWICE, queue, message, f"has the id of {before.key}", before)
        if latest is not None and latest.publish is not None and message.publish.answered_at < latest.publish.begun_at:
            yield _violation(Kind.NUMBERING, queue, message, f"was stored before {latest.key} was sent", latest)
        if latest is None or latest.publish is None or message.publish.begun_at > latest.publish.begun_at:
            latest = message
        before = message


def judge_groups(queue: str, messages: Sequence[Message]) -> Iterator[Violation]:
    """While a message is unfinished, no later one of its group is delivered, unless both are in one answer, in order.

    `messages` are in the order of their ids, those of every group.
    """
    groups = defaultdict[str | None, list[Message]](list)
    for message in messages:
        groups[message.sent.group].append(message)
    for group in groups.values():
        yield from _judge_group(queue, group)


def _judge_group(queue: str, group: Sequence[Message]) -> Iterator[Violation]:
    # The last finished of all messages up to each, by its position.
    last_finished: list[int] = []
    for position, message in enumerate(group):
        is_last = not last_finished or message.finished_at > group[last_finished[-1]].finished_at
        last_finished.append(position if is_last else last_finished[-1])
    answers = defaultdict[int, list[tuple[int, Delivery]]](list)
    for position, message in enumerate(group):
        for delivery in message.deliveries:
            answers[id(delivery.claim)].append((position, delivery))
    told = set[int]()
    for together in answers.values():
        first, (last, delivery) = together[0][0], together[-1]
        others = {position for position, _ in together}
        earlier = [last_finished[first - 1]] if first else []
        earlier += [position for position in range(first, last) if position not in others]
        for position in earlier:
            if group[position].finished_at > delivery.claim.answered_at and position not in told:
                told.add(position)
                sentence = f"of the same group was unfinished when {group[last].key} was delivered"
                yield _violation(Kind.GROUP_ORDER, queue, group[position], sentence, group[last])


def judge_answers(queue: str, claims: Sequence[Claim], messages: dict[str, Message]) -> Iterator[Violation]:
    """One answer has the messages of a group in the order of their ids."""
    for claim in claims:
        last: dict[str | None, int] = {}
        for found in claim.delivered:
            if found.id < last.get(found.group, found.id):
                sentence = "comes after a later one of its group in one answer"
                yield _violation(Kind.GROUP_ORDER, queue, messages[found.key], sentence)
            last[found.group] = found.id


def judge_queue(queue: str, claims: Sequence[Claim], messages: dict[str, Message]) -> Iterator[Violation]:
    """Where claims never overlap, and each was answered, messages come for the first time in the order of their ids.

    One that was not surely stored when a younger one was taken may come after it; delayed ones may come at any place.
    """
    claims = sorted(claims, key=attrgetter("begun_at"))
    if any(claim.answered_at >= after.begun_at for claim, after in pairwise(claims)):
        return
    # Claims so far that no later one has outdone, the highest id first: it falls, as their times rise.
    outstanding: list[tuple[int, Claim]] = []
    for claim in claims:
        first_time = [
            found for found in claim.delivered if found.attempts == 1 and not messages[found.key].sent.delay_seconds
        ]
        last = 0
        for found in first_time:
            message = messages[found.key]
            if found.id < last:
                yield _violation(Kind.QUEUE_ORDER, queue, message, "comes after a later one in one answer")
            last = found.id
            # The last claim of a higher id: ids fall along the list.
            index = bisect_left(outstanding, -found.id, key=_negative_id) - 1
            if index < 0 or message.publish is None:
                continue
            younger, taken_by = outstanding[index]
            if message.publish.answered_at < taken_by.begun_at and message.publish.was_stored:
                other = next(each for each in taken_by.delivered if each.id == younger)
                sentence = f"was there, and {other.key} was taken before it"
                yield _violation(Kind.QUEUE_ORDER, queue, message, sentence, messages[other.key])
        if first_time:
            highest = max(found.id for found in first_time)
            while outstanding and outstanding[-1][0] <= highest:
                outstanding.pop()
            outstanding.append((highest, claim))


def _violation(kind: Kind, queue: str, message: Message, sentence: str, other: Message | None = None) -> Violation:
    facts = tuple(
        fact
        for one in (message, other)
        if one is not None
        for fact in one.facts() + tuple(fact for delivery in one.deliveries for fact in delivery.facts())
    )
    return Violation(kind=kind, queue=queue, message=message.key, sentence=sentence, facts=facts)


def _negative_id(entry: tuple[int, Claim]) -> int:
    return -entry[0]
