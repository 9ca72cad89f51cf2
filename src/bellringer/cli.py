"""The command line: `bellringer up`, and what an operator needs beside it.

Errors of the start are one line on standard error and exit code 1; wrong usage is exit code 2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn
from uuid import UUID

import typer
from msgspec.structs import replace
from rich.console import Console
from rich.table import Column, Table

from bellringer import __version__
from bellringer.assembly import open_database
from bellringer.config import VARIABLES, Config
from bellringer.edge.keys import Keys
from bellringer.edge.model import Scope, SigningPair, rate_limit_of
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.errors import BellringerError, InvalidInput
from bellringer.kernel.logs import configure_logs
from bellringer.roles import Role
from bellringer.tasks_cli import tasks_app
from bellringer.terminal import ConfigFile, Key, Url, console, known_key, read_settings, run

app = typer.Typer(
    help="Everything between “something happened” and “a person saw it”, on PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
app.add_typer(tasks_app, name="tasks")

_SECRET = {"api_key", "database.url", "notifications.smtp.url", "orchestrator.webhook.url"}


def main() -> NoReturn:
    """Run the command line."""
    try:
        _check_text(sys.argv)
        app(standalone_mode=True)
    except BellringerError as error:
        sys.stderr.write(f"bellringer: {error}\n")
        sys.exit(1)
    sys.exit(0)


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what no request can carry: bytes that are no text. Raises `InvalidInput`."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"the argument {argument!a} is not UTF-8") from None


@app.command()
def up(
    config_file: ConfigFile = None,
    role: Annotated[Role, typer.Option(help="What this process runs.")] = Role.ALL,
    demo: Annotated[bool, typer.Option("--demo", help="Replay a sample of task events, once.")] = False,  # noqa: FBT002
    tasks: Annotated[
        str | None, typer.Option(help="Functions to run as tasks: `package.module:attribute` of their Scheduler.")
    ] = None,
) -> None:
    """Start Bellringer in the foreground; Ctrl-C or SIGTERM stops it in order."""
    from bellringer.foreground import run_in_foreground  # noqa: PLC0415 - keeps the other commands quick

    config = read_settings(config_file)
    if tasks is not None:
        config = replace(config, scheduler=replace(config.scheduler, tasks=tasks))
    if sys.stderr.isatty() and config.log.level == "info" and config.log.format != "json":
        configure_logs("warning", "text")  # a person has the screen: it tells where things are, logs what is wrong
    arguments = [] if config_file is None else ["--config", str(config_file)]
    arguments += [] if tasks is None else ["--tasks", tasks]
    run(run_in_foreground(config, role, console, demo=demo, executor_arguments=arguments))


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(help="Events, one JSON object per line.", exists=True, dir_okay=False, readable=True)
    ],
    speed: Annotated[
        float | None, typer.Option(help="Times the pace that `time` tells of; as fast as possible if left out.")
    ] = None,
    url: Url = None,
    key: Key = None,
    run_id: Annotated[str | None, typer.Option("--run", help="The id of an interrupted run that is to go on.")] = None,
    config_file: ConfigFile = None,
) -> None:
    """Feed a file of events, plain or CloudEvents, through the HTTP API.

    The exit code is 1 when the server refused an event. A run that was interrupted can be repeated with its id for
    24 hours: what the server has taken already is not doubled.
    """
    from bellringer.replay import is_run, replay_file, url_of  # noqa: PLC0415 - keeps the other commands quick

    if speed is not None and not 0 < speed < math.inf:
        raise typer.BadParameter("it must be above 0", param_hint="--speed")
    if run_id is not None and not is_run(run_id):
        raise typer.BadParameter("1 to 100 letters, digits, dots, dashes or underscores", param_hint="--run")
    config = read_settings(config_file)
    url = url or url_of(config.edge.host, config.edge.port)
    messages = Console(stderr=True, highlight=False, markup=False)
    code = run(replay_file(file, url, key or known_key(config), run_id, speed, console, messages))
    raise typer.Exit(code)


@app.command("check-config")
def check_config(
    config_file: ConfigFile = None,
    list_settings: Annotated[bool, typer.Option("--list", help="Show every setting.")] = False,  # noqa: FBT002
) -> None:
    """Check the settings without starting anything."""
    config = read_settings(config_file)
    if list_settings:
        # Folded, not cut short, where the terminal is narrow.
        columns = [Column(title, overflow="fold") for title in ("environment variable", "in bellringer.toml", "value")]
        table = Table(*columns, box=None, pad_edge=False)
        for variable, path in VARIABLES.items():
            table.add_row(variable, path, _shown(config, path))
        console.print(table)
    console.print("The settings are valid.")


@app.command()
def version() -> None:
    """Show the version."""
    console.print(__version__)


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for, such as “billing service”.")],
    organisation: Annotated[str | None, typer.Option(help="BELLRINGER_ORGANISATION if left out.")] = None,
    environment: Annotated[str | None, typer.Option(help="BELLRINGER_ENVIRONMENT if left out.")] = None,
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="What it may do; may be repeated. admin if left out.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second; without it there is no limit.")] = None,
    burst: Annotated[int | None, typer.Option(help="Requests at once after a pause; those of one second.")] = None,
    config_file: ConfigFile = None,
) -> None:
    """Make a key for one environment. It is shown once, with its pair for clients of AWS, as lines of an .env file."""
    config = read_settings(config_file)
    limit = rate_limit_of(rate, burst)

    async def create() -> tuple[str, SigningPair]:
        async with open_database(config) as database:
            keys = Keys(database, SystemClock())
            key = await keys.create(
                organisation or config.organisation,
                environment or config.environment,
                name,
                scopes=scopes or [Scope.ADMIN],
                rate_limit=limit,
            )
            return key, await keys.signing_pair(key)

    _show_key(*run(create()))


@keys_app.command("pair")
def show_pair(
    key: Key = None,
    config_file: ConfigFile = None,
) -> None:
    """Show a key that you hold with its pair for clients of AWS, as lines of an .env file."""
    config = read_settings(config_file)
    known = key or known_key(config)

    async def find() -> SigningPair:
        async with open_database(config) as database:
            return await Keys(database, SystemClock()).signing_pair(known)

    _show_key(known, run(find()))


@keys_app.command("list")
def list_keys(config_file: ConfigFile = None) -> None:
    """List the keys; the keys themselves are not stored."""
    config = read_settings(config_file)

    async def listed() -> Table:
        titles = ("environment", "name", "ends in", "scopes", "limit", "access key id", "created", "revoked")
        table = Table(Column("id", no_wrap=True), *titles, box=None, pad_edge=False)
        async with open_database(config) as database:
            for key in await Keys(database, SystemClock()).list_keys():
                table.add_row(
                    str(key.id),
                    str(key.environment),
                    key.name,
                    f"…{key.hint}",
                    ",".join(sorted(key.scopes)),
                    str(key.rate_limit or ""),
                    key.access_key_id,
                    key.created_at.isoformat(timespec="seconds"),
                    key.revoked_at.isoformat(timespec="seconds") if key.revoked_at else "",
                )
        return table

    console.print(run(listed()))


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[UUID, typer.Argument(help="The id that `keys list` shows.")], config_file: ConfigFile = None
) -> None:
    """Revoke a key: within a second nothing takes it any more."""
    config = read_settings(config_file)

    async def revoke() -> None:
        async with open_database(config) as database:
            await Keys(database, SystemClock()).revoke(key_id)

    run(revoke())
    console.print(f"Revoked {key_id}.")


def _show_key(key: str, pair: SigningPair) -> None:
    typer.echo(f"BELLRINGER_API_KEY={key}")
    typer.echo(f"AWS_ACCESS_KEY_ID={pair.access_key_id}")
    typer.echo(f"AWS_SECRET_ACCESS_KEY={pair.secret_access_key}")


def _shown(config: Config, path: str) -> str:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    is_secret = value is not None and path in _SECRET
    return "(set)" if is_secret else str(value)
