"""What people write about tasks on the command line, and what it means."""

from __future__ import annotations

import io
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from bellringer.task_options import read_headers, read_moment, read_payload, read_schedule, read_seconds
from bellringer.tasks_cli import tasks_app


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5s", 1.5), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), ("1d2h3m4s", 93_784)],
)
def test_a_span_of_time_is_read(text: str, seconds: float) -> None:
    assert read_seconds(text, "--in") == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5m", "5x", "1s1m", "1.5m", "soon"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="a span of time is"):
        read_seconds(text, "--in")


def test_a_time_without_an_offset_is_that_of_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert read_moment("2026-01-05T10:01", "--at") == "2026-01-05T01:01:00+00:00"
        assert read_moment("2026-01-05 10:01:02.5+02:00", "--at") == "2026-01-05T08:01:02.500000+00:00"
        assert read_moment("2026-01-05T10:01Z", "--at") == "2026-01-05T10:01:00+00:00"
        assert read_moment("0:00", "--at").endswith("T00:00:00+09:00")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("hours", [1, 23])
def test_a_time_of_day_is_the_next_one(hours: int) -> None:
    now = datetime.now().astimezone()
    wanted = now + timedelta(hours=hours)
    moment = datetime.fromisoformat(read_moment(f"{wanted:%H:%M:%S}", "--at"))
    assert moment == wanted.replace(microsecond=0)


@pytest.mark.parametrize("text", ["", "24:00", "10:60", "noon", "2026-13-01", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="a time is"):
        read_moment(text, "--at")


def test_a_payload_comes_from_the_line_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"b": 2}')
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"[3]")))
    found = [bytes(read_payload(text)) for text in ('{"a": 1}', f"@{file}", "-")]
    assert found == [b'{"a": 1}', b'{"b": 2}', b"[3]"]
    for text in ("{a: 1}", "", f"@{tmp_path}/nothing", "[" * 100_000, '"\udcff"'):
        with pytest.raises(typer.BadParameter):
            read_payload(text)


def test_headers_are_read() -> None:
    assert read_headers(["Authorization: Bearer a:b", "X-Empty:"]) == {"Authorization": "Bearer a:b", "X-Empty": ""}
    with pytest.raises(typer.BadParameter, match="Name: value"):
        read_headers(["nothing"])


def test_a_schedule_is_one_of_four_kinds() -> None:
    assert read_schedule("@daily", "Europe/Berlin", None, None, None, None) == {
        "cron": "@daily",
        "time_zone": "Europe/Berlin",
    }
    assert read_schedule(None, None, None, "90s", None, None) == {"delay_seconds": 90}
    assert read_schedule(None, None, None, None, "5m", "2026-01-05T10:00Z") == {
        "every_seconds": 300,
        "starting_at": "2026-01-05T10:00:00+00:00",
    }
    for wrong in ((None, None, None, None, None, None), ("@daily", None, None, "5m", None, None)):
        with pytest.raises(typer.BadParameter, match="say when"):
            read_schedule(*wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "it", "--queue", "q"),
        ("create", "it", "--queue", "q", "--in", "soon"),
        ("create", "it", "--queue", "q", "--in", "5m", "--every", "5m"),
        ("create", "it", "--queue", "q", "--in", "5m", "--function", "report"),
        ("create", "it", "--queue", "q", "--in", "5m", "--payload", "{"),
        ("create", "it", "--http", "http://acme.example", "--in", "5m", "--header", "x"),
        ("create", "it", "--in", "5m"),
        ("create", "it", "--in", "5m", "--queue", "q", "--header", "a: b"),
        ("create", "it", "--in", "5m", "--queue", "q", "--method", "GET"),
        ("create", "it", "--in", "5m", "--queue", "q", "--recipient", "bob@acme.example"),
        ("create", "it", "--in", "5m", "--queue", "q", "--subject", "x"),
        ("create", "it", "--in", "5m", "--http", "http://acme.example", "--group", "g"),
        ("create", "it", "--in", "5m", "--queue", "q", "--misfire-window", "1h"),
        ("create", "it", "--in", "5m", "--queue", "q", "--misfire", "window", "--misfire-limit", "0"),
        ("list", "--state", "asleep"),
        ("list", "--limit", "0"),
        ("calendar", "--start", "noon"),
        ("incidents", "--kind", "slow"),
    ],
)
def test_wrong_usage_is_exit_code_2_before_any_server_is_asked(arguments: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(tasks_app, arguments, env={"BELLRINGER_PORT": "no port"})
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "Usage: " in ended.stderr
