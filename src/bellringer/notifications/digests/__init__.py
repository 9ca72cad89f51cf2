"""Digests: a flood becomes one email.

A digest gathers the notifications of one environment and window. States:

    open (closed_at is null; joined by inserts) -> closed (no more join) -> grouped (email_count is set)

An environment has at most one open digest per window length. It closes its window after the first notification
joined, whatever joins later, so no notification waits longer than its window.
"""
