"""The service as Amazon describes it to its own SDKs: nothing of it is overlooked."""

from __future__ import annotations

from typing import Any

import botocore.session
import msgspec
import pytest

from bellringer.broker import Broker
from bellringer.broker.moves import Moves
from bellringer.broker.sqs import errors, queue_attributes
from bellringer.broker.sqs.actions import sqs_actions
from bellringer.broker.sqs.errors import ErrorKind
from bellringer.broker.sqs.requests import Unsupported
from bellringer.kernel.database import Database

on_one_database = pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)  # which is asked for nothing

MODEL: dict[str, Any] = botocore.session.Session().get_component("data_loader").load_service_model("sqs", "service-2")
SHAPES = MODEL["shapes"]


def members(shape: str) -> dict[str, Any]:
    found: dict[str, Any] = SHAPES[shape].get("members", {})
    return found


@on_one_database
async def test_every_action_is_there_with_all_that_its_request_may_hold(database: Database, broker: Broker) -> None:
    actions = sqs_actions(broker, Moves(database, broker))
    assert set(actions) == set(MODEL["operations"])
    for name, operation in MODEL["operations"].items():
        request = actions[name].request
        if request is Unsupported:
            continue
        fields = {field.encode_name: field for field in msgspec.structs.fields(request)}
        described = SHAPES[operation["input"]["shape"]]
        assert set(fields) == set(described["members"]), name
        required = {name for name, field in fields.items() if field.required}
        # A batch without entries has an error of its own.
        assert required == set(described.get("required", ())) - {"Entries"}, name


@on_one_database
async def test_every_entry_of_a_batch_is_read_whole(database: Database, broker: Broker) -> None:
    actions = sqs_actions(broker, Moves(database, broker))
    for name in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
        (entries,) = (field for field in msgspec.structs.fields(actions[name].request) if field.name == "entries")
        fields = {field.encode_name for field in msgspec.structs.fields(entries.type.__args__[0])}
        assert fields == set(members(f"{name}RequestEntry")), name


def test_every_error_of_the_service_is_one_that_it_describes() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, ErrorKind)]
    shapes = {name for name, shape in SHAPES.items() if shape.get("exception")}
    ours = {kind.type.partition("#")[2] for kind in kinds if kind.type.startswith("com.amazonaws.sqs#")}
    assert ours <= shapes
    assert len({kind.code for kind in kinds}) == len(kinds) - 1  # an unknown action has two statuses


def test_every_attribute_of_a_queue_is_known() -> None:
    assert queue_attributes.ATTRIBUTES | {"All"} == set(SHAPES["QueueAttributeName"]["enum"])
