from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.kernel.errors import InvalidInput
from bellringer.notifications.model import audience_of, normalize_address


@pytest.mark.parametrize(
    ("given_as", "kept_as"),
    [
        ("ann@acme.example", "ann@acme.example"),
        ("Ann.Smith@ACME.Example", "ann.smith@acme.example"),
        ("ann+tag@acme.example", "ann+tag@acme.example"),
        ("o'hara@acme.example", "o'hara@acme.example"),
        ("ann@bücher.example", "ann@xn--bcher-kva.example"),
        ("ann@XN--BCHER-KVA.example", "ann@xn--bcher-kva.example"),
    ],
)
def test_an_address_has_one_spelling(given_as: str, kept_as: str) -> None:
    assert normalize_address(given_as) == kept_as


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ann",
        "@acme.example",
        "ann@",
        "ann@@acme.example",
        "ann@acme..example",
        " ann@acme.example",
        "ann@acme.example\n",
        "ann@acme.example\r\nBcc: bob@acme.example",
        "ann,bob@acme.example",
        "Ann <ann@acme.example>",
        '"ann smith"@acme.example',
        "änn@acme.example",
        "ann@[127.0.0.1]",
        "ann@acme.example\x00",
        "ann@" + "a" * 300 + ".example",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not an email address"):
        normalize_address(text)


@given(st.emails() | st.text())
def test_a_spelling_that_was_normalised_stays_and_fits_into_a_line_of_ascii(text: str) -> None:
    try:
        normalized = normalize_address(text)
    except InvalidInput:
        return
    assert normalize_address(normalized) == normalized
    assert normalized == normalized.lower()
    assert normalized.isascii()
    assert normalized.isprintable()
    assert not set(" ,<>\"'\\").difference("'").intersection(normalized)


Addresses = st.frozensets(st.sampled_from("abcdefgh"), min_size=1).map(
    lambda names: tuple(sorted(f"{name}@acme.example" for name in names))
)


@given(one=Addresses, other=Addresses)
def test_an_audience_stands_for_a_set_of_recipients(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (audience_of(one) == audience_of(other)) == (one == other)
    assert len(audience_of(one)) == 16
