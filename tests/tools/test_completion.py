"""Completion in real shells: what TAB offers is what the parsers say."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set, Union

import pytest
import shells

from ddl.launch.ask import options as launch_options
from ddl.tools import cli
from ddl.tools.completion import command
from ddl.tools.completion.commands import installed_commands
from ddl.tools.completion.share import script, share_files, write_scripts, write_share

ROOT = Path(__file__).resolve().parents[2]
SHELLS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in command.SHELLS
]
COLLECTIVES = {"allgather", "allreduce", "alltoall", "broadcast", "reducescatter"}
LAUNCHERS = {"ssh", "mpi", "slurm", "k8s", "pods"}

#: A line, and exactly what may stand for its last word.
EXACTLY: Dict[str, Set[str]] = {
    "ddl ": set(cli.TOOLS),
    "ddl be": {"bench"},
    "ddl completion ": set(command.SHELLS),
    "ddl bench ": COLLECTIVES,
    "ddl bench --json FILE ": COLLECTIVES,
    "ddl bench -np 2 --dtype ": {"bfloat16", "float16", "float32"},
    "ddl bench allreduce --launcher ": LAUNCHERS - {"k8s", "pods"},
    "ddl plan 4 --algorithm tre": {"tree"},
    "ddl plan --algo": {"--algorithm"},
    "ddl top --json --on": {"--once"},
    "ddl timeline h": {"hosts.txt"},
    "ddl blame r": {"results"},
    "ddlrun --laun": {"--launcher"},
    "ddlrun --launcher ": LAUNCHERS,
    "ddlrun --launcher=po": {"--launcher=pods"},
    "ddlrun --hostfile h": {"hosts.txt"},
    "ddlrun --hostfile=h": {"--hostfile=hosts.txt"},
    "ddlrun --output-dir r": {"results"},
    "ddlrun -np 4 trai": {"train.py"},
    "ddlrun -np 4 -- trai": {"train.py"},
    "ddlrun --fusion-threshold-mb 4 -hostfile x --dry": {"--dry-run"},
    "ddlrun --blacklist-cooldown-range 1 2 --kin": {"--kind"},
    "ddlrun --dashboard trai": {"train.py"},
    "ddlrun train.py h": {"hosts.txt"},
    "ddl-caffe ": {"train"},
    "ddl-caffe train --solver=h": {"--solver=hosts.txt"},
    "ddl-caffe train --bv": {"--bvlc"},
}
#: A line whose last word has no completion: a number, an option of the program.
NOTHING = ("ddlrun -np h", "ddlrun -np 4 train.py --laun", "ddl bench --seconds h")
COMMANDS = ("ddlrun -np 4 tru", "ddl doctor -q tru", "ddlrun tru")


def parsers() -> Dict[str, argparse.ArgumentParser]:
    """The parsers themselves, by what is typed to reach them."""
    tools = {}
    for name, (module, _) in cli.TOOLS.items():
        tools[f"ddl {name}"] = argparse.ArgumentParser()
        importlib.import_module(module).add_arguments(tools[f"ddl {name}"], [])
    return {"ddlrun": launch_options.parser(), **tools}


ALL_OPTIONS = {f"{name} -": set(parser._option_string_actions) for name, parser in parsers().items()}
AnyShell = Union[shells.TerminalShell, shells.FishShell]


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyShell]:
    folder = tmp_path_factory.mktemp("shell")
    (folder / "files" / "results").mkdir(parents=True)
    for name in ("train.py", "hosts.txt"):
        (folder / "files" / name).touch()
    lines = [*EXACTLY, *NOTHING, *COMMANDS, *ALL_OPTIONS]
    text = script(request.param)
    running = (
        shells.FishShell(folder, text, lines)
        if request.param == "fish"
        else shells.TerminalShell(request.param, folder, text)
    )
    yield running
    running.close()


def offered(shell: AnyShell, line: str) -> List[str]:
    """Without the marks of a folder (zsh, fish), and of an option that needs a value (zsh)."""
    return [word.rstrip("/=") for word in shell.complete(line)]


@pytest.mark.slow
@pytest.mark.processes
def test_a_shell_offers_exactly_what_fits(shell: AnyShell) -> None:
    wrong = {line: offered(shell, line) for line, words in EXACTLY.items() if set(offered(shell, line)) != words}
    assert not wrong


@pytest.mark.processes
def test_a_long_option_may_have_one_dash(shell: AnyShell) -> None:
    if isinstance(shell, shells.FishShell):
        pytest.skip("fish does not complete the value of an option in a spelling that it does not offer")
    assert offered(shell, "ddlrun -launcher po") == ["pods"]


@pytest.mark.processes
def test_a_shell_offers_nothing_where_nothing_is_known(shell: AnyShell) -> None:
    for line in NOTHING:
        assert offered(shell, line) in ([], [line.split()[-1]]), line


@pytest.mark.processes
def test_a_program_may_be_a_command(shell: AnyShell) -> None:
    for line in COMMANDS:
        assert {"true", "truncate"} <= set(offered(shell, line)), line


@pytest.mark.processes
def test_a_shell_offers_every_option_of_every_parser_and_no_other(shell: AnyShell) -> None:
    for line, names in ALL_OPTIONS.items():
        assert set(offered(shell, line)) - {"-"} == names, line


def test_the_description_has_every_argument_of_the_parsers() -> None:
    described = {each.name: each for whole in installed_commands() for each in whole.with_tools()}
    for name, parser in parsers().items():
        options = {spelling for option in described[name].options for spelling in option.names}
        assert options == set(parser._option_string_actions)
        if name != "ddlrun":
            places = [action for action in parser._actions if not action.option_strings]
            assert len(described[name].arguments) == len(places)


@pytest.mark.processes
def test_the_wheel_s_scripts_are_those_that_the_parsers_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scripts(tmp_path)
    for shell_name in command.SHELLS:
        assert cli.main(["completion", shell_name]) == 0
        made_now = capsys.readouterr().out
        with monkeypatch.context() as patched:
            patched.setattr(command, "_READY", tmp_path / "ddl" / "tools" / "completion" / "scripts")
            assert cli.main(["completion", shell_name]) == 0
        assert capsys.readouterr().out == made_now == script(shell_name)


@pytest.mark.processes
@pytest.mark.skipif(sys.version_info < (3, 11), reason="before 3.11 the parsers need tomli")
def test_a_build_needs_the_standard_library_alone() -> None:
    """-S: without the packages that are installed. Two processes give the same bytes."""
    program = (
        f"import sys, hashlib; sys.path.insert(0, {str(ROOT)!r}); from ddl.tools.completion.share import share_files;"
        "print(hashlib.sha256(repr(sorted(share_files().items())).encode()).hexdigest())"
    )
    sums = [
        subprocess.run([sys.executable, "-S", "-c", program], env=environ, capture_output=True, text=True, check=True)
        for environ in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "COLUMNS": "40", "LC_ALL": "C"})
    ]
    assert len({done.stdout for done in sums}) == 1


def test_what_is_written_is_what_setuptools_installs(tmp_path: Path) -> None:
    data_files = dict(write_share(tmp_path))
    names = {
        f"{folder}/{Path(path).name}": Path(path).read_text() for folder in data_files for path in data_files[folder]
    }
    assert names == share_files()
    assert {"share/man/man1/ddlrun.1", "share/bash-completion/completions/ddl", "share/zsh/site-functions/_ddl"} <= set(
        names
    )


@pytest.mark.processes
def test_shells_find_the_files_below_share(tmp_path: Path) -> None:
    write_share(tmp_path)
    ours = tmp_path / "share"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ddlrun").symlink_to(sys.executable)  # fish looks whether the command is there
    environ = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "XDG_DATA_DIRS": f"{ours}:/usr/share",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    load = "_comp_load ddlrun 2>/dev/null || __load_completion ddlrun"
    compinit = f"fpath=({ours}/zsh/site-functions $fpath); autoload -Uz compinit; compinit -D -u"
    asked = {
        "bash": f". /usr/share/bash-completion/bash_completion; {load}; complete -p ddlrun",
        "zsh": f"{compinit}; print $_comps[ddlrun]",
        "fish": "complete -C 'ddlrun --laun'",
    }
    expected = {"bash": "_open_ddl_complete", "zsh": "_ddl", "fish": "--launcher"}
    for name, program in asked.items():
        if shutil.which(name) is None or (name == "bash" and not os.path.exists("/usr/share/bash-completion")):
            continue
        flags = ["--norc"] if name == "bash" else ["-f"] if name == "zsh" else []
        done = subprocess.run([name, *flags, "-c", program], env=environ, capture_output=True, text=True, timeout=240)
        assert expected[name] in done.stdout, (name, done.stdout, done.stderr)
