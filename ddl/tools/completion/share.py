"""Writes what a wheel brings below ``share/``: completion scripts and man pages, where shells and man look for them.

setup.py calls it, with the standard library alone. The files are the same whenever and wherever they are made, but for
the date of man pages, which is that of SOURCE_DATE_EPOCH if it is set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

from ddl.tools.completion.bash import bash_script
from ddl.tools.completion.commands import ShellCommand, installed_commands
from ddl.tools.completion.fish import fish_script
from ddl.tools.completion.man_page import man_page
from ddl.tools.completion.zsh import zsh_script

__all__ = ["script", "share_files", "write_scripts", "write_share"]

_SCRIPTS: Dict[str, Callable[[Sequence[ShellCommand]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}


def script(shell: str) -> str:
    """Return the script for ``shell`` that completes all commands."""
    return _SCRIPTS[shell](installed_commands())


def share_files() -> Dict[str, str]:
    """Return the text of each file, by its path below the environment: share/man/man1/ddlrun.1 and so on."""
    commands = installed_commands()
    files = {"share/zsh/site-functions/_ddl": zsh_script(commands)}
    for command in commands:
        files[f"share/bash-completion/completions/{command.name}"] = bash_script([command])
        files[f"share/fish/vendor_completions.d/{command.name}.fish"] = fish_script([command])
        for page in command.with_tools():
            files[f"share/man/man1/{'-'.join(page.words)}.1"] = man_page(page, commands)
    return files


def write_share(folder: Path) -> List[Tuple[str, List[str]]]:
    """Write these files into ``folder``; return them as the ``data_files`` of setuptools."""
    data_files: Dict[str, List[str]] = {}
    for name, text in sorted(share_files().items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        data_files.setdefault(str(Path(name).parent), []).append(str(path))
    return sorted(data_files.items())


def write_scripts(folder: Path) -> None:
    """Write the scripts that ``ddl completion`` prints into ``folder``, which holds the packages of a wheel."""
    target = folder / "ddl" / "tools" / "completion" / "scripts"
    target.mkdir(parents=True, exist_ok=True)
    for shell in _SCRIPTS:
        (target / f"completion.{shell}").write_text(script(shell), encoding="utf-8")
