"""The site is built without a warning, its reference is complete, and a browser shows it well, without a network."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import http.server
import importlib
import re
import threading
import zlib
from pathlib import Path
from typing import Dict, Iterator, Set
from urllib.parse import unquote, urlsplit

import pytest
from launch.browser import NEEDS_BROWSER, Watched, browser

from ddl.bootstrap.environ import Settings
from ddl.launch.ask.options import OPTIONS
from ddl.tools import cli

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.processes]

#: Pages of each kind: prose, tables, drawings, plots, long signatures, options.
SHOWN = (
    *("docs/index", "docs/quickstart", "README", "docs/torch", "docs/algorithms", "docs/performance", "docs/watch"),
    *("docs/troubleshooting", "docs/reference/ddl", "docs/reference/ddl_torch", "docs/reference/ddlrun"),
    *("docs/reference/variables", "docs/glossary", "CHANGELOG"),
)
#: What a module lists though it is not for users.
INTERNAL = {"ddl.memory.Pieces", "ddl.memory.copy_past_caches"}
WIDTHS = (390, 820, 1440)


def test_it_is_built_without_a_warning(site):
    assert site.status == 0, site.words
    for page in SHOWN:
        assert (site.folder / f"{page}.html").exists()
    assert sum(file.stat().st_size for file in site.folder.rglob("*") if file.is_file()) < 20e6


def test_each_public_name_has_an_entry(site):
    """By the inventory, which other sites would link to."""
    header, _, packed = (site.folder / "objects.inv").read_bytes().partition(b"using zlib.\n")
    assert header
    entries = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines() if " py:" in line}
    assert len(site.names) >= 15
    public = {f"{module}.{name}" for module, names in site.names.items() for name in names} - INTERNAL
    assert len(public) > 350
    assert sorted(public - entries) == []


def test_each_option_and_variable_has_an_entry(site):
    text = (site.folder / "docs/reference/ddlrun.html").read_text()
    for names, _ in OPTIONS:
        for name in names:
            assert f">{name}<" in text, name
    text = (site.folder / "docs/reference/variables.html").read_text()
    for field in dataclasses.fields(Settings):
        assert field.metadata["variable"] in text
    text = (site.folder / "docs/reference/tools.html").read_text()
    for tool, (module, _) in cli.TOOLS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(module).add_arguments(parser, [])
        assert f"<h2>ddl {tool}<" in text
        for action in parser._actions:
            for name in action.option_strings:
                assert f">{name}<" in text, f"ddl {tool} {name}"


def links_of(page: Path) -> Iterator[str]:
    for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
        yield link.replace("&amp;", "&")


def test_links_lead_somewhere(site):
    anchors: Dict[Path, Set[str]] = {}
    for page in site.pages:
        anchors[page.resolve()] = set(re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8")))
    dead = []
    for page in site.pages:
        for link in links_of(page):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
            if not target.exists():
                dead.append(f"{page.name}: {link}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in anchors[target]:
                dead.append(f"{page.name}: {link}")
    assert not dead


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    """The address of the site, on this machine."""
    handler = functools.partial(_Quiet, directory=str(site.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    with browser() as running:
        yield running


@NEEDS_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_all_screens_and_ask_no_other_host(served, chromium, scheme):
    page = chromium.new_page(color_scheme=scheme)
    watched = Watched(page)
    for name in SHOWN:
        page.goto(f"{served}/{name}.html")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{name} is {wider} pixels wider than a screen of {width}"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(map(int, re.findall(r"\d+", ground)[:3])) < 200
        assert dark == (scheme == "dark"), ground
    assert not watched.problems
    assert not [address for address in watched.foreign if not address.startswith((served, "data:"))]
    page.close()


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("word", "page_with_it"),
    [("allreduce_async", "reference/ddl"), ("CollectiveMismatch", "troubleshooting"), ("--rebalance", "ddlrun")],
)
def test_the_search_finds(served, chromium, word, page_with_it):
    page = chromium.new_page()
    watched = Watched(page)
    page.goto(f"{served}/docs/index.html")
    page.fill("input[name=q]", word)
    page.press("input[name=q]", "Enter")
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("document.querySelector('#search-results p.search-summary').textContent.includes('found')")
    addresses = page.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    assert any(page_with_it in address for address in addresses), addresses
    assert not [address for address in watched.foreign if not address.startswith(served)]
    page.close()
