"""Text of others that goes into lines: headers, subjects, names."""

from __future__ import annotations

import unicodedata

from bellringer.kernel.errors import InvalidInput

_DIRECTION_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Unicode's explicit embeddings, overrides and isolates: with them a text reads other than it is."""


def check_text(value: str | None, field: str, longest: int) -> None:
    """Raise `InvalidInput` for text that is empty, too long or not one line."""
    if value is None:
        return
    if not 1 <= len(value) <= longest:
        raise InvalidInput(f"{field} must have 1 to {longest} characters", field=field)
    if not value.isprintable() and any(map(_disturbs_a_line, value)):
        raise InvalidInput(
            f"{field} must not hold control characters, line breaks or overrides of direction", field=field
        )


def _disturbs_a_line(character: str) -> bool:
    """Whether a character is more than ordinary text, such as a no-break space or a joined emoji, has in it."""
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} or character in _DIRECTION_OVERRIDES
