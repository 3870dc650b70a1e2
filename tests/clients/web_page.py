"""The playground in a tab of a browser, for tests: what one does there, and what it did."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

WAIT_MS = 30_000
"""Bounds every wait for the page."""
CHAT = "**/v1/chat/completions"
# Chromium itself reports refusals that the page deals with.
_REFUSAL = re.compile(r"Failed to load resource: .* status of (400|401) ")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's chromium; where it is not installed, the test is skipped and says so."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip(
            "chromium is not installed, the web page is NOT tested: apt-get install chromium"
        )
    # Containers often give neither a sandbox nor a large /dev/shm; the pages are our own.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@dataclass
class Tab:
    """A page with what it asked for and what it complained about."""

    page: Page
    requests: list[Request] = field(default_factory=list)
    _complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("request", self._note_request)
        self.page.on("pageerror", lambda error: self._complaints.append(str(error)))
        self.page.on("console", self._note)

    def hosts(self) -> set[str]:
        """Hosts, with ports, that it turned to."""
        return {urlsplit(request.url).netloc for request in self.requests}

    def complaints(self) -> list[str]:
        """Errors and warnings in its console, and what its scripts failed with."""
        return [each for each in self._complaints if not _REFUSAL.match(each)]

    def forget_complaints(self) -> None:
        """Do so where a test made what is complained about."""
        self._complaints.clear()

    def chats(self) -> list[dict[str, Any]]:
        """Bodies of the chats that the page asked for."""
        sent = [each for each in self.requests if each.url.endswith("/v1/chat/completions")]
        return [json.loads(each.post_data or "") for each in sent]

    def set(self, **values: str | int | float) -> None:
        for name, value in values.items():
            self.page.locator(f"[name={name}]").fill(str(value))

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send").click()

    def answer(self) -> str:
        """Wait for the end of the last answer, and return it."""
        last = self.page.get_by_role("article", name="Answer").last
        expect(last).not_to_have_attribute("aria-busy", "true")
        return last.locator("> .text").text_content() or ""

    def _note_request(self, request: Request) -> None:
        self.requests.append(request)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complaints.append(message.text)


def add_to_requests(tab: Tab, **fields: Any) -> None:
    """Add to the chats' bodies, on their way, what the page has no control for."""

    def add(route: Route, request: Request) -> None:
        body = json.loads(request.post_data or "") | fields
        route.continue_(post_data=json.dumps(body))

    tab.page.route(CHAT, add)
