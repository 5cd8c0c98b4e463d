"""Every option of horovodrun, in all its spellings: each does here what ddlrun has for it, or is named as idle."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from launch.launcher import Launcher
from process_groups import require

from ddl.errors import ConfigError
from ddl.launch.ask import horovod_only
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.placement import UNPLACED
from ddl.launch.cli import parse
from ddl.launch.launchers.reaching import launcher_of

#: Name -> the module, and what of DDL's is for it.
ADAPTED = {
    "PyTorch": ("torch", "ddl_torch"),
    "TensorFlow": ("tensorflow", "ddl_tensorflow"),
    "Caffe": ("caffe", "ddl_caffe"),
    "Chainer": ("chainer", "ddl_chainer"),
    "Theano": ("theano", "ddl_theano"),
    "JAX": ("jax", "ddl_jax"),
    "LightGBM": ("lightgbm", "ddl_lightgbm"),
    "XGBoost": ("xgboost", "ddl_xgboost"),
    "Ray": ("ray", "ddl.ray"),
    "Spark": ("pyspark", "ddl.spark"),
    "Dask": ("distributed", "ddl.dask"),
    "Lightning": ("lightning", "ddl_torch.lightning"),
    "Accelerate": ("accelerate", "ddl_torch"),
    "Transformers": ("transformers", "ddl_torch"),
    "DeepSpeed": ("deepspeed", "ddl_torch"),
    "vLLM": ("vllm", "ddl_torch.vllm"),
}
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "from_horovod.md"

SAME: Dict[str, Dict[str, object]] = {
    "-np 3": {"num_proc": 3},
    "--num-proc 3": {"num_proc": 3},
    "-H localhost:2": {"num_proc": 2},
    "--hosts localhost:2": {"num_proc": 2},
    "-p 2200": {"ssh_options": ("-p", "2200")},
    "--ssh-port 2200": {"ssh_options": ("-p", "2200")},
    "-i key": {"ssh_options": ("-i", "key")},
    "--ssh-identity-file key": {"ssh_options": ("-i", "key")},
    "--start-timeout 30": {"environ": {"DDL_START_TIMEOUT": "30"}},
    "--network-interfaces eth0,eth1": {"interface": "eth0,eth1"},
    "--network-interface eth0 --network-interface eth1": {"interface": "eth0,eth1"},
    "--output-filename logs": {"output_dir": "logs"},
    "--verbose": {"verbose": True},
    "--tcp": {},
    "--stall-check-shutdown-time-seconds 90": {"environ": {"DDL_TIMEOUT": "90"}},
    "--gloo-timeout-seconds 90": {"environ": {"DDL_TIMEOUT": "90"}},
    "--log-level TRACE": {"environ": {"DDL_LOG": "debug"}},
    "--log-level INFO": {"environ": {"DDL_LOG": "INFO"}},
    "--log-level FATAL": {"environ": {"DDL_LOG": "error"}},
    "--timeline-filename t.json": {"environ": {"DDL_TIMELINE": "t.json"}},
    "--timeline-mark-cycles": {"environ": {"DDL_TIMELINE_CYCLES": "1"}},
    "--no-timeline-mark-cycles": {"environ": {"DDL_TIMELINE_CYCLES": "0"}},
    "-prefix-timestamp": {"timestamps": True},
    "--prefix-output-with-timestamp": {"timestamps": True},
}

#: tests/launch/test_elastic_options.py has what they do.
ELASTIC = """
    --min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit
    --blacklist-cooldown-range --host-discovery-script
""".split()

IDLE = """
    --disable-cache
    --fusion-threshold-mb 128 | --cycle-time-ms 1 | --cache-capacity 1024
    --hierarchical-allreduce | --no-hierarchical-allreduce | --hierarchical-allgather | --no-hierarchical-allgather
    --torus-allreduce | --no-torus-allreduce
    --autotune | --no-autotune | --autotune-log-file a.csv | --autotune-warmup-samples 3
    --autotune-steps-per-sample 10 | --autotune-bayes-opt-max-samples 20 | --autotune-gaussian-process-noise 0.8
    --no-stall-check | --stall-check | --stall-check-warning-time-seconds 60 | --stall-check-shutdown-time-seconds 0
    --mpi-threads-disable | --no-mpi-threads-disable | --mpi-args=-x | --binding-args=-bind | --num-nccl-streams 1
    --thread-affinity 0
    --log-with-timestamp | --log-without-timestamp | --log-hide-timestamp | --no-log-hide-timestamp
    --gloo | --mpi | --jsrun
