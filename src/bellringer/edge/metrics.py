"""Metrics of the edge."""

from __future__ import annotations

from prometheus_client import Counter

REQUESTS = Counter("bellringer_http_requests_total", "HTTP requests", ["method", "path", "status"])
RATE_LIMITED = Counter(
    "bellringer_http_rate_limited_total", "Requests refused because their API key was over its limit", ["key"]
)
