"""``ddlrun --dashboard``: the page about real jobs in a real browser, from the first second to a replay."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest
from launch.browser import NEEDS_BROWSER, Watched, browser
from launch.launcher import ROOT, Launcher

pytestmark = [pytest.mark.processes, NEEDS_BROWSER]
Script = Callable[[str], str]

#: Does a few operations, says what its metrics are, and stands still; then once more when it is told to.
STANDS_STILL = """
import json
import ddl, numpy as np
from ddl.adapter.step_record import note_step
ddl.init()
for step in range(7):
    ddl.allreduce_(np.ones(100_000, np.float32))
    note_step()
metrics = ddl.metrics()
print(json.dumps([rank, metrics.operations, metrics.sent_bytes]), flush=True)
print("<img src=x onerror=alert(1)><b>bold</b>", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
TRAINS = """
import ddl, numpy as np
from ddl.adapter.step_record import note_step
ddl.init()
print("begun", flush=True)
while not os.path.exists(sys.argv[1]):
    ddl.allreduce_(np.ones(1000))
    note_step()
    time.sleep(0.02)
print("done", flush=True)
"""
TWO_HOSTS = ("-H", "localhost:1,127.0.0.1:1", "--env", "DDL_SHM=0")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """When it is there, the programs end."""
    return tmp_path / "end"


@contextlib.contextmanager
def job_with_page(launcher: Launcher, *arguments: str) -> Iterator[Any]:
    """Start a job; yield its process, and the address of its page."""
    process = launcher.start(*arguments)
    assert process.stderr is not None
    first = process.stderr.readline()
    address = re.fullmatch(r"ddlrun: the page of this job is at (http://127\.0\.0\.1:\d+/#\S{32})\n", first)
    assert address is not None, first + process.stderr.read()
    yield process, address[1]


def opened(chromium: Any, address: str, **options: Any) -> Watched:
    watched = Watched(chromium.new_page(**options))
    watched.page.goto(address)
    return watched


def cells(watched: Watched, column: str) -> List[str]:
    return [str(text) for text in watched.page.locator(f"#ranks tbody .c-{column}").all_text_contents()]


def rows_there(count: int) -> str:
    return f"document.querySelectorAll('#ranks tbody tr').length === {count}"


@pytest.mark.slow
def test_the_page_shows_what_the_ranks_count(launcher: Launcher, script: Script, end: Path, chromium: Any) -> None:
    with job_with_page(launcher, *TWO_HOSTS, "--dashboard", script(STANDS_STILL), str(end)) as (process, address):
        lines = [process.stdout.readline() for _ in range(4)]
        counted = sorted(json.loads(line.partition(" ")[2]) for line in lines if "<img" not in line)
        watched = opened(chromium, address)
        watched.wait(rows_there(2))
        watched.wait_text("#lines", "onerror")
        assert cells(watched, "rank") == ["0", "1"] and cells(watched, "host") == ["localhost", "127.0.0.1"]
        assert cells(watched, "steps") == ["7", "7"]
        assert cells(watched, "operations") == [str(operations) for _, operations, _ in counted]
        shown = watched.page.evaluate(
            "async () => { const t = await import('/text.js');"
            f" return {[sent for _, _, sent in counted]}.map((sent) => t.bytesText(sent)); }}"
        )
        assert cells(watched, "sent_bytes") == shown and all(sent > 0 for _, _, sent in counted)
        assert watched.text("#unit") == "step" and watched.text("#tile-count") == "7"
        assert watched.text("#tile-ranks") == "2"
        assert all("allreduce #7 (100000 x float32" in text for text in cells(watched, "call"))
        # What ranks print is text: nothing of it has become an element of the page.
        assert watched.page.locator("#lines img, #lines b").count() == 0
        assert "<img src=x onerror=alert(1)><b>bold</b>" in watched.text("#lines")
        # The token is in the address no more, and nobody else was asked for anything.
        assert watched.page.evaluate("location.href") == address.partition("#")[0]
        assert all(url.startswith(address.partition("#")[0]) for url in watched.foreign)
        end.touch()
        watched.wait_text("#connection", "ended after 0:")
        assert process.wait(240) == 0
        assert "with status 0" in watched.text("#connection") and watched.text("#tile-ranks") == "0"
        assert not watched.problems


@pytest.mark.slow
def test_a_stopped_rank_a_dump_and_a_failed_job(
    launcher: Launcher, script: Script, end: Path, tmp_path: Path, chromium: Any
) -> None:
    arguments = ("-np", "3", "--dump-dir", str(tmp_path / "dumps"), "--dashboard", script(TRAINS), str(end))
    with job_with_page(launcher, *arguments) as (process, address):
        watched = opened(chromium, address)
        watched.wait(rows_there(3))
        pid = int(cells(watched, "pid")[1])
        os.kill(pid, signal.SIGSTOP)
        watched.wait("document.querySelectorAll('#ranks .state.stopped').length === 1")
        assert cells(watched, "state") == [cells(watched, "state")[0], "is stopped", cells(watched, "state")[2]]
        watched.wait_text("#ranks tbody", "waits for rank 1")
        time.sleep(5)  # blame calls a wait unusual that is longer
        watched.page.click("#dump")
        watched.wait_text("#dump-text", f"kill -CONT {pid}")
        assert "stopped: rank 1" in watched.text("#dump-text")
        assert len(list((tmp_path / "dumps").glob("*/rank.*.json"))) == 3
        watched.wait_text("#events", "stopped: rank 1")  # ddlrun says it, too
        os.kill(pid, signal.SIGKILL)
        watched.wait_text("#connection", "status")
        assert process.wait(240) == 137 and "with status 137" in watched.text("#connection")
        watched.wait_text("#verdict", "rank 1")
        assert watched.text("#events").count("SIGKILL") >= 1
        assert not watched.problems


@pytest.mark.slow
def test_generations_of_an_elastic_job(launcher: Launcher, tmp_path: Path, chromium: Any) -> None:
    program = str(Path(__file__).parent / "elastic_training.py")
    arguments = ("-np", "3", "--min-np", "2", "--max-restarts", "1", "--dashboard", program, str(tmp_path))
    with job_with_page(launcher, *arguments) as (process, address):
        watched = opened(chromium, address)
        watched.wait_text("#lines", "of 3")
        (tmp_path / "kill.1").touch()
        watched.wait_text("#lines", "3 is rank 2 of 3")
        watched.wait("/generation [12] has 3 ranks/.test(document.querySelector('#events').textContent)")
        watched.wait("document.querySelectorAll('#ranks .state.ended').length === 1")
        watched.wait("document.querySelector('#tile-ranks').textContent === '3'")
        options = watched.page.locator("#whose option").all_text_contents()
        assert options == ["all ranks", "rank 0", "rank 1", "rank 1 (process 2)", "rank 2 (process 3)"]
        (tmp_path / "end").touch()
        watched.wait_text("#connection", "with status 0")
        assert process.wait(240) == 0 and not watched.problems


@pytest.mark.slow
def test_a_stream_that_broke_begins_anew(launcher: Launcher, script: Script, end: Path, chromium: Any) -> None:
    """Through a port of another number, as through ssh -L."""
    with job_with_page(launcher, "-np", "2", "--dashboard", script(TRAINS), str(end)) as (process, address):
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#(\S+)", address).groups()
        with Tunnel(int(port)) as tunnel:
            watched = opened(chromium, f"http://localhost:{tunnel.port}/#{token}")
            watched.wait(rows_there(2))
            tunnel.cut()
            watched.wait_text("#connection", "no connection to ddlrun for")
            before = int(watched.text("#tile-count"))
            tunnel.mend()
            watched.wait(f"Number(document.querySelector('#tile-count').textContent) > {before}")
            assert watched.text("#connection") == "live"
            assert all("ERR_CONNECTION" in problem or "ERR_INCOMPLETE" in problem for problem in watched.problems)
            watched.page.reload()  # the cookie is there still, and the token is the tab's
            watched.wait(rows_there(2))
            end.touch()
            watched.wait_text("#connection", "with status 0")
        assert process.wait(240) == 0


@pytest.mark.slow
def test_a_job_is_replayed_from_its_file(
    launcher: Launcher, script: Script, end: Path, tmp_path: Path, chromium: Any
) -> None:
    history = tmp_path / "job.gz"
    with job_with_page(launcher, "-np", "2", "--dashboard", "--history", str(history), script(TRAINS), str(end)) as (
        process,
        address,
    ):
        watched = opened(chromium, address)
        watched.wait("Number(document.querySelector('#tile-elapsed').textContent.slice(-2)) >= 6")
        watched.wait("Number(document.querySelector('#tile-count').textContent) > 50")
        with watched.page.expect_download() as saved:
            watched.page.click("#save")
        early = Path(saved.value.path())
        end.touch()
        watched.wait_text("#connection", "ended")
        assert process.wait(240) == 0
    assert history.read_bytes().startswith(early.read_bytes()[:1000])
    for path, how in ((history, "ended after"), (early, "replay")):
        with served(path) as address:
            replay = opened(chromium, address)
            replay.wait(rows_there(2))
            replay.wait_text("#connection", how)
            last = int(replay.text("#tile-count"))
            assert last > 50 and replay.page.is_hidden("#dump")
            replay.page.focus("#slider")
            replay.page.keyboard.press("Home")
            replay.page.keyboard.press("ArrowRight")
            replay.wait(f"Number(document.querySelector('#tile-count').textContent) < {last}")
            assert replay.text("#connection") == "replay"
            replay.page.click("#play")
            replay.wait(f"Number(document.querySelector('#tile-count').textContent) === {last}")
            assert not replay.problems


class Tunnel:
    """Passes connections on to a port of this host, until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: List[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._cut.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut.is_set():
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            sock.close()


@contextlib.contextmanager
def served(path: Path) -> Iterator[str]:
    """Run ``ddl page``; yield its address."""
    command = [sys.executable, "-m", "ddl.tools", "page", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ROOT}) as tool:
        assert tool.stderr is not None
        words, _, address = tool.stderr.readline().strip().rpartition(" ")
        try:
            assert words == "ddl page:"
            yield address
        finally:
            tool.send_signal(signal.SIGINT)
            assert tool.wait(100) == 0
