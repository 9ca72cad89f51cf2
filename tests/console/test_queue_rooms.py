from __future__ import annotations

import re

import httpx
import pytest
from tests.support.application import client_of
from tests.support.html import tags_of, text_of
from tests.support.site import Site

from bellringer.broker import SYSTEM_ENVIRONMENT, Publication, Queue, QueueSettings
from bellringer.broker.loops import Sweeper
from bellringer.broker.model import MoveState
from bellringer.broker.moves import Mover
from bellringer.edge.keys import Keys
from bellringer.kernel.database import Database

HOSTILE = "<script>alert(1)</script>\"'>"
ACTIONS = ["pause", "resume", "purge", "redrive", "cancel-redrive"]


async def queue_of(site: Site, name: str = "orders", *bodies: bytes, **settings: object) -> Queue:
    """A queue with messages in it."""
    queue = await site.broker.create_queue(site.environment.id, name, QueueSettings(**settings))  # type: ignore[arg-type]
    if bodies:
        await site.broker.send(queue, [Publication(body=body) for body in bodies])
    return queue


async def dead_letters(site: Site, number: int) -> tuple[Queue, Queue]:
    """A queue, and its dead letter queue with messages in it."""
    letters = await queue_of(site, "orders.dead")
    bodies = [b'{"order": %d}' % index for index in range(number)]
    source = await queue_of(site, "orders", *bodies, max_receives=1, dead_letter_queue="orders.dead")
    messages = await site.broker.claim(source, 1000)
    await site.broker.change_visibility(source, [(message.receipt_handle, 0) for message in messages])
    await site.deliver()
    assert (await site.broker.counts([letters]))[letters.id].pending == number
    return source, letters


async def text_at(reader: httpx.AsyncClient, path: str) -> str:
    answer = await reader.get(path)
    assert answer.status_code == 200, answer.text
    return text_of(answer.text)


# The list


async def test_the_list_tells_how_each_queue_stands(site: Site, reader: httpx.AsyncClient) -> None:
    await dead_letters(site, 3)
    await queue_of(site, "webhooks", b"1", delay_seconds=60)
    paused = await queue_of(site, "invoices", b"1", b"2")
    await site.broker.claim(paused, 1)
    await site.broker.pause_queue(paused)
    listed = await text_at(reader, "/console/queues")
    # Pending, in flight, delayed, stuck, dead letters, published in the last minute, age of the oldest.
    assert "invoices paused 1 1 0 0 0 2 0 s" in listed
    assert "orders 0 0 0 0 3 3 \N{EN DASH}" in listed
    assert "webhooks 0 0 1 0 0 1 \N{EN DASH}" in listed
    assert re.search(r"orders\.dead 3 0 0 0 0 3 \d s", listed)
    assert "emails.outbound 0 0 0 0 0 0 \N{EN DASH}" in listed


# The page of a queue


async def test_a_queue_shows_its_numbers_and_its_settings(site: Site, reader: httpx.AsyncClient) -> None:
    await queue_of(site, "orders.dead")
    queue = await queue_of(
        site,
        "orders",
        *[b"1"] * 5,
        visibility_timeout_seconds=90,
        retention_seconds=3600,
        max_receives=4,
        dead_letter_queue="orders.dead",
        tags={"team": "o'neill"},
    )
    (done, _) = await site.broker.claim(queue, 2)
    await site.broker.acknowledge(queue, done.receipt_handle)
    html = (await reader.get("/console/queues/orders")).text
    text = text_of(html)
    assert re.search(r"Pending 3 oldest [\d.]+ m?s In flight 1 .* Delayed 0 .* Stuck 0", text)
    assert re.search(r"Published a minute 5 5 in all, 1 finished Time to deletion \d+ ms", text)
    assert "Visibility timeout 1 min 30 s" in text
    assert "Retention 1 h" in text
    assert "Dead letters after 4 attempts to orders.dead" in text
    assert "team=o'neill" in text
    assert "curl -X PUT http://bellringer/v1/message/orders" in text
    assert "v1/messages/orders?n=10&wait=20" in text
    assert '"team": "o\'\\\'\'neill"' in text
    assert "Dead letter queue of orders." in await text_at(reader, "/console/queues/orders.dead")


