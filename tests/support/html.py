"""What a page says, without its markup."""

from __future__ import annotations

from html.parser import HTMLParser


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


def text_of(html: str) -> str:
    """All text of a page on one line, its pieces apart by one space."""
    reader = _Reader()
    reader.feed(html)
    return " ".join(" ".join(reader.pieces).split())


def tags_of(html: str, name: str) -> list[dict[str, str]]:
    """The attributes of every element of that name."""
    reader = _Reader()
    reader.feed(html)
    return [attributes for tag, attributes in reader.tags if tag == name]
