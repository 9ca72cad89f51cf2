"""A trial and the reminder that it ends, both or neither, with psycopg.

Run it with the URL of Bellringer's database:

    DATABASE_URL=postgresql://user@localhost/bellringer python examples/schedule_in_transaction.py
"""

from __future__ import annotations

import os

import psycopg
from psycopg.types.json import Jsonb

# What is to happen when the time has come: a message on the queue `trials`. Or a request, a notification, a function.
REMINDER = {"type": "message", "queue": "trials"}


def begin_trial(connection: psycopg.Connection, customer: str, seconds: float) -> None:
    """Store a trial and schedule what happens at its end, in one transaction."""
    with connection.transaction():
        connection.execute("INSERT INTO example_trials (customer) VALUES (%s)", (customer,))
        connection.execute(
            "SELECT bellringer.schedule(%s, %s, payload => %s, delay_seconds => %s)",
            (f"trial-ends:{customer}", Jsonb(REMINDER), Jsonb({"customer": customer}), seconds),
        )
        if customer == "nobody":
            raise ValueError("a trial needs a customer")  # then there is neither a row nor a reminder


def end_trial(connection: psycopg.Connection, customer: str) -> None:
    """Forget a trial and its reminder: the customer has subscribed."""
    with connection.transaction():
        connection.execute("DELETE FROM example_trials WHERE customer = %s", (customer,))
        connection.execute("SELECT bellringer.unschedule(%s)", (f"trial-ends:{customer}",))


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS example_trials (customer text PRIMARY KEY)")
        for customer in ("ann", "bob", "nobody"):
            try:
                begin_trial(connection, customer, seconds=1.0)
                print("reminder scheduled:", customer)
            except ValueError as error:
                print("refused:", error)
        end_trial(connection, "bob")
        print("reminder cancelled: bob")


if __name__ == "__main__":
    main()
