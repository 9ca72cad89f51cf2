"""The OpenAPI 3.1 document: what the web framework knows of its routes, and the raw routes beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from bellringer.edge.model import Scope
from bellringer.edge.problems import CONTENT_TYPE, Problem
from bellringer.edge.raw import JSON, RawRoute

_PARAMETER = re.compile(r"\{(\w+)\}")
_REFERENCE = "#/components/schemas/{name}"


def openapi_document(app: Litestar, raw_routes: Sequence[RawRoute]) -> dict[str, Any]:
    """The whole document as JSON values."""
    document = app.openapi_schema.to_schema()
    types = [Problem, *_types_of(raw_routes)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    document.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for route in raw_routes:
        operations = document["paths"].setdefault(route.path, {})
        operations[route.method.lower()] = _operation(route, by_type)
    _name_scopes(document["paths"], app)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _explain_problems(path, operation, by_type[repr(Problem)])
    return document


def _name_scopes(paths: dict[str, Any], app: Litestar) -> None:
    for route in app.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            for method in handler.http_methods:
                operation = paths.get(route.path_format, {}).get(method.lower(), {})
                if operation.get("security"):
                    operation["security"] = _security(handler.opt.get("scope", Scope.ADMIN))


def _security(scope: Scope) -> list[dict[str, list[str]]]:
    """What an operation needs: the scope stands where OpenAPI 3.1 puts the role of a caller."""
    return [{"key": [scope.value]}]


def _types_of(routes: Sequence[RawRoute]) -> list[Any]:
    bodies = [type_ for route in routes for types in route.requests.values() for type_ in types]
    return bodies + [type_ for route in routes for type_ in route.responses]


def _operation(route: RawRoute, by_type: dict[str, dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done"}
    if route.responses:
        answer = {"description": "Done, and durable", "content": {JSON: _schema(route.responses, by_type)}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ] + [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in route.request_headers.items()
    ]
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": route.summary,
        "description": route.description,
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "security": _security(route.scope),
        "parameters": parameters,
        "responses": {str(route.success_status): answer},
    }
    if route.requests:
        content = {name: _schema(types, by_type) for name, types in route.requests.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _schema(types: Sequence[Any], by_type: dict[str, dict[str, Any]]) -> dict[str, Any]:
    schemas = [by_type[repr(type_)] for type_ in types]
    return {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}


def _explain_problems(path: str, operation: dict[str, Any], problem_schema: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("400", None)  # the framework's own shape of an error, which never leaves this server
    if path.startswith("/v1/"):
        responses["default"] = {
            "description": "What went wrong, as problem details (RFC 9457)",
            "content": {CONTENT_TYPE: {"schema": problem_schema}},
        }
