"""Tasks as a person reads them in a terminal, made of what the HTTP API answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from bellringer.replay import printable

Json = dict[str, Any]

_STYLES = {
    "active": "green",
    "succeeded": "green",
    "paused": "yellow",
    "skipped": "yellow",
    "cancelled": "yellow",
    "missed": "yellow",
    "started": "cyan",
    "failed": "red",
    "timed_out": "red",
    "crashed": "red",
    "refused": "red",
    "finished": "dim",
}
_WIDEST_BAR = 24


def task_list(tasks: Sequence[Json]) -> RenderableType:
    """Tasks by name."""
    if not tasks:
        return Text("There are no such tasks.")
    table = _table("task", "state", "when", "what", f"fires next ({_zone()})", "last", tight={"state"})
    for task in tasks:
        table.add_row(
            task["name"],
            _word(task["state"]),
            schedule_text(task["schedule"]),
            call_text(task["call"]),
            _local(task["next_fire_at"]),
            _ending(task["last"]),
        )
    return table


def task_detail(task: Json, occurrences: Sequence[Json]) -> RenderableType:
    """One task and its newest occurrences."""
    facts = Table.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    next_fire_at = task["next_fire_at"]
    misfire, retry = task["misfire"], task["retry"]
    rows: dict[str, str | Text] = {
        "task": task["name"],
        "state": _word(task["state"]),
        "problem": task["problem"] or "",
        "when": schedule_text(task["schedule"]),
        "fires next": f"{_local(next_fire_at)} {_zone()}, {_away(next_fire_at)}" if next_fire_at else "",
        "what": call_text(task["call"]),
        "payload": "" if task["payload"] is None else _compact(task["payload"]),
        "overlap": task["overlap"],
        "misfire": _misfire_text(misfire),
        "time limit": span_text(task["time_limit_seconds"]),
        "retries": "none by itself"
        if not retry["max_retries"]
        else (
            f"{retry['max_retries']}, after {span_text(retry['first_seconds'])} to {span_text(retry['cap_seconds'])}"
        ),
        "after a crash": "runs again" if task["rerun_after_crash"] else "",
        "made": f"{_local(task['created_at'])} {_zone()}",
        "changed": f"{_local(task['modified_at'])} {_zone()}" if task["modified_at"] != task["created_at"] else "",
    }
    for name, value in rows.items():
        if value:
            facts.add_row(name, value if isinstance(value, Text) else Text(printable(value)))
    if not occurrences:
        return facts
    return Group(facts, Text(), occurrence_list(occurrences))


def occurrence_list(occurrences: Sequence[Json]) -> RenderableType:
    """Occurrences of one task, as they come. The fire times can be given back to the other commands."""
    if not occurrences:
        return Text("It has not been due yet.")
    table = _table(
        "fire time", "outcome", "attempt", "started", "ran", "note", tight={"fire time", "attempt", "started", "ran"}
    )
    for one in occurrences:
        table.add_row(
            one["fire_at"],
            _word(one["outcome"] or one["state"]),
            str(one["attempt"]),
            "" if one["lag_seconds"] is None else f"+{span_text(one['lag_seconds'])}",
            _duration(one["started_at"], one["ended_at"]),
            printable(_note(one)),
        )
    return table


def occurrence_line(occurrence: Json) -> Text:
    """What became of one occurrence, in a line."""
    line = Text.assemble(occurrence["task"], " at ", occurrence["fire_at"], ": ")
    line.append(_word(occurrence["outcome"] or occurrence["state"]))
    if occurrence["ended_at"] and occurrence["started_at"]:
        line.append(f" after {_duration(occurrence['started_at'], occurrence['ended_at'])}")
    if occurrence["detail"]:
        line.append(f": {printable(occurrence['detail'])}")
    return line


def incident_list(incidents: Sequence[Json]) -> RenderableType:
    """Incidents, as they come."""
    if not incidents:
        return Text("Nothing of that kind happened.")
    table = _table(f"when ({_zone()})", "what", "task", "fire time", "why", tight={"fire time"})
    for one in incidents:
        why = ": ".join(part for part in (one["cause"], one["detail"]) if part)
        if one["fire_times"] > 1:
            why += f" ({one['fire_times']:,} fire times, to {one['last_fire_at']})"
        what = _word(one["kind"])
        if one["resolved_at"]:
            what.append(", tried again", style="dim")
        table.add_row(_local(one["at"]), what, one["task"], one["fire_at"] or "", printable(why))
    return table


def calendar_table(minutes: Sequence[Json]) -> RenderableType:
    """The minutes in which anything is to start."""
    if not minutes:
        return Text("Nothing is to start.")
    full = max(_WIDEST_BAR, *(minute["fire_times"] for minute in minutes))
    table = _table(f"minute ({_zone()})", "starts", "", "tasks", tight={"starts", ""})
    table.columns[1].justify = "right"
    for minute in minutes:
        names, more = minute["tasks"], minute["fire_times"] - len(minute["tasks"])
        table.add_row(
            _local(minute["minute"], seconds=False),
            f"{minute['fire_times']:,}",
            Text("█" * max(1, round(_WIDEST_BAR * minute["fire_times"] / full)), style="cyan"),
            ", ".join(names) + (f" and {more:,} more" if more > 0 else ""),
        )
    return table


def fire_time_table(fire_times: Iterable[str], zone: str) -> RenderableType:
    """Fire times by the clock of a zone and in UTC."""
    table = _table(zone, "UTC", "")
    for fire_time in fire_times:
        moment = datetime.fromisoformat(fire_time)
        table.add_row(f"{moment.astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M:%S %Z}", fire_time, _away(fire_time))
    return table


def schedule_text(schedule: Json) -> str:
    """When a task runs."""
    if "cron" in schedule:
        zone = schedule.get("time_zone", "UTC")
        return f"{schedule['cron']} {zone}"
    if "every_seconds" in schedule:
        start = schedule.get("starting_at")
        return f"every {span_text(schedule['every_seconds'])}" + (f" from {start}" if start else "")
    return f"once, {_local(schedule['at'])}"


def call_text(call: Json) -> str:
    """What a task does."""
    match call["type"]:
        case "http":
            return f"{call['method']} {call['url']}"
        case "message":
            return f"message to {call['queue']}" + (f", group {call['group']}" if call["group"] else "")
        case "notification":
            recipients = call["recipients"]
            more = f" and {len(recipients) - 1} more" if len(recipients) > 1 else ""
            return printable(f"notify {recipients[0]}{more} of {call['event_type']}")
        case _:
            return f"function {call['name']}"


def span_text(seconds: float) -> str:
    """A span of time in its two largest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    parts, rest = [], round(seconds)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, rest = divmod(rest, length)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def _table(*titles: str, tight: Collection[str] = ()) -> Table:
    """A table that folds where the terminal is narrow, but for the columns that are `tight`."""
    columns = [
        Column(title, overflow="fold", no_wrap=title in tight, min_width=min(10, len(title))) for title in titles
    ]
    return Table(*columns, box=None, pad_edge=False, header_style="dim")


