"""Python functions as tasks: what application code writes, and executors are started with.

    scheduler = Scheduler()

    @scheduler.task(cron="0 9 * * 1-5", time_zone="Europe/Berlin")
    async def remind() -> None: ...

    @scheduler.task
    def send_invoice(order: int, copies: int = 1) -> None: ...

    async with connection.transaction():
        await send_invoice.bind(order=7).schedule(connection, delay_seconds=3600)

A decorated function is called as before. Its parameters are the shape of the payload, and their type hints say what
becomes of the JSON in it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, get_type_hints, overload

import msgspec

from bellringer.kernel.database import Connection
from bellringer.kernel.errors import InvalidInput, StartupError
from bellringer.scheduler.definition import check_definition
from bellringer.scheduler.model import (
    FunctionCall,
    Invocation,
    MisfirePolicy,
    Overlap,
    Retry,
    Schedule,
    TaskDefinition,
    check_task_name,
)
from bellringer.scheduler.parameters import Parameter, Signature, check_payload, parameters_of

__all__ = [
    "BoundFunction",
    "Function",
    "Parameter",
    "Scheduler",
    "When",
    "check_payload",
    "current",
    "load_application",
    "parameters_of",
    "running",
]

P = ParamSpec("P")
R = TypeVar("R")

running: ContextVar[Invocation] = ContextVar("running")
"""The run in which the code is; what `current` reads."""

_SCHEDULE = """
SELECT bellringer.schedule(
    name => $1, call => $2::jsonb, payload => $3::jsonb, at => $4, delay_seconds => $5, cron => $6, time_zone => $7,
    every_seconds => $8, starting_at => $9, options => $10::jsonb, environment => $11
)
"""


_ANY_SCHEDULE = Schedule(delay_seconds=0)


def current() -> Invocation:
    """The run that calls the function. Raises `LookupError` outside of one."""
    try:
        return running.get()
    except LookupError:
        raise LookupError("no task runs here") from None


class When(TypedDict, total=False):
    """The fields of a `Schedule`."""

    at: datetime
    delay_seconds: float
    cron: str
    time_zone: str
    every_seconds: float
    starting_at: datetime


class Options(TypedDict, total=False):
    """The fields of a `TaskDefinition` that say how it runs."""

    misfire: MisfirePolicy
    overlap: Overlap | None
    time_limit_seconds: float
    retry: Retry
    rerun_after_crash: bool


_OPTION_TYPES = get_type_hints(Options)
_WHEN_TYPES = get_type_hints(When)


def _typed(options: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their types: `"skip"` is `Overlap.SKIP`. Raises `InvalidInput` for one that has another."""
    typed = dict(options)
    for option in options.keys() & types.keys():
        try:
            typed[option] = msgspec.convert(options[option], types[option])
        except msgspec.ValidationError as error:
            raise InvalidInput(f"{option}: {error}", field=option) from None
    return typed


def _schedule(when: Mapping[str, Any]) -> Schedule:
    return Schedule(**_typed({field: value for field, value in when.items() if value is not None}, _WHEN_TYPES))


class Function(Generic[P, R]):
    """A function that tasks can call. To be had from `Scheduler.task`."""

    def __init__(self, function: Callable[P, R], name: str, schedule: Schedule | None, options: Options) -> None:
        """Raises `TypeError` for a function whose arguments a payload cannot give, `InvalidInput` for a bad option."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is a generator: to call it does nothing")
        functools.update_wrapper(self, function)
        self.name = check_task_name(name)
        self.own_schedule = schedule
        self.signature = Signature(function)
        self._function = function
        self._options = _typed(options, _OPTION_TYPES)
        if schedule is not None and self.signature.required:
            raise TypeError(f"{name} is scheduled without arguments, so {self.signature.required[0]} needs a default")
        check_definition(self.definition_for(schedule or _ANY_SCHEDULE, b"null"), now=datetime.now(UTC))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self._function(*args, **kwargs)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundFunction:
        """The function with arguments, to be scheduled. Raises `TypeError` or `InvalidInput` when they do not fit."""
        return BoundFunction(self, self.signature.bind(*args, **kwargs))

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop; other functions run in threads."""
        return inspect.iscoroutinefunction(self._function)

    @property
    def description(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self._function) or "").partition("\n")[0]

    def definition_for(self, schedule: Schedule, payload: bytes) -> TaskDefinition:
        """A task that calls it."""
        return TaskDefinition(
            schedule=schedule,
            call=FunctionCall(name=self.name),
            payload=msgspec.Raw(payload),
            **self._options,
        )


