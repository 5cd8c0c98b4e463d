"""``ddlrun --metrics``: what is served of real jobs is what their ranks say; what is said where it cannot be served."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple

import pytest
from launch.launcher import ROOT, Launcher, eventually
from launch.scraped import Scraped, fetch, scrape, url_of
from launch.test_elastic_cluster import agents

from ddl._version import __version__
from ddl.errors import ConfigError
from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.cli import parse
from ddl.launch.show.job_totals import JobCounters, ProcessSums
from ddl.launch.show.metrics_server import MetricsServer
from ddl.records.sample import CommunicatorSums, RankSample

pytestmark = pytest.mark.processes
Script = Callable[[str], str]
HERE = ("-np", "2")
TWO_HOSTS = ("-H", "localhost:1,127.0.0.1:1")
WITHOUT_MEMORY = ("--env", "DDL_SHM=0")  # so that ranks of one machine send messages

#: Ranks compute for a while, say what they have done, and wait for the end.
QUIET = """
import dataclasses, json
import ddl, numpy as np
from ddl.adapter import generation
from ddl.adapter.step_record import note_step

folder = sys.argv[1]
own = os.environ.get("DDL_INCARNATION") or os.environ["DDL_RANK"]

def train(count):
    for _ in range(count):
        ddl.allreduce_(np.ones(50_000, np.float32))
        note_step()

def tell():
    text = json.dumps(dataclasses.asdict(ddl.metrics()))
    with open(f"{folder}/{own}.new", "w") as file:
        file.write(text)
    os.rename(f"{folder}/{own}.new", f"{folder}/said.{own}")

def wait(name):
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.02)

ddl.init()
"""


#: They use another communicator, too.
ANOTHER = """
other = ddl.split(0)
for _ in range(3):
    other.allreduce_(np.ones(10, np.float32))
"""


def said_by(folder: Path, *processes: int) -> List[Dict[str, Any]]:
    """Wait for what these processes say of themselves; return it."""
    paths = [folder / f"said.{process}" for process in processes]
    assert eventually(lambda: all(path.exists() for path in paths))
    return [json.loads(path.read_text()) for path in paths]


def at_rest(url: str, steps: int) -> Scraped:
    """Wait until the last step of all ranks is known, and nothing changes any more."""
    assert eventually(lambda: scrape(url).so_far("ddl_steps_total") == steps)
    before: List[Scraped] = [scrape(url)]

    def the_same() -> bool:
        time.sleep(1.2)  # longer than it takes until the next sample of each rank
        before.append(scrape(url))
        return before[-1].values == before[-2].values

    assert eventually(the_same)
    return before[-1]


@pytest.mark.parametrize("hosts", [HERE, pytest.param(TWO_HOSTS, marks=pytest.mark.slow)])
def test_what_is_served_is_what_ranks_say(
    launcher: Launcher, script: Script, tmp_path: Path, hosts: Tuple[str, ...]
) -> None:
    program = script(QUIET + ANOTHER + "train(20)\ntell()\nwait('end')")
    process = launcher.start("--metrics", "0", *hosts, *WITHOUT_MEMORY, program, str(tmp_path))
    url = url_of(process)
    ranks = said_by(tmp_path, 0, 1)
    first = at_rest(url, 40)
    for number, metrics in enumerate(ranks):
        rank = str(number)
        for name in ("operations", "sent_messages", "sent_bytes", "waited_seconds", "paused_seconds"):
            communicator = {} if name == "paused_seconds" else {"communicator": "world"}
            own = first.of(f"ddl_{name}_total", rank=rank, process=rank, **communicator)
            assert own == (pytest.approx(metrics[name], rel=1e-12) if "seconds" in name else metrics[name]), name
        assert metrics["sent_bytes"] >= 20 * 200_000 and metrics["operations"] >= 20
        assert first.of("ddl_operations_total", rank=rank, communicator="others") == 3
        assert first.of("ddl_sent_bytes_total", rank=rank, communicator="others") > 0
        assert first.of("ddl_steps_total", rank=rank) == 20
        assert first.of("ddl_late_seconds", rank=rank) == 0 and metrics["late"] == {}
        assert first.of("ddl_under_way_seconds_total", rank=rank) >= metrics["waited_seconds"]
    host = socket.gethostname()
    assert first.links == {(host, host): first.of("ddl_sent_bytes_total")}
    assert first.of("ddl_rank_info", rank="1", process="1", host=host) == 1
    assert (first.of("ddl_ranks"), first.of("ddl_generation")) == (2, 0)
    assert first.of("ddl_build_info", version=__version__) == 1
    (tmp_path / "end").touch()
    assert process.wait(60) == 0
    with pytest.raises(urllib.error.URLError):
        scrape(url)


#: Process 1 is killed. The others go on in the next generation.
ONE_IS_LOST = """
train(20)
tell()
wait("go")
if own == "1":
    os.kill(os.getpid(), 9)
try:
    train(1)
