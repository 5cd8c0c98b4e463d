"""Tables in real jobs: they change what runs, all ranks have the same one, letters beat them, bad ones do no harm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from device.fake_cuda import Fake
from said import Said
from tuning.tables import table_of

import ddl
from ddl.plan.ir import Collective
from ddl.tools.cli import main
from ddl.topology import Topology
from ddl.tuning.measure import find_racks, other_work, table_file, turns
from ddl.tuning.measure.sweep import measure
from ddl.tuning.racks import Racks
from ddl.tuning.select import ANY, Line, Lines
from ddl.tuning.table import Table, TunedCluster

pytestmark = pytest.mark.processes
ROOT = Path(ddl.__file__).resolve().parent.parent
RING = (Line(ANY, "multiring", 1 << 20, False, 2, True),)
DOUBLING = (Line(ANY, "recursive_doubling", 1 << 20, False, 2),)
#: Messages that a rank sends for one all-reduce of less than a piece among four.
MESSAGES = {"multiring": 6, "recursive_doubling": 2}
SMALL, COUNT = 1 << 10, 32 << 10  #: elements; the built-in table runs one each way


def cluster() -> Tuple[TunedCluster, str, int]:
    group = ddl.world()._group
    return group.job.cluster(), str(group.topology), group.topology.local_size


def start_and_count(counts: List[int]) -> Tuple[List[int], List[str]]:
    other_work.MOST = 1e9  # other tests may run here
    """Messages that this rank sends for an all-reduce of each number of elements, and what was logged till then."""
    heard = Said()
    ddl.init()
    sent = []
    for count in counts:
        x = np.arange(count, dtype=np.float32) % 61 + ddl.rank()
        before = ddl.world().traffic()[0]
        ddl.allreduce_(x, op=ddl.Sum)
        sent.append(ddl.world().traffic()[0] - before)
        wanted = (np.arange(count, dtype=np.float32) % 61) * ddl.size() + sum(range(ddl.size()))
        assert np.array_equal(x, wanted)
    return sent, heard.texts


def start() -> Tuple[str, str]:
    try:
        ddl.init()
    except ddl.ConfigError as error:
        return type(error).__name__, str(error)
    return "initialised", ""


def saved(directory: Path, lines: Lines, **job: Any) -> Path:
    """Write a table for jobs of four ranks that are connected like ``job`` where they look for it."""
    (job_cluster, topology, local_size), *_ = ranks.run(4, cluster, **job)
    laid_out = Topology.parse(topology, shared=int(local_size > 1))
    path = directory / "ddl" / f"tuned-{job_cluster.fingerprint}.toml"
    table_file.write(table_of(job_cluster, laid_out, lines), path)
    return path


def only_rank_0_finds_it(directory: Path, **more: str) -> Any:
    """Return ``env_of``: rank 0 looks into ``directory``, the others into one that is not there."""
    return lambda rank: {
        "DDL_TUNED": "",
        "XDG_CONFIG_HOME": str(directory if rank == 0 else directory / "none"),
        **more,
    }


def run(directory: Path, counts: List[int], **more: str) -> List[Tuple[List[int], List[str]]]:
    env_of = only_rank_0_finds_it(directory, DDL_LOG="info", **more)
    return ranks.run(4, start_and_count, counts, env={"DDL_SHM": "0"}, env_of=env_of, initialise=False)


@pytest.mark.parametrize("lines", [RING, DOUBLING], ids=lambda lines: lines[0].algorithm)
def test_the_table_of_rank_0_is_what_every_rank_runs(lines: Lines, tmp_path: Path) -> None:
    saved(tmp_path, lines, **connected("tcp"))
    answers = run(tmp_path, [SMALL, COUNT])
    assert [sent for sent, _ in answers] == [[MESSAGES[lines[0].algorithm]] * 2] * 4
    log = "\n".join(answers[0][1])
    assert "algorithms are chosen by" in log and "measured on 2026-11-22" in log
    assert f"allreduce beyond: {lines[0].algorithm}" in log
    assert not any("allreduce" in text for _, texts in answers[1:] for text in texts)  # once is enough


def test_lines_serve_up_to_their_size(tmp_path: Path) -> None:
    saved(tmp_path, (Line(4 * COUNT, "multiring", 0, True), *DOUBLING), **connected("tcp"))
    assert [sent for sent, _ in run(tmp_path, [COUNT, COUNT + 1])] == [[6, 2]] * 4


def test_a_forced_algorithm_beats_the_table(tmp_path: Path) -> None:
    saved(tmp_path, DOUBLING, **connected("tcp"))
    answers = run(tmp_path, [SMALL, COUNT], DDL_ALGORITHM="ring")
    assert [sent for sent, _ in answers] == [[6, 6]] * 4
    assert "forced by DDL_ALGORITHM=ring" in "\n".join(answers[0][1])


def test_off_and_part_of_the_ranks_go_by_the_built_in_table(tmp_path: Path) -> None:
    saved(tmp_path, RING, **connected("tcp"))
    assert [sent for sent, _ in run(tmp_path, [SMALL], DDL_TUNED="off")] == [[2]] * 4
    env_of = only_rank_0_finds_it(tmp_path)
    assert ranks.run(4, sent_by_children, env={"DDL_SHM": "0"}, env_of=env_of) == [(6, 4)] * 4


def sent_by_children() -> Tuple[int, int]:
    """Messages of an all-reduce on a communicator of all ranks, and of four on one of two."""
    sent = []
    for child, count in ((ddl.split(0), SMALL), (ddl.split(ddl.rank() // 2), SMALL)):
        assert child is not None
        for _ in range(1 if not sent else 4):
            child.allreduce_(np.ones(count, np.float32))
        sent.append(child.traffic()[0])
    return sent[0], sent[1]


def laid_out() -> List[str]:
    """The layout of this job, of all its ranks in reverse, and of half of them; each has summed up."""
    half, turned = ddl.rank() % 2, ddl.size() - ddl.rank()
    layouts = []
    for world in (ddl.world(), ddl.split(0, turned), ddl.split(half)):
        assert world is not None
        x = np.arange(COUNT, dtype=np.float32) % 61 + world.rank
        world.allreduce_(x, op=ddl.Sum)
        wanted = (np.arange(COUNT, dtype=np.float32) % 61) * world.size + sum(range(world.size))
        assert np.array_equal(x, wanted)
        topology = world._group.topology
        layouts.append(f"{topology} {topology.order}")
    return layouts


def test_racks_of_the_table_lay_out_the_job_and_what_is_split_off_it_whole(tmp_path: Path) -> None:
    """Four hosts of one rank; the racks are hosts 0 and 2, and 3 and 1."""
    job = {"env_of": lambda rank: {"DDL_HOST_ID": f"host{rank}"}}
    (job_cluster, topology, _), *_ = ranks.run(4, cluster, **job)
    assert topology == "4"
    known = Racks(((0, 2), (3, 1)), 1e8, 1e7, 1 << 20, 0.1, 0.2)
    table = replace(table_of(job_cluster, Topology.parse("2x2"), RING), racks=known)
    table_file.write(table, tmp_path / "ddl" / f"tuned-{job_cluster.fingerprint}.toml")
    only_rank_0 = only_rank_0_finds_it(tmp_path)
    answers = ranks.run(4, laid_out, env_of=lambda rank: {**only_rank_0(rank), **job["env_of"](rank)})
    assert answers == [["2x2 (0, 2, 3, 1)", "2x2 (3, 1, 0, 2)", "2 (0, 1)"]] * 4


class KnownTimes:
    """Calls whose times are known: on the communicator with this number they take so many times as long."""

    seconds = 0.0  #: what the clock shows by which they are timed

    def __init__(self, number: int, times: float) -> None:
        self._number, self._times = number, times

    def run(self, world: ddl.Communicator) -> None:
        KnownTimes.seconds += 0.002 * (self._times if world._group.number == self._number else 1)

    @classmethod
    def now(cls) -> float:
        return cls.seconds


def raced(large: float, small: float) -> Tuple[bool, str]:
    """Race calls that with racks take so many times as long as without."""
    control, laid_out = ddl.split(0), ddl.split(0)
    assert control is not None and laid_out is not None
    number = laid_out._group.number
    # Calls of known length: that racks lose is what no real cluster shows on demand.
    find_racks._allreduce = lambda *given: KnownTimes(number, small if given[-1] == find_racks._SMALL else large)  # type: ignore
    turns.clock = KnownTimes  # type: ignore[assignment,misc]
    won, why = find_racks._race(control, {0: control, 1: laid_out}, 1 << 20)
    return won is not None and won.seconds < won.default_seconds, why


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("large", "small", "used", "why"),
    [
        (10, 1, False, "an allreduce of 1 MiB is not clearly faster with them"),
        (0.1, 1, True, ""),
        (0.1, 2, True, ""),
        (0.5, 10, False, r"an allreduce of 4 KiB takes .*, without them .*: more than [12].\d times as long"),
    ],
)
def test_racks_are_used_only_if_large_all_reduces_gain_more_than_small_ones_lose(
    large: float, small: float, used: bool, why: str
) -> None:
    for choice, said in ranks.run(2, raced, large, small):
        assert choice == used and re.fullmatch(why, said), said


def test_a_stale_table_is_refused_with_a_warning_of_rank_0_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, RING, **connected("tcp"))
    path.write_text(path.read_text().replace("rails = 1", "rails = 2"))
    answers = run(tmp_path, [1])
    assert [sent for sent, _ in answers] == [[2]] * 4
    warnings = [[text for text in texts if "is not used" in text] for _, texts in answers]
    assert [len(texts) for texts in warnings] == [1, 0, 0, 0]
    assert str(path) in warnings[0][0] and "rails was 2 then and is 1 now" in warnings[0][0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (("version = 1", "version = 7"), "version 7"),
        (('topology = "4"', 'topology = "2x2"'), "this job is 4"),
        (None, ""),
    ],
)
def test_a_named_table_that_does_not_suit_is_an_error_on_all_ranks(spoil: Any, said: str, tmp_path: Path) -> None:
    path = saved(tmp_path, RING, **connected("tcp"))
    if spoil is not None:
        path.write_text(path.read_text().replace(*spoil))
    else:
        path.unlink()
        said = "cannot be read"
    env_of = only_rank_0_finds_it(tmp_path / "empty")
    named = lambda rank: {**env_of(rank), **({"DDL_TUNED": str(path)} if rank == 0 else {})}  # noqa: E731
    answers = ranks.run(4, start, env={"DDL_SHM": "0"}, env_of=named, initialise=False)
    assert {kind for kind, _ in answers} == {"ConfigError"}
    assert all(f"DDL_TUNED={path}" in text and said in text for _, text in answers)


# --- measuring ---

#: Lets the clock by which a rank measures show a millisecond more whenever it is read. So what can be measured in a
#: given time does not depend on how busy the machine is.
TICKING = (Path(__file__).parent / "ticking.py").read_text()
QUICK = [8, 4096, 65536, 1 << 20]


def measured(collectives: List[Collective]) -> Tuple[Table, List[str], int, Tuple[int, int]]:
    names: List[str] = []

    def remember(collective: Collective, nbytes: int, among: Any, outcome: Any) -> None:
        names.append(f"{collective.name} {nbytes} {outcome and among[outcome.chosen]}")

    before = len(os.listdir("/proc/self/fd"))
    table = measure(ddl.world(), collectives, QUICK, 3.0, remember)
    left = len(os.listdir("/proc/self/fd")) - before
    ddl.world()._group.use(table)
    x = np.full(1 << 18, 1 + ddl.rank(), np.float32)
    ddl.allreduce_(x, op=ddl.Sum)
    assert (x == sum(range(1, 1 + ddl.size()))).all()
    return table, names, left, (ddl.rank(), ddl.size())


@pytest.mark.slow
@pytest.mark.parametrize(("size", "transport"), [(2, "shared"), (3, "tcp"), (4, "hybrid"), (2, "rails")])
def test_all_ranks_measure_the_same_and_leave_nothing_open(size: int, transport: str) -> None:
    answers = ranks.run(size, measured, [Collective.ALLREDUCE], **connected(transport))
    assert len({repr(table) for table, *_ in answers}) == 1
    assert len({tuple(names) for _, names, *_ in answers}) == 1
    table: Table = answers[0][0]
    assert Table.parse(table.text()).lines == table.lines
    assert table.misfit(Topology.parse(table.topology, shared=int(table.local_size > 1))) == ""
    assert table.machine["host"]["ranks"] == table.local_size
    assert ("network" in table.machine) == (transport != "shared")
    for row in table.measured[Collective.ALLREDUCE]:
        assert row.seconds <= row.default_seconds
        assert row.algorithm != row.default or row.seconds > 0
    # The world's own connections, for its exchanges, stay: three streams to each peer, on three rails at most.
    assert max(left for _, _, left, _ in answers) <= 9 * (size - 1)


def test_every_collective_is_measured() -> None:
    every = [Collective.REDUCESCATTER, Collective.ALLGATHER, Collective.ALLTOALL, Collective.BROADCAST]
    tables = ranks.run(2, measured_only, every, **connected("tcp"))
    assert tables[0] == tables[1]
    assert list(tables[0].lines) == every and all(tables[0].measured[collective] for collective in every)


def measured_only(collectives: List[Collective]) -> Table:
    exec(TICKING, {})
    return measure(ddl.world(), collectives, [8, 65536], 0.5)


def test_mode_p_measures_once_and_finds_its_table_the_next_time(tmp_path: Path) -> None:
    options: Dict[str, str] = {"DDL_TUNE_SECONDS": "1"}
    first = run(tmp_path, [SMALL, COUNT], **options)
    (path,) = (tmp_path / "ddl").iterdir()
    assert f"the next start on these hosts will use {path}" in "\n".join(first[0][1])
    text = path.read_text()
    again = run(tmp_path, [SMALL, COUNT], **options)
    assert path.read_text() == text
    assert f"chosen by {path}" in "\n".join(again[0][1])
    assert [sent for sent, _ in first] == [sent for sent, _ in again]
    forced = run(tmp_path / "other", [SMALL], DDL_ALGORITHM="ring", **options)
    assert [sent for sent, _ in forced] == [[6]] * 4 and not (tmp_path / "other").exists()


def test_mode_p_goes_on_where_its_table_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "ddl").write_text("no directory")
    answers = run(tmp_path, [1], DDL_TUNE_SECONDS="0.2")
    assert "cannot be kept for the next start" in "\n".join(answers[0][1])
    assert len({tuple(sent) for sent, _ in answers}) <= 2  # of a tree not all ranks send as much


# --- ddl tune ---


@pytest.fixture
def ticking(tmp_path: Path) -> str:
    """A folder with a sitecustomize by which the clocks of ranks tick."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import os\nif 'DDL_RANK' in os.environ:\n    exec({TICKING!r})\n")
    return str(folder)


