"""The command line: which options mean what, what belongs to the program, and that bad usage is said clearly."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

import ddl._version
from ddl.bootstrap.environ import Identity
from ddl.errors import ConfigError
from ddl.launch.agent.rank_environ import THREADS, rank_environ
from ddl.launch.ask.config import RunConfig
from ddl.launch.cli import main, parse

ENVIRON = {"PATH": "/usr/bin:/bin", "HERE": "value"}


def parsed(*argv: str) -> RunConfig:
    return parse(argv, dict(ENVIRON))


def test_the_least() -> None:
    config = parsed("-np", "3", "true")
    assert config.num_proc == 3 and Path(config.command[0]).name == "true"
    assert config.environ == () and config.output_dir is None and config.prefix and not config.verbose


@pytest.mark.parametrize(
    "number", [["-np", "4"], ["-np=4"], ["-n", "4"], ["-n=4"], ["--np", "4"], ["--num-proc=4"], ["-num-proc", "4"]]
)
def test_the_number_of_ranks_has_many_spellings(number: List[str]) -> None:
    assert parsed(*number, "true").num_proc == 4


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_all_options(dashes: str) -> None:
    options = "verbose,timeout=2.5,start-timeout=7,env=A=b=c,env=HERE,output-dir=out,no-prefix,rebalance".split(",")
    options += ["encrypt", "checksum", "host-timeout=30"]
    config = parsed(*(dashes + option for option in options), "-np", "1", "true")
    variables = {"A": "b=c", "HERE": "value", "DDL_TIMEOUT": "2.5", "DDL_START_TIMEOUT": "7", "DDL_HOST_TIMEOUT": "30"}
    assert dict(config.environ) == {**variables, "DDL_REBALANCE": "1", "DDL_ENCRYPT": "1", "DDL_CHECKSUM": "1"}
    assert (config.verbose, config.prefix, config.output_dir) == (True, False, "out")


def test_jax_is_told_by_a_folder_before_the_users_own() -> None:
    folder = str(Path(ddl.__file__).resolve().parents[1] / "ddl_jax" / "startup")
    assert (Path(folder) / "sitecustomize.py").is_file()
    assert dict(parsed("--jax", "-np", "1", "true").environ) == {"PYTHONPATH": folder}
    config = parsed("--jax", "--env", "PYTHONPATH=a:b", "-np", "1", "true")
    assert dict(config.environ) == {"PYTHONPATH": f"{folder}:a:b"}


def test_what_follows_the_program_is_the_programs(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.touch()
    config = parsed("-np", "2", str(program), "-np", "7", "--verbose", "--", "-x")
    assert config.command == (sys.executable, "-u", str(program), "-np", "7", "--verbose", "--", "-x")
    assert config.num_proc == 2 and not config.verbose
    assert parsed("-np", "2", "--", "true", "--", "x").command[1:] == ("--", "x")


WRONG: Dict[str, List[str]] = {
    "the number of ranks is missing": ["true"],
    "-np two: it must be a whole number": ["-np", "two", "true"],
    "-np 0: it must be": ["-np", "0", "true"],
    "-np -1: it must be": ["-np", "-1", "true"],
    "option -np needs a value": ["-np"],
    "the program is missing": ["-np", "2"],
    "unknown option --timout (did you mean '--timeout'?)": ["--timout=3", "-np", "2", "true"],
    "unknown option --hostfle (did you mean '--hostfile'?)": ["--hostfle", "x", "true"],
    "unknown option --cycle-time (did you mean '--cycle-time-ms'?)": ["--cycle-time=1", "-np", "2", "true"],
    "unknown option -verbos (did you mean '--verbose'?)": ["-verbos", "-np", "2", "true"],
    "there is none of that name; choose one of ssh, mpi, slurm": ["--launcher=rsh", "-np", "2", "true"],
    "--jax names a folder of this machine": ["--launcher=k8s", "--dry-run", "--image=i", "--jax", "-np", "2", "true"],
    "--dry-run: a pod sees only itself": ["--launcher=pods", "--dry-run", "-np", "2", "true"],
    "unknown option --nonsense": ["--nonsense", "-np", "2", "true"],
    "unknown option --time (did you mean '--timeout'?)": ["--time=3", "-np", "2", "true"],
    "option --verbose takes no value": ["--verbose=yes", "-np", "2", "true"],
    "the program 'no-such-program' was not found on the PATH": ["-np", "2", "no-such-program"],
    "the program 'tru' was not found on the PATH (did you mean 'true'?)": ["-np", "2", "tru"],
    "is missing: -np N; -np stands behind true, which gets it: options of ddlrun": ["true", "-np", "2"],
    "'/no/such' was not found": ["-np", "2", "/no/such"],
    "is not an executable file": ["-np", "2", "/etc/passwd"],
    "there is no program 'no-such.py'": ["-np", "2", "no-such.py"],
    "--timeout abc: it must be a number of seconds above 0": ["-np", "2", "--timeout", "abc", "true"],
    "--timeout 0: it must be a number of seconds above 0": ["-np", "2", "--timeout=0", "true"],
    "--timeout 1e12: it must be a number of seconds above 0 and below 1e9": ["-np", "2", "--timeout", "1e12", "true"],
    "--gloo-timeout-seconds soon: it must be a number": ["-np", "2", "--gloo-timeout-seconds=soon", "true"],
    "--log-level loud: it must be one of error": ["-np", "2", "--log-level", "loud", "true"],
    "--start-timeout soon: it must be a number of seconds above 0": ["-np", "2", "--start-timeout", "soon", "true"],
    "--env DDL_LOG=loud: it must be one of error, warning": ["-np", "2", "--env", "DDL_LOG=loud", "true"],
    "--env NOT_SET: it is not set here": ["-np", "2", "--env", "NOT_SET", "true"],
    "--env =x: the name is missing": ["-np", "2", "--env", "=x", "true"],
}


@pytest.mark.parametrize("message", WRONG)
def test_bad_usage_is_said_clearly(message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*WRONG[message])
    assert message in str(caught.value)


def test_a_program_that_is_here_and_not_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").touch()
    with pytest.raises(ConfigError, match=r"'train\.sh' is not an executable file on the PATH; is it \./train\.sh\?"):
        parsed("-np", "2", "train.sh")


@pytest.mark.parametrize("before", [(), ("python3",), (sys.executable, "-u")])
def test_a_misspelt_script(before: Tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    for name in ("train.py", "code/evaluate.py"):
        (tmp_path / name).touch()
    for wrong, right in (("trian.py", "train.py"), ("code/evalute.py", "code/evaluate.py")):
        with pytest.raises(ConfigError, match=rf"^there is no program '{wrong}' in .* \(did you mean '{right}'\?\)$"):
            parsed("-np", "2", *before, wrong)
    with pytest.raises(ConfigError, match=r"^there is no program 'none/train\.py' in '[^']*'$"):
        parsed("-np", "2", *before, "none/train.py")


def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-np", "x", "true"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ddlrun: -np x: ") and "usage: ddlrun" in err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "-version", "--help", "-h"):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"ddlrun {ddl._version.__version__}" in out
    for name in ("--output-dir", "DDL_TIMEOUT", "DDL_SPIN_US"):
        assert name in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    usual = lines[lines.index("usual options:") + 1 : lines.index("other hosts:")]
    assert [line.split()[0].rstrip(",") for line in usual if line[2:3] == "-"] == (
        "-np -H --hostfile --env --timeout --start-timeout --output-dir --dry-run -v -h".split()
    )


#: The default of ``compiledir_format`` in Theano 1.0.5 (tests/theano/test_compile_cache.py).
THEANOS_FOLDER = "compiledir_%(short_platform)s-%(processor)s-%(python_version)s-%(python_bitwidth)s"


def environ_of(rank: int, size: int, base: Dict[str, str], *options: str) -> Dict[str, str]:
    config = parsed("-np", str(size), *options, "true")
    return rank_environ(config, Identity(rank, size, rank, size, 0, 1, "127.0.0.1:1", bytes(32)), base)


def test_what_a_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(9)))
    environ = environ_of(1, 4, {"KEPT": "yes", "DDL_RANK": "from an outer job"}, "--env", "A=b")
    assert environ == {
        "KEPT": "yes",
        "A": "b",
        **{f"{who}_{name}": "1" for who in ("DDL", "HOROVOD") for name in ("RANK", "LOCAL_RANK", "CROSS_SIZE")},
        **{f"{who}_{name}": "4" for who in ("DDL", "HOROVOD") for name in ("SIZE", "LOCAL_SIZE")},
        **{f"{who}_CROSS_RANK": "0" for who in ("DDL", "HOROVOD")},
        **{"RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0"},
        **{"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"},
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "DDL_STORE": "127.0.0.1:1",
        "DDL_SECRET": "00" * 32,
        **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "2"),
        "THEANO_FLAGS": f"compiledir_format={THEANOS_FOLDER}-rank1",
        "PYTHONUNBUFFERED": "1",
    }


def test_each_rank_of_a_host_has_its_own_folder_of_theano_unless_the_user_chose() -> None:
    flags = environ_of(1, 2, {"THEANO_FLAGS": "device=cpu,base_compiledir=/here"})["THEANO_FLAGS"]
    assert flags == f"device=cpu,base_compiledir=/here,compiledir_format={THEANOS_FOLDER}-rank1"
    assert "THEANO_FLAGS" not in environ_of(0, 1, {})
    for chosen in ("compiledir=/here", "device=cpu, compiledir_format=all"):
        assert environ_of(1, 2, {"THEANO_FLAGS": chosen})["THEANO_FLAGS"] == chosen


def test_threads_are_divided_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert environ_of(0, 8, {})["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environ_of(0, 1, {})
    assert environ_of(0, 2, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    chosen = environ_of(0, 2, {}, "--env", "OMP_NUM_THREADS=5", "--env", "TF_NUM_INTEROP_THREADS=4")
    assert [chosen[name] for name in THREADS] == ["5", "1", "4"]
    assert not environ_of(0, 1, {}).keys() & set(THREADS)


def test_a_config_file_says_what_the_command_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('np = 3\ntimeout = 7.5\nverbose = true\nno-prefix = false\nenv = ["A=1", "B=2"]\n')
    config = parse(["--config-file", str(path), "-np", "4", "--env", "B=3", "true"], dict(os.environ))
    assert (config.num_proc, config.verbose, config.prefix) == (4, True, True)
    assert dict(config.environ) == {"A": "1", "B": "3", "DDL_TIMEOUT": "7.5"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("np = ", "job.toml: it cannot be read: "),
        ("nq = 3", "job.toml: unknown option --nq"),
        ("np = {a = 1}", "job.toml: np = {'a': 1} is neither text nor a number"),
        ("verbose = 3", "job.toml: option -v takes no value|job.toml: option --verbose takes no value"),
    ],
)
def test_a_config_file_that_makes_no_sense(text: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        parse(["--config-file", str(path), "true"], dict(os.environ))
    with pytest.raises(ConfigError, match="it cannot be read"):
        parse(["--config-file", str(tmp_path / "none"), "true"], dict(os.environ))
