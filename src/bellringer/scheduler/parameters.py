"""The parameters of a function as the shape of a payload: read by who calls it, described for who schedules it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from bellringer.edge.decoding import decode_json
from bellringer.kernel.errors import InvalidInput

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_REST = inspect.Parameter.VAR_KEYWORD
_NONE = b"null"
_JSON_TYPES: Mapping[type, set[str]] = {
    str: {"string"},
    int: {"integer", "number"},
    bool: {"boolean"},
    list: {"array"},
    type(None): {"null"},
}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One parameter of a function: which JSON types it takes (none named: any).

    With `rest` it stands for all that have no parameter of their own, each of these types.
    """

    name: str
    required: bool
    types: list[str] = []
    rest: bool = False


class Signature:
    """What a function takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises `TypeError` for what is no function, and for a parameter that cannot be given by name."""
        if not inspect.isroutine(function):
            raise TypeError(f"{function!r} is no function")
        self._function = function
        self._parameters = list(inspect.signature(function).parameters.values())
        for parameter in self._parameters:
            if parameter.kind in _POSITIONAL:
                raise TypeError(f"{function.__qualname__} has a parameter that a payload cannot name: {parameter.name}")
        self._named = [parameter for parameter in self._parameters if parameter.kind is not _REST]
        self._rest = next((parameter for parameter in self._parameters if parameter.kind is _REST), None)

    @property
    def required(self) -> list[str]:
        """The names of the parameters that have no default."""
        return [parameter.name for parameter in self._named if parameter.default is parameter.empty]

    def describe(self) -> list[Parameter]:
        """The parameters, in order. Raises `TypeError` or `NameError` for a type hint that names nothing."""
        return [
            Parameter(
                name=parameter.name,
                required=parameter.default is parameter.empty and parameter.kind is not _REST,
                types=_json_types(self._hints.get(parameter.name, Any)),
                rest=parameter.kind is _REST,
            )
            for parameter in self._parameters
        ]

    def read(self, payload: bytes) -> dict[str, Any]:
        """The arguments that a payload holds, of the types that the hints name; null holds none.

        Raises `InvalidInput` with the field at fault, such as `payload.name`.
        """
        try:
            return self._read(b"{}" if payload == _NONE else payload)
        except InvalidInput as error:
            error.field = "payload" if error.field == "body" else f"payload.{error.field}"
            raise

    def bind(self, /, *args: object, **kwargs: object) -> bytes:
        """Arguments as a payload.

        Raises `TypeError` for arguments that the function does not take, or JSON has not, and `InvalidInput` for those
        that come back from JSON as something else than the hints say.
        """
        arguments = inspect.signature(self._function).bind(*args, **kwargs).arguments
        if self._rest is not None:
            arguments |= arguments.pop(self._rest.name, {})
        payload = msgspec.json.encode(arguments)
        self.read(payload)
        return payload

    def _read(self, payload: bytes) -> dict[str, Any]:
        named = decode_json(payload, self._decoder)
        values = (getattr(named, field) for field in self._decoder.type.__struct_fields__)
        arguments = {
            parameter.name: value
            for parameter, value in zip(self._named, values, strict=True)
            if value is not msgspec.UNSET
        }
        if self._rest is not None:
            taken = {parameter.name for parameter in self._named}
            given = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
            hint = self._hints.get(self._rest.name, Any)
            arguments |= {name: _read_one(given[name], hint, name) for name in given.keys() - taken}
        return arguments

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self._function, include_extras=True)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        # Fields have names of our own, so that no parameter is taken for a part of a Struct.
        fields: list[Any] = []
        for number, parameter in enumerate(self._named):
            hint = self._hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((f"field_{number}", hint, msgspec.field(name=parameter.name)))
            else:
                fields.append(
                    (
                        f"field_{number}",
                        hint | msgspec.UnsetType,
                        msgspec.field(name=parameter.name, default=msgspec.UNSET),
                    )
                )
        shape = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=self._rest is None)
        return msgspec.json.Decoder(shape)


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a function, in order."""
    return Signature(function).describe()


def check_payload(parameters: Sequence[Parameter], payload: bytes) -> None:
    """Check a payload where the function is not at hand. Raises `InvalidInput` with the field, such as `payload.name`.

    The types of parameters are checked as far as JSON tells them; the function's own check is the one that counts.
    """
    try:
        given = msgspec.json.decode(b"{}" if payload == _NONE else payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the payload is not valid JSON: {error}", field="payload") from None
    if not isinstance(given, dict):
        raise InvalidInput("the payload of a function is an object with its arguments", field="payload")
    known = {parameter.name: parameter for parameter in parameters if not parameter.rest}
    rest = next((parameter for parameter in parameters if parameter.rest), None)
    for name in known.keys() - given.keys():
        if known[name].required:
            raise InvalidInput(f"the function needs {name}", field=f"payload.{name}")
    for name, value in given.items():
        parameter = known.get(name, rest)
        if parameter is None:
            raise InvalidInput(f"the function has no parameter {name}", field=f"payload.{name}")
        if parameter.types and not _json_types_of(value) & set(parameter.types):
            raise InvalidInput(f"{name} must be of type {' or '.join(parameter.types)}", field=f"payload.{name}")


def _json_types_of(value: object) -> set[str]:
    if isinstance(value, float):
        return {"integer", "number"} if value.is_integer() else {"number"}
    return _JSON_TYPES.get(type(value), {"object"})


def _json_types(hint: Any) -> list[str]:  # noqa: ANN401 - a type hint is any object
    """The JSON types that a value of a hint may have; none where that is not simple to say."""
    try:
        (schema,), components = msgspec.json.schema_components([hint], ref_template="{name}")
    except (TypeError, ValueError):
        return []
    types: list[str] = []
    for one in schema.get("anyOf", [schema]):
        described = components.get(one.get("$ref"), one)
        named = described.get("type")
        if named is None:
            return []
        types += named if isinstance(named, list) else [named]
    return list(dict.fromkeys(types))


def _read_one(value: msgspec.Raw, hint: Any, name: str) -> Any:  # noqa: ANN401 - a type hint is any object
    try:
        return msgspec.json.decode(value, type=hint)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), field=name) from None
