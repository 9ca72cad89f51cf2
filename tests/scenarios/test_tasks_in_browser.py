"""The rooms of the scheduler in headless Chromium: looked at, and tasks run, stopped and tried again by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.support.browser import DESKTOP, PHONE, Visitor
from tests.support.server import DEADLINE_SECONDS, Server, serving

pytestmark = [pytest.mark.scenario, pytest.mark.browser]

LONG = "billing." + "render-and-send-to-every-customer." * 3 + "europe"
ROOMS = [
    "/console/tasks",
    "/console/tasks?period=24h&prefix=rep",
    "/console/calendar",
    "/console/failures",
    "/console/failures?kind=all",
    "/console/tasks/failing",
    f"/console/tasks/{LONG}",
    f"/console/tasks/{LONG}/cancel",
]

expect.set_options(timeout=DEADLINE_SECONDS * 1000)


@pytest.fixture(scope="module")
def server(browser: Browser) -> Iterator[Server]:  # noqa: ARG001 - without a browser there is nothing to serve
    """A server with a task of every kind, one of which failed."""
    with serving({"BELLRINGER_ORGANISATION": "acme"}) as running:
        put(running, "failing", {"delay_seconds": 0}, {"type": "http", "url": f"{running.url}/v1/tasks/none"})
        put(
            running,
            "report",
            {"cron": "*/5 * * * *", "time_zone": "Asia/Tokyo"},
            {"type": "message", "queue": "reports"},
        )
        put(running, LONG, {"cron": "* * * * *"}, {"type": "http", "url": f"https://acme.example/{'path/' * 30}"})
        for number in range(30):
            put(running, f"sweep.{number:02}", {"cron": f"{number} * * * *"}, {"type": "message", "queue": "sweeps"})
        yield running


def put(server: Server, name: str, schedule: dict[str, object], call: dict[str, object]) -> None:
    reply = server.request("PUT", f"/v1/tasks/{name}", {"schedule": schedule, "call": call, "payload": {"of": name}})
    assert reply.status in {200, 201}, reply.body


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_room_fits_every_window(browser: Browser, server: Server, window: dict[str, int], scheme: str) -> None:
    visitor = Visitor(browser, server.url, viewport=window, color_scheme=scheme)
    visitor.sign_in(server.key)
    for path in ROOMS:
        visitor.page.goto(path)
        assert visitor.overflow() == 0, path
        visitor.screenshot(f"tasks{re.sub(r'[^a-z]+', '-', path)[:40]}-{window['width']}-{scheme}")
    visitor.context.close()
    assert visitor.complaints == []


def test_a_run_by_hand_is_followed_to_its_end(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/console/tasks/report")
    page.get_by_role("button", name="Run now").click()
    entry = page.locator(".entries .entry", has_text="by hand")
    expect(entry.get_by_text("succeeded", exact=True)).to_be_visible()
    expect(entry.get_by_role("img")).to_have_accessible_name(re.compile("started .* ran .* succeeded"))
    entry.get_by_role("link").click()
    expect(page.get_by_text("1st attempt")).to_be_visible()


def test_a_failure_is_tried_again_from_its_room(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/console/failures")
    incident = page.locator(".incident", has_text="failing")
    expect(incident).to_have_count(1)
    incident.get_by_role("button", name="Retry").click()
    # It fails again: another incident, of the second attempt.
    expect(page.locator(".incident", has_text="2nd attempt")).to_be_visible()
    page.get_by_role("link", name="Everything").click()
    expect(page.locator(".incident", has_text="tried again")).to_be_visible()


def test_a_task_is_paused_resumed_and_cancelled(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/console/tasks/sweep.00")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Fire times pass without a run")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("link", name="Cancel…").click()
    page.get_by_label("Type sweep.00 to confirm").fill("sweep.00")
    page.get_by_role("button", name="Cancel the task").click()
    expect(page.get_by_text("its history stays")).to_be_visible()
    expect(page.get_by_role("button", name="Run now")).to_have_count(0)


def test_the_list_is_filtered_and_changes_while_somebody_looks(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    page.goto("/console/tasks")
    page.get_by_label("Name begins with").fill("fresh.")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No tasks here")).to_be_visible()
    put(server, "fresh.one", {"every_seconds": 3600}, {"type": "message", "queue": "fresh"})
    expect(page.get_by_role("link", name="fresh.one")).to_be_visible()
    page.get_by_role("link", name="All tasks").click()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("link", name="sweep.29")).to_be_visible()


def test_a_minute_of_the_calendar_is_opened(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/console/calendar")
    page.locator(".heat-row").nth(3).locator("a").nth(15).click()
    expect(page.locator(".loads details[open] a", has_text="sweep.15")).to_be_visible()
    page.locator(".loads details[open]").get_by_role("link", name="sweep.15").click()
    expect(page.get_by_role("heading", name="sweep.15")).to_be_visible()


def test_without_javascript_the_rooms_say_the_same(browser: Browser, server: Server) -> None:
    visitor = Visitor(browser, server.url, viewport=DESKTOP, java_script_enabled=False)
    visitor.sign_in(server.key)
    page = visitor.page
    page.goto("/console/tasks/sweep.01")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Fire times pass without a run")).to_be_visible()
    page.goto("/console/calendar")
    assert page.locator(".heat-row rect.plot-moment").count() >= 1400
    visitor.context.close()
