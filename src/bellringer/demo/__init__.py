"""The demo of `bellringer up --demo`: one bad night at a data platform, once through the public HTTP API.

`task_events.jsonl` holds 268 events of our own making, 45 minutes of 17 November 2026 on which people of two
organisations subscribed: the nightly loads run; at 02:13 the warehouse's credential expires and 150 tasks fail within
minutes; their retries fail; it is renewed and the pipelines recover. `bellringer.demo.run` replays them in 9 seconds
with digests of 2, which do to this night what digests of 10 minutes do to a real one.

The events come in four waves, each shorter than a digest and followed by a pause, so that each wave is one digest and
the sum is the same at every start: 268 events -> 1,042 notifications -> 37 emails. On a machine that cannot keep the
pace waves share digests, and the emails are fewer.
"""

from bellringer.demo.run import run_demo

__all__ = ["run_demo"]
