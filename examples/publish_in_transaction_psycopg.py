"""An order and its message, both or neither, with psycopg.

Run it with the URL of Bellringer's database, in which the queue `orders` exists:

    DATABASE_URL=postgresql://user@localhost/bellringer python examples/publish_in_transaction_psycopg.py
"""

from __future__ import annotations

import os

import psycopg
from psycopg.types.json import Jsonb


def place_order(connection: psycopg.Connection, item: str) -> int:
    """Store an order and announce it in one transaction; return its number."""
    with connection.transaction():
        row = connection.execute("INSERT INTO example_orders (item) VALUES (%s) RETURNING number", (item,)).fetchone()
        assert row is not None
        number: int = row[0]
        connection.execute("SELECT bellringer.publish('orders', %s)", (Jsonb({"order": number, "item": item}),))
        if item == "nothing":
            raise ValueError("an order needs an item")  # then there is neither a row nor a message
    return number


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS example_orders (number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text)"
        )
        print("ordered", place_order(connection, "bell"))
        try:
            place_order(connection, "nothing")
        except ValueError as error:
            print("refused:", error)


if __name__ == "__main__":
    main()
