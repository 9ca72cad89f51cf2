"""Queue metrics, read when they are asked for; none of them is the result of a scan."""

from __future__ import annotations

from prometheus_client import Gauge

from bellringer.broker.service import Broker

_LABELS = ["environment", "queue"]
_MESSAGES = Gauge("bellringer_queue_messages", "Messages by state", [*_LABELS, "state"])
_EVENTS = Gauge("bellringer_queue_events_total", "What happened to messages so far", [*_LABELS, "event"])
_STUCK = Gauge("bellringer_queue_stuck_messages", "Messages held for over five minutes", _LABELS)
_OLDEST = Gauge("bellringer_queue_oldest_pending_age_seconds", "Age of the oldest message that waits", _LABELS)
_RATE = Gauge("bellringer_queue_published_per_minute", "Messages published in the last minute", _LABELS)
_TO_DELETION = Gauge(
    "bellringer_queue_seconds_to_deletion", "Average time from claim to end of the claims that ended last", _LABELS
)
_PAUSED = Gauge("bellringer_queue_paused", "Whether claims get nothing", _LABELS)
_ALL = (_MESSAGES, _EVENTS, _STUCK, _OLDEST, _RATE, _TO_DELETION, _PAUSED)

_STATES = ("pending", "in_flight", "delayed")
_COUNTED_EVENTS = ("published", "deleted", "redelivered", "dead_lettered", "expired", "purged")


async def refresh_queue_metrics(broker: Broker) -> None:
    """Set the gauges of every queue; those of deleted ones go."""
    queues = await broker.list_queues()
    counts = await broker.counts(queues)
    for gauge in _ALL:
        gauge.clear()
    for queue in queues:
        count = counts.get(queue.id)
        if count is None:
            continue
        labels = (str(queue.environment_id), queue.name)
        for state in _STATES:
            _MESSAGES.labels(*labels, state).set(getattr(count, state))
        for event in _COUNTED_EVENTS:
            _EVENTS.labels(*labels, event).set(getattr(count, event))
        _STUCK.labels(*labels).set(count.stuck)
        _OLDEST.labels(*labels).set(count.oldest_pending_age_seconds)
        _RATE.labels(*labels).set(count.published_per_minute)
        _TO_DELETION.labels(*labels).set(count.seconds_to_deletion)
        _PAUSED.labels(*labels).set(queue.paused)
