from __future__ import annotations

import re
from email.message import EmailMessage
from uuid import UUID, uuid4

import httpx
import pytest
from tests.support.html import tags_of, text_of
from tests.support.site import Site

from bellringer.broker import Publication
from bellringer.kernel.database import Database
from bellringer.notifications.channels.model import Outcome

ANN, BEN, EVE = "ann@acme.example", "ben@acme.example", "eve@acme.example"
ROOMS = ["/console", "/console/queues", "/console/notifications", "/console/mail", "/docs", "/console/login"]


def message(html: str | None = "<p>Hello</p>", text: str = "Hello in text") -> bytes:
    built = EmailMessage()
    built["From"], built["Subject"] = "bell@acme.example", "Something happened"
    built.set_content(text)
    if html is not None:
        built.add_alternative(html, subtype="html")
    return built.as_bytes()


async def emails_of(site: Site, *recipients: str) -> tuple[UUID, list[UUID]]:
    """A notification whose digest is closed, and its emails."""
    notification_id = await site.tell(*recipients)
    await site.join()
    return notification_id, await site.group()


# The frame of all pages


async def test_the_root_leads_to_the_console(visitor: httpx.AsyncClient) -> None:
    answer = await visitor.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")


@pytest.mark.parametrize("path", [*ROOMS, "/console/nothing"])
async def test_pages_bring_their_security_headers(reader: httpx.AsyncClient, path: str) -> None:
    answer = await reader.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ROOMS)
async def test_pages_need_nothing_that_their_policy_forbids(
    visitor: httpx.AsyncClient, path: str, api_key: str
) -> None:
    if path != "/console/login":
        await visitor.post("/console/login", data={"key": api_key})
    html = (await visitor.get(path)).text
    assert "<style" not in html
    assert not re.search(r"<[^>]*\s(style|on\w+)=", html)
    assert all(script.get("src", "").startswith("/console/static/") for script in tags_of(html, "script"))
    assert all(link["href"].startswith("/console/static/") for link in tags_of(html, "link"))


async def test_static_files_are_kept_for_ever_under_a_name_that_changes(visitor: httpx.AsyncClient) -> None:
    html = (await visitor.get("/console/login")).text
    urls = [link["href"] for link in tags_of(html, "link")] + [script["src"] for script in tags_of(html, "script")]
    assert len(urls) == 5
    for url in urls:
        answer = await visitor.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"].split(";")[0] in {"text/css", "text/javascript", "image/svg+xml"}
        version = url.split("/")[3]
        assert (await visitor.get(url.replace(version, "0" * len(version)))).status_code == 404
    assert (await visitor.get("/console/static/x/..%2Froutes.py")).status_code in {303, 404}


@pytest.mark.parametrize(
    "path",
    [
        "/console/nothing",
        "/console/nothing/at/all",
        "/console/queues/nowhere",
        "/console/queues/nowhere/deeper",
        "/console/queues/emails.outbound",
        "/console/queues/<script>alert(1)<script>",
        "/console/queues/nowhere/purge",
        "/console/queues/nowhere/messages/1",
        "/console/queues/nowhere/messages/1/body",
        "/console/queues/nowhere/messages/1/deeper",
        "/console/queues/emails.outbound/messages/1",
        "/console/queues/emails.outbound/purge",
        "/console/notifications/not-an-id",
        f"/console/notifications/{uuid4()}",
        f"/console/mail/{uuid4()}",
        f"/console/mail/{uuid4()}/html",
        f"/console/mail/{uuid4()}/pdf",
        "/console/notifications?before=yesterday",
    ],
)
async def test_what_is_not_there_is_a_page_too(reader: httpx.AsyncClient, path: str) -> None:
    answer = await reader.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "There is nothing here" in text_of(answer.text)
    assert "<script>alert" not in answer.text
    assert "Sign out" in text_of(answer.text)


