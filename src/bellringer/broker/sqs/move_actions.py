"""The actions that move dead letters: start, list, cancel."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import msgspec

from bellringer.broker.model import MoveState, MoveTask, Queue
from bellringer.broker.moves import Moves
from bellringer.broker.service import Broker
from bellringer.broker.sqs.caller import Caller, find_queue
from bellringer.broker.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_NOT_FOUND,
    SqsError,
    invalid_value,
    missing_parameter,
)
from bellringer.broker.sqs.requests import CancelMessageMoveTask, ListMessageMoveTasks, StartMessageMoveTask
from bellringer.kernel.errors import Conflict, NotFound

_FASTEST_PER_SECOND = 500
_MOST_RESULTS = 10


class TaskHandle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a task handle says, in base64: the task and the queue that it moves messages out of."""

    task_id: UUID
    source_arn: str


class MoveActions:
    """The actions that move dead letters over one broker."""

    def __init__(self, broker: Broker, moves: Moves) -> None:
        self._broker = broker
        self._moves = moves

    async def start(self, caller: Caller, request: StartMessageMoveTask) -> dict[str, Any]:
        """StartMessageMoveTask."""
        speed = request.max_number_of_messages_per_second
        if speed is not None and not 1 <= speed <= _FASTEST_PER_SECOND:
            reason = f"You must enter a number that's between 1 and {_FASTEST_PER_SECOND}"
            raise invalid_value(speed, "MaxNumberOfMessagesPerSecond", reason)
        source = await self._queue(caller, request.source_arn, "SourceArn")
        if not await self._broker.list_sources(source):
            raise SqsError(INVALID_PARAMETER_VALUE, "Source queue must be configured as a Dead Letter Queue.")
        destination = None
        if request.destination_arn:
            destination = await self._queue(caller, request.destination_arn, "DestinationArn")
        try:
            task = await self._moves.start(source, destination, speed)
        except Conflict:
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                "There is already a task running. Only one active task is allowed for a source queue arn at a "
                "given time.",
            ) from None
        return {"TaskHandle": _handle(task, request.source_arn)}

    async def list(self, caller: Caller, request: ListMessageMoveTasks) -> dict[str, Any]:
        """ListMessageMoveTasks: the latest first."""
        most = 1 if request.max_results is None else request.max_results
        if not 1 <= most <= _MOST_RESULTS:
            reason = f"You must enter a number that's between 1 and {_MOST_RESULTS}"
            raise invalid_value(most, "MaxResults", reason)
        source = await self._queue(caller, request.source_arn, "SourceArn")
        tasks = await self._moves.list(source, most)
        names = {queue.id: queue.name for queue in await self._broker.list_queues([caller.access.environment.id])}
        return {"Results": [_described(task, caller, source, names) for task in tasks]}

    async def cancel(self, caller: Caller, request: CancelMessageMoveTask) -> dict[str, Any]:
        """CancelMessageMoveTask."""
        handle = _read_handle(request.task_handle)
        source = await self._queue(caller, handle.source_arn, "SourceArn")
        tasks = await self._moves.list(source, _MOST_RESULTS)
        if not any(task.id == handle.task_id and task.state == MoveState.RUNNING for task in tasks):
            raise _no_such_task()
        try:
            task = await self._moves.cancel(handle.task_id)
        except (NotFound, Conflict):  # it ended just now
            raise _no_such_task() from None
        return {"ApproximateNumberOfMessagesMoved": task.moved}

    async def _queue(self, caller: Caller, arn: str, parameter: str) -> Queue:
        if not arn:
            raise missing_parameter(parameter)
        queue = await find_queue(self._broker, caller, caller.names.queue_of_arn(arn, parameter))
        if queue is None:
            raise SqsError(
                RESOURCE_NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
            )
        return queue


def _described(task: MoveTask, caller: Caller, source: Queue, names: dict[UUID, str]) -> dict[str, Any]:
    source_arn = caller.names.arn(source.name)
    destination = None if task.destination_id is None else names.get(task.destination_id)
    described = {
        "TaskHandle": _handle(task, source_arn) if task.state == MoveState.RUNNING else None,
        "Status": task.state.upper(),
        "SourceArn": source_arn,
        "DestinationArn": destination and caller.names.arn(destination),
        "MaxNumberOfMessagesPerSecond": task.max_per_second,
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "FailureReason": task.failure,
        "StartedTimestamp": int(task.started_at.timestamp() * 1000),
    }
    return {name: value for name, value in described.items() if value is not None}


def _handle(task: MoveTask, source_arn: str) -> str:
    handle = TaskHandle(task_id=task.id, source_arn=source_arn)
    return base64.b64encode(msgspec.json.encode(handle)).decode()


def _read_handle(text: str) -> TaskHandle:
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True), type=TaskHandle)
    except (ValueError, msgspec.MsgspecError):
        raise SqsError(INVALID_PARAMETER_VALUE, "Value for parameter TaskHandle is invalid.") from None


def _no_such_task() -> SqsError:
    return SqsError(RESOURCE_NOT_FOUND, "Task does not exist.")