async def test_depth_and_pace_are_plotted_and_told_in_tables(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await queue_of(site, "orders", *[b"1"] * 40)
    await site.broker.claim(queue, 15)
    html = (await reader.get("/console/queues/orders")).text
    drawings = [svg for svg in tags_of(html, "svg") if svg.get("role") == "img"]
    assert [svg["aria-label"] for svg in drawings] == [
        "Depth over the last hour, at most 25 messages",
        "Pace over the last hour, at most 40 messages a minute",
    ]
    text = text_of(html)
    assert re.search(r"\d\d:\d\d UTC: 15 in flight, 25 pending, 0 delayed", text)
    assert re.search(r"From \(UTC\) in flight pending delayed \d\d:\d\d 15 25 0", text)
    assert re.search(r"From \(UTC\) published finished \d\d:\d\d", text)
    day = await text_at(reader, "/console/queues/orders?period=24h")
    assert "Depth over the last 24 hours" in day
    assert (await reader.get("/console/queues/orders?period=1y")).status_code == 400


async def test_a_look_at_the_messages_claims_none(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await queue_of(site, "orders", *[b'{"order": %d}' % number for number in range(25)])
    before = (await site.broker.counts([queue]))[queue.id]
    html = (await reader.get("/console/queues/orders")).text
    text = text_of(html)
    assert 'Message Attempts Size Published 1 {"order": 0} 0 attempts 12 bytes just now' in text
    assert "The first 20; looking claims nothing." in text
    assert html.count('<summary class="peek-columns">') == 20
    after = (await site.broker.counts([queue]))[queue.id]
    assert (after.pending, after.in_flight) == (before.pending, before.in_flight) == (25, 0)
    assert [message.attempts for message in await site.broker.claim(queue, 1)] == [1]


async def test_messages_of_a_group_name_it(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await queue_of(site, "ledger", fifo=True)
    await site.broker.send(queue, [Publication(body=b"1", group="customer <7>")])
    assert "Group Attempts Size Published 1 1 group customer <7>" in await text_at(reader, "/console/queues/ledger")


async def test_a_large_body_is_shown_in_part_until_it_is_asked_for(site: Site, reader: httpx.AsyncClient) -> None:
    body = b"[" + b",".join(b'{"number": %d}' % number for number in range(15_000)) + b"]"
    queue = await queue_of(site, "orders", body, b"\x00\xff" * 100_000)
    listed = await reader.get("/console/queues/orders")
    assert len(listed.content) < 150_000
    links = {link["href"] for link in tags_of(listed.text, "a") if "/messages/" in link["href"]}
    assert links == {f"/console/queues/{queue.name}/messages/{number}?whole=true" for number in (1, 2)}
    part = await reader.get("/console/queues/orders/messages/1")
    assert "The beginning of 253 KB. Show all" in text_of(part.text)
    assert '"number": 14999' not in text_of(part.text)
    whole = await reader.get("/console/queues/orders/messages/1?whole=true")
    assert '"number": 14999' in text_of(whole.text)
    assert "data-live" not in whole.text
    dump = await text_at(reader, "/console/queues/orders/messages/2?whole=true")
    assert "030d30 00 ff 00 ff" in dump


# A message


async def test_a_message_tells_what_happened_to_it(site: Site, database: Database, reader: httpx.AsyncClient) -> None:
    source, letters = await dead_letters(site, 1)
    gone = await text_at(reader, "/console/queues/orders/messages/1")
    assert re.search(r"History in UTC Dead letter Published .* Claimed 1st attempt .* Dead-lettered", gone)

    letter = await text_at(reader, "/console/queues/orders.dead/messages/1")
    assert "History in UTC Pending Published" in letter
    assert "Came from orders, message 1 \N{EN DASH} after 1 attempt" in letter
    held = await site.broker.claim(letters, 1, visibility_timeout_seconds=30)
    html = (await reader.get("/console/queues/orders.dead/messages/1")).text
    assert re.search(r"History in UTC In flight .* Claimed 1st attempt", text_of(html))
    assert 'data-live="/console/live?room=queue-message&amp;name=orders.dead"' in html

    await site.broker.change_visibility(letters, [(held[0].receipt_handle, 0)])
    await Sweeper(database, site.broker).run_once()
    again = await site.broker.claim(letters, 1)
    await site.broker.acknowledge(letters, again[0].receipt_handle)
    html = (await reader.get("/console/queues/orders.dead/messages/1")).text
    assert re.search(r"Claimed 1st .* Returned .* Claimed 2nd attempt .* Finished", text_of(html))
    assert "data-live" not in html
    assert source.name == "orders"


async def test_a_message_is_found_by_its_id(site: Site, reader: httpx.AsyncClient) -> None:
    await queue_of(site, "orders", b"one")
    answer = await reader.get("/console/queues/orders/messages", params={"message_id": " 1 "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/queues/orders/messages/1")


@pytest.mark.parametrize("message_id", ["2", "0", "-1", "x", "٣", "9" * 18, "9" * 19, "9" * 400, "1.0", "1 or 1=1"])
async def test_a_message_that_is_not_there_is_not_found(site: Site, reader: httpx.AsyncClient, message_id: str) -> None:
    await queue_of(site, "orders", b"one")
    assert (await reader.get(f"/console/queues/orders/messages/{message_id}")).status_code == 404
    assert (await reader.get(f"/console/queues/orders/messages/{message_id}/body")).status_code == 404
    answer = await reader.get("/console/queues/orders/messages", params={"message_id": message_id})
    assert answer.status_code == 404 or answer.headers["location"].endswith(f"/{message_id}")


async def test_a_body_can_be_taken_away_and_runs_nowhere(site: Site, reader: httpx.AsyncClient) -> None:
    await queue_of(site, "orders", b"\x00\xff\x01", b"<script>alert(1)</script>", b'{"a": 1}', b"")
    for number, (suffix, body) in enumerate(
        [(".bin", b"\x00\xff\x01"), (".txt", b"<script>alert(1)</script>"), (".json", b'{"a": 1}'), (".txt", b"")], 1
    ):
        answer = await reader.get(f"/console/queues/orders/messages/{number}/body")
        assert answer.content == body
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == f'attachment; filename="orders-{number}{suffix}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("body", [HOSTILE, f'{{"{HOSTILE[:-3]}": ["</pre><img src=x onerror=alert(1)>"]}}'])
async def test_what_publishers_send_is_text(site: Site, reader: httpx.AsyncClient, body: str) -> None:
    queue = await queue_of(site, "orders", tags={HOSTILE: HOSTILE})
    await site.broker.send(
        queue, [Publication(body=body.encode(), attributes={HOSTILE: HOSTILE}, deduplication_id=HOSTILE)]
    )
    for path in ("/console/queues", "/console/queues/orders", "/console/queues/orders/messages/1"):
        html = (await reader.get(path)).text
        assert "<script>alert" not in html
        assert "<img" not in html
        assert not re.search(r"<[^>]*\s(style|on\w+)=", html)


# What can be done


async def test_a_queue_is_paused_and_resumed(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await queue_of(site, "orders", b"1")
    answer = await reader.post("/console/queues/orders/pause")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/queues/orders")
    assert "Paused. Claims get nothing" in await text_at(reader, "/console/queues/orders")
    assert await site.broker.claim(await site.broker.read_queue(site.environment.id, "orders"), 1) == []
    await reader.post("/console/queues/orders/resume")
    assert "Paused." not in await text_at(reader, "/console/queues/orders")
    assert len(await site.broker.claim(queue, 1)) == 1


async def test_a_purge_says_how_many_messages_go_and_needs_the_name(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await queue_of(site, "orders", *[b"1"] * 1000)
    await site.broker.send(queue, [Publication(body=b"1", delay_seconds=60)] * 200)
    await site.broker.claim(queue, 34)
    asked = await text_at(reader, "/console/queues/orders/purge")
    assert "Purge orders?" in asked
    assert "1,200 messages will go 966 pending 34 in flight 200 delayed" in asked

    for wrong in ({}, {"name": ""}, {"name": "order"}, {"name": "ORDERS"}, {"name": HOSTILE}):
        refused = await reader.post("/console/queues/orders/purge", data=wrong)
        assert refused.status_code == 422
        assert "That is not the name of the queue. Nothing was removed." in text_of(refused.text)
        assert "<script>" not in refused.text
    assert (await site.broker.counts([queue]))[queue.id].pending == 966

    done = await reader.post("/console/queues/orders/purge", data={"name": " orders "})
    assert (done.status_code, done.headers["location"]) == (303, "/console/queues/orders")
    counts = (await site.broker.counts([queue]))[queue.id]
    assert (counts.pending, counts.in_flight, counts.purged) == (0, 0, 1200)


async def test_dead_letters_go_back_to_where_they_came_from(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    source, letters = await dead_letters(site, 30)
    assert "Dead letters of orders" in await text_at(reader, "/console/queues/orders.dead")
    answer = await reader.post("/console/queues/orders.dead/redrive", data={"destination": "", "max_per_second": "10"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/queues/orders.dead#redrive")
    mover = Mover(database, site.broker)
    await mover.run_once()
    html = (await reader.get("/console/queues/orders.dead")).text
    assert "running to where they came from , at most 10 a second Cancel 10 of 30 moved" in text_of(html)
    assert "/console/queues/orders.dead/redrive" not in html

    again = await reader.post("/console/queues/orders.dead/redrive", data={"destination": ""})
    assert again.status_code == 422
    assert "are being moved already" in text_of(again.text)

    await reader.post("/console/queues/orders.dead/cancel-redrive")
    await mover.run_once()
    (move,) = await site.moves.list(letters)
    assert (move.state, move.moved) == (MoveState.CANCELLED, 10)
    text = await text_at(reader, "/console/queues/orders.dead")
    assert "cancelled to where they came from" in text
    assert "10 of 30 moved" in text
    counts = await site.broker.counts([source, letters])
    assert (counts[source.id].pending, counts[letters.id].pending) == (10, 20)
    assert (await reader.post("/console/queues/orders.dead/cancel-redrive")).status_code == 303


async def test_dead_letters_go_to_a_queue_that_is_chosen(
    site: Site, database: Database, reader: httpx.AsyncClient
) -> None:
    _, letters = await dead_letters(site, 3)
    chosen = await queue_of(site, "orders.checked")
    await queue_of(site, "ledger", fifo=True)
    offered = [option["value"] for option in tags_of((await reader.get("/console/queues/orders.dead")).text, "option")]
    assert offered == ["", "orders", "orders.checked"]
    await reader.post("/console/queues/orders.dead/redrive", data={"destination": "orders.checked"})
    mover = Mover(database, site.broker)
    while await mover.run_once():
        pass
    assert "completed to orders.checked" in await text_at(reader, "/console/queues/orders.dead")
    assert (await site.broker.counts([chosen]))[chosen.id].pending == 3
    assert (await site.broker.counts([letters]))[letters.id].pending == 0


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"destination": "nowhere"}, 404),
        ({"destination": "emails.outbound"}, 404),
        ({"destination": "orders.dead"}, 400),
        ({"destination": HOSTILE}, 400),
        ({"max_per_second": "0"}, 400),
        ({"max_per_second": "501"}, 400),
        ({"max_per_second": "many"}, 400),
        ({"max_per_second": "9" * 5000}, 400),
    ],
)
async def test_a_redrive_that_cannot_be_is_refused(
    site: Site, reader: httpx.AsyncClient, form: dict[str, str], status: int
) -> None:
    _, letters = await dead_letters(site, 1)
    answer = await reader.post("/console/queues/orders.dead/redrive", data=form)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert await site.moves.list(letters) == []


@pytest.mark.parametrize("action", ACTIONS)
async def test_another_site_can_do_nothing(site: Site, reader: httpx.AsyncClient, action: str) -> None:
    queue = await queue_of(site, "orders", b"1")
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        answer = await reader.post(f"/console/queues/orders/{action}", data={"name": "orders"}, headers=headers)
        assert answer.status_code == 403
    fresh = await site.broker.read_queue(site.environment.id, "orders")
    assert not fresh.paused
    assert (await site.broker.counts([queue]))[queue.id].pending == 1
    assert await site.moves.list(queue) == []


@pytest.mark.parametrize("action", ACTIONS)
async def test_without_a_key_nothing_is_done(site: Site, visitor: httpx.AsyncClient, action: str) -> None:
    queue = await queue_of(site, "orders", b"1")
    answer = await visitor.post(f"/console/queues/orders/{action}", data={"name": "orders"})
    # Nobody comes back from the login page to an address that only takes forms.
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/login")
    assert (await site.broker.counts([queue]))[queue.id].pending == 1
    assert not (await site.broker.read_queue(site.environment.id, "orders")).paused


@pytest.mark.parametrize("action", ACTIONS)
async def test_the_queues_of_others_are_out_of_reach(
    site: Site, keys: Keys, reader: httpx.AsyncClient, action: str
) -> None:
    await queue_of(site, "private", b"confidential")
    stranger = await keys.create("other", "production", "stranger")
    async with client_of(site.app) as client:
        await client.post("/console/login", data={"key": stranger})
        for path in ("", "/purge", "/messages/1", "/messages/1/body", "/messages?message_id=1"):
            assert (await client.get(f"/console/queues/private{path}")).status_code == 404
        assert (await client.post(f"/console/queues/private/{action}", data={"name": "private"})).status_code == 404
    assert (
        await reader.post(f"/console/queues/emails.outbound/{action}", data={"name": "emails.outbound"})
    ).status_code == 404


async def test_the_queues_of_the_pipeline_are_shown_and_nothing_more(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await site.broker.queue(SYSTEM_ENVIRONMENT, "emails.outbound")
    await site.broker.send(queue, [Publication(body=b"somebody else's")])
    html = (await reader.get("/console/queues/emails.outbound?pipeline=true")).text
    text = text_of(html)
    assert "no API key opens it" in text
    assert "Pending 1" in text
    assert "Depth" in text
    assert "somebody else" not in text
    assert "curl" not in text
    assert [form["action"] for form in tags_of(html, "form")] == ["/console/logout"]
    assert "pipeline=true&amp;period=24h" in html
    await site.broker.purge_queue(queue)


async def test_nothing_of_a_queue_that_is_gone_is_left(site: Site, reader: httpx.AsyncClient) -> None:
    queue = await queue_of(site, "orders", b"1")
    await site.broker.delete_queue(queue)
    assert (await reader.get("/console/queues/orders")).status_code == 404
    assert (await reader.post("/console/queues/orders/pause")).status_code == 404
