"""Queue metrics, read from the tallies when they are asked for."""

from __future__ import annotations

from prometheus_client import Gauge

from bellringer.broker.service import Broker

_MESSAGES = Gauge("bellringer_queue_messages", "Messages by state", ["environment", "queue", "state"])
_STUCK = Gauge("bellringer_queue_stuck_messages", "Messages held for over five minutes", ["environment", "queue"])
_OLDEST = Gauge(
    "bellringer_queue_oldest_pending_age_seconds", "Age of the oldest message that waits", ["environment", "queue"]
)


async def refresh_queue_metrics(broker: Broker) -> None:
    """Set the gauges of every queue."""
    queues = await broker.list_queues()
    counts = await broker.counts(queues)
    for queue in queues:
        labels = (str(queue.environment_id), queue.name)
        count = counts[queue.id]
        _MESSAGES.labels(*labels, "pending").set(count.pending)
        _MESSAGES.labels(*labels, "in_flight").set(count.in_flight)
        _MESSAGES.labels(*labels, "delayed").set(count.delayed)
        _STUCK.labels(*labels).set(count.stuck)
        _OLDEST.labels(*labels).set(count.oldest_pending_age_seconds)