def tune(*options: str, path: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)])), **environ}
    line = [sys.executable, "-m", "ddl.tools", "tune", "--even-if-busy", *options]
    return subprocess.run(line, cwd="/", env=variables, capture_output=True, text=True, timeout=240)


def test_ddl_tune_writes_a_table_that_jobs_find_and_simulate_reads(tmp_path: Path, ticking: str) -> None:
    options = ("-np", "2", "--sizes", "8,64K", "--seconds", "1")
    ended = tune(*options, path=ticking, XDG_CONFIG_HOME=str(tmp_path), DDL_ALGORITHM="ring")
    assert ended.returncode == 0, ended.stderr
    (path,) = (tmp_path / "ddl").iterdir()
    assert f"written to {path}" in ended.stdout
    assert [line.split()[:3] for line in ended.stdout.splitlines()[1:3]] == [
        ["allreduce", "8", "bytes"],
        ["allreduce", "64", "KiB"],
    ]
    env = {"DDL_TUNED": "", "XDG_CONFIG_HOME": str(tmp_path), "DDL_LOG": "info"}
    (_, texts), _ = ranks.run(2, start_and_count, [1], env=env, initialise=False)
    assert f"chosen by {path}" in "\n".join(texts)
    line = [sys.executable, "-m", "ddl.tools", "simulate", "--topology", str(path), "--allreduce", "1M"]
    subprocess.run(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True, timeout=240)


