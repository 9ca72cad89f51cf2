"""An order and its message, both or neither, with SQLAlchemy's unit of work.

Run it with the URL of Bellringer's database, in which the queue `orders` exists:

    DATABASE_URL=postgresql://user@localhost/bellringer python examples/publish_in_transaction_sqlalchemy.py
"""

from __future__ import annotations

import os

from sqlalchemy import cast, create_engine, func, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """The tables of this program."""


class Order(Base):
    """Something that somebody wants."""

    __tablename__ = "example_orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def place_order(session: Session, item: str) -> int:
    """Store an order and announce it in the session's transaction; return its number."""
    order = Order(item=item)
    session.add(order)
    session.flush()
    message = {"order": order.number, "item": item}
    session.execute(select(func.bellringer.publish("orders", cast(message, JSONB))))
    if item == "nothing":
        raise ValueError("an order needs an item")  # then there is neither a row nor a message
    return order.number


def main() -> None:
    engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        print("ordered", place_order(session, "bell"))
    try:
        with Session(engine) as session, session.begin():
            place_order(session, "nothing")
    except ValueError as error:
        print("refused:", error)
    engine.dispose()


if __name__ == "__main__":
    main()
