"""The page with simulated jobs in a real browser: 512 ranks, a phone, light and dark, and without a mouse."""

from __future__ import annotations

import re
from typing import Any, Iterator

import pytest
from launch.browser import NEEDS_BROWSER, Watched, browser
from launch.simulated_page import SimulatedJob

pytestmark = [pytest.mark.processes, NEEDS_BROWSER]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


def page_of(job: SimulatedJob, capfd: pytest.CaptureFixture[str], chromium: Any, **options: Any) -> Watched:
    match = re.search(r"http://\S+", capfd.readouterr().err)
    assert match is not None
    watched = Watched(chromium.new_page(**options))
    watched.page.goto(match[0])
    watched.wait(f"document.querySelectorAll('#ranks tbody tr').length === {job.size}")
    return watched


def scripting(watched: Watched) -> float:
    """Return how many seconds the page's scripts, styles and layout have taken so far."""
    session = watched.page.context.new_cdp_session(watched.page)
    session.send("Performance.enable")
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ScriptDuration"] + metrics["LayoutDuration"] + metrics["RecalcStyleDuration"])


def is_too_wide(watched: Watched) -> bool:
    return bool(watched.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@pytest.mark.slow
def test_512_ranks(chromium: Any, capfd: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(64, 8, per_rack=16)
    for _ in range(30):
        job.second()
    watched = page_of(job, capfd, chromium, viewport={"width": 1280, "height": 900})
    assert scripting(watched) < 1.0  # 0.15 s on an idle machine
    before = scripting(watched)
    for _ in range(5):
        job.second()
        watched.wait(f"document.querySelector('#tile-elapsed').textContent === '0:00:{int(job.time):02}'")
    assert (scripting(watched) - before) / 5 < 0.3
    marks = watched.page.locator("#drawing .mark")
    assert marks.count() == 512 and watched.page.locator("#drawing .rack").count() == 4
    assert watched.page.locator("#drawing .mark.stopped").count() == 1
    assert watched.page.locator("#ranks .state.late").count() == 1
    assert watched.text("#links tbody tr td:last-child").endswith("MiB/s")
    # Sorted by how long ranks wait: the longest first, and the other way round.
    watched.page.click("#ranks th.c-waiting button")
    waits = [int(text.split()[0]) for text in watched.page.locator("#ranks tbody .c-waiting").all_text_contents()]
    assert waits == sorted(waits, reverse=True) and waits[0] > waits[-1]
    assert watched.page.get_attribute("#ranks th.c-waiting", "aria-sort") == "descending"
    job.page.end(job.time, 0, None)
    watched.wait_text("#connection", "ended after 0:00:35 with status 0")
    assert watched.page.locator("#drawing .mark.ended").count() == 512
    assert not watched.problems


def test_rails_are_lines_of_their_own(chromium: Any, capfd: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(3, 4, rails=2)
    for _ in range(6):
        job.second()
    watched = page_of(job, capfd, chromium, viewport={"width": 1280, "height": 900})
    watched.wait("document.querySelectorAll('#drawing .link').length === 2 * 2 * 3")  # rails, directions, pairs
    assert watched.page.locator("#drawing .link.silent").count() == 6
    rows = watched.page.locator("#rails tbody tr").all_text_contents()
    assert len(rows) == 12 and rows[0].startswith("node00node0110.77.0.1 to 10.77.0.2") and rows[0].endswith("MiB/s")
    assert rows[1].startswith("node00node0110.77.1.1 to 10.77.1.2") and rows[1].endswith("0 bytes/s"), rows
    job.page.end(job.time, 0, None)
    watched.wait_text("#connection", "ended")
    assert not watched.problems


@pytest.mark.few(1)
@pytest.mark.parametrize("hosts", [1, 2, 8, 9])
def test_a_phone_has_no_horizontal_scrollbar(hosts: int, chromium: Any, capfd: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(hosts, 3, rails=2)
    for _ in range(30):
        job.second()
    watched = page_of(job, capfd, chromium, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    assert not is_too_wide(watched)
    watched.page.set_viewport_size({"width": 1280, "height": 800})
    watched.page.wait_for_timeout(100)
    assert not is_too_wide(watched)
    job.page.end(job.time, 1, {"culprit": 1, "reason": "a" * 500})
    watched.wait_text("#verdict", "the failure began with rank 1: aaa")
    watched.page.set_viewport_size({"width": 360, "height": 740})
    watched.page.wait_for_timeout(100)
    assert not is_too_wide(watched) and not watched.problems


def contrast(watched: Watched, selector: str) -> float:
    """Return the contrast of a text with what is behind it, as WCAG defines it."""
    colors = watched.page.evaluate(
        """(selector) => {
          let node = document.querySelector(selector);
          const ink = getComputedStyle(node).color;
          while (node && getComputedStyle(node).backgroundColor === "rgba(0, 0, 0, 0)") node = node.parentElement;
          return [ink, getComputedStyle(node || document.body).backgroundColor];
        }""",
        selector,
    )

    def brightness(color: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted(map(brightness, colors))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(scheme: str, chromium: Any, capfd: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(2, 2)
    job.second()
    watched = page_of(job, capfd, chromium, color_scheme=scheme)
    dark = watched.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"
    assert dark == (scheme == "dark")
    job.page.end(job.time, 1, {"culprit": -1, "reason": "lost"})
    watched.wait_text("#verdict", "lost")
    for selector in (
        "h1",
        "#command",
        "dt",
        "dd",
        "th",
        "td",
        "#save",
        "#verdict",
        "#lines",
        "#connection",
        ".legend li",
    ):
        assert contrast(watched, selector) >= 4.5, selector
    assert not watched.problems


def test_without_a_mouse(chromium: Any, capfd: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(2, 2)
    for _ in range(3):
        job.second()
    watched = page_of(job, capfd, chromium)
    focus = "document.activeElement"
    reached = []
    for _ in range(40):
        watched.page.keyboard.press("Tab")
        name = watched.page.evaluate(f"{focus}.id || {focus}.textContent.trim() || {focus}.className")
        assert watched.page.evaluate(
            f"{focus} === document.body || getComputedStyle({focus}).outlineStyle !== 'none'"
        ), f"{name} does not show that it has the focus"
        if name == "1" and name not in reached:  # the button of rank 1
            watched.page.keyboard.press("Enter")
        reached.append(name)
    assert {"dump", "save", "whose", "lines", "rank", "waiting", "0", "3"} <= set(reached)
    assert watched.page.input_value("#whose") == "1"
    assert watched.text("#lines").startswith("step ")  # without the number of a rank: they are all of this one
    unnamed = watched.page.evaluate(
        "[...document.querySelectorAll('button, a, select, input')].filter((node) => !node.closest('[hidden]') &&"
        " !(node.textContent.trim() || node.getAttribute('aria-label') || node.labels?.length)).length"
    )
    assert unnamed == 0
    job.page.end(job.time, 0, None)
    watched.wait_text("#connection", "ended")
    assert not watched.problems


def test_a_wrong_token_shows_what_to_do(chromium: Any, capfd: pytest.CaptureFixture[str]) -> None:
    job = SimulatedJob(1, 2)
    job.second()
    match = re.search(r"(http://\S+/#)\S+", capfd.readouterr().err)
    assert match is not None
    watched = Watched(chromium.new_page())
    watched.page.goto(match[1] + "wrong")
    watched.wait_text("#problem", "open the address that was printed")
    assert watched.text("#connection") == "no entry" and watched.page.locator("#ranks tbody tr").count() == 0
    job.page.end(job.time, 0, None)
