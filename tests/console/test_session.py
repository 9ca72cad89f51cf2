from __future__ import annotations

import httpx
import pytest
from tests.support.application import client_of
from tests.support.html import tags_of, text_of
from tests.support.site import Site
from tests.support.waiting import until

from bellringer.console.session import own_path
from bellringer.edge.keys import Keys
from bellringer.edge.model import Scope

PRIVATE = [
    "/console",
    "/console/queues",
    "/console/queues/orders",
    "/console/queues/orders/purge",
    "/console/queues/orders/messages?message_id=1",
    "/console/queues/orders/messages/1",
    "/console/queues/orders/messages/1/body",
    "/console/notifications",
    "/console/notifications/01a1fb19-ad98-7008-a7ff-140d5497c349",
    "/console/mail",
    "/console/mail/01a1fb19-ad98-7008-a7ff-140d5497c349",
    "/console/mail/01a1fb19-ad98-7008-a7ff-140d5497c349/html",
    "/console/nothing/here",
]


@pytest.mark.parametrize("path", PRIVATE)
async def test_no_page_is_shown_without_a_key(visitor: httpx.AsyncClient, path: str) -> None:
    answer = await visitor.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/console/login")
    assert answer.text == ""


async def test_the_key_opens_the_page_that_was_asked_for(visitor: httpx.AsyncClient, api_key: str) -> None:
    sent_away = await visitor.get("/console/notifications?before=01a1fb19-ad98-7008-a7ff-140d5497c349")
    gate = await visitor.get(sent_away.headers["location"])
    wanted = next(field["value"] for field in tags_of(gate.text, "input") if field["name"] == "next")
    answer = await visitor.post("/console/login", data={"key": f" {api_key}\n", "next": wanted})
    assert answer.headers["location"] == "/console/notifications?before=01a1fb19-ad98-7008-a7ff-140d5497c349"
    assert (await visitor.get(answer.headers["location"])).status_code == 200
    assert (await visitor.get("/console/login")).headers["location"] == "/console"


async def test_the_cookie_is_out_of_reach(visitor: httpx.AsyncClient, api_key: str) -> None:
    plain = await visitor.post("/console/login", data={"key": api_key})
    attributes = {part.strip().lower() for part in plain.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "path=/", "samesite=strict", "max-age=604800"}
    behind_tls = await visitor.post("/console/login", data={"key": api_key}, headers={"x-forwarded-proto": "https"})
    assert "secure" in {part.strip().lower() for part in behind_tls.headers["set-cookie"].split(";")}


async def test_the_key_stands_in_no_page(site: Site, reader: httpx.AsyncClient, api_key: str) -> None:
    await site.tell()
    for path in ("/console", "/console/queues", "/console/notifications", "/console/mail", "/docs"):
        assert api_key not in (await reader.get(path)).text


@pytest.mark.parametrize("key", ["", "wrong", "bell_" + "x" * 100_000, "\udc80", "<script>"])
async def test_a_wrong_key_is_told_so(visitor: httpx.AsyncClient, key: str) -> None:
    body = f"key={key}".encode("utf-8", "surrogateescape")
    answer = await visitor.post(
        "/console/login", content=body, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert answer.status_code == 422
    assert ("Enter an API key." if not key else "No such key: it is unknown or revoked.") in text_of(answer.text)
    assert "set-cookie" not in answer.headers
    assert "<script>" not in answer.text


async def test_a_key_that_is_no_admin_s_opens_nothing(visitor: httpx.AsyncClient, keys: Keys) -> None:
    key = await keys.create("acme", "production", "worker", scopes=[Scope.PUBLISH, Scope.CONSUME])
    refused = await visitor.post("/console/login", data={"key": key})
    assert refused.status_code == 403
    assert "The console opens to admin keys alone" in text_of(refused.text)
    assert "set-cookie" not in refused.headers

    visitor.cookies.set("bellringer_key", key)
    for path in PRIVATE:
        assert (await visitor.get(path)).headers["location"].startswith("/console/login")
    assert b"event: signed-out" in (await visitor.get("/console/live?room=overview")).content


async def test_a_key_with_odd_characters_works(visitor: httpx.AsyncClient, keys: Keys) -> None:
    key = await keys.create("acme", "odd", "odd", 'a;b,c="%41\\+&=key!')
    await visitor.post("/console/login", data={"key": key})
    page = await visitor.get("/console")
    assert page.status_code == 200
    assert "odd" in text_of(page.text)


async def test_a_revoked_key_lands_on_the_login_page(reader: httpx.AsyncClient, keys: Keys, api_key: str) -> None:
    stored = next(key for key in await keys.list_keys() if api_key.endswith(key.hint))
    await keys.revoke(stored.id)

    async def is_sent_away() -> bool:
        return (await reader.get("/console")).status_code == 303

    await until(is_sent_away)
    assert "That key is no longer valid." in text_of((await reader.get("/console/login")).text)


async def test_signing_out_forgets_the_key(reader: httpx.AsyncClient) -> None:
    answer = await reader.post("/console/logout")
    assert answer.headers["location"] == "/console/login"
    assert (await reader.get("/console")).status_code == 303


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"sec-fetch-site": "none"}, 303),
        ({"sec-fetch-site": "same-site", "origin": "http://bellringer"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://bellringer"}, 303),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://bellringer.evil.example"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "null"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/console/login", "/console/logout"])
async def test_forms_of_other_sites_are_refused(
    visitor: httpx.AsyncClient, api_key: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await visitor.post(path, data={"key": api_key}, headers=headers)
    assert answer.status_code == status
    assert ("set-cookie" in answer.headers) == (status == 303)


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/console@evil.example",
        "/console.evil.example",
        "/console//evil.example",
        "/console\r\nlocation: https://evil.example",
        "javascript:alert(1)",
        "/v1/openapi.json",
        "/console/login?next=/console/login",
        "/console/logout",
        "",
    ],
)
async def test_nothing_leads_to_another_site(visitor: httpx.AsyncClient, api_key: str, wanted: str) -> None:
    assert own_path(wanted) == "/console"
    answer = await visitor.post("/console/login", data={"key": api_key, "next": wanted})
    assert answer.headers["location"] == "/console"
    again = await visitor.get("/console/login", params={"next": wanted})
    assert again.headers["location"] == "/console"


async def test_a_key_sees_its_own_environment_only(site: Site, reader: httpx.AsyncClient, keys: Keys) -> None:
    notification_id = await site.tell(subject="Confidential")
    await site.broker.ensure_queue(site.environment.id, "private-queue")
    stranger = await keys.create("other", "production", "stranger")
    async with client_of(site.app) as client:
        await client.post("/console/login", data={"key": stranger})
        assert (await client.get(f"/console/notifications/{notification_id}")).status_code == 404
        assert (await client.get("/console/queues/private-queue")).status_code == 404
        for path in ("/console", "/console/notifications", "/console/queues"):
            page = await client.get(path)
            assert page.status_code == 200
            assert "Confidential" not in page.text
            assert "private-queue" not in page.text
    assert (await reader.get("/console/queues/private-queue")).status_code == 200
