"""A browser for the tests that look at the console of their module's `server`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.support.browser import DESKTOP, Visitor, chromium
from tests.support.server import Server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def visitor(browser: Browser, server: Server) -> Iterator[Visitor]:
    """A reader who is signed in, and has nothing to complain about in the end."""
    signed_in = Visitor(browser, server.url, viewport=DESKTOP)
    signed_in.sign_in(server.key)
    yield signed_in
    signed_in.context.close()
    assert signed_in.complaints == []
