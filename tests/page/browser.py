"""A real Chromium, and the pages opened in it, with their errors and network requests."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 240.0  # seconds; on a busy machine everything takes longer
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; on Debian: apt install chromium")


@dataclass
class Opened:
    """An open page, with all console messages, errors, dialogs and requests that it caused."""

    page: Any
    path: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def wait_until(self, expression: str, seconds: float = PATIENCE) -> None:
        """Wait until an expression is true. The page forbids scripts made of strings, also those of Playwright."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, expression
            self.page.wait_for_timeout(20)

    def counts(self, panel: int) -> dict[str, int]:
        """The numbers shown in one panel: its calls, and the hypotheses of each fate."""
        panels = self.page.locator(".bf-panel").nth(panel)
        numbers = {"calls": int(panels.locator(".bf-calls").inner_text().split()[0])}
        for fate in ("expanded", "pending", "pruned", "evicted", "finished", "returned"):
            numbers[fate] = int(panels.locator(f".bf-legend .bf-is-{fate} b").text_content())
        return numbers


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        try:
            yield launched
        finally:
            launched.close()


@contextmanager
def opened(chromium: Any, path: Path, **settings: Any) -> Iterator[Opened]:
    """Open a file. At the end the page must have caused no message, and no request but for the file."""
    context = chromium.new_context(viewport=settings.pop("viewport", {"width": 1280, "height": 800}), **settings)
    context.set_default_timeout(1000 * PATIENCE)
    one = Opened(context.new_page(), path)
    one.page.on("console", lambda message: one.complaints.append(f"{message.type}: {message.text}"))
    one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
    one.page.on("dialog", lambda dialog: (one.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    one.page.on("request", lambda request: one.requests.append(request.url))
    try:
        one.page.goto(path.as_uri())
        yield one
    finally:
        context.close()
    assert one.complaints == []
    assert [url for url in one.requests if not url.startswith("data:")] == [path.as_uri()]
