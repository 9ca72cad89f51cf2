"""`bellringer tasks`, against a server that runs: what it does there, and what a person and a program read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.server import Server, free_port, serving

pytestmark = pytest.mark.scenario


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def told(server: Server, *arguments: str) -> str:
    """What a command that succeeds prints."""
    done = server.run("tasks", *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def refusal(server: Server, *arguments: str) -> tuple[int, str]:
    """The exit code of a command that fails, and what it says."""
    done = server.run("tasks", *arguments)
    assert done.stdout.strip() == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def answer(server: Server, *arguments: str) -> Any:  # noqa: ANN401 - whatever the server said
    """What a command prints for programs."""
    return json.loads(told(server, *arguments, "--json"))


def test_a_task_is_made_listed_shown_changed_and_deleted(server: Server) -> None:
    made = told(
        server, "create", "backup", "--cron", "0 2 * * *", "--time-zone", "Europe/Berlin",
        "--http", "https://acme.example/hook", "--header", "X-Kind: nightly", "--payload", '{"to": "s3"}',
        "--retries", "3", "--time-limit", "90s", "--misfire", "window", "--misfire-window", "2h", "--overlap", "queue",
    )  # fmt: skip
    for words in ("0 2 * * * Europe/Berlin", "POST https://acme.example/hook", '{"to":"s3"}', "1 m 30 s", "queue"):
        assert words in made
    task = answer(server, "show", "backup")
    assert task["call"] == {
        "type": "http", "url": "https://acme.example/hook", "method": "POST", "headers": {"X-Kind": "nightly"}
    }  # fmt: skip
    assert task["misfire"] == {"policy": "window", "limit": 10, "window_seconds": 7200.0}

    every = ("create", "backup", "--every", "5m", "--function", "report", "--payload", "{}")
    assert refusal(server, *every) == (1, "bellringer: there is a task backup with another definition\n")
    assert "every 5 m" in told(server, *every, "--replace")
    assert "paused" in told(server, "pause", "backup")
    assert "active" in told(server, "resume", "backup")
    assert answer(server, "cancel", "backup")["state"] == "cancelled"
    assert refusal(server, "delete", "backup")[0] == 1, "nobody is there to say yes"
    assert told(server, "delete", "backup", "--yes") == "Deleted backup.\n"
    assert refusal(server, "show", "backup") == (1, "bellringer: there is no task backup\n")


def test_a_task_runs_and_what_failed_is_tried_again(server: Server) -> None:
    told(server, "create", "mail", "--in", "1h", "--http", f"http://127.0.0.1:{free_port()}")
    run = server.run("tasks", "run", "mail", "--wait", "--json")
    occurrence = json.loads(run.stdout)
    assert (run.returncode, occurrence["outcome"]) == (1, "failed")
    fire_time = occurrence["fire_at"]
    history = told(server, "history", "mail")
    assert all(words in history for words in (fire_time, "failed", "by hand"))
    assert "failed" in told(server, "incidents", "--unresolved", "--kind", "failed")

    told(server, "create", "mail", "--in", "1h", "--queue", "mails", "--payload", '{"to": "ann"}', "--replace")
    assert "succeeded" in told(server, "retry", "mail", fire_time, "--wait")
    assert refusal(server, "retry", "mail", fire_time) == (1, "bellringer: this occurrence has succeeded\n")
    assert answer(server, "incidents", "--unresolved")["incidents"] == []
    shown = told(server, "show", "mail")
    assert all(words in shown for words in ("message to mails", fire_time, "succeeded"))


def test_what_is_to_come_is_shown(server: Server) -> None:
    told(server, "create", "tick", "--cron", "* * * * *", "--queue", "ticks")
    assert len(told(server, "calendar", "--hours", "1").splitlines()) in {60, 61}, "its minutes, and a title"
    shown = told(server, "preview", "--cron", "30 2 29 2 *", "--time-zone", "Europe/Berlin", "--count", "1")
    assert "-02-29 02:30:00 CET" in shown


def test_lists_say_how_to_go_on(server: Server) -> None:
    for name in ("page:a", "page:b"):
        told(server, "create", name, "--cron", "@daily", "--queue", "pages")
    done = server.run("tasks", "list", "--prefix", "page:", "--limit", "1")
    assert "page:a" in done.stdout
    assert done.stderr == "There may be more: --after page:a\n"
    assert "page:b" in told(server, "list", "--prefix", "page:", "--after", "page:a")


def test_what_is_wrong_is_said_in_a_line(server: Server) -> None:
    assert refusal(server, "create", "wrong", "--queue", "q", "--cron", "0 0 31 2 *") == (
        1,
        "bellringer: schedule.cron: the cron expression is not valid: it names a time that never comes\n",
    )
    nobody = f"http://127.0.0.1:{free_port()}"
    code, words = refusal(server, "list", "--url", nobody)
    assert code == 1
    assert words.startswith(f"bellringer: {nobody} cannot be reached: ")
    assert refusal(server, "list", "--key", "wrong-key-wrong-key") == (
        1,
        "bellringer: the API key is unknown or revoked\n",
    )
