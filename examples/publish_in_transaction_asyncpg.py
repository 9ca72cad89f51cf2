"""An order and its message, both or neither, with asyncpg.

Run it with the URL of Bellringer's database, in which the queue `orders` exists:

    DATABASE_URL=postgresql://user@localhost/bellringer python examples/publish_in_transaction_asyncpg.py
"""

from __future__ import annotations

import asyncio
import json
import os

import asyncpg


async def place_order(connection: asyncpg.Connection[asyncpg.Record], item: str) -> int:
    """Store an order and announce it in one transaction; return its number."""
    async with connection.transaction():
        number: int = await connection.fetchval("INSERT INTO example_orders (item) VALUES ($1) RETURNING number", item)
        message = json.dumps({"order": number, "item": item})
        await connection.execute("SELECT bellringer.publish('orders', $1::jsonb)", message)
        if item == "nothing":
            raise ValueError("an order needs an item")  # then there is neither a row nor a message
    return number


async def main() -> None:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS example_orders (number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text)"
    )
    print("ordered", await place_order(connection, "bell"))
    try:
        await place_order(connection, "nothing")
    except ValueError as error:
        print("refused:", error)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