@pytest.mark.parametrize("path", ["/console", "/console/queues", "/console/notifications", "/console/mail"])
async def test_a_database_that_is_away_is_a_page_too(reader: httpx.AsyncClient, database: Database, path: str) -> None:
    await database.close()
    answer = await reader.get(path)
    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["retry-after"]
    assert "The database does not answer." in text_of(answer.text)
    assert "pool" not in answer.text
    assert [tag for tag in tags_of(answer.text, "meta") if tag.get("http-equiv") == "refresh"]


# Overview


async def test_an_empty_environment_shows_the_first_steps(reader: httpx.AsyncClient) -> None:
    text = text_of((await reader.get("/console")).text)
    assert "Ring it for the first time" in text
    assert "curl http://bellringer/v1/events" in text


async def test_the_overview_counts_what_happened(site: Site, reader: httpx.AsyncClient) -> None:
    _, (email_id,) = await emails_of(site, ANN, BEN)
    await site.report(
        email_id,
        Outcome(address=ANN, state="sent", reply="250 ok"),
        Outcome(address=BEN, state="failed", reply="550 no such user"),
    )
    await site.tell(EVE, type_="deploy.finished", subject=None)
    await site.capture(email_id, message())
    orders = await site.broker.ensure_queue(site.environment.id, "orders")
    for _ in range(2):
        await site.broker.send(orders, [Publication(body=b"1")] * 617)
    await site.broker.claim(orders, 34)

    text = text_of((await reader.get("/console")).text)
    assert "Ring it for the first time" not in text
    for counted in ("Events 2", "Notifications 3", "Digests 1 0 open", "Emails 1", "Sent 1", "Failed 1"):
        assert counted in text
    assert "Accepted 1 oldest" in text
    assert "orders 1,200 34 0" in text
    assert "deploy.finished eve@acme.example Accepted just now" in text
    assert "Something happened ann@acme.example +1 just now" in text


# Notifications


async def test_notifications_come_in_pages(site: Site, reader: httpx.AsyncClient) -> None:
    ids = [await site.tell(subject=f"number {number}") for number in range(53)]
    first = (await reader.get("/console/notifications")).text
    assert all(f"/console/notifications/{id_}" in first for id_ in ids[3:])
    older = next(link["href"] for link in tags_of(first, "a") if "before=" in link["href"])
    second = (await reader.get(older)).text
    assert [f"/console/notifications/{id_}" in second for id_ in ids[:4]] == [True, True, True, False]
    assert "before=" not in second
    assert "Back to the newest" in text_of(second)


async def test_a_notification_shows_its_way(site: Site, reader: httpx.AsyncClient) -> None:
    notification_id = await site.tell(ANN, BEN, EVE)
    path = f"/console/notifications/{notification_id}"
    assert "Waits to join the open digest." in text_of((await reader.get(path)).text)

    await site.join()
    text = text_of((await reader.get(path)).text)
    assert "Gathers what else happens; closes" in text
    assert ANN in text

    (email_id,) = await site.group()
    text = text_of((await reader.get(path)).text)
    assert "Waiting 3 Who not tried yet" in text

    await site.report(
        email_id,
        Outcome(address=ANN, state="sent", reply="250 queued"),
        Outcome(address=BEN, state="pending", reply="451 greylisted"),
        Outcome(address=EVE, state="failed", reply="550 no such user"),
    )
    html = (await reader.get(path)).text
    text = text_of(html)
    assert "Failed 1 Who 550 no such user" in text
    assert "Waiting 1 Who 451 greylisted" in text
    assert "Sent 1 To whom 250 queued" in text
    assert "data-live" in html
    assert '"reason" : "disk full"' in text

    await site.report(email_id, Outcome(address=BEN, state="sent", reply="250 queued"))
    assert "data-live" not in (await reader.get(path)).text


