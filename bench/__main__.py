"""Run every benchmark in turn: `python -m bench`."""

from bench import (
    accept_events,
    digest_emails,
    queue_depth,
    queue_http_publish,
    queue_kinds,
    queue_pinned_snapshot,
    queue_throughput,
    scheduler_depth,
    scheduler_picks,
    scheduler_scaling,
    scheduler_schedules,
    scheduler_starts,
    start,
)

if __name__ == "__main__":
    for benchmark in (
        start,
        accept_events,
        digest_emails,
        queue_throughput,
        queue_http_publish,
        queue_pinned_snapshot,
        queue_depth,
        queue_kinds,
        scheduler_starts,
        scheduler_picks,
        scheduler_depth,
        scheduler_scaling,
        scheduler_schedules,
    ):
        benchmark.main()
