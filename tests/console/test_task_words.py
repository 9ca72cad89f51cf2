from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bellringer.console.task_words import call_words, interval_words, schedule_words, schedule_zone
from bellringer.scheduler.model import Call, FunctionCall, HttpCall, MessageCall, NotificationCall, Schedule


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(cron="* * * * *"), "every minute"),
        (Schedule(cron="15 2 * * *"), "at 02:15 every day"),
        (Schedule(cron="@daily"), "at 00:00 every day"),
        (Schedule(cron="30 9 * * 1-5", time_zone="Europe/Berlin"), "at 09:30 on Monday through Friday"),
        (Schedule(cron="0 0 31 2 *"), "0 0 31 2 *"),
        (Schedule(every_seconds=90.0), "every 1 min 30 s"),
        (Schedule(every_seconds=1.5), "every 1.5 s"),
        (Schedule(at=datetime(2026, 11, 21, 14, 45, tzinfo=UTC)), "once, 2026-11-21 14:45:00 UTC"),
        (Schedule(delay_seconds=7200.0), "once, 2 h after it was made"),
    ],
)
def test_a_schedule_is_told_in_words(schedule: Schedule, words: str) -> None:
    assert schedule_words(schedule) == words


def test_a_zone_is_told_where_it_matters() -> None:
    assert schedule_zone(Schedule(cron="@daily", time_zone="Asia/Tokyo")) == "Asia/Tokyo"
    assert schedule_zone(Schedule(cron="@daily")) == ""
    assert schedule_zone(Schedule(every_seconds=5.0, time_zone="Asia/Tokyo")) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.25, "250 ms"),
        (1, "1 s"),
        (3600, "1 h"),
        (93_784, "1 d 2 h 3 min 4 s"),
        (604_800, "7 d"),
        (86_400.5, "1 d 0.5 s"),
    ],
)
def test_an_interval_is_told_in_full(seconds: float, words: str) -> None:
    assert interval_words(seconds) == words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (HttpCall(url="https://example.com/hook", method="PUT"), ("HTTP", "PUT https://example.com/hook")),
        (MessageCall(queue="orders", group="eu"), ("message", "to orders, group eu")),
        (NotificationCall(event_type="cart.left", recipients=["a@b.example"]), ("notification", "cart.left to 1")),
        (FunctionCall(name="work"), ("function", "work")),
    ],
)
def test_a_call_is_told_in_words(call: Call, words: tuple[str, str]) -> None:
    assert call_words(call) == words
