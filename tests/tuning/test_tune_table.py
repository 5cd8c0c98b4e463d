"""The table's text: what is written is read again, ``ddl simulate`` reads it, and what does not hold is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Optional, Tuple

import pytest
from tuning.tables import MACHINE, table_of

from ddl.bootstrap.environ import Settings
from ddl.errors import ConfigError
from ddl.plan.ir import Collective
from ddl.tools.cli import main
from ddl.tools.simulate.description import read
from ddl.topology import Topology
from ddl.tuning.measure import table_file
from ddl.tuning.racks import Racks
from ddl.tuning.select import ANY, Line, select
from ddl.tuning.table import MeasuredSize, Table, TunedCluster, explain

CLUSTER = TunedCluster(("a:2", "b:2"), "", True, 1, 2, "")
TOPOLOGY = Topology.parse("2x2", shared=1)
LINES = (Line(4096, "tree", 0, True), Line(ANY, "multiring", 4 << 20, False, 2, True))
TABLE = table_of(
    CLUSTER, TOPOLOGY, LINES, measured=(MeasuredSize(4096, "tree", 1.25e-4, "recursive_doubling", 2.5e-4),)
)


def test_what_is_written_is_read_again() -> None:
    assert Table.parse(TABLE.text()) == TABLE
    odd = replace(
        TABLE, cluster=replace(CLUSTER, hosts=('q"\\é:1',)), date="", machine={}, measured={Collective.ALLREDUCE: ()}
    )
    assert Table.parse(odd.text()) == odd


RACKS = Racks(((0, 2), (1, 3)), 1.125e8, 1.5e7, 4 << 20, 0.125, 0.25)
HOSTS = TunedCluster(tuple(f"{name}:2" for name in "abcd"), "", True, 1, 2, "")
IN_RACKS = replace(table_of(HOSTS, Topology.parse("2x2x2", shared=1), LINES), racks=RACKS)


def test_racks_are_read_again_and_lay_out_the_hosts_that_were_discovered() -> None:
    assert Table.parse(IN_RACKS.text()) == IN_RACKS
    hosts = Topology.parse("2x4", shared=1)
    assert IN_RACKS.lay_out(hosts).order == (0, 1, 4, 5, 2, 3, 6, 7)
    assert IN_RACKS.misfit(hosts) == ""
    assert "this job is 8 with 1" in IN_RACKS.misfit(Topology.flat(8))  # there, hosts share no memory any more


def test_racks_hold_for_their_own_hosts_only(tmp_path: Path) -> None:
    path, hosts = str(tmp_path / "tuned.toml"), Topology.parse("2x4", shared=1)
    assert take(IN_RACKS, HOSTS, hosts, path) == IN_RACKS
    with pytest.raises(ConfigError, match=f"DDL_TUNED={path}: hosts was .*a:2.* is .*x:2"):
        take(IN_RACKS, replace(HOSTS, hosts=("x:2", *HOSTS.hosts[1:])), hosts, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[[0, 2], [1, 3]]", "[[0, 1], [2, 2]]"), "no equal parts of 0..3"),
        (("[[0, 2], [1, 3]]", "[[0], [1, 2, 3]]"), "no equal parts of 0..3"),
        (("[[0, 2], [1, 3]]", "[[0, 2], [1, 4]]"), "no equal parts of 0..3"),
        (("[[0, 2], [1, 3]]", "[[0, 2.0], [1, 3]]"), "float"),
        (("[[0, 2], [1, 3]]", "0"), "not iterable"),
        (("groups =", "group ="), "groups"),
        (("nbytes = 4194304", 'nbytes = "4M"'), "nbytes"),
    ],
)
def test_what_is_wrong_with_racks_is_said(change: Tuple[str, str], said: str) -> None:
    assert change[0] in IN_RACKS.text()
    with pytest.raises(ConfigError, match=said):
        Table.parse(IN_RACKS.text().replace(*change, 1))


def test_the_racks_of_tune_md_are_read() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "tune.md").read_text()
    (block,) = re.findall(r"```\n(\[tuned.racks\]\n.*?)```", documented, re.DOTALL)
    text = re.sub(r"\[tuned.racks\]\n.*?\n\n", f"{block}\n", IN_RACKS.text(), flags=re.DOTALL)
    assert Table.parse(text).racks == Racks(((0, 2), (1, 3)), 1.1e8, 1.2e7, 1 << 20, 0.04, 0.115)


def test_simulate_takes_its_links_from_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuned.toml"
    table_file.write(TABLE, path)
    machine = read(str(path)).machine
    assert machine.size == 4 and machine.ranks_per_host == 2 and machine.memory is not None
    assert machine.levels[1].link is not None
    assert machine.levels[1].link.bandwidth_bytes_per_s == MACHINE["network"][0]["bandwidth_bytes_per_s"]
    assert main(["simulate", "--topology", str(path), "--allreduce", "1M"]) == 0
    assert "2x2" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.toml"]  # nothing temporary is left


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("version = 1", "version = 2"), "version 2, but this DDL reads version 1"),
        (('ddl = "', 'ddl = "9'), "measured with DDL 9"),
        (("[tuned]", "[tunes]"), "version None"),
        (("[tuned]", "[tuned"), "not valid TOML"),
        (('algorithm = "tree"', "algorithm = 3"), "algorithm = 3"),
        (("in_flight = 2", "in_flight = 9"), "line 2"),
        (("max_bytes = 4096", "max_bytes = -1"), "line 1"),
        (("[tuned.allreduce]", "[tuned.allreduces]"), "allreduces"),
        (('wire = ""', 'wires = ""'), "wires?"),
        (("small = true", "small = 1"), "small = 1"),
        (("piece_bytes = 0", "piece_bytes = 9223372036854775808"), "line 1"),
        (("[tuned.cluster]", 'cluster = "x"\n[tuned.clusters]'), "missing, unknown or wrong"),
        (("lines = [", "lines = []\nothers = ["), "needs a last line"),
        (("seconds = 1.25", 'seconds = "x" # 1.25'), "not valid TOML|seconds"),
        (('topology = "2x2"', 'topology = "2y2"'), "2y2"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change: Tuple[str, str], said: str) -> None:
    text = TABLE.text()
    assert change[0] in text
    with pytest.raises(ConfigError, match=said):
        Table.parse(text.replace(*change, 1))


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of this user's settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def take(
    table: Table, cluster: TunedCluster = CLUSTER, topology: Topology = TOPOLOGY, tuned: str = ""
) -> Optional[Table]:
    """What a job on ``cluster`` takes that finds ``table``: where it looks for its own, or as the file ``tuned``."""
    table_file.write(table, Path(tuned) if tuned else table_file.place(cluster))
    return table_file.take(table_file.offer(Settings(tuned=tuned), cluster), topology, warn=True)


def test_a_table_of_another_cluster_is_refused_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    others = [
        (replace(CLUSTER, hosts=("a:2", "c:2")), "hosts"),
        (replace(CLUSTER, rails=2), "rails was 1 then and is 2 now"),
        (replace(CLUSTER, connections=4), "connections"),
        (replace(CLUSTER, wire="bf16"), "wire"),
        (replace(CLUSTER, dimensions="2x2"), "dimensions"),
        (replace(CLUSTER, shared_memory=False), "shared_memory"),
    ]
    for other, said in others:
        caplog.clear()
        assert take(TABLE, other) is None
        assert (
            f"{table_file.place(other)} is not used" in caplog.text
            and said in caplog.text
            and "ddl tune" in caplog.text
        )
        assert other.fingerprint != CLUSTER.fingerprint
    caplog.clear()
    assert take(TABLE, topology=Topology.flat(4)) is None
    assert "2x2 with 2 ranks sharing memory, but this job is 4 with 1" in caplog.text
    impossible = table_of(CLUSTER, TOPOLOGY, (Line(ANY, "direct", 0, True),))
    assert take(impossible) is None
    assert "all ranks must share memory" in caplog.text
    assert take(TABLE) == TABLE


def test_who_names_a_file_gets_an_error_and_may_have_other_hosts(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    assert take(TABLE, replace(CLUSTER, hosts=("x:2", "y:2")), tuned=str(path)) == TABLE
    with pytest.raises(ConfigError, match=f"DDL_TUNED={path}: hosts was .* run 'ddl tune --output' again"):
        take(TABLE, replace(CLUSTER, hosts=("x:3", "y:1")), tuned=str(path))


def test_what_rank_0_offers(config: Path) -> None:
    path = table_file.place(CLUSTER)
    assert path == config / "ddl" / f"tuned-{CLUSTER.fingerprint}.toml"
    assert table_file.offer(Settings(), CLUSTER) == table_file.TableOffer()
    assert table_file.offer(Settings(tune_seconds=3.0), CLUSTER) == table_file.TableOffer(seconds=3.0)
    assert table_file.offer(Settings(tune_seconds=3.0, algorithm="ring"), CLUSTER) == table_file.TableOffer()
    assert "No such file" in table_file.offer(Settings(tuned="nowhere"), CLUSTER).problem
    table_file.write(TABLE, path)
    assert table_file.offer(Settings(), CLUSTER) == table_file.TableOffer(str(path), TABLE.text())
    assert table_file.offer(Settings(tuned="off"), CLUSTER) == table_file.TableOffer()
    path.write_bytes(b"\xff")
    assert "cannot be read" in table_file.offer(Settings(), CLUSTER).problem
    path.write_text("#" * 60_000)
    assert "longer than" in table_file.offer(Settings(), CLUSTER).problem


def test_letters_and_the_log() -> None:
    collective = Collective.ALLREDUCE
    assert select(collective, TOPOLOGY, "", TABLE.lines) is TABLE.lines[collective]
    assert {line.algorithm for line in select(collective, TOPOLOGY, "ring", TABLE.lines)} == {"ring"}
    assert select(Collective.BROADCAST, TOPOLOGY, "", TABLE.lines) == select(Collective.BROADCAST, TOPOLOGY)
    assert explain(collective, TABLE.lines[collective], TABLE, "") == [
        "allreduce up to 4 KiB: tree (tuned 2026-11-22: 125 µs at 4 KiB, default recursive_doubling 250 µs)",
        "allreduce beyond: multiring, 2 pieces of 4 MiB at once (default)",
    ]
    forced = select(collective, TOPOLOGY, "ring", TABLE.lines)
    assert (
        explain(collective, forced, TABLE, "ring")[0] == "allreduce up to 16 KiB: ring (forced by DDL_ALGORITHM=ring)"
    )
    assert explain(collective, select(collective, TOPOLOGY), None, "")[0].endswith("leaders (default)")
