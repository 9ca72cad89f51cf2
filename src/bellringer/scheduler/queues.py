"""The queues between dispatchers and executors. They belong to no environment: no API key opens them."""

from __future__ import annotations

from uuid import UUID

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, Queue
from bellringer.scheduler.model import Call, FunctionCall

CALLS_QUEUE = "scheduler.calls"


async def calls_queue(broker: Broker) -> Queue:
    """The queue of the calls that every executor can run."""
    return await broker.ensure_queue(SYSTEM_ENVIRONMENT, CALLS_QUEUE)


async def functions_queue(broker: Broker, environment_id: UUID) -> Queue:
    """The queue of the calls of an environment's functions, for the executors that have them."""
    return await broker.ensure_queue(SYSTEM_ENVIRONMENT, f"scheduler.functions.{environment_id}")


async def queue_of(broker: Broker, environment_id: UUID, call: Call) -> Queue:
    """Where the occurrences of a task go."""
    if isinstance(call, FunctionCall):
        return await functions_queue(broker, environment_id)
    return await calls_queue(broker)


async def executed_queues(broker: Broker, environment_id: UUID | None) -> list[Queue]:
    """What an executor works on: calls, and those of the functions of an environment if it has them."""
    queues = [await calls_queue(broker)]
    if environment_id is not None:
        queues.append(await functions_queue(broker, environment_id))
    return queues
