"""The console in headless Chromium, against the real server; pictures of every room go to tests/screenshots/."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect
from tests.support.browser import DESKTOP, PHONE, Visitor
from tests.support.server import DEADLINE_SECONDS, Server, serving, until

pytestmark = [pytest.mark.scenario, pytest.mark.browser]

ANN, BEN, EVE = "ann@acme.example", "ben@acme.example", "eve@acme.example"
HOSTILE = {
    "type": "x" * 200,
    "subject": "<script>alert(1)</script> " + "W" * 400,
    "source": "s" * 200,
    "recipients": ["a" * 60 + "@" + "b" * 60 + ".example"],
    "data": {"</pre><b>": "<img src=x onerror=alert(1)>"},
}

expect.set_options(timeout=DEADLINE_SECONDS * 1000)


def event(number: int = 0, **more: object) -> dict[str, object]:
    types = ("task.failed", "task.succeeded", "deploy.finished")
    subjects = ("Nightly import of orders", "Backup of the ledger", "checkout 4.12.0 to production")
    told: dict[str, object] = {
        "type": types[number % 3],
        "subject": subjects[number % 3],
        "source": "scheduler",
        "recipients": [ANN, BEN] if number % 2 else [ANN, EVE],
        "data": {"reason": "disk full", "attempt": number, "retry": True, "host": None},
    }
    return told | more


@pytest.fixture(scope="module")
def server(browser: Browser) -> Iterator[Server]:  # noqa: ARG001 - without a browser there is nothing to serve
    """A server on which things have happened: queues in every state, mail, and text that breaks layouts."""
    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "1", "BELLRINGER_ORGANISATION": "acme"}) as running:
        assert running.request("PUT", "/v1/message/orders", [{"msg": "order"}] * 40).status == 201
        running.get("/v1/messages/orders?n=9")
        running.request("PUT", "/v1/message/webhooks.outgoing", [{"msg": "later", "delay_seconds": 3600}] * 5)
        running.request("PUT", "/v1/message/" + "q" * 80, {"msg": "in a queue with a long name"})
        for number in range(60):
            running.tell(event(number))
        running.tell(HOSTILE)
        running.until_settled()
        yield running


def tile(visitor: Visitor, key: str) -> Locator:
    return visitor.page.locator(f'[data-fragment="numbers"] [data-key="{key}"] [data-number]')


def mark(visitor: Visitor) -> None:
    """Leave something in the page that a reload would wipe out."""
    visitor.page.evaluate("window.loadedOnce = true")


def was_reloaded(visitor: Visitor) -> bool:
    return visitor.page.evaluate("window.loadedOnce") is not True


def test_a_newcomer_signs_in_and_sees_the_first_event_arrive(browser: Browser) -> None:
    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "1"}) as server:
        newcomer = Visitor(browser, server.url, viewport=DESKTOP)
        page = newcomer.page
        page.goto("/")
        newcomer.screenshot("login")
        page.get_by_label("API key").fill("not a key at all")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("No such key: it is unknown or revoked.")
        newcomer.screenshot("login-wrong-key")
        refusals, newcomer.complaints = newcomer.complaints, []
        assert all("422" in refusal for refusal in refusals)

        page.get_by_label("API key").fill(server.key)
        page.keyboard.press("Enter")
        expect(page.get_by_text("Ring it for the first time")).to_be_visible()
        expect(page.locator("#live-state")).to_have_text("Live")
        newcomer.screenshot("overview-empty")
        mark(newcomer)

        for number in range(5):
            server.tell(event(number))
        expect(tile(newcomer, "events")).to_have_text("5")
        expect(page.get_by_text("Ring it for the first time")).to_have_count(0)
        expect(tile(newcomer, "sent")).not_to_have_text("0")
        expect(page.locator('[data-fragment="latest-mail"] li').first).to_be_visible()
        assert not was_reloaded(newcomer)
        assert newcomer.complaints == []
        newcomer.context.close()


def test_numbers_queues_and_lists_change_without_a_reload(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    expect(page.locator("#live-state")).to_have_text("Live")
    mark(visitor)
    events = server.overview()["events"]

    first = page.locator('[data-fragment="latest-notifications"] a.item').first
    first.focus()
    focused = page.evaluate("document.activeElement.href")
    server.tell(event(subject="Told while somebody looks"))
    expect(tile(visitor, "events")).to_have_text(str(events + 1))
    expect(page.get_by_text("Told while somebody looks")).to_be_visible()
    assert page.evaluate("document.activeElement.href") == focused

    row = page.locator('[data-fragment="latest-queues"] tr[data-key="orders"] td.count').first
    pending = int(row.inner_text())
    server.request("PUT", "/v1/message/orders", {"msg": "one more"})
    expect(row).to_have_text(str(pending + 1))
    assert not was_reloaded(visitor)


def test_the_page_of_a_queue_follows_it(visitor: Visitor, server: Server) -> None:
    server.request("PUT", "/v1/message/followed", {"msg": "first"})
    visitor.page.goto("/console/queues/followed")
    expect(visitor.page.locator("#live-state")).to_have_text("Live")
    pending = visitor.page.locator('[data-fragment="queue-counts"] [data-number]').first
    expect(pending).to_have_text("1")
    server.request("PUT", "/v1/message/followed", [{"msg": "more"}] * 2)
    expect(pending).to_have_text("3")


def test_a_timeline_moves_on_to_its_end(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    notification_id = server.tell(event(1, type="task.followed"))
    page.goto(f"/console/notifications/{notification_id}")
    mark(visitor)
    sent = page.locator('.step[data-key="sent"]')
    expect(sent).to_contain_text("captured")
    expect(sent.locator("[data-number]")).to_have_text("2")
    expect(page.locator("#live-state")).to_have_count(0)
    assert not was_reloaded(visitor)
    visitor.screenshot("notification-settled")


def test_lists_grow_at_their_top(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    page.goto("/console/notifications")
    expect(page.locator("#live-state")).to_have_text("Live")
    server.tell(event(subject="At the top"))
    expect(page.locator("tbody tr").first).to_contain_text("At the top")
    server.until_settled()
    page.goto("/console/mail")
    expect(page.locator("#live-state")).to_have_text("Live")
    captured = page.locator("tbody tr").first.get_attribute("data-key")
    server.tell(event())
    expect(page.locator("tbody tr").first).not_to_have_attribute("data-key", captured or "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_room_fits_its_window(browser: Browser, server: Server, scheme: str, viewport: dict[str, int]) -> None:
    visitor = Visitor(browser, server.url, viewport=viewport, color_scheme=scheme)
    visitor.sign_in(server.key)
    hostile = next(found for found in all_notifications(server) if found["type"] == HOSTILE["type"])
    mails = server.get("/v1/captured-mail?limit=200")["captured_mail"]
    hostile_mail = next(mail for mail in mails if mail["recipients"] == HOSTILE["recipients"])
    rooms = {
        "overview": "/console",
        "queues": "/console/queues",
        "queue": "/console/queues/orders",
        "queue-of-pipeline": "/console/queues/emails.outbound?pipeline=true",
        "queue-long-name": "/console/queues/" + "q" * 80,
        "notifications": "/console/notifications",
        "notification": f"/console/notifications/{all_notifications(server)[0]['id']}",
        "notification-hostile": f"/console/notifications/{hostile['id']}",
        "mail": "/console/mail",
        "message": f"/console/mail/{mails[0]['id']}",
        "message-hostile": f"/console/mail/{hostile_mail['id']}",
        "message-text": f"/console/mail/{mails[0]['id']}?view=text",
        "message-source": f"/console/mail/{mails[0]['id']}?view=source",
        "api": "/docs",
    }
    for name, path in rooms.items():
        answer = visitor.page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        assert visitor.overflow() <= 0, f"{path} is wider than {viewport['width']} px"
        visitor.screenshot(f"{name}-{scheme}-{viewport['width']}")
    assert visitor.complaints == []
    visitor.page.goto("/console/nothing")
    assert visitor.overflow() <= 0
    visitor.screenshot(f"not-found-{scheme}-{viewport['width']}")
    visitor.context.close()


def all_notifications(server: Server) -> list[dict[str, object]]:
    found: list[dict[str, object]] = server.get("/v1/notifications?limit=200")["notifications"]
    return found


def test_everything_is_there_without_javascript(browser: Browser, server: Server) -> None:
    visitor = Visitor(browser, server.url, viewport=DESKTOP, java_script_enabled=False)
    page = visitor.page
    visitor.sign_in(server.key)
    expect(page.locator("#live-state")).to_be_hidden()
    assert int(tile(visitor, "events").inner_text()) == server.overview()["events"]

    rooms = page.get_by_role("navigation", name="Rooms")
    rooms.get_by_role("link", name="Queues").click()
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_text("/v1/messages/orders?n=10")).to_be_visible()

    rooms.get_by_role("link", name="Notifications").click()
    page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Back to the newest").click()
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()

    rooms.get_by_role("link", name="Mail").click()
    page.locator("tbody a").first.click()
    expect(page.frame_locator("iframe").locator("[data-notification]").first).to_be_visible()
    page.get_by_role("link", name="Text", exact=True).click()
    expect(page.locator(".mail-text")).to_contain_text("Times are in UTC")
    page.get_by_role("link", name="Source").click()
    expect(page.locator(".mail-text")).to_contain_text("MIME-Version: 1.0")

    rooms.get_by_role("link", name="API").click()
    expect(page.get_by_text("/v1/events", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto("/console")
    expect(page.get_by_label("API key")).to_be_visible()
    assert visitor.complaints == []
    visitor.context.close()


def test_hostile_text_runs_nowhere(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto("/console")
    expect(page.locator("#live-state")).to_have_text("Live")
    server.tell(HOSTILE)
    shown = page.locator('[data-fragment="latest-notifications"] .subject', has_text="<script>alert(1)</script>")
    expect(shown.first).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    assert dialogs == []


def test_a_revoked_key_ends_an_open_page(browser: Browser, server: Server) -> None:
    guest = Visitor(browser, server.url, viewport=DESKTOP)
    guest.sign_in(server.create_key("guest"))
    expect(guest.page.locator("#live-state")).to_have_text("Live")
    listed = server.run("keys", "list").stdout
    key_id = next(line.split()[0] for line in listed.splitlines() if "guest" in line)
    assert server.run("keys", "revoke", key_id).returncode == 0
    expect(guest.page.get_by_role("alert")).to_have_text("That key is no longer valid. Sign in with another.")
    guest.context.close()


def test_open_pages_outlive_a_restart_and_do_not_hold_it_up(browser: Browser) -> None:
    with serving({"BELLRINGER_DIGEST_WINDOW_SECONDS": "1"}) as server:
        visitor = Visitor(browser, server.url, viewport=DESKTOP)
        visitor.sign_in(server.key)
        state = visitor.page.locator("#live-state")
        expect(state).to_have_text("Live")
        mark(visitor)
        began_at = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began_at < 10, "an open page held up the shutdown"
        expect(state).to_have_text("Not connected")
        visitor.screenshot("overview-not-connected")
        server.start()
        expect(state).to_have_text("Live")
        server.tell(event())
        expect(tile(visitor, "events")).to_have_text("1")
        assert not was_reloaded(visitor)
        visitor.context.close()


def test_a_page_that_nobody_sees_is_not_polled_for(visitor: Visitor, server: Server) -> None:
    expect(visitor.page.locator("#live-state")).to_have_text("Live")
    visitor.page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    assert visitor.page.evaluate("live.source") is None
    visitor.page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    events = server.overview()["events"]
    server.tell(event())
    expect(tile(visitor, "events")).to_have_text(str(events + 1))
    until(lambda: visitor.page.evaluate("live.source !== null"), "the page is connected again")
