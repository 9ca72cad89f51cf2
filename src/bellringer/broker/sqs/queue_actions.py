"""The actions on queues: make, find, list, show, change, tag, empty, delete."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from bellringer.broker.model import Queue, QueueSettings
from bellringer.broker.service import Broker
from bellringer.broker.sqs import queue_attributes
from bellringer.broker.sqs.caller import Caller, find_queue, queue_at, read_queue_at
from bellringer.broker.sqs.errors import (
    QUEUE_ALREADY_EXISTS,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid_value,
    non_existent_queue,
)
from bellringer.broker.sqs.names import FIFO_SUFFIX, INVALID_CHARACTERS, check_new_queue_name
from bellringer.broker.sqs.requests import (
    CreateQueue,
    GetQueueAttributes,
    GetQueueUrl,
    ListDeadLetterSourceQueues,
    ListQueues,
    QueueRequest,
    SetQueueAttributes,
    TagQueue,
    Unsupported,
    UntagQueue,
)
from bellringer.kernel.errors import Conflict

_MOST_RESULTS = 1000
_MOST_TAGS = 50


class QueueActions:
    """The actions on queues over one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, caller: Caller, request: CreateQueue) -> dict[str, Any]:
        """CreateQueue: a queue that exists is answered as it is, unless an attribute that is given differs."""
        name, attributes = request.queue_name, request.attributes or {}
        check_new_queue_name(name)
        settings = queue_attributes.new_settings(attributes, request.tags or {}, caller.names)
        if settings.fifo != name.endswith(FIFO_SUFFIX):
            reason = "The name of a FIFO queue, and no other, ends with the .fifo suffix"
            raise invalid_value(name, "QueueName", reason)
        _check_tags(settings.tags)
        found = await find_queue(self._broker, caller, name)
        if found is None:
            await self._check_dead_letter_queue(caller, name, settings)
            try:
                await self._broker.create_queue(caller.access.environment.id, name, settings)
            except Conflict:  # somebody else was faster
                found = await find_queue(self._broker, caller, name)
        if found is not None:
            difference = queue_attributes.first_difference(found.settings, attributes, caller.names)
            if difference is not None:
                raise SqsError(
                    QUEUE_ALREADY_EXISTS,
                    "A queue already exists with the same name and a different value for attribute " + difference,
                )
        return {"QueueUrl": caller.names.url(name)}

    async def get_url(self, caller: Caller, request: GetQueueUrl) -> dict[str, Any]:
        """GetQueueUrl."""
        owner = request.owner or caller.names.account
        queue = await find_queue(self._broker, caller, request.queue_name)
        if queue is None or owner != caller.names.account:
            raise non_existent_queue()
        return {"QueueUrl": caller.names.url(queue.name)}

    async def list(self, caller: Caller, request: ListQueues) -> dict[str, Any]:
        """ListQueues."""
        queues = await self._broker.list_queues([caller.access.environment.id])
        wanted = [queue.name for queue in queues if queue.name.startswith(request.queue_name_prefix or "")]
        names, token = _page(wanted, request.next_token, request.max_results)
        urls = {"QueueUrls": [caller.names.url(name) for name in names]} if names else {}
        return urls | token

    async def list_dead_letter_sources(self, caller: Caller, request: ListDeadLetterSourceQueues) -> dict[str, Any]:
        """ListDeadLetterSourceQueues."""
        target = await queue_at(self._broker, caller, request.queue_url)
        sources = await self._broker.list_sources(target)
        names, token = _page([source.name for source in sources], request.next_token, request.max_results)
        return {"queueUrls": [caller.names.url(name) for name in names]} | token

    async def delete(self, caller: Caller, request: QueueRequest) -> dict[str, Any]:
        """DeleteQueue."""
        await self._broker.delete_queue(await read_queue_at(self._broker, caller, request.queue_url))
        return {}

    async def purge(self, caller: Caller, request: QueueRequest) -> dict[str, Any]:
        """PurgeQueue: done when it is answered, so there is never one in progress."""
        await self._broker.purge_queue(await queue_at(self._broker, caller, request.queue_url))
        return {}

    async def get_attributes(self, caller: Caller, request: GetQueueAttributes) -> dict[str, Any]:
        """GetQueueAttributes."""
        wanted = set(request.attribute_names or ())
        queue_attributes.check_attribute_names(wanted)
        queue = await read_queue_at(self._broker, caller, request.queue_url)
        if not wanted:
            return {}
        counts = None
        if "All" in wanted or not wanted.isdisjoint(queue_attributes.COUNTED):
            counts = (await self._broker.counts([queue])).get(queue.id)
        described = queue_attributes.describe(queue, counts, caller.names)
        found = {name: value for name, value in described.items() if "All" in wanted or name in wanted}
        return {"Attributes": found} if found else {}

    async def set_attributes(self, caller: Caller, request: SetQueueAttributes) -> dict[str, Any]:
        """SetQueueAttributes."""
        queue = await read_queue_at(self._broker, caller, request.queue_url)
        settings = queue_attributes.changed_settings(queue.settings, request.attributes, caller.names)
        await self._check_dead_letter_queue(caller, queue.name, settings)
        return await self._configure(queue, settings)

    async def tag(self, caller: Caller, request: TagQueue) -> dict[str, Any]:
        """TagQueue."""
        queue = await read_queue_at(self._broker, caller, request.queue_url)
        tags = {**queue.settings.tags, **request.tags}
        _check_tags(tags)
        return await self._configure(queue, msgspec.structs.replace(queue.settings, tags=tags))

    async def untag(self, caller: Caller, request: UntagQueue) -> dict[str, Any]:
        """UntagQueue: a tag that is not there is no error."""
        queue = await read_queue_at(self._broker, caller, request.queue_url)
        tags = {key: value for key, value in queue.settings.tags.items() if key not in request.tag_keys}
        return await self._configure(queue, msgspec.structs.replace(queue.settings, tags=tags))

    async def list_tags(self, caller: Caller, request: QueueRequest) -> dict[str, Any]:
        """ListQueueTags."""
        queue = await read_queue_at(self._broker, caller, request.queue_url)
        return {"Tags": queue.settings.tags} if queue.settings.tags else {}

    async def refuse(self, _caller: Caller, _request: Unsupported) -> dict[str, Any]:
        """An action that is not supported."""
        raise SqsError(UNSUPPORTED_OPERATION, "Permissions are those of API keys here, not of queues.")

    async def _configure(self, queue: Queue, settings: QueueSettings) -> dict[str, Any]:
        if settings != queue.settings:
            await self._broker.configure_queue(queue.environment_id, queue.name, settings)
        return {}

    async def _check_dead_letter_queue(self, caller: Caller, source: str, settings: QueueSettings) -> None:
        """Raise `SqsError` unless the dead letter queue exists, is of the same kind and takes letters of the source."""
        name = settings.dead_letter_queue
        if name is None:
            return
        arn = caller.names.arn(name)
        target = await find_queue(self._broker, caller, name)
        if target is None:
            raise invalid_value(arn, "RedrivePolicy", "Dead letter target does not exist")
        if target.settings.fifo != settings.fifo:
            raise invalid_value(arn, "RedrivePolicy", "Dead-letter queue must be same type of queue as the source")
        if not queue_attributes.allows_source(target.settings, caller.names.arn(source)):
            raise invalid_value(arn, "RedrivePolicy", "The dead-letter queue does not allow this source queue")


def _page(names: Sequence[str], token: str | None, most: int | None) -> tuple[Sequence[str], dict[str, str]]:
    """The names after the token, as many as are asked for, and the token for the next ones if there are any.

    Without a number the first thousand, and no token: so it is at the service.
    """
    if most is not None and not 1 <= most <= _MOST_RESULTS:
        raise invalid_value(most, "MaxResults", f"MaxResults must be an integer between 1 and {_MOST_RESULTS}")
    after = _name_in(token) if token else ""
    rest = sorted(name for name in names if name > after)
    page = rest[: most or _MOST_RESULTS]
    if most is None or len(rest) <= most:
        return page, {}
    return page, {"NextToken": base64.urlsafe_b64encode(page[-1].encode()).decode()}


def _name_in(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:  # no base64, or no UTF-8 in it
        raise invalid_value(token, "NextToken", "Invalid or expired next token") from None


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > _MOST_TAGS:
        raise invalid_value(len(tags), "Tags", f"Too many tags, a queue has at most {_MOST_TAGS}")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256 or INVALID_CHARACTERS.search(key + value):
            raise invalid_value(key, "Tags", "A tag has a key of 1 to 128 and a value of up to 256 characters")
