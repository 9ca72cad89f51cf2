"""Bellringer: an engagement backend on PostgreSQL, from "something happened" to "a person saw it"."""

__version__ = "0.1.0"
