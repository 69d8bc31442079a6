"""A real Chromium before a server of ours: pages that notice every error, and screenshots kept under tests/artefacts.

Debian's package `chromium` is used, and Playwright's Python package drives it; without either the tests are skipped.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARTEFACTS = Path(__file__).resolve().parent.parent / "artefacts"
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 780}
_PATIENCE_MS = 60_000


class Browser:
    """One Chromium. Every page has a profile of its own."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def page(self, url: str, *, expected: str | None = None, is_phone: bool = False, **options: Any) -> Iterator[Any]:
        """A page at `url`, ready to be used; in the end it must have had no error and asked nobody else.

        Args:
            url: of the server.
            expected: part of the console messages that are no mistake of the page, such as a status of the server.
            is_phone: whether it is small and touched.
            options: more for Playwright's context, such as `color_scheme`.
        """
        shape = {"viewport": PHONE, "has_touch": True, "is_mobile": True} if is_phone else {"viewport": DESKTOP}
        context = self._chromium.new_context(**{**shape, "reduced_motion": "reduce", **options})
        context.set_default_timeout(_PATIENCE_MS)
        page = context.new_page()
        errors: list[str] = []
        asked: set[str] = set()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("request", lambda request: asked.add("/".join(request.url.split("/")[:3])))
        page.goto(url)
        page.locator("#settings-button").wait_for(state="attached")
        try:
            yield page
        finally:
            context.close()
        unexpected = [error for error in errors if expected is None or expected not in error]
        assert not unexpected, unexpected
        assert asked == {url.rstrip("/").split("/#")[0]}


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium, or a skip that says what is missing."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: install the package playwright")
    with playwright.sync_playwright() as drivers:
        # Tests run as root in containers, where Chromium's own sandbox cannot.
        chromium = drivers.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield Browser(chromium)
        chromium.close()


def keep(page: Any, name: str) -> None:
    """Stores what the page looks like."""
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"playground-{name}.png")
