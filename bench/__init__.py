"""Benchmarks: one question each, answered as a ratio to a baseline measured in the same run."""
