"""Metrics of the SQS protocol."""

from __future__ import annotations

from functools import cache

from prometheus_client import Counter

_REQUESTS = Counter("bellringer_sqs_requests_total", "Requests in the protocol of Amazon SQS", ["action", "code"])


@cache
def request_counter(action: str, code: str) -> Counter:
    """Counts requests of an action that came to a code: `OK`, or that of an error."""
    return _REQUESTS.labels(action=action, code=code)
