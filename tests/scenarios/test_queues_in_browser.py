"""The queues of the console in headless Chromium: looked at, paused, purged and redriven by hand."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, expect
from tests.support.browser import DESKTOP, PHONE, Visitor
from tests.support.server import DEADLINE_SECONDS, Server, serving, until

pytestmark = [pytest.mark.scenario, pytest.mark.browser]

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
LARGEST = 256 * 1024
HOSTILE: list[dict[str, Any]] = [
    {"msg": SCRIPT, "attributes": {SCRIPT: SCRIPT}},
    {"msg": f'{{"</pre><b>": "{SCRIPT}"}}'},
    {"base64": base64.b64encode(bytes(range(256))).decode()},
    {"msg": ""},
    {"msg": "W" * 4000},
    {"msg": "\u202egnp.exe"},
    {"msg": "[" * 600 + "]" * 600},
]
LARGE: list[dict[str, Any]] = [
    {"msg": "x" * LARGEST},
    {"base64": base64.b64encode(b"\x00\xff" * (LARGEST // 2)).decode()},
    {"msg": msgspec.json.encode([{"n": n} for n in range(20_000)]).decode()},
]

expect.set_options(timeout=DEADLINE_SECONDS * 1000)


@pytest.fixture(scope="module")
def server(browser: Browser) -> Iterator[Server]:  # noqa: ARG001 - without a browser there is nothing to serve
    """A server with a full queue, a paused one, an empty one, dead letters, and bodies that break layouts."""
    with serving({"BELLRINGER_ORGANISATION": "acme"}) as running:
        for _ in range(5):
            publish(running, "image.resize", [{"msg": f'{{"image": "{number}.png"}}'} for number in range(1000)])
        publish(running, "invoices.render", [{"msg": "1"}] * 30)
        assert running.request("POST", "/v1/queues/invoices.render/pause").status == 200
        configure(running, "audit.log")
        configure(running, "ledger", fifo=True)
        publish(running, "ledger", [{"msg": "debit", "group": "customer " + "7" * 100}])
        make_dead_letters(running, "orders", 40)
        publish(running, "hostile", HOSTILE)
        for message in LARGE:
            publish(running, "hostile", [message])
        yield running


def publish(server: Server, queue: str, messages: list[dict[str, Any]]) -> None:
    assert server.request("PUT", f"/v1/message/{queue}", messages).status == 201


def configure(server: Server, queue: str, **settings: object) -> None:
    assert server.request("PUT", f"/v1/queues/{queue}", settings).status == 200


def claim(server: Server, queue: str, limit: int) -> list[str]:
    """Claim messages; return their receipt handles."""
    found = server.get(f"/v1/messages/{queue}?n={limit}")["messages"]
    return [message["receipt_handle"] for message in found]


def hand_back(server: Server, queue: str, handles: list[str]) -> None:
    changes = [{"receipt_handle": handle, "seconds": 0} for handle in handles]
    assert server.request("POST", f"/v1/queues/{queue}/visibility", {"changes": changes}).status == 200


def counts(server: Server, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(f"/v1/queues/{queue}")["counts"]
    return found


def make_dead_letters(server: Server, queue: str, number: int) -> None:
    """A queue whose messages all failed, and lie in another."""
    configure(server, f"{queue}.dead")
    configure(server, queue, max_receives=1, dead_letter_queue=f"{queue}.dead")
    publish(server, queue, [{"msg": f'{{"order": {index}}}'} for index in range(number)])
    hand_back(server, queue, claim(server, queue, number))
    until(lambda: counts(server, f"{queue}.dead")["pending"] == number, "the dead letters have arrived")


def tile(visitor: Visitor, key: str) -> Locator:
    return visitor.page.locator(f'[data-fragment="queue-counts"] [data-key="{key}"] [data-number]')


def look_at(visitor: Visitor, queue: str) -> None:
    visitor.page.goto(f"/console/queues/{queue}")
    expect(visitor.page.locator("#live-state")).to_have_text("Live")
    visitor.page.evaluate("window.loadedOnce = true")


def was_reloaded(visitor: Visitor) -> bool:
    return visitor.page.evaluate("window.loadedOnce") is not True


def test_numbers_and_plots_move_while_somebody_looks(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    publish(server, "followed", [{"msg": "first"}])
    look_at(visitor, "followed")
    expect(tile(visitor, "pending")).to_have_text("1")
    depth = page.get_by_role("region", name="Depth as a table")
    page.locator(".plot summary").first.click()
    in_flight, pending, _ = (depth.locator("tbody tr").first.locator("td").nth(index) for index in range(3))
    expect(pending).to_have_text("1")

    publish(server, "followed", [{"msg": "more"}] * 41)
    handles = claim(server, "followed", 12)
    expect(tile(visitor, "pending")).to_have_text("30")
    expect(tile(visitor, "in-flight")).to_have_text("12")
    expect(pending).to_have_text("30")
    expect(in_flight).to_have_text("12")
    server.request("POST", "/v1/queues/followed/acknowledge", {"receipt_handles": handles})
    expect(tile(visitor, "in-flight")).to_have_text("0")
    expect(page.get_by_text("42 in all, 12 finished")).to_be_visible()
    assert not was_reloaded(visitor)


def test_a_plot_says_what_was_where_the_pointer_is(visitor: Visitor) -> None:
    look_at(visitor, "image.resize")
    page = visitor.page
    page.locator(".plot-moment").nth(59).hover()
    expect(page.locator(".plot-reading").first).to_have_text(re.compile(r"^\d\d:\d\d UTC: 0 in flight, 5,000 pending"))
    page.get_by_role("heading", name="image.resize").hover()
    expect(page.locator(".plot-reading").first).to_have_text("")


def test_a_look_claims_nothing_and_leads_to_the_history(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    publish(server, "looked-at", [{"msg": f'{{"order": {number}}}'} for number in range(25)])
    look_at(visitor, "looked-at")
    peeked = page.locator(".peek li")
    expect(peeked).to_have_count(20)
    peeked.nth(2).locator("summary").click()
    expect(peeked.nth(2).locator("pre")).to_have_text('{\n  "order": 2\n}')
    page.get_by_role("link", name="Look again").click()
    assert counts(server, "looked-at")["in_flight"] == 0

    page.get_by_label("What happened to message").fill("1")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="Message 1")).to_be_visible()
    expect(page.locator(".step")).to_have_count(2)
    handles = claim(server, "looked-at", 1)
    expect(page.locator(".step", has_text="1st attempt")).to_be_visible()
    hand_back(server, "looked-at", handles)
    expect(page.locator(".step", has_text="Returned")).to_be_visible()
    server.request("POST", "/v1/queues/looked-at/acknowledge", {"receipt_handles": claim(server, "looked-at", 1)})
    expect(page.locator(".step", has_text="Finished")).to_be_visible()
    expect(page.locator("#live-state")).to_have_count(0)
    visitor.screenshot("queue-message-finished")


def test_a_pause_is_seen_by_all_who_look(browser: Browser, visitor: Visitor, server: Server) -> None:
    publish(server, "paused", [{"msg": "1"}])
    colleague = Visitor(browser, server.url, viewport=DESKTOP)
    colleague.sign_in(server.key)
    look_at(colleague, "paused")
    look_at(visitor, "paused")
    visitor.page.get_by_role("button", name="Pause").click()
    expect(visitor.page.get_by_text("Claims get nothing")).to_be_visible()
    expect(colleague.page.get_by_text("Claims get nothing")).to_be_visible()
    assert not was_reloaded(colleague)
    until(lambda: claim(server, "paused", 1) == [], "claims get nothing")
    colleague.page.get_by_role("button", name="Resume").click()
    expect(visitor.page.get_by_role("button", name="Pause")).to_be_visible()
    colleague.context.close()


def test_a_purge_asks_for_the_name_of_the_queue(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    publish(server, "purged", [{"msg": "1"}] * 1000)
    claim(server, "purged", 10)
    look_at(visitor, "purged")
    page.get_by_role("link", name="Purge…").click()
    expect(page.get_by_text("1,000 messages will go")).to_be_visible()
    page.get_by_label("Type purged to confirm").fill("something else")
    page.get_by_role("button", name="Purge the queue").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the name of the queue. Nothing was removed.")
    visitor.screenshot("purge-refused")
    refusals, visitor.complaints = visitor.complaints, []
    assert all("422" in refusal for refusal in refusals)
    page.get_by_role("link", name="Keep the messages").click()
    assert counts(server, "purged")["purged"] == 0

    page.get_by_role("link", name="Purge…").click()
    page.get_by_label("Type purged to confirm").fill("purged")
    page.keyboard.press("Enter")
    expect(tile(visitor, "pending")).to_have_text("0")
    expect(tile(visitor, "in-flight")).to_have_text("0")
    assert counts(server, "purged")["purged"] == 1000


def test_dead_letters_are_redriven_under_somebodys_eyes(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    make_dead_letters(server, "payments", 60)
    look_at(visitor, "payments.dead")
    page.get_by_label("At most a second").fill("1")
    page.get_by_role("button", name="Redrive").click()
    moved = page.locator(".move-running [data-number]")
    expect(moved).to_be_visible()
    page.evaluate("window.loadedOnce = true")
    first = int(moved.inner_text())
    expect(moved).not_to_have_text(str(first))
    visitor.screenshot("queue-redrive")
    assert not was_reloaded(visitor)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".move-cancelled")).to_be_visible()
    left = counts(server, "payments.dead")["pending"]
    assert 0 < left < 60

    page.get_by_label("Move what waits here").select_option("back to where each message came from")
    page.get_by_role("button", name="Redrive").click()
    expect(page.locator(".move-completed")).to_contain_text(f"{left} of {left} moved")
    assert counts(server, "payments")["pending"] == 60


def test_hostile_bodies_run_nowhere(visitor: Visitor, server: Server) -> None:
    page = visitor.page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    ids = range(1, len(HOSTILE) + len(LARGE) + 1)
    look_at(visitor, "hostile")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    expect(page.locator(".peek li pre").first).to_have_text(SCRIPT)
    assert visitor.overflow() <= 0
    visitor.screenshot("queue-hostile")
    for number in ids:
        page.goto(f"/console/queues/hostile/messages/{number}?whole=true")
        assert visitor.overflow() <= 0
        assert page.locator("main img, main script").count() == 0
    assert page.locator("main pre").inner_text().count('"n"') == 20_000
    assert dialogs == []
    assert counts(server, "hostile")["in_flight"] == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_room_fits_its_window(browser: Browser, server: Server, scheme: str, viewport: dict[str, int]) -> None:
    visitor = Visitor(browser, server.url, viewport=viewport, color_scheme=scheme)
    visitor.sign_in(server.key)
    rooms = {
        "queues-full": "/console/queues",
        "queue-full": "/console/queues/image.resize",
        "queue-day": "/console/queues/image.resize?period=24h",
        "queue-paused": "/console/queues/invoices.render",
        "queue-empty": "/console/queues/audit.log",
        "queue-fifo": "/console/queues/ledger",
        "queue-dead-letters": "/console/queues/orders.dead",
        "queue-hostile": "/console/queues/hostile",
        "queue-of-pipeline": "/console/queues/digests.closed?pipeline=true",
        "queue-message": "/console/queues/orders/messages/1",
        "queue-message-bytes": "/console/queues/hostile/messages/3",
        "purge": "/console/queues/image.resize/purge",
    }
    for name, path in rooms.items():
        answer = visitor.page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        assert visitor.overflow() <= 0, f"{path} is wider than {viewport['width']} px"
        visitor.screenshot(f"{name}-{scheme}-{viewport['width']}")
    assert visitor.complaints == []
    visitor.context.close()


def test_everything_can_be_done_without_javascript(browser: Browser, server: Server) -> None:
    visitor = Visitor(browser, server.url, viewport=DESKTOP, java_script_enabled=False)
    page = visitor.page
    make_dead_letters(server, "plain", 5)
    visitor.sign_in(server.key)
    page.goto("/console/queues")
    page.get_by_role("link", name="plain.dead").click()
    assert tile(visitor, "pending").inner_text() == "5"
    page.get_by_role("link", name="24 hours").click()
    expect(page.get_by_role("img", name="Depth over the last 24 hours, at most 5 messages")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    page.locator(".peek summary").first.click()
    page.get_by_role("link", name="History").first.click()
    expect(page.get_by_text("Waits to be claimed")).to_be_visible()
    page.get_by_role("link", name="plain, message 1").click()
    expect(page.get_by_text("Dead-lettered")).to_be_visible()

    page.goto("/console/queues/plain.dead")
    page.get_by_label("Move what waits here").select_option("to audit.log")
    page.get_by_role("button", name="Redrive").click()
    until(lambda: counts(server, "audit.log")["pending"] == 5, "the dead letters are moved")
    page.goto("/console/queues/audit.log/purge")
    page.get_by_label("Type audit.log to confirm").fill("audit.log")
    page.get_by_role("button", name="Purge the queue").click()
    expect(tile(visitor, "pending")).to_have_text("0")
    assert visitor.complaints == []
    visitor.context.close()