async def test_thousands_of_recipients_stay_readable(site: Site, reader: httpx.AsyncClient) -> None:
    recipients = [f"reader{number}@acme.example" for number in range(2500)]
    notification_id, email_ids = await emails_of(site, *recipients)
    assert len(email_ids) == 25
    answer = await reader.get(f"/console/notifications/{notification_id}")
    text = text_of(answer.text)
    assert "2,500 recipients" in text
    assert "and 1,500 more" in text
    assert not [details for details in tags_of(answer.text, "details") if "open" in details]
    assert len(answer.content) < 150_000


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "{{ 7 * 7 }}"])
async def test_what_clients_send_is_text(site: Site, reader: httpx.AsyncClient, hostile: str) -> None:
    notification_id = await site.tell(ANN, type_=hostile, subject=hostile)
    await site.join()
    (email_id,) = await site.group()
    await site.report(email_id, Outcome(address=ANN, state="failed", reply=hostile))
    mail_id = await site.capture(email_id, message(None, hostile), hostile)
    paths = (
        "/console",
        "/console/notifications",
        f"/console/notifications/{notification_id}",
        "/console/mail",
        f"/console/mail/{mail_id}",
        f"/console/mail/{mail_id}?view=source",
    )
    for path in paths:
        html = (await reader.get(path)).text
        assert hostile in text_of(html)
        assert "<script>alert" not in html
        assert "<img" not in html


# Mail


async def test_mail_is_shown_three_ways(site: Site, reader: httpx.AsyncClient) -> None:
    _, (email_id,) = await emails_of(site, ANN)
    mail_id = await site.capture(email_id, message("<p>Hello <b>Ann</b></p><script>alert(1)</script>"))
    assert "Something happened" in text_of((await reader.get("/console/mail")).text)

    page = (await reader.get(f"/console/mail/{mail_id}")).text
    (frame,) = tags_of(page, "iframe")
    assert frame["sandbox"] == ""
    assert frame["src"] == f"/console/mail/{mail_id}/html"
    assert "bell@acme.example" in text_of(page)

    rendered = await reader.get(frame["src"])
    assert "<b>Ann</b>" in rendered.text
    policy = rendered.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert policy.endswith("; sandbox")

    assert "Hello in text" in text_of((await reader.get(f"/console/mail/{mail_id}?view=text")).text)
    assert "MIME-Version: 1.0" in text_of((await reader.get(f"/console/mail/{mail_id}?view=source")).text)


async def test_mail_without_html_is_shown_as_text(site: Site, reader: httpx.AsyncClient) -> None:
    _, (email_id,) = await emails_of(site, ANN)
    mail_id = await site.capture(email_id, message(None))
    for view in ("", "?view=html", "?view=nonsense"):
        page = (await reader.get(f"/console/mail/{mail_id}{view}")).text
        assert not tags_of(page, "iframe")
        assert "Hello in text" in text_of(page)


async def test_a_huge_message_is_shown_in_part(site: Site, reader: httpx.AsyncClient) -> None:
    _, (email_id,) = await emails_of(site, ANN)
    mail_id = await site.capture(email_id, message(None, "word " * 100_000))
    page = await reader.get(f"/console/mail/{mail_id}?view=source")
    assert "The first 256 KB of" in text_of(page.text)
    assert len(page.content) < 300_000


# The page of the API


async def test_the_api_is_explained_to_everybody(visitor: httpx.AsyncClient) -> None:
    answer = await visitor.get("/docs")
    assert answer.status_code == 200
    assert "Sign out" not in text_of(answer.text)
    document = (await visitor.get("/v1/openapi.json")).json()
    text = text_of(answer.text)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"{method.upper()} {path}" in text
            assert operation["summary"] in text
    anchors = {element["id"] for name in ("article", "h2") for element in tags_of(answer.text, name) if "id" in element}
    inside = {link["href"][1:] for link in tags_of(answer.text, "a") if link["href"].startswith("#")} - {"content"}
    assert inside <= anchors


async def test_signed_in_readers_keep_their_way_back(reader: httpx.AsyncClient) -> None:
    assert "Sign out" in text_of((await reader.get("/docs")).text)
