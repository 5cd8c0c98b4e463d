"""A real browser without a window, for tests of pages: Debian's chromium, steered by playwright."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from typing import Any, Iterator, List

import pytest

__all__ = ["NEEDS_BROWSER", "Watched", "browser"]

_PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
try:
    from playwright import sync_api
except ModuleNotFoundError:
    sync_api = None

_MISSING = "" if _PATH else "chromium is not here: on Debian, apt install chromium"
_MISSING = _MISSING or ("" if sync_api else "playwright is not here: pip install playwright")
NEEDS_BROWSER = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)


class Watched:
    """A page in the browser, and what has gone wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: List[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))
        self.foreign: List[str] = []  # addresses of other servers that were asked
        page.on("request", lambda request: self.foreign.append(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(text)

    def text(self, selector: str) -> str:
        return str(self.page.text_content(selector)).strip()

    def wait(self, expression: str, seconds: float = 100.0) -> None:
        """Wait until an expression of JavaScript is true in the page.

        Asked from here again and again: playwright's own way evaluates text in the page, which ours forbids.
        """
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            status = self.text("#connection")
            assert time.monotonic() < deadline, f"{expression}: not within {seconds:g} s; {status}; {self.problems}"
            self.page.wait_for_timeout(50)

    def wait_text(self, selector: str, part: str, seconds: float = 100.0) -> None:
        self.wait(f"document.querySelector({selector!r}).textContent.includes({json.dumps(part)})", seconds)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start the browser; ``new_page(**options)`` of what this yields opens pages in it."""
    assert sync_api is not None
    with sync_api.sync_playwright() as playwright:
        # Without its sandbox, which root may not use; it sees nothing but our own page.
        running = playwright.chromium.launch(executable_path=_PATH, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield running
        finally:
            running.close()
