"""Does it pay to look ahead? Executors ordered by the forecast, by the queue, or never, on the same loads.

A simulation with a clock of its own and fixed seeds: nothing but arithmetic, the same numbers on every machine. Missed
is a start more than 30 s after its due time; an executor takes 60 to 90 s from the order to its first run. The forecast
and the decision are the product's own code; `bench.scheduler_scaling_simulation` says how the others decide.
"""

from __future__ import annotations

from bench.scheduler_scaling_loads import Story, stories
from bench.scheduler_scaling_simulation import CONFIG, Fixed, Outcome, Policy, Predictive, Reactive, Simulation, Tuned
from bench.support import print_table


def outcomes(story: Story) -> dict[str, Outcome]:
    policies: list[Policy] = [
        Predictive(),
        Reactive(),
        Tuned(),
        Fixed("all the time", CONFIG.maximum),
        Fixed("minimum", CONFIG.minimum),
    ]
    return {policy.name: Simulation(story, policy).run() for policy in policies}


def rows_of(story: Story) -> list[list[str]]:
    found = outcomes(story)
    rows = []
    for policy, outcome in found.items():
        rows.append(
            [
                story.name if policy == "predictive" else "",
                f"{len(story.runs):,}" if policy == "predictive" else "",
                policy,
                f"{outcome.missed:,}",
                f"{outcome.p99_seconds:,.1f}",
                f"{outcome.executor_minutes:,.0f}",
                _ratio(outcome.missed, found["reactive"].missed),
                _ratio(outcome.executor_minutes, found["reactive"].executor_minutes),
            ]
        )
    return rows


def _ratio(number: float, other: float) -> str:
    if not other:
        return "1.00x" if not number else "-"
    return f"{number / other:.2f}x"


def main() -> None:
    print_table(
        f"Scaling executors of {CONFIG.concurrency} slots between {CONFIG.minimum} and {CONFIG.maximum}",
        ["load", "runs", "executors", "missed", "p99 lag s", "executor-minutes", "missed/reactive", "minutes/reactive"],
        [row for story in stories() for row in rows_of(story)],
    )


if __name__ == "__main__":
    main()