"""


def idle() -> List[str]:
    return [entry.strip() for line in IDLE.strip().splitlines() for entry in line.split("|")]


def parsed(*argv: str) -> RunConfig:
    return parse(argv, dict(os.environ))


@pytest.mark.parametrize("option", SAME)
def test_an_option_that_does_the_same(option: str) -> None:
    number = () if "num_proc" in SAME[option] else ("-np", "2")
    config = parsed(*number, *option.split(), "true", "--verbose")
    expected = vars(parsed(*(number or ("-np", str(SAME[option]["num_proc"]))), "true", "--verbose"))
    given = {**vars(config), "environ": dict(config.environ), "placement": UNPLACED}
    assert given == {**expected, "environ": {}, **SAME[option]}


@pytest.mark.parametrize("option", idle())
def test_an_option_without_effect_is_named(option: str) -> None:
    config = parsed("-np", "2", *option.split(), "true")
    assert re.fullmatch(rf"{re.split('[ =]', option)[0]} has no effect: .{{15,}}", config.notes[0])
    assert vars(config) == {**vars(parsed("-np", "2", "true")), "notes": config.notes[:1]}


def test_nothing_of_the_table_is_missing_here_or_in_the_document() -> None:
    tested = {re.split("[ =]", option)[0] for option in (*SAME, *ELASTIC, *idle())}
    assert set(horovod_only.OPTIONS) <= tested
    documented = set(re.findall(r"`(--?[A-Za-z][\w-]*)", DOCUMENT.read_text()))
    assert tested <= documented


def test_one_line_for_each_reason() -> None:
    notes = parsed("-np", "1", "--cycle-time-ms=1", "--mpi", "--fusion-threshold-mb", "2", "true").notes
    assert [note.partition(" ha")[0] for note in notes] == ["--fusion-threshold-mb, --cycle-time-ms", "--mpi"]


def test_the_hostfile_of_horovodrun(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("alpha slots=2\nbeta slots=1\n")
    for spelling in ("-hostfile", "--hostfile"):
        placement = parsed(spelling, str(tmp_path / "hosts"), "true").placement
        assert (placement.hosts, placement.ranks) == (("alpha", "beta"), ((0, 1), (2,)))


def test_the_config_file_of_horovodrun(tmp_path: Path) -> None:
    require("yaml")
    path = tmp_path / "job.yaml"
    path.write_text(
        "controller: gloo\nparams:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 3.5\n  hierarchical_allreduce: true\n"
        "autotune:\n  enabled: true\n  log_file: a.csv\n"
        "timeline:\n  filename: t.json\n  mark_cycles: false\n"
        "stall_check:\n  enabled: false\n  warning_time_seconds: 120\n  shutdown_time_seconds: 240\n"
        "library_options:\n  num_nccl_streams: 2\n  gloo_timeout_seconds: 40\n"
        "logging:\n  level: WARNING\n  hide_timestamp: true\n"
    )
    config = parsed("--config-file", str(path), "-np", "2", "true")
    assert dict(config.environ) == {
        **{"DDL_TIMEOUT": "40", "DDL_LOG": "WARNING"},
        **{"DDL_TIMELINE": "t.json", "DDL_TIMELINE_CYCLES": "0"},
    }
    named = {word for note in config.notes for word in re.findall(r"--[\w-]+(?=.* no effect)", note)}
    assert named == set(
        "--fusion-threshold-mb --cycle-time-ms --hierarchical-allreduce --autotune --autotune-log-file "
        "--no-stall-check --stall-check-warning-time-seconds "
        "--num-nccl-streams --log-hide-timestamp --gloo".split()
    )


def test_a_name_without_a_value_sets_nothing(tmp_path: Path) -> None:
    require("yaml")
    path = tmp_path / "job.yaml"
    path.write_text("controller:\nparams:\n  cycle_time_ms:\ntimeline:\n  filename:\n  mark_cycles: true\nautotune:\n")
    config = parsed("--config-file", str(path), "-np", "2", "true")
    assert (dict(config.environ), config.notes) == ({"DDL_TIMELINE_CYCLES": "1"}, ())


WRONG: Tuple[Tuple[str, str], ...] = (
    ("nonsense:\n  a: 1\n", "nonsense: it is none of the sections params"),
    ("params:\n  nonsense: 1\n", "unknown option --nonsense"),
    ("params:\n  enabled: true\n", "unknown option --enabled"),
    ("controller: carrier pigeon\n", "controller: 'carrier pigeon': it must be one of gloo, mpi, jsrun"),
    ("params: 3\n", "params: it is none of the sections"),
    ("- a\n", "it has no sections"),
    ("{", "it cannot be read"),
)


@pytest.mark.parametrize(("text", "match"), WRONG, ids=[match for _, match in WRONG])
def test_a_config_file_that_makes_no_sense(text: str, match: str, tmp_path: Path) -> None:
    require("yaml")
    path = tmp_path / "job.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        parsed("--config-file", str(path), "-np", "1", "true")


def test_an_interface_on_the_command_line_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('network-interface = ["eth0", "eth1"]\n')
    assert parsed("--config-file", str(path), "-np", "1", "true").interface == "eth0,eth1"
    assert parsed("--config-file", str(path), "--network-interface", "lo", "-np", "1", "true").interface == "lo"


def test_options_that_are_wrong() -> None:
    for argv, match in (
        (["--cycle-time-ms"], "option --cycle-time-ms needs a value"),
        (["--blacklist-cooldown-range", "3"], "option --blacklist-cooldown-range needs a value"),
        (["--mpi=yes"], "option --mpi takes no value"),
        (["--launcher", "mpi", "-p", "22", "-np", "1", "true"], "are for --launcher ssh, and this is mpi"),
        (["--ssh-port", "many", "-np", "1", "true"], "--ssh-port many"),
    ):
        with pytest.raises(ConfigError, match=match):
            parsed(*argv)


def test_ssh_gets_its_port_and_its_key(tmp_path: Path) -> None:
    (tmp_path / "ssh").touch(0o755)
    config = parsed("-H", "192.0.2.1:1", "-p", "2200", "-i", "key", "true")
    (start,) = launcher_of(config).starts(config.placement, {"PATH": str(tmp_path)})
    at = start.command.index("192.0.2.1")
    assert start.command[0] == str(tmp_path / "ssh") and start.command[at - 4 : at] == ("-p", "2200", "-i", "key")


@pytest.mark.processes
@pytest.mark.parametrize("where", [("-np", "2"), ("-H", "localhost:2")], ids=["here", "by an agent"])
def test_the_lines_come_first_and_the_job_runs(where: Tuple[str, str], launcher: Launcher) -> None:
    done = launcher.run(*where, "-prefix-timestamp", "--mpi", "echo", "same")
    assert done.returncode == 0 and done.stderr.startswith("ddlrun: --mpi has no effect: ")
    line = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[[01]\] same\n"
    assert re.fullmatch(line * 2, done.stdout)


@pytest.mark.processes
def test_check_build_tries_the_core(launcher: Launcher, tmp_path: Path) -> None:
    for option in ("--check-build", "-cb"):
        done = launcher.run(option, environ={"DDL_RANK": "of another job"})
        assert done.returncode == 0, done.stderr
        assert "[X] an all-reduce of one rank\n" in done.stdout and "_core." in done.stdout
        for name, (module, adapter) in ADAPTED.items():
            spec = importlib.util.find_spec(module)
            box = "X" if spec is not None and spec.origin is not None else " "  # a folder of tests has no origin
            assert re.search(rf"\[{box}\] {name}( \d\S*)?, by {re.escape(adapter)}\n", done.stdout), done.stdout
    (tmp_path / "numpy.py").write_text("raise ImportError('a broken numpy')")
    broken = os.pathsep.join([str(tmp_path), str(DOCUMENT.parents[1])])
    done = launcher.run("--check-build", environ={"PYTHONPATH": broken})
    assert done.returncode == 1 and "[ ] ImportError: a broken numpy" in done.stdout
