from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from litestar.handlers import HTTPRouteHandler
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.support.application import application, client_of, routes_of_all

from bellringer.broker import Broker
from bellringer.edge.keys import Keys
from bellringer.edge.model import Scope
from bellringer.kernel.database import Database

# What the document says does not hang on the database.
pytestmark = [pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)]

Document = dict[str, Any]

_TYPE = re.compile(r":\w+}")

OPERATORS = {"GET /livez", "GET /readyz", "GET /metrics"}
METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}


@pytest.fixture
async def document(database: Database, keys: Keys, broker: Broker) -> AsyncIterator[Document]:
    async with application(database, keys, broker) as app, client_of(app) as client:
        answer = await client.get("/v1/openapi.json")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        yield answer.json()


def operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, item in document["paths"].items():
        assert set(item) <= METHODS
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def schema_of(document: Document, value: Document) -> Document:
    """A schema, or the one that it refers to."""
    if "$ref" not in value:
        return value
    found: Document = document["components"]["schemas"][value["$ref"].rpartition("/")[2]]
    return found


async def test_the_document_is_valid_openapi_3_1(document: Document) -> None:
    assert document["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(document).validate()


async def test_every_route_is_listed(document: Document, database: Database, broker: Broker) -> None:
    async with routes_of_all(database, broker) as subsystems:
        raw = {f"{route.method} {route.path}" for routes in subsystems for route in routes.raw}
        handlers = [handler for routes in subsystems for handler in routes.handlers]
    framework = {
        f"{method} {_TYPE.sub('}', path)}"
        for handler in handlers
        if isinstance(handler, HTTPRouteHandler)
        for method in handler.http_methods
        for path in handler.paths
    }
    assert len(framework) == len(handlers)
    assert {name for name, _ in operations(document)} == raw | framework | OPERATORS


async def test_every_operation_is_explained_and_has_a_name_of_its_own(document: Document) -> None:
    found = list(operations(document))
    assert all(operation["summary"] and operation["tags"] for _, operation in found)
    assert len({operation["operationId"] for _, operation in found}) == len(found)


async def test_every_reference_leads_to_a_schema(document: Document) -> None:
    schemas = document["components"]["schemas"]
    found = set(references(document))
    assert found
    assert {reference.removeprefix("#/components/schemas/") for reference in found} <= schemas.keys()


async def test_every_operation_but_those_of_the_operator_needs_a_key(document: Document) -> None:
    assert document["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    open_to_all = {name for name, operation in operations(document) if not operation.get("security")}
    assert open_to_all == OPERATORS


async def test_every_operation_names_the_scope_that_it_needs(document: Document) -> None:
    needs = {name: operation["security"] for name, operation in operations(document) if name not in OPERATORS}
    assert all(need in ([{"key": [scope.value]}] for scope in Scope) for need in needs.values())
    assert needs["POST /v1/events"] == needs["GET /v1/overview"] == [{"key": ["publish"]}]
    assert needs["PUT /v1/workflows/{event_type}"] == needs["GET /v1/captured-mail"] == [{"key": ["admin"]}]


async def test_every_parameter_of_a_path_is_described(document: Document) -> None:
    for name, operation in operations(document):
        described = {one["name"] for one in operation.get("parameters") or [] if one["in"] == "path"}
        assert described == {part.strip("{}") for part in name.split("/") if part.startswith("{")}


async def test_errors_are_described_as_problem_details_and_no_other_way(document: Document) -> None:
    for name, operation in operations(document):
        answers = operation["responses"]
        assert all(status.startswith("2") or status == "default" for status in answers)
        if " /v1/" in name:
            schema = answers["default"]["content"]["application/problem+json"]["schema"]
            assert schema_of(document, schema)["required"] == ["type", "title", "status", "detail"]


async def test_the_body_of_an_event_is_described_in_every_form(document: Document) -> None:
    content = document["paths"]["/v1/events"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/cloudevents+json", "application/cloudevents-batch+json"}
    one, many = content["application/json"]["schema"]["oneOf"]
    assert schema_of(document, one)["required"] == ["type", "recipients"]
    assert schema_of(document, many["items"])["additionalProperties"] is False
    headers = [one for one in document["paths"]["/v1/events"]["post"]["parameters"] if one["in"] == "header"]
    assert [one["name"] for one in headers] == ["Idempotency-Key"]


async def test_the_framework_serves_no_pages_of_its_own(database: Database, keys: Keys, broker: Broker) -> None:
    async with application(database, keys, broker) as app, client_of(app) as client:
        for path in ("/schema", "/schema/openapi.json", "/unused", "/docs", "/openapi.json"):
            assert (await client.get(path)).status_code == 404