class BoundFunction:
    """A function and its arguments."""

    def __init__(self, function: Function[..., Any], payload: bytes) -> None:
        self._function = function
        self._payload = payload

    def definition(self, **when: Unpack[When]) -> TaskDefinition:
        """A task that calls the function so, for the HTTP API or `Tasks`. Raises `InvalidInput`."""
        definition = self._function.definition_for(_schedule(when), self._payload)
        check_definition(definition, now=datetime.now(UTC))
        return definition

    async def schedule(
        self, connection: Connection, *, name: str | None = None, environment: str | None = None, **when: Unpack[When]
    ) -> str:
        """Make a task in the transaction that `connection` is in, or change the one of that name; return its name.

        `environment` is organisation/name, and may be left out while there is one only. Raises `InvalidInput`, and
        `asyncpg.PostgresError` for what the database finds.
        """
        definition = self.definition(**when)
        schedule = definition.schedule
        options: dict[str, object] = {
            field: getattr(definition, field)
            for field in ("misfire", "overlap", "time_limit_seconds", "retry", "rerun_after_crash")
        }
        scheduled: str = await connection.fetchval(
            _SCHEDULE,
            name,
            msgspec.json.encode(definition.call).decode(),
            self._payload.decode(),
            schedule.at,
            schedule.delay_seconds,
            schedule.cron,
            schedule.time_zone,
            schedule.every_seconds,
            schedule.starting_at,
            msgspec.json.encode({key: value for key, value in options.items() if value is not None}).decode(),
            environment,
        )
        return scheduled


class Scheduler:
    """The functions of an application that tasks can call."""

    def __init__(self) -> None:
        self._functions: dict[str, Function[..., Any]] = {}

    @overload
    def task(self, function: Callable[P, R], /) -> Function[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        cron: str | None = None,
        time_zone: str = "UTC",
        every_seconds: float | None = None,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Function[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        cron: str | None = None,
        time_zone: str = "UTC",
        every_seconds: float | None = None,
        **options: Unpack[Options],
    ) -> Function[..., Any] | Callable[[Callable[..., Any]], Function[..., Any]]:
        """Let tasks call a function, by its name; with `cron` or `every_seconds`, declare a task of that name, too.

        Raises `TypeError` for a function whose arguments a payload cannot give, `ValueError` for a name that is taken,
        `InvalidInput` for an option out of range.
        """
        schedule = None
        if cron is not None or every_seconds is not None:
            schedule = _schedule({"cron": cron, "time_zone": time_zone, "every_seconds": every_seconds})

        def decorate(function: Callable[..., Any]) -> Function[..., Any]:
            decorated = Function(function, name or function.__name__, schedule, options)
            if decorated.name in self._functions:
                raise ValueError(f"there is a function {decorated.name} already: give one of them another name")
            self._functions[decorated.name] = decorated
            return decorated

        return decorate if function is None else decorate(function)

    @property
    def functions(self) -> Mapping[str, Function[..., Any]]:
        """The functions by their names."""
        return self._functions

    def declared(self) -> list[tuple[str, TaskDefinition]]:
        """The tasks that functions declare by their schedules, with their names."""
        return [
            (function.name, function.definition_for(function.own_schedule, b"null"))
            for function in self._functions.values()
            if function.own_schedule is not None
        ]


def load_application(path: str) -> Scheduler:
    """The scheduler that `path` names, such as `package.module:attribute`. Raises `StartupError`.

    Modules are looked for in the working directory, too.
    """
    module_name, _, attributes = path.partition(":")
    if not module_name or not attributes:
        raise StartupError(f"{path} names no application; write package.module:attribute")
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = functools.reduce(getattr, attributes.split("."), _import(module_name))
    except AttributeError:
        raise StartupError(f"{module_name} has no {attributes}") from None
    if not isinstance(found, Scheduler):
        raise StartupError(f"{path} is no Scheduler: it is of type {type(found).__name__}")
    for function in found.functions.values():
        try:
            function.signature.describe()
        except (NameError, TypeError) as error:
            raise StartupError(f"{path}: the type hints of {function.name} are not valid: {error}") from None
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise StartupError(f"there is no module {error.name}") from None
        raise StartupError(f"{name} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise StartupError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
