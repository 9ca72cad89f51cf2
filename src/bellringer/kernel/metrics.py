"""Prometheus metrics of the kernel. Each subsystem keeps its own beside its code; all share the default registry."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

BATCH_ITEMS = Histogram(
    "bellringer_batch_items",
    "Items that shared one write",
    ["batcher"],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000),
)
LOOP_FAILURES = Counter("bellringer_loop_failures_total", "Rounds of a background loop that raised an error", ["loop"])
