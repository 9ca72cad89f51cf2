from __future__ import annotations

import pytest

from bellringer.kernel.errors import InvalidInput
from bellringer.kernel.text import check_text


@pytest.mark.parametrize("text", ["a", "ä", "a b", "a" * 10, "a\u00a0b", "東京\u3000支店", "👨\u200d👩\u200d👧", None])
def test_text_within_its_bounds_is_taken(text: str | None) -> None:
    check_text(text, "subject", 10)


@pytest.mark.parametrize("text", ["", "a" * 11, "a\nb", "\x00", "a\x7f", "\u2028", "\u202e", "\ud800"])
def test_text_that_is_empty_too_long_or_invisible_names_its_field(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_text(text, "subject", 10)
    assert refused.value.field == "subject"
