"""An order and the reminder to pay it, both or neither; and a tidy-up every minute.

Start Bellringer with the functions of this file, then place orders:

    export DATABASE_URL=postgresql://user@localhost/bellringer
    BELLRINGER_DATABASE_URL=$DATABASE_URL bellringer up --tasks examples.scheduled_functions:scheduler &
    python -m examples.scheduled_functions
"""

from __future__ import annotations

import asyncio
import os

import asyncpg

from bellringer.scheduler import Scheduler, current

scheduler = Scheduler()


@scheduler.task(time_limit_seconds=60)
async def remind(order: int) -> None:
    """Remind the customer of an order that is not paid."""
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    try:
        # The name of the run tells a second attempt from the first: who was reminded is reminded once.
        await connection.execute(
            "UPDATE example_orders SET reminded_by = $2 WHERE number = $1 AND reminded_by IS NULL", order, current().key
        )
    finally:
        await connection.close()


@scheduler.task(cron="* * * * *")
def tidy(keep_days: int = 30) -> None:
    """Remove what is old. A plain function runs in a thread, and may block."""
    print(f"would remove orders older than {keep_days} days")


async def place_order(connection: asyncpg.Connection[asyncpg.Record], item: str) -> int:
    """Store an order and schedule its reminder in one transaction; return its number."""
    async with connection.transaction():
        number: int = await connection.fetchval("INSERT INTO example_orders (item) VALUES ($1) RETURNING number", item)
        await remind.bind(order=number).schedule(connection, name=f"remind:{number}", delay_seconds=1)
        if item == "nothing":
            raise ValueError("an order needs an item")  # then there is neither a row nor a task
    return number


async def main() -> None:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS example_orders "
        "(number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text, reminded_by text)"
    )
    print("ordered", await place_order(connection, "bell"))
    try:
        await place_order(connection, "nothing")
    except ValueError as error:
        print("refused:", error)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
