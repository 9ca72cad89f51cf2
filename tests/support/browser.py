"""Headless Chromium, and what it has to complain about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SCREENSHOTS = Path(__file__).parent.parent / "screenshots"

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips where Debian's chromium is not installed."""
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


class Visitor:
    """Somebody with a browser window of their own. `complaints` has what the browser held against our pages."""

    def __init__(self, browser: Browser, base_url: str, **options: Any) -> None:  # noqa: ANN401 - the browser's own
        self.complaints: list[str] = []
        self.context: BrowserContext = browser.new_context(base_url=base_url, **options)
        self.context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        self.context.on("console", self._on_console)
        self.page: Page = self.context.new_page()

    def sign_in(self, key: str) -> None:
        """Sign in as a person does."""
        self.page.goto("/console/login")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Overview").wait_for()

    def screenshot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        pixels: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return pixels

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} ({message.location.get('url')})")