def test_ddl_tune_measures_arrays_on_gpus(tmp_path: Path, ticking: str) -> None:
    table = tmp_path / "tuned.toml"
    report = tmp_path / "violations"
    options = ("-np", "2", "--device", "cuda", "--sizes", "64K", "--seconds", "1", "--output", str(table))
    collectives = ("--collectives", "allreduce,allgather")
    ended = tune(*options, *collectives, path=ticking, **Fake.environment(report=report))
    assert ended.returncode == 0 and table.exists(), ended.stderr
    assert not report.exists()
    assert [line.split()[0] for line in ended.stdout.splitlines()[1:3]] == ["allreduce", "allgather"]
    without = tune(*options, DDL_CUDA_LIBRARY="libcuda-that-is-nowhere.so")
    assert without.returncode != 0
    assert "--device cuda: rank 0" in without.stderr and "libcuda-that-is-nowhere.so" in without.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-np", "1"], "a job of one rank does not communicate"),
        ([], "the number of ranks is missing"),
        (["-np", "2", "--sizes", "8q"], "'8q'"),
        (
            ["-np", "2", "--collectives", "allreduse"],
            "--collectives allreduse: it cannot be tuned; use a list of allreduce",
        ),
        (["-np", "2", "--seconds", "0"], "--seconds 0"),
        (["-np", "2", "--mode", "r:2"], "a letter chooses algorithms"),
        (["-np", "2", "--mode", "3"], "3 are 3 ranks, but the job has 2|dimensions 3"),
        (["-np", "2", "--launcher", "k8s"], "k8s"),
    ],
)
def test_bad_usage_ends_with_2(options: List[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before a job is started."""
    try:
        status: Any = main(["tune", *options])
    except SystemExit as end:  # by argparse
        status = end.code
    text = capsys.readouterr().err
    assert status == 2 and any(part in text for part in said.split("|")), text


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = tune("-np", "2", "--seconds", "30", "--output", str(tmp_path / "file" / "tuned.toml"))
    assert ended.returncode == 1
    assert "the table cannot be written on" in ended.stderr and "--output" in ended.stderr
    assert ended.stdout == ""
