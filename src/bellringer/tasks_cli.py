"""`bellringer tasks`: tasks of a running server, over its HTTP API.

What the server refuses is one line on standard error and exit code 1.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
import typer
from rich.console import RenderableType

from bellringer import task_tables as tables
from bellringer.kernel.errors import BellringerError
from bellringer.replay import Api, NoAnswer, open_api, printable, url_of
from bellringer.scheduler.model import IncidentKind, Misfire, Overlap, TaskState
from bellringer.task_options import check_company, read_headers, read_moment, read_payload, read_schedule, read_seconds
from bellringer.terminal import ConfigFile, Key, Url, console, known_key, read_settings, run

tasks_app = typer.Typer(help="Make tasks, and look at what becomes of them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the task.", show_default=False)]
FireTime = Annotated[
    str, typer.Argument(help="As `history` shows it, such as 2026-01-05T10:01:00Z.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the server answers, for programs.")]
Wait = Annotated[bool, typer.Option("--wait", help="Until it is over; the exit code is 1 unless it succeeds.")]
Limit = Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)]
Cron = Annotated[str | None, typer.Option(help="Five fields or an alias: '0 2 * * *', @daily.")]
TimeZone = Annotated[str | None, typer.Option(help="The zone in which cron counts; UTC if left out.")]
At = Annotated[str | None, typer.Option(help="14:45, or 2026-01-05T10:01 by this computer's clock or with an offset.")]
In = Annotated[str | None, typer.Option("--in", help="After so long: 90s, 5m, 1h30m.")]
Every = Annotated[str | None, typer.Option(help="Again and again after so long: 5m.")]
StartingAt = Annotated[str | None, typer.Option(help="From when --every counts; from now if left out.")]

_POLL_SECONDS = 0.25


class ServerRefused(BellringerError):
    """The server did not do what it was asked."""


class Server:
    """The server that a command speaks to."""

    def __init__(self, url: str | None, key: str | None, config_file: Path | None) -> None:
        config = read_settings(config_file)
        self._url = url or url_of(config.edge.host, config.edge.port)
        self._key = key or known_key(config)

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever it answers
        """What the server answers, as JSON values; None when that is nothing. Raises `ServerRefused`."""

        async def answer() -> Any:  # noqa: ANN401 - whatever it answers
            async with open_api(self._url, self._key) as api:
                return await _ask(api, method, path, body)

        return run(answer())

    def wait_for(self, occurrence: tables.Json) -> tables.Json:
        """The occurrence when it is over, which it may never be."""
        path = f"{_path(occurrence['task'])}/occurrences/{quote(occurrence['fire_at'], safe='')}"

        async def ended() -> tables.Json:
            async with open_api(self._url, self._key) as api:
                while True:
                    found: tables.Json = await _ask(api, "GET", path)
                    if found["ended_at"] is not None:
                        return found
                    await asyncio.sleep(_POLL_SECONDS)

        return run(ended())


@tasks_app.command()
def create(
    name: Name,
    *,
    cron: Cron = None,
    time_zone: TimeZone = None,
    at: At = None,
    delay: In = None,
    every: Every = None,
    starting_at: StartingAt = None,
    http: Annotated[str | None, typer.Option(metavar="URL", help="Request it, with the payload as its body.")] = None,
    method: Annotated[str | None, typer.Option(help="The method of the request; POST if left out.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", help="Of the request: 'Name: value'. May be repeated.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Publish the payload as a message on it.")] = None,
    group: Annotated[str | None, typer.Option(help="The group of the message, on a FIFO queue.")] = None,
    function: Annotated[str | None, typer.Option(help="Call it with the payload, an object, as arguments.")] = None,
    notify: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Tell recipients of an event of that type.")
    ] = None,
    recipients: Annotated[
        list[str] | None, typer.Option("--recipient", help="An address to notify. May be repeated.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The subject of the notification.")] = None,
    payload: Annotated[str, typer.Option(help="JSON; @file for a file's content, - for standard input.")] = "null",
    misfire: Annotated[
        Misfire, typer.Option(help="What still runs of what was missed while nothing could start it.")
    ] = Misfire.LATEST,
    misfire_limit: Annotated[int | None, typer.Option(help="How many at most, with --misfire all.")] = None,
    misfire_window: Annotated[str | None, typer.Option(help="Of how long ago, with --misfire window.")] = None,
    overlap: Annotated[
        Overlap | None,
        typer.Option(help="What becomes of a fire time while the one before runs; skip if it recurs, or else allow."),
    ] = None,
    time_limit: Annotated[str, typer.Option(help="How long a run may take.")] = "1h",
    retries: Annotated[int, typer.Option(help="How often a run that failed is tried again by itself.")] = 0,
    retry_first: Annotated[str, typer.Option(help="After how long at first.")] = "10s",
    retry_cap: Annotated[str, typer.Option(help="After how long at most.")] = "1h",
    rerun_after_crash: Annotated[
        bool, typer.Option("--rerun-after-crash", help="Run again what its executor did not survive.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change the task of that name, if there is one.")] = False,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a task: one option that says when (--cron, --at, --in, --every), and one that says what (--http, --queue,
    --function, --notify).
    """
    calls: list[tables.Json] = [
        {"type": "http", "url": http, "method": method, "headers": read_headers(headers or [])},
        {"type": "message", "queue": queue, "group": group},
        {"type": "function", "name": function},
        {"type": "notification", "event_type": notify, "recipients": recipients or [], "subject": subject},
    ]
    wanted = [call for call, target in zip(calls, (http, queue, function, notify), strict=True) if target is not None]
    if len(wanted) != 1:
        raise typer.BadParameter("say what the task does: one of --http, --queue, --function, --notify")
    check_company(
        {
            "--http": (http is not None, {"--method": method, "--header": headers}),
            "--queue": (queue is not None, {"--group": group}),
            "--notify": (notify is not None, {"--recipient": recipients, "--subject": subject}),
            "--misfire all": (misfire is Misfire.ALL, {"--misfire-limit": misfire_limit}),
            "--misfire window": (misfire is Misfire.WINDOW, {"--misfire-window": misfire_window}),
        }
    )
    asked = {
        "schedule": read_schedule(cron, time_zone, at, delay, every, starting_at),
        "call": {member: value for member, value in wanted[0].items() if value is not None},
        "payload": read_payload(payload),
        "misfire": {
            "policy": misfire,
            **({} if misfire_limit is None else {"limit": misfire_limit}),
            **({} if misfire_window is None else {"window_seconds": read_seconds(misfire_window, "--misfire-window")}),
        },
        "overlap": overlap,
        "time_limit_seconds": read_seconds(time_limit, "--time-limit"),
        "retry": {
            "max_retries": retries,
            "first_seconds": read_seconds(retry_first, "--retry-first"),
            "cap_seconds": read_seconds(retry_cap, "--retry-cap"),
        },
        "rerun_after_crash": rerun_after_crash,
    }
    server = Server(url, key, config_file)
    if replace:
        task = server.ask("PUT", _path(name), asked)
    else:
        task = server.ask("POST", "/v1/tasks", {"name": name, **asked})
    _show(task, tables.task_detail(task, []), as_json=as_json)