except ddl.CommunicatorError:
    while True:
        try:
            generation.next_generation(finished=0)
            break
        except ddl.CommunicatorError:
            pass
train(5)
tell()
wait("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [("-np", "3"), ("-H", "localhost:2,127.0.0.1:1")])
def test_sums_go_on_when_a_rank_is_lost(
    launcher: Launcher, script: Script, tmp_path: Path, hosts: Tuple[str, ...]
) -> None:
    options = (*hosts, "--elastic", "--max-restarts", "0", *WITHOUT_MEMORY, "--metrics", "0")
    process = launcher.start(*options, script(QUIET + ONE_IS_LOST), str(tmp_path))
    url = url_of(process)
    before = said_by(tmp_path, 0, 1, 2)
    first = at_rest(url, 60)
    assert first.ranks() == [("0", "0"), ("1", "1"), ("2", "2")]
    assert [first.of("ddl_operations_total", process=str(number)) for number in range(3)] == [20, 20, 20]
    for number in range(3):
        (tmp_path / f"said.{number}").unlink()
    (tmp_path / "go").touch()
    after = dict(zip((0, 2), said_by(tmp_path, 0, 2)))
    second = at_rest(url, 50)
    assert second.ranks() == [("0", "0"), ("1", "2")]  # process 2 is rank 1 now
    assert (second.of("ddl_ranks"), second.of("ddl_generation")) == (2, 1)
    for number, metrics in after.items():
        own = {"process": str(number)}
        assert metrics["operations"] == 5 and metrics["generation"] == 1
        assert second.of("ddl_operations_total", **own) in (25, 26)  # the one that failed may count
        for name in ("sent_messages", "sent_bytes", "waited_seconds"):
            both = before[number][name] + metrics[name]
            assert second.of(f"ddl_{name}_total", **own) >= both > first.of(f"ddl_{name}_total", **own), name
        assert second.of("ddl_paused_seconds_total", **own) == metrics["paused_seconds"] > 0
    link = socket.gethostname(), socket.gethostname()
    still_there = second.of("ddl_sent_bytes_total")
    assert second.links[link] >= still_there + before[1]["sent_bytes"]  # also what the lost one has sent
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_a_lost_host_is_not_shown(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    options = (*TWO_HOSTS, "--elastic", "--max-restarts", "0", "--metrics", "0")
    process = launcher.start(*options, script(QUIET + "tell()\nwait('end')"), str(tmp_path))
    url = url_of(process)
    said_by(tmp_path, 0, 1)
    assert eventually(lambda: scrape(url).ranks("ddl_rank_info") == [("0", "0"), ("1", "1")])
    os.kill(agents(process)[1], signal.SIGKILL)
    assert eventually(lambda: scrape(url).ranks("ddl_rank_info") == [("0", "0")])
    (tmp_path / "end").touch()
    process.wait(60)


def test_only_metrics_are_there(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    process = launcher.start("--metrics", "0", "-np", "1", script(QUIET + "wait('end')"), str(tmp_path))
    url = url_of(process)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(url[: -len("metrics")])
    assert re.search(r"^# TYPE ddl_sent_bytes_total counter$", fetch(url, "text/plain"), re.MULTILINE)
    only = Scraped(fetch(f"{url}?name[]=ddl_build_info"))
    assert only.names == {"ddl_build_info"}
    (tmp_path / "end").touch()
    assert process.wait(60) == 0


def test_a_port_that_is_taken(launcher: Launcher) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for hosts in (HERE, TWO_HOSTS, ("-np", "2", "--elastic")):
            done = launcher.run("--metrics", str(port), *hosts, "sh", "-c", "echo started")
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == (
                f"ddlrun: --metrics: [Errno 98] cannot listen on 127.0.0.1:{port}: Address already in use; choose an "
                "address of this host and a free port, or port 0 for any free one\n"
            )


def test_prometheus_client_is_missing() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None\nfrom ddl.launch.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", program, "-np", "1", "--metrics", "0", "sh", "-c", "echo started"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ddlrun: --metrics needs prometheus-client: pip install prometheus-client\n"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9400", ("::1", 9400)),
    ],
)
def test_an_address(text: str, address: Tuple[str, int]) -> None:
    assert parse(["--metrics", text, "-np", "1", "true"], {"PATH": "/bin:/usr/bin"}).metrics == address


@pytest.mark.parametrize("text", ["", "http", "-1", "65536", ":9400", "::1:9400", "host:", "1.5"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be a port, or an address and a port, as 9400 or 0.0.0.0:9400"):
        parse([f"--metrics={text}", "-np", "1", "true"], {"PATH": "/bin:/usr/bin"})


# --- sums without a job ---


def world(number: int, operations: int, *sent: Tuple[int, int, int], under_way: float = 1.0) -> CommunicatorSums:
    return CommunicatorSums(number, operations, under_way, 0.5, sent)


def sample(number: int, *communicators: CommunicatorSums, host: str = "a", **changes: Any) -> RankSample:
    plain = RankSample(number, number, host, 100 + number, "runs", 1.0, 0, communicators=communicators)
    return dataclasses.replace(plain, **changes)


def test_communicators_add_up() -> None:
    counters = JobCounters()
    counters.take([sample(0, world(0, 7, (1, 2, 300)), steps=3)], 1, {})
    counters.take([sample(0, world(0, 9, (1, 3, 400)), world(1 << 40, 2, (2, 1, 50)), steps=4)], 1, {})
    counters.take([sample(0, world(1 << 40, 3, (2, 1, 50)), steps=5, generation=1)], 1, {})
    (rank,) = counters.totals().ranks
    assert rank.sums == {"world": ProcessSums(12, 4, 450, under_way=2.0, waited=1.0)}
    assert rank.steps == 5 and counters.totals().generation == 1
    # The rank's program starts another one, which begins anew.
    counters.take([sample(0, world(0, 1, (1, 1, 1)), pid=999, steps=1)], 1, {})
    (rank,) = counters.totals().ranks
    assert rank.steps == 6 and rank.sums["world"][:3] == (13, 5, 451)
    # What is made of the world is counted by itself, also after its end.
    for number in (7, 8):
        counters.take([sample(0, world(0, 1, (1, 1, 1)), world(number, 2, (1, 1, 5)), pid=999)], 1, {})
    (rank,) = counters.totals().ranks
    assert rank.sums["world"][:3] == (13, 5, 451) and rank.sums["others"][:3] == (4, 2, 10)


def test_a_time_that_is_read_twice_does_not_fall() -> None:
    """What is not over is added to what is, and both may be read while it ends."""
    counters = JobCounters()
    for under_way, waited in ((2.0, 1.2), (1.5, 1.1)):
        counters.take([sample(0, CommunicatorSums(0, 1, under_way, waited, ()))], 1, {})
    sums = counters.totals().ranks[0].sums["world"]
    assert (sums.under_way, sums.waited) == (2.0, 1.2)


def test_links_are_of_hosts_that_have_ranks() -> None:
    counters = JobCounters()
    counters.take([sample(0, world(0, 1, (1, 1, 10), (2, 1, 100)), host="a")], 3, {})
    assert counters.totals().links == {}  # nobody knows yet where the others are
    counters.take([sample(1, world(0, 1), host="a"), sample(2, world(0, 1, (0, 1, 7)), host="b")], 3, {})
    assert counters.totals().links == {("a", "a"): 10, ("a", "b"): 100, ("b", "a"): 7}
    counters.take([sample(0, world(0, 2, (1, 1, 10), (2, 2, 150)), host="a")], 3, {2: 0.25})
    assert counters.totals().links["a", "b"] == 150 and counters.totals().late == {2: 0.25}
    counters.forget(2)
    assert counters.totals().links == {("a", "a"): 10}
    assert [rank.process for rank in counters.totals().ranks] == [0, 1]


def test_who_is_unknown_is_left_out() -> None:
    counters = JobCounters()
    counters.take([sample(-1, world(0, 1))], 1, {})
    assert counters.totals().ranks == ()


# --- what is written about them ---


@pytest.fixture(scope="module")
def served() -> Scraped:
    """What is served of a job of two hosts, without the job."""
    server = MetricsServer(ListeningAddress("127.0.0.1", 0))
    server.start()
    server.take([sample(number, world(0, 1, (1 - number, 1, 10)), host="ab"[number]) for number in (0, 1)], 2, {})
    server.take([sample(0, world(0, 1, (1, 1, 10)))], 2, {})
    try:
        return scrape(server.url)
    finally:
        server.close()
        server.close()


def test_the_document_lists_what_is_served(served: Scraped) -> None:
    text = (Path(ROOT) / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(ddl_\w+)` \|([^|]*)\|", text, re.MULTILINE)
    labels: Dict[str, Set[str]] = {}
    for name, own in served.values:
        labels.setdefault(name, set()).update(label for label, _ in own)
    assert {name: set(re.findall(r"`(\w+)`", listed)) for name, listed in rows} == labels
    assert set(re.findall(r"`(ddl_[a-z_]+)(?:\{[^`]*\})?`", text)) <= served.names | {"ddl_torch", "ddl_tensorflow"}


def test_the_board_shows_what_is_served(served: Scraped) -> None:
    board = json.loads((Path(ROOT) / "examples" / "grafana" / "ddl.json").read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    queries = [target["expr"] for target in targets] + [entry["query"] for entry in board["templating"]["list"]]
    names = {name for query in queries for name in re.findall(r"\bddl_\w+", query)}
    assert len(targets) >= 10 and names == served.names
    known = {label for _, labels in served.values for label, _ in labels} | {"instance"}
    for target in targets:
        used = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        for group in re.findall(r"(?:by|on|group_left) ?\(([^)]*)\)", target["expr"]):
            used += re.findall(r"\w+", group)
        assert set(used) <= known, target
        assert re.search(r"\bddl_\w+\{instance=\"\$instance\"\}", target["expr"]), target
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in board["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
