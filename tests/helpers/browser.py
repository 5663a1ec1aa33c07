"""Opens pages in Debian's Chromium, in one session for all pages of a test file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parents[2] / ".cache/browser"  # `make .cache/browser/ready`


def missing() -> str | None:
    """Returns what is missing, for the reason of a skipped test; None if pages can be opened."""
    if _chromium() is None:
        return "Chromium is not installed: tools/find_browser.sh installs it"
    if not (TOOLS / "axe.js").exists():
        return "playwright and axe are missing: `make .cache/browser/ready` fetches them"
    return None


def _chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


@dataclass(frozen=True)
class Opened:
    """A page that is open.

    Attributes:
        page: Playwright's page.
        told: What the browser wrote to its console, and the addresses that the page asked for.
    """

    page: Any
    told: list[str]

    def serious(self) -> list[str]:
        """Returns axe's serious and critical findings."""
        # Not `add_script_tag`: the page allows only its own scripts.
        self.page.evaluate((TOOLS / "axe.js").read_text("utf-8"))
        # Without `preload`, which asks for style sheets in a way that pages from the disk may not.
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")["violations"]
        return [f"{each['id']}: {each['help']}" for each in found if each["impact"] in ("serious", "critical")]


@dataclass(frozen=True)
class Browser:
    """A browser that is running."""

    chromium: Any

    @contextmanager
    def opened(self, path: Path, scheme: str = "light", width: int = 1200) -> Iterator[Opened]:
        """Opens a file, with the preferred colours `light` or `dark`."""
        with self.chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}) as context:
            page, told = context.new_page(), list[str]()
            page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: told.append(f"error: {error}"))
            page.on("dialog", lambda dialog: _dismiss(dialog, told))
            page.on("request", lambda request: told.extend({request.url} - {path.as_uri()}))
            page.goto(path.as_uri())
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            yield Opened(page, told)


def _dismiss(dialog: Any, told: list[str]) -> None:
    told.append(f"dialog: {dialog.message}")
    dialog.dismiss()


@contextmanager
def running() -> Iterator[Browser]:
    """Starts Chromium."""
    sys.path.append(str(TOOLS / "site"))
    try:
        from playwright.sync_api import sync_playwright
    finally:
        sys.path.remove(str(TOOLS / "site"))
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_chromium(), args=options)
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