@tasks_app.command("list")
def list_tasks(
    *,
    state: Annotated[TaskState | None, typer.Option(help="Only those in that state.")] = None,
    prefix: Annotated[str, typer.Option(help="Only those whose names begin so.")] = "",
    after: Annotated[str, typer.Option(help="Only those whose names come after this one.")] = "",
    limit: Limit = 100,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks by name."""
    query = {"prefix": prefix, "after": after, "limit": limit, **({} if state is None else {"state": state.value})}
    page = Server(url, key, config_file).ask("GET", f"/v1/tasks?{urlencode(query)}")
    _show(page, tables.task_list(page["tasks"]), as_json=as_json)
    if page["next"] and not as_json:
        _remark(f"There may be more: --after {page['next']}")


@tasks_app.command()
def show(
    name: Name, *, url: Url = None, key: Key = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Show a task, and what became of it lately."""
    server = Server(url, key, config_file)
    task = server.ask("GET", _path(name))
    occurrences = [] if as_json else server.ask("GET", f"{_path(name)}/occurrences?limit=5")["occurrences"]
    _show(task, tables.task_detail(task, occurrences), as_json=as_json)


@tasks_app.command()
def history(
    name: Name,
    *,
    before: Annotated[str | None, typer.Option(help="Only fire times before this one.")] = None,
    limit: Limit = 20,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List what became of a task, the newest first."""
    query = urlencode({"limit": limit, **({} if before is None else {"before": before})})
    page = Server(url, key, config_file).ask("GET", f"{_path(name)}/occurrences?{query}")
    _show(page, tables.occurrence_list(page["occurrences"]), as_json=as_json)
    if page["next"] and not as_json:
        _remark(f"There may be more: --before {page['next']}")


@tasks_app.command()
def pause(
    name: Name, *, url: Url = None, key: Key = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Let a task start nothing until it is resumed."""
    _change(Server(url, key, config_file), name, "pause", as_json=as_json)


@tasks_app.command()
def resume(
    name: Name, *, url: Url = None, key: Key = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """End a pause: the fire times from now on take place."""
    _change(Server(url, key, config_file), name, "resume", as_json=as_json)


@tasks_app.command()
def cancel(
    name: Name, *, url: Url = None, key: Key = None, config_file: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Let a task start nothing any more; its history stays."""
    _change(Server(url, key, config_file), name, "cancel", as_json=as_json)


@tasks_app.command()
def delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
) -> None:
    """Delete a task with its history."""
    server = Server(url, key, config_file)
    if not yes:
        typer.confirm(f"Delete {name} and all that is known of it?", abort=True, err=True)
    server.ask("DELETE", _path(name))
    console.print(f"Deleted {name}.")


@tasks_app.command("run")
def run_task(
    name: Name,
    *,
    wait: Wait = False,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Let a task run now, beside its schedule."""
    server = Server(url, key, config_file)
    _follow(server, server.ask("POST", f"{_path(name)}/run"), wait=wait, as_json=as_json)


@tasks_app.command()
def retry(
    name: Name,
    fire_time: FireTime,
    *,
    wait: Wait = False,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Try an occurrence again that is over and did not succeed."""
    server = Server(url, key, config_file)
    occurrence = server.ask("POST", f"{_path(name)}/occurrences/{quote(fire_time, safe='')}/retry")
    _follow(server, occurrence, wait=wait, as_json=as_json)


@tasks_app.command()
def calendar(
    *,
    start: Annotated[str | None, typer.Option(help="From when on, as --at of create; now if left out.")] = None,
    hours: Annotated[int, typer.Option(help="How many hours.", min=1, max=168)] = 24,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the minutes to come in which anything is to start."""
    query = urlencode({"hours": hours, **({} if start is None else {"start": read_moment(start, "--start")})})
    found = Server(url, key, config_file).ask("GET", f"/v1/calendar?{query}")
    _show(found, tables.calendar_table(found["minutes"]), as_json=as_json)


@tasks_app.command()
def preview(
    *,
    cron: Cron = None,
    time_zone: TimeZone = None,
    at: At = None,
    delay: In = None,
    every: Every = None,
    starting_at: StartingAt = None,
    count: Annotated[int, typer.Option(help="How many fire times.", min=1, max=1000)] = 10,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show when a task would run."""
    schedule = read_schedule(cron, time_zone, at, delay, every, starting_at)
    found = Server(url, key, config_file).ask("POST", "/v1/schedules/preview", {"schedule": schedule, "count": count})
    _show(found, tables.fire_time_table(found["fire_times"], time_zone or "UTC"), as_json=as_json)


@tasks_app.command()
def incidents(
    *,
    kinds: Annotated[list[IncidentKind] | None, typer.Option("--kind", help="May be repeated.")] = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Only failures that nobody tried again.")] = False,
    before: Annotated[int | None, typer.Option(help="Only those with an id below this.")] = None,
    limit: Limit = 50,
    url: Url = None,
    key: Key = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List what did not go as planned, the newest first."""
    query: list[tuple[str, object]] = [("kind", kind.value) for kind in kinds or ()]
    query += [("unresolved", str(unresolved).lower()), ("limit", limit)]
    query += [] if before is None else [("before", before)]
    page = Server(url, key, config_file).ask("GET", f"/v1/incidents?{urlencode(query)}")
    _show(page, tables.incident_list(page["incidents"]), as_json=as_json)
    if page["next"] and not as_json:
        _remark(f"There may be more: --before {page['next']}")


async def _ask(api: Api, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever it answers
    try:
        answer = await api.request(method, path, None if body is None else msgspec.json.encode(body))
    except NoAnswer as error:
        raise ServerRefused(f"{api.url} cannot be reached: {error}") from error
    if not answer.is_success:
        field, detail = answer.problem()
        raise ServerRefused(printable(f"{field}: {detail}" if field else detail))
    try:
        return msgspec.json.decode(answer.body) if answer.body else None
    except msgspec.DecodeError:
        raise ServerRefused(f"{api.url} is not a Bellringer") from None


def _path(name: str) -> str:
    return f"/v1/tasks/{quote(name, safe=':')}"


def _change(server: Server, name: str, verb: str, *, as_json: bool) -> None:
    task = server.ask("POST", f"{_path(name)}/{verb}")
    _show(task, tables.task_list([task]), as_json=as_json)


def _follow(server: Server, occurrence: tables.Json, *, wait: bool, as_json: bool) -> None:
    if wait:
        occurrence = server.wait_for(occurrence)
    _show(occurrence, tables.occurrence_line(occurrence), as_json=as_json)
    if wait and occurrence["outcome"] != "succeeded":
        raise typer.Exit(1)


def _show(answer: object, table: RenderableType, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
    else:
        console.print(table)


def _remark(text: str) -> None:
    typer.echo(text, err=True)
