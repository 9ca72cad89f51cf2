"""The OpenAPI document laid out for a reader: operations by tag, and the schemas that they speak of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

Json = Mapping[str, Any]

# What tells something comes before what asks: that is what a reader needs first.
_METHODS = ("post", "put", "get", "patch", "delete")
_REFERENCE = "#/components/schemas/"


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the name of a type; `schema` is the schema that it names, if it names one."""

    text: str
    schema: str | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a schema, or a parameter; `place` says where a parameter goes: path, query or header."""

    name: str
    type: list[Piece]
    is_required: bool
    default: str | None
    description: str
    place: str | None = None

    @property
    def is_explained(self) -> bool:
        """Whether there is more to say than its name and type."""
        return bool(self.description or self.default is not None or self.place)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is sent or answered."""

    name: str
    description: str
    fields: list[Member]


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A body of one media type: the alternatives that it may be, with the schemas that these name."""

    media_type: str
    type: list[Piece]
    schemas: list[Schema]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back with a status."""

    status: str
    description: str
    contents: list[Content]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A method at a path. `scope` is what a key needs for it; None where no key is needed."""

    anchor: str
    method: str
    path: str
    summary: str
    description: str
    scope: str | None
    parameters: list[Member]
    bodies: list[Content]
    answers: list[Answer]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The operations with one tag."""

    anchor: str
    title: str
    operations: list[Operation]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    title: str
    version: str
    description: str
    sections: list[Section]
    schemas: list[Schema]


def reference_of(document: Json) -> Reference:
    """Lay out an OpenAPI document as `bellringer.edge.openapi` makes it."""
    schemas = {name: _schema(name, schema) for name, schema in document["components"]["schemas"].items()}
    by_tag: dict[str, list[Operation]] = {}
    for method in _METHODS:
        for path, operations in sorted(document["paths"].items()):
            if operation := operations.get(method):
                tag = operation.get("tags", ["other"])[0]
                by_tag.setdefault(tag, []).append(_operation(method, path, operation, schemas))
    info = document["info"]
    return Reference(
        title=info["title"],
        version=info["version"],
        description=info.get("description", ""),
        sections=[
            Section(anchor=_anchor(tag), title=tag.capitalize(), operations=operations)
            for tag, operations in sorted(by_tag.items(), key=_importance)
        ],
        schemas=[schemas[name] for name in sorted(schemas)],
    )


def _importance(item: tuple[str, list[Operation]]) -> tuple[bool, bool, str]:
    """Where one begins comes first, what runs the machine last."""
    return item[0] != "events", item[0] == "operation", item[0]


def _operation(method: str, path: str, operation: Json, schemas: Mapping[str, Schema]) -> Operation:
    return Operation(
        anchor=_anchor(f"{method}-{path}"),
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        scope=next((scope for need in operation.get("security", []) for scope in need["key"]), None),
        parameters=[_parameter(parameter) for parameter in operation.get("parameters", [])],
        bodies=_contents(operation.get("requestBody", {}), schemas),
        answers=[
            Answer(
                status=status if status != "default" else "4xx, 5xx",
                description=answer.get("description", ""),
                contents=_contents(answer, schemas),
            )
            for status, answer in operation["responses"].items()
        ],
    )


def _parameter(parameter: Json) -> Member:
    schema = parameter.get("schema", {})
    return Member(
        name=parameter["name"],
        place=parameter["in"],
        type=_type(schema),
        is_required=parameter.get("required", False),
        default=_default(schema),
        description=parameter.get("description", ""),
    )


def _contents(holder: Json, schemas: Mapping[str, Schema]) -> list[Content]:
    return [
        Content(
            media_type=media_type,
            type=(pieces := _type(content["schema"])),
            schemas=[schemas[name] for name in dict.fromkeys(_named(pieces)) if name in schemas],
        )
        for media_type, content in holder.get("content", {}).items()
    ]


def _named(pieces: Iterable[Piece]) -> Iterable[str]:
    return (piece.schema for piece in pieces if piece.schema is not None)


def _schema(name: str, schema: Json) -> Schema:
    required = schema.get("required", [])
    return Schema(
        name=name,
        description=schema.get("description", ""),
        fields=[
            Member(
                name=field,
                type=_type(value),
                is_required=field in required,
                default=_default(value),
                description=value.get("description", ""),
            )
            for field, value in schema.get("properties", {}).items()
        ],
    )


def _default(schema: Json) -> str | None:
    default = schema.get("default")
    return None if default is None else msgspec.json.encode(default).decode()


def _type(schema: Json) -> list[Piece]:
    """A schema's type in words, such as "list of PlainEvent" or "text or null"."""
    if reference := schema.get("$ref"):
        name = str(reference).removeprefix(_REFERENCE)
        return [Piece(text=name, schema=name)]
    alternatives = schema.get("oneOf") or schema.get("anyOf")
    if alternatives:
        # Anything or nothing is anything.
        known = [alternative for alternative in alternatives if alternative] or [{}]
        if {} in alternatives:
            known = [{}]
        return _joined([_type(alternative) for alternative in known], " or ")
    if values := schema.get("enum"):
        return _joined([[Piece(text=msgspec.json.encode(value).decode())] for value in values], " or ")
    if schema.get("type") == "array":
        return [Piece(text="list of "), *_type(schema.get("items", {}))]
    return [Piece(text=_simple_type(schema))]


def _simple_type(schema: Json) -> str:
    match schema.get("type"), schema.get("format"):
        case "string", "uuid":
            return "UUID"
        case "string", "date-time":
            return "time (RFC 3339)"
        case "string", _:
            return "text"
        case None, _:
            return "any JSON"
        case type_, _:
            return str(type_)


def _joined(lists: Sequence[Sequence[Piece]], separator: str) -> list[Piece]:
    joined: list[Piece] = []
    for pieces in lists:
        joined += [Piece(text=separator), *pieces] if joined else pieces
    return joined


def _anchor(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")
