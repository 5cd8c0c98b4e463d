"""The options of elastic jobs: what they become, what they are if not given, and which contradict one another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddl.errors import ConfigError
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.ask.hosts import Host
from ddl.launch.cli import main, parse

SCRIPT = ["--host-discovery-script", "./hosts.sh"]


def parsed(*argv: str, **environ: str) -> RunConfig:
    return parse([*argv, "true"], {**os.environ, **environ})


def elastic(*argv: str, **environ: str) -> ElasticOptions:
    options = parsed(*argv, **environ).elastic
    assert options is not None
    return options


def test_a_job_that_does_not_ask_for_it_is_as_ever() -> None:
    assert parsed("-np", "2").elastic is None
    assert parsed("-H", "a:1,b:1").elastic is None


HERE = (Host("localhost", 4),)
CASES: Dict[str, Dict[str, Any]] = {
    "-np 4 --min-np 2": {"min_np": 2, "max_np": 4, "hosts": HERE, "max_restarts": 0},
    "-np 4 --elastic": {"min_np": 1, "max_np": 4, "hosts": HERE, "max_restarts": 0},
    "--min-num-proc 4": {"min_np": 4, "max_np": 4, "hosts": HERE, "max_restarts": 0},
    "-np 4 --elastic --max-restarts 3": {"min_np": 1, "max_np": 4, "hosts": HERE, "max_restarts": 3},
    "-np 4 --elastic --reset-limit 0 --elastic-timeout 2.5": {
        **{"min_np": 1, "max_np": 4, "hosts": HERE, "max_restarts": 0},
        **{"reset_limit": 0, "timeout": 2.5},
    },
    "-H a:2,b:2 --min-np 2 --blacklist-cooldown-range 10 100": {
        **{"min_np": 2, "max_np": 4, "hosts": (Host("a", 2), Host("b", 2))},
        **{"max_restarts": 0, "cooldown_range": (10.0, 100.0)},
    },
    "-np 2 -H a:2,b:2 --min-np 1 --max-num-proc 3": {
        **{"min_np": 1, "max_np": 3, "hosts": (Host("a", 2), Host("b", 2))},
    },
    "-np 3 -H a,b --min-np 1": {"min_np": 1, "max_np": 3, "hosts": (Host("a", 2), Host("b", 1)), "max_restarts": 0},
    "-H a:1,b:1 --elastic --leave-failed-hosts": {
        **{"min_np": 1, "max_np": 2, "hosts": (Host("a", 1), Host("b", 1))},
        **{"max_restarts": 0, "leave_failed_hosts": True},
    },
    "-np 2 --host-discovery-script ./hosts.sh": {"min_np": 2, "max_np": None, "discovery_script": "./hosts.sh"},
    "--min-np 2 --host-discovery-script ./hosts.sh --slots-per-host 4 --max-np 8": {
        **{"min_np": 2, "max_np": 8, "discovery_script": "./hosts.sh", "slots_per_host": 4},
    },
}


@pytest.mark.parametrize("line", CASES)
def test_what_options_mean(line: str) -> None:
    assert elastic(*line.split()) == ElasticOptions(**CASES[line])


def test_the_size_at_the_start_is_that_of_np_or_of_min_np() -> None:
    assert parsed("--min-np", "3", *SCRIPT).num_proc == 3
    assert parsed("-np", "5", "--min-np", "3", *SCRIPT).num_proc == 5
    config = parsed("-H", "a:2,b:2", "-np", "3", "--min-np", "1")
    assert config.num_proc == 3 and str(config.placement) == "a:2,b:1"


def test_a_job_begins_on_all_slots_that_it_may_use() -> None:
    config = parsed("-H", "a:2,b:2", "-np", "2", "--min-np", "1", "--max-np", "3")
    assert config.num_proc == 3 and str(config.placement) == "a:2,b:1"
    config = parsed("-H", "a:2,b:2", "-np", "2", "--min-np", "1", "--max-np", "9")
    assert config.num_proc == 4 and str(config.placement) == "a:2,b:2"


def test_horovods_variable_sets_the_timeout_unless_the_option_does() -> None:
    line = ("-np", "2", "--elastic")
    assert elastic(*line).timeout == 600
    assert elastic(*line, HOROVOD_ELASTIC_TIMEOUT="30").timeout == 30
    assert elastic(*line, "--elastic-timeout=9", HOROVOD_ELASTIC_TIMEOUT="30").timeout == 9
    with pytest.raises(ConfigError, match="HOROVOD_ELASTIC_TIMEOUT soon: it must be a number of seconds above 0"):
        elastic(*line, HOROVOD_ELASTIC_TIMEOUT="soon")


def test_they_stand_in_config_files_too(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('np = 4\nmin-np = 2\nblacklist-cooldown-range = "5,50"\n')
    assert elastic("--config-file", str(path)).cooldown_range == (5.0, 50.0)


WRONG: Dict[str, List[str]] = {
    "--min-np 3 is more than the 2 ranks that the job begins with; raise -np": ["-np", "2", "--min-np", "3"],
    "--max-np 1 is less than the 2 ranks": ["-np", "2", "--elastic", "--max-np", "1"],
    "--min-np none: it must be a whole number from 1 up": ["-np", "2", "--min-np", "none"],
    "--reset-limit -1: it must be a whole number from 0 up": ["-np", "2", "--elastic", "--reset-limit=-1"],
    "--max-np is for elastic jobs; add --min-np N": ["-np", "2", "--max-np", "3"],
    "--blacklist-cooldown-range is for elastic jobs": ["-np", "2", "--blacklist-cooldown-range", "1", "2"],
    "--max-restarts is for elastic jobs": ["-np", "2", "--max-restarts", "1"],
    "--leave-failed-hosts is for elastic jobs": ["-np", "2", "-H", "a:1,b:1", "--leave-failed-hosts"],
    "--leave-failed-hosts: all ranks are on localhost, so": ["-np", "2", "--elastic", "--leave-failed-hosts"],
    "--leave-failed-hosts: all ranks are on a, so": ["-H", "a:2", "--elastic", "--leave-failed-hosts"],
    "--blacklist-cooldown-range 9 3: write the shorter time first": (
        ["-np", "2", "--elastic", "--blacklist-cooldown-range", "9", "3"]
    ),
    "--blacklist-cooldown-range x: it must be a number": (
        ["-np", "2", "--elastic", "--blacklist-cooldown-range", "x", "3"]
    ),
    "--host-discovery-script names the hosts, and so does -H": [*SCRIPT, "-H", "a:2"],
    "--host-discovery-script names the hosts, and so does --hostfile": [*SCRIPT, "--hostfile", os.devnull],
    "--host-discovery-script needs --launcher ssh, as mpi reaches": [*SCRIPT, "-np", "2", "--launcher", "mpi"],
    "--rankfile says for good what runs where, and --elastic": ["--elastic", "--rankfile", "RANKFILE"],
    "--accelerators says for good": ["--elastic", "--accelerators", "2"],
    "--mode 2x1 says for good how many ranks there are, and --min-np": ["-np", "2", "--min-np", "1", "--mode", "2x1"],
    "--slots-per-host is for hosts that --host-discovery-script names": (
        ["-np", "2", "--elastic", "--slots-per-host", "2"]
    ),
    "--elastic-timeout 0: it must be a number of seconds above 0": ["-np", "2", "--elastic", "--elastic-timeout", "0"],
    "the number of ranks is missing": SCRIPT,
}


@pytest.mark.parametrize("message", WRONG)
def test_contradictions_are_said_clearly(message: str, tmp_path: Path) -> None:
    rankfile = tmp_path / "ranks"
    rankfile.write_text("rank 0=a slot=0\n")
    argv = [str(rankfile) if word == "RANKFILE" else word for word in WRONG[message]]
    if "--hostfile" in argv:
        hostfile = tmp_path / "hosts"
        hostfile.write_text("a slots=2\n")
        argv[argv.index("--hostfile") + 1] = str(hostfile)
    with pytest.raises(ConfigError) as caught:
        parsed(*argv)
    assert message in str(caught.value)


def test_a_letter_of_a_mode_goes_with_it() -> None:
    assert dict(parsed("-np", "2", "--elastic", "--mode", "r").environ) == {"DDL_ALGORITHM": "ring"}


def test_they_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    group = lines[lines.index("ranks that come and go:") + 1 : lines.index("output:")]
    assert [line.split()[0].rstrip(",") for line in group if line[2:3] == "-"] == (
        "--min-np --max-np --host-discovery-script --slots-per-host --elastic --elastic-timeout --reset-limit "
        "--blacklist-cooldown-range --max-restarts --leave-failed-hosts".split()
    )