def _word(word: str) -> Text:
    return Text(word.replace("_", " "), style=_STYLES.get(word, ""))


def _ending(last: Json | None) -> Text:
    if last is None:
        return Text()
    ending = _word(last["outcome"] or last["state"])
    ending.append(f" {_away(last['fire_at'])}", style="dim")
    return ending


def _note(occurrence: Json) -> str:
    parts = [
        "by hand" if occurrence["is_manual"] else "",
        f"late: {occurrence['missed_cause']}" if occurrence["missed_cause"] else "",
        "is being cancelled" if occurrence["cancel_requested"] and not occurrence["ended_at"] else "",
        occurrence["detail"] or "",
    ]
    return "; ".join(part for part in parts if part)


def _misfire_text(misfire: Json) -> str:
    match misfire["policy"]:
        case "all":
            return f"all, {misfire['limit']} at most"
        case "window":
            return f"those of the last {span_text(misfire['window_seconds'])}"
        case policy:
            return str(policy)


def _duration(start: str | None, end: str | None) -> str:
    if start is None or end is None:
        return ""
    return span_text((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())


def _away(moment: str) -> str:
    """How far a time lies from now."""
    seconds = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    span = span_text(max(1, round(abs(seconds))))
    return f"in {span}" if seconds >= 0 else f"{span} ago"


def _local(moment: str | None, *, seconds: bool = True) -> str:
    if moment is None:
        return ""
    local = datetime.fromisoformat(moment).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}" if seconds else f"{local:%a %Y-%m-%d %H:%M}"


def _zone() -> str:
    return f"{datetime.now().astimezone():%Z}"


def _compact(value: object) -> str:

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 500 else f"{text[:500]}…"
