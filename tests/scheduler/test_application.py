from __future__ import annotations

import msgspec
import pytest

from bellringer.broker import Broker
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler import FunctionCall, Schedule, Scheduler, TaskDefinition, Tasks
from bellringer.scheduler.application import make_known
from bellringer.scheduler.model import TaskState


@pytest.fixture
def tasks(database: Database, broker: Broker) -> Tasks:
    return Tasks(database, broker)


def application() -> Scheduler:
    scheduler = Scheduler()

    @scheduler.task(cron="0 2 * * *", time_zone="Europe/Berlin")
    async def nightly() -> None:
        """Build the reports."""

    @scheduler.task
    def send_invoice(order: int, copies: int = 1) -> None:
        pass

    return scheduler


def calling(name: str, payload: bytes = b"null") -> TaskDefinition:
    call = FunctionCall(name=name)
    return TaskDefinition(schedule=Schedule(delay_seconds=60), call=call, payload=msgspec.Raw(payload))


async def test_an_application_makes_its_functions_and_the_tasks_they_declare_known(
    database: Database, tasks: Tasks, environment: Environment
) -> None:
    await make_known(database, tasks, environment.id, application())
    functions = {function.name: function for function in await tasks.functions(environment.id)}
    assert set(functions) == {"nightly", "send_invoice"}
    assert functions["nightly"].description == "Build the reports."
    assert [parameter.name for parameter in functions["send_invoice"].parameters] == ["order", "copies"]
    nightly = await tasks.read(environment.id, "nightly")
    assert nightly.definition.schedule == Schedule(cron="0 2 * * *", time_zone="Europe/Berlin")


async def test_an_application_that_starts_again_changes_nothing(
    database: Database, tasks: Tasks, environment: Environment
) -> None:
    await make_known(database, tasks, environment.id, application())
    paused = await tasks.pause(environment.id, "nightly")
    await make_known(database, tasks, environment.id, application())
    assert await tasks.read(environment.id, "nightly") == paused


async def test_what_was_cancelled_stays_so_when_an_application_starts(
    database: Database, tasks: Tasks, environment: Environment
) -> None:
    await make_known(database, tasks, environment.id, application())
    cancelled = await tasks.cancel(environment.id, "nightly")
    changed = Scheduler()
    changed.task(name="nightly", cron="0 3 * * *")(lambda: None)
    for started in (application(), changed):
        await make_known(database, tasks, environment.id, started)
        assert await tasks.read(environment.id, "nightly") == cancelled
    revived, _ = await tasks.put(environment.id, "nightly", cancelled.definition)
    assert revived.state is TaskState.ACTIVE


async def test_functions_that_are_gone_are_forgotten(
    database: Database, tasks: Tasks, environment: Environment
) -> None:
    await make_known(database, tasks, environment.id, application())
    smaller = Scheduler()
    smaller.task(name="send_invoice")(lambda order: None)  # noqa: ARG005
    await make_known(database, tasks, environment.id, smaller)
    assert [function.name for function in await tasks.functions(environment.id)] == ["send_invoice"]


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        (calling("gone"), "call.name"),
        (calling("send_invoice"), "payload.order"),
        (calling("send_invoice", b'{"order": "seven"}'), "payload.order"),
        (calling("send_invoice", b'{"order": 7, "copy": 2}'), "payload.copy"),
        (calling("send_invoice", b"[7]"), "payload"),
    ],
)
async def test_a_task_that_the_application_cannot_run_is_refused(
    database: Database, tasks: Tasks, environment: Environment, definition: TaskDefinition, field: str
) -> None:
    await make_known(database, tasks, environment.id, application())
    with pytest.raises(InvalidInput) as refused:
        await tasks.put(environment.id, "invoice", definition)
    assert refused.value.field == field
    assert [task.name for task in (await tasks.page(environment.id)).tasks] == ["nightly"]


async def test_while_no_application_was_started_any_function_will_do(tasks: Tasks, environment: Environment) -> None:
    task, is_new = await tasks.put(environment.id, "invoice", calling("gone"))
    assert is_new
    assert task.definition.call == FunctionCall(name="gone")
