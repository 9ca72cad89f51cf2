"""The parameters of a function as the shape of a payload."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.parameters import Parameter, Signature, check_payload, parameters_of


@dataclass
class Address:
    city: str


class Order(msgspec.Struct, tag=True):
    number: int


class Refund(msgspec.Struct, tag=True):
    number: int


class Colour(enum.Enum):
    RED = "red"


class Options(TypedDict):
    loud: bool


class Unknown:
    pass


def many(
    order: int,
    weight: float,
    note: str,
    is_gift: bool,
    tags: list[str],
    more: dict[str, Any],
    address: Address,
    change: Order | Refund,
    options: Options,
    at: datetime,
    day: date,
    customer: UUID,
    price: Decimal,
    limit: Annotated[int, msgspec.Meta(ge=1)],
    anything: Any,  # noqa: ANN401 - that is the case
    strange: Unknown,
    kind: Literal["a", 1],
    colour: Colour,
    maybe: int | None = None,
    *,
    last: int | Address | None = None,
) -> None:
    """Have a parameter of every kind."""


def test_parameters_say_which_json_types_they_take() -> None:
    assert [(parameter.name, parameter.types) for parameter in parameters_of(many)] == [
        ("order", ["integer"]),
        ("weight", ["number"]),
        ("note", ["string"]),
        ("is_gift", ["boolean"]),
        ("tags", ["array"]),
        ("more", ["object"]),
        ("address", ["object"]),
        ("change", ["object"]),
        ("options", ["object"]),
        ("at", ["string"]),
        ("day", ["string"]),
        ("customer", ["string"]),
        ("price", ["string"]),
        ("limit", ["integer"]),
        ("anything", []),
        ("strange", []),
        ("kind", []),
        ("colour", []),
        ("maybe", ["integer", "null"]),
        ("last", ["integer", "object", "null"]),
    ]
    assert [parameter.name for parameter in parameters_of(many) if not parameter.required] == ["maybe", "last"]


def test_parameters_are_the_same_after_they_were_stored() -> None:
    def work(order: int, note: str = "", **rest: float) -> None: ...

    stored = msgspec.json.encode(parameters_of(work))
    assert msgspec.json.decode(stored, type=list[Parameter]) == [
        Parameter(name="order", required=True, types=["integer"]),
        Parameter(name="note", required=False, types=["string"]),
        Parameter(name="rest", required=False, types=["number"], rest=True),
    ]


def positional_only(order: int, /) -> None: ...


def starred(*orders: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (positional_only, "positional_only has a parameter that a payload cannot name: order"),
        (starred, "starred has a parameter that a payload cannot name: orders"),
        (Unknown(), "is no function"),
        (3, "is no function"),
    ],
)
def test_what_a_payload_cannot_call_is_refused(function: Callable[..., Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        Signature(function)


PARAMETERS = [
    Parameter(name="order", required=True, types=["integer"]),
    Parameter(name="weight", required=False, types=["number", "null"]),
    Parameter(name="anything", required=False),
]


@pytest.mark.parametrize(
    "payload",
    [b'{"order": 1}', b'{"order": 1.0, "weight": 2}', b'{"order": 1, "weight": null, "anything": [true]}'],
)
def test_a_payload_that_fits_is_taken(payload: bytes) -> None:
    check_payload(PARAMETERS, payload)


@pytest.mark.parametrize(
    ("payload", "field", "complaint"),
    [
        (b"null", "payload.order", "the function needs order"),
        (b'{"weight": 1}', "payload.order", "the function needs order"),
        (b'{"order": "1"}', "payload.order", "order must be of type integer"),
        (b'{"order": 1.5}', "payload.order", "order must be of type integer"),
        (b'{"order": true}', "payload.order", "order must be of type integer"),
        (b'{"order": 1, "weight": {}}', "payload.weight", "weight must be of type number or null"),
        (b'{"order": 1, "wait": 2}', "payload.wait", "the function has no parameter wait"),
        (b"[1]", "payload", "the payload of a function is an object with its arguments"),
        (b"{", "payload", "the payload is not valid JSON: Input data was truncated"),
        (b"[" * 10_000, "payload", "the payload is not valid JSON"),
        (b"\xff", "payload", "the payload is not valid JSON"),
    ],
)
def test_a_payload_that_does_not_fit_names_the_parameter(payload: bytes, field: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_payload(PARAMETERS, payload)
    assert refused.value.field == field
    assert str(refused.value).startswith(complaint)


def test_what_has_no_parameter_of_its_own_goes_to_the_rest() -> None:
    parameters = [*PARAMETERS, Parameter(name="rest", required=False, types=["string"], rest=True)]
    check_payload(parameters, b'{"order": 1, "wait": "2", "rest": "3"}')
    with pytest.raises(InvalidInput, match="wait must be of type string"):
        check_payload(parameters, b'{"order": 1, "wait": 2}')


def test_a_function_without_parameters_takes_nothing() -> None:
    check_payload([], b"null")
    check_payload([], b"{}")


def test_arguments_that_json_changes_are_refused_when_they_are_bound() -> None:
    def work(order: int, when: datetime) -> None: ...

    signature = Signature(work)
    moment = datetime.fromisoformat("2026-11-21T08:00:00+01:00")
    assert signature.read(signature.bind(1, when=moment)) == {"order": 1, "when": moment}
    with pytest.raises(InvalidInput) as refused:
        signature.bind("1", moment)
    assert refused.value.field == "payload.order"
    with pytest.raises(TypeError, match="missing a required argument: 'when'"):
        signature.bind(1)
    with pytest.raises(TypeError, match="unsupported"):
        signature.bind(1, Unknown())


def of_any_kind(
    order: int, name: str, weight: float, is_gift: bool, maybe: list[int] | None = None, **rest: int | str
) -> None: ...


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.fixed_dictionaries(
    {"order": VALUES | st.integers(), "name": VALUES | st.text(), "weight": VALUES | st.floats(), "is_gift": VALUES},
    optional={"maybe": VALUES, "more": VALUES},
)


@given(payload=st.builds(msgspec.json.encode, ARGUMENTS | VALUES) | st.binary(max_size=10))
def test_whatever_comes_is_taken_or_refused_and_the_first_check_is_never_the_stricter(payload: bytes) -> None:
    try:
        check_payload(parameters_of(of_any_kind), payload)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            Signature(of_any_kind).read(payload)
    else:
        try:
            arguments = Signature(of_any_kind).read(payload)
        except InvalidInput:
            return
        of_any_kind(**arguments)
