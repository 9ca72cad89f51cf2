"""The scheduler: every task starts on time, and when it cannot, it says why."""
