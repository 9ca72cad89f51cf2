"""The kinds of calls that a task can make, one caller each. That of notifications stands in their package."""
