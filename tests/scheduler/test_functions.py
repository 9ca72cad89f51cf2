"""What application code writes: decorated functions, and tasks made of them."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from bellringer.broker import Broker
from bellringer.edge.model import Environment
from bellringer.kernel.database import Database
from bellringer.kernel.errors import InvalidInput, StartupError
from bellringer.scheduler import FunctionCall, MisfirePolicy, Overlap, Retry, Schedule, Scheduler, Tasks
from bellringer.scheduler.functions import load_application
from bellringer.scheduler.model import Misfire

AT = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@dataclass
class Address:
    city: str


# Decorating


def test_a_decorated_function_is_called_as_before(scheduler: Scheduler) -> None:
    @scheduler.task
    def double(number: int, *, times: int = 1) -> int:
        """Double a number.

        Several times, if need be.
        """
        return number * 2**times

    assert double(3) == 6
    assert double(number=3, times=2) == 12
    assert double.__name__ == "double"
    assert (double.__doc__ or "").startswith("Double a number.")
    assert list(inspect.signature(double).parameters) == ["number", "times"]
    assert double.description == "Double a number."
    assert scheduler.functions == {"double": double}


async def test_a_decorated_async_function_is_awaited_as_before(scheduler: Scheduler) -> None:
    @scheduler.task(name="renamed")
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    assert await double(3) == 6
    assert double.is_async
    assert scheduler.functions == {"renamed": double}


def test_functions_with_a_schedule_declare_tasks_of_their_names(scheduler: Scheduler) -> None:
    @scheduler.task(cron="0 9 * * 1-5", time_zone="Europe/Berlin", overlap=Overlap.QUEUE)
    def remind() -> None: ...

    @scheduler.task(
        name="tidy.up",
        every_seconds=60,
        misfire=MisfirePolicy(policy=Misfire.SKIP),
        time_limit_seconds=5,
        retry=Retry(max_retries=2),
        rerun_after_crash=True,
    )
    async def tidy(limit: int = 100) -> None: ...

    @scheduler.task
    def on_demand() -> None: ...

    (remind_name, reminding), (tidy_name, tidying) = scheduler.declared()
    assert (remind_name, tidy_name) == ("remind", "tidy.up")
    assert reminding.schedule == Schedule(cron="0 9 * * 1-5", time_zone="Europe/Berlin")
    assert reminding.call == FunctionCall(name="remind")
    assert reminding.overlap is Overlap.QUEUE
    assert bytes(reminding.payload) == b"null"
    assert tidying.schedule == Schedule(every_seconds=60)
    assert tidying.misfire.policy is Misfire.SKIP
    assert tidying.time_limit_seconds == 5
    assert tidying.retry.max_retries == 2
    assert tidying.rerun_after_crash


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> Any:  # noqa: ANN401 - what it is does not matter
    yield 1


def needs_an_order(order: int) -> None: ...


def positional(order: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "error", "complaint"),
    [
        (generator, {}, TypeError, "generator is a generator: to call it does nothing"),
        (async_generator, {}, TypeError, "async_generator is a generator: to call it does nothing"),
        (positional, {}, TypeError, "positional has a parameter that a payload cannot name: order"),
        (needs_an_order, {"cron": "@daily"}, TypeError, "without arguments, so order needs a default"),
        (needs_an_order, {"name": "no name"}, InvalidInput, "a task name is"),
        (needs_an_order, {"time_limit_seconds": 0}, InvalidInput, "time_limit_seconds must be from"),
        (needs_an_order, {"cron": "* * *", "every_seconds": 5}, TypeError, "needs a default"),
        (AT, {"name": "moment"}, TypeError, "is no function"),
    ],
)
def test_what_could_never_run_is_refused_when_it_is_decorated(
    scheduler: Scheduler, function: Callable[..., Any], options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        scheduler.task(**options)(function)
    assert scheduler.functions == {}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cron": "0 25 * * *"}, "schedule.cron"),
        ({"cron": "@daily", "time_zone": "Mars/Olympus"}, "schedule.time_zone"),
        ({"every_seconds": 0}, "schedule.every_seconds"),
        ({"cron": "@daily", "every_seconds": 5}, "schedule"),
        ({"every_seconds": "5m"}, "every_seconds"),
        ({"cron": 5}, "cron"),
        ({"cron": "@daily", "overlap": "never"}, "overlap"),
        ({"cron": "@daily", "misfire": "skip"}, "misfire"),
        ({"cron": "@daily", "retry": 3}, "retry"),
        ({"cron": "@daily", "time_limit_seconds": "5m"}, "time_limit_seconds"),
    ],
)
def test_a_schedule_that_is_none_is_refused_when_it_is_declared(
    scheduler: Scheduler, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        scheduler.task(name="work", **options)(lambda: None)
    assert refused.value.field == field


def test_a_policy_may_be_given_by_its_name(scheduler: Scheduler) -> None:
    scheduler.task(name="work", cron="@daily", overlap="queue")(lambda: None)  # type: ignore[call-overload]
    ((_, declared),) = scheduler.declared()
    assert declared.overlap is Overlap.QUEUE


def test_a_name_is_given_once(scheduler: Scheduler) -> None:
    scheduler.task(name="work")(lambda: None)
    with pytest.raises(ValueError, match="there is a function work already"):
        scheduler.task(name="work")(lambda: None)


# Scheduling


def test_arguments_become_the_payload_of_a_definition(scheduler: Scheduler) -> None:
    @scheduler.task(time_limit_seconds=7)
    def ship(order: int, to: Address, at: datetime | None = None) -> None: ...

    definition = ship.bind(7, to=Address("Riga"), at=AT).definition(delay_seconds=60)
    assert definition.schedule == Schedule(delay_seconds=60)
    assert definition.call == FunctionCall(name="ship")
    assert definition.time_limit_seconds == 7
    payload = msgspec.json.decode(bytes(definition.payload))
    assert payload == {"order": 7, "to": {"city": "Riga"}, "at": AT.isoformat().replace("+00:00", "Z")}
    with pytest.raises(InvalidInput, match="lies in the past"):
        ship.bind(7, Address("Riga")).definition(at=datetime(2020, 1, 1, tzinfo=UTC))


async def test_a_task_is_made_by_the_transaction_that_schedules_it_or_not_at_all(
    scheduler: Scheduler, database: Database, broker: Broker, environment: Environment
) -> None:
    @scheduler.task(overlap=Overlap.REPLACE, misfire=MisfirePolicy(policy=Misfire.ALL, limit=3))
    def remind(user: int, text: str = "") -> None: ...

    async with database.transaction() as connection:
        name = await remind.bind(user=7, text="grüße").schedule(connection, name="remind:7", at=AT)
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await remind.bind(user=8).schedule(connection, name="remind:8", at=AT)
        await transaction.rollback()
    (task,) = (await Tasks(database, broker).page(environment.id)).tasks
    assert task.name == name == "remind:7"
    expected = remind.bind(user=7, text="grüße").definition(at=AT)
    assert msgspec.json.decode(task.definition.payload) == msgspec.json.decode(expected.payload)
    same = msgspec.structs.replace(expected, payload=task.definition.payload)
    assert task.definition == same


@pytest.mark.parametrize(
    "when",
    [
        {"delay_seconds": 60},
        {"cron": "0 9 * * 1-5", "time_zone": "Europe/Berlin"},
        {"every_seconds": 1.5, "starting_at": AT},
    ],
)
async def test_every_kind_of_schedule_can_be_had_in_a_transaction(
    scheduler: Scheduler, database: Database, broker: Broker, environment: Environment, when: dict[str, Any]
) -> None:
    @scheduler.task
    def work() -> None: ...

    async with database.transaction() as connection:
        name = await work.bind().schedule(connection, environment="acme/production", **when)
    task = await Tasks(database, broker).read(environment.id, name)
    stored = msgspec.structs.asdict(task.definition.schedule)
    assert {field: stored[field] for field in when if field != "delay_seconds"} == {
        field: value for field, value in when.items() if field != "delay_seconds"
    }


async def test_what_the_database_refuses_is_its_error(
    scheduler: Scheduler, database: Database, environment: Environment
) -> None:
    @scheduler.task
    def work() -> None: ...

    assert environment.name == "production"
    async with database.connection() as connection:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="environment: there is no other/one"):
            await work.bind().schedule(connection, environment="other/one", delay_seconds=1)
        with pytest.raises(asyncpg.InvalidParameterValueError, match="name: "):
            await work.bind().schedule(connection, name="no name", delay_seconds=1)


# Loading


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with modules of an application."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(
        "from bellringer.scheduler import Scheduler\n"
        "class Holder: scheduler = Scheduler()\n"
        "scheduler = Holder.scheduler\n"
        "number = 3\n"
        "@scheduler.task\n"
        "def work() -> None: ...\n"
    )
    (package / "broken.py").write_text("raise ValueError('no settings')")
    (package / "leaving.py").write_text("import sys\nsys.exit('not today')")
    (package / "lacking.py").write_text("import not_installed.at_all")
    (package / "crooked.py").write_text("def work(")
    (package / "hinted.py").write_text(
        "from __future__ import annotations\n"
        "from bellringer.scheduler import Scheduler\n"
        "scheduler = Scheduler()\n"
        "@scheduler.task\n"
        "def work(order: Ordre) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("path", ["shop.tasks:scheduler", "shop.tasks:Holder.scheduler"])
def test_an_application_is_loaded_by_its_path(path: str) -> None:
    assert list(load_application(path).functions) == ["work"]


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("shop.tasks", "shop.tasks names no application; write package.module:attribute"),
        (":scheduler", ":scheduler names no application; write package.module:attribute"),
        ("shop.tasks:", "shop.tasks: names no application; write package.module:attribute"),
        ("shop.taks:scheduler", "there is no module shop.taks"),
        ("shoop.tasks:scheduler", "there is no module shoop"),
        ("shop.tasks:Scheduler.functions.none", "shop.tasks has no Scheduler.functions.none"),
        ("shop.tasks:schedule", "shop.tasks has no schedule"),
        ("shop.tasks:number", "shop.tasks:number is no Scheduler: it is of type int"),
        ("shop.broken:scheduler", "shop.broken cannot be imported: ValueError: no settings"),
        ("shop.leaving:scheduler", "shop.leaving cannot be imported: SystemExit: not today"),
        ("shop.lacking:scheduler", "shop.lacking cannot be imported: No module named 'not_installed'"),
        ("shop.crooked:scheduler", "shop.crooked cannot be imported: SyntaxError: '(' was never closed"),
        ("shop.hinted:scheduler", "shop.hinted:scheduler: the type hints of work are not valid: name 'Ordre' is not"),
        (".tasks:scheduler", ".tasks cannot be imported: TypeError"),
        ("shop tasks:scheduler", "there is no module shop tasks"),
    ],
)
def test_what_cannot_be_loaded_says_why(path: str, complaint: str) -> None:
    with pytest.raises(StartupError) as refused:
        load_application(path)
    assert str(refused.value).startswith(complaint)


TYPED = """
from bellringer.scheduler import Scheduler

scheduler = Scheduler()

@scheduler.task
def ship(order: int, *, to: str = "") -> float:
    return 0.5

@scheduler.task(cron="@daily", time_limit_seconds=5)
async def tidy() -> None: ...

weight: float = ship(7, to="Riga")
ship.bind(7, to="Riga").definition(delay_seconds=5)

async def run() -> None:
    await tidy()
"""
MISTYPED = """
from bellringer.scheduler import Scheduler

scheduler = Scheduler()

@scheduler.task
def ship(order: int, *, to: str = "") -> float:
    return 0.5

ship("7")
ship.bind(7, too="Riga")
ship.bind(7).definition(delay_seconds="5")
scheduler.task(corn="@daily")
"""


def test_decorated_functions_keep_their_types(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "mistyped.py").write_text(MISTYPED)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--config-file=",
        "--follow-imports=silent",
    ]
    cache = f"--cache-dir={tmp_path / 'cache'}"
    checked = subprocess.run(
        [*command, cache, "typed.py", "mistyped.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    complaints = [line.split(":")[:2] for line in checked.stdout.splitlines() if ": error:" in line]
    assert complaints == [["mistyped.py", line] for line in ("10", "11", "12", "13")], checked.stdout + checked.stderr
