"""What the ranks run: turns the words behind ddlrun's options into a command, or says what is wrong with them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Mapping, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.text.spelling import did_you_mean

__all__ = ["in_image", "script_of", "words_of"]

_CODE_OR_MODULE = re.compile("-[a-zA-VY-Z]*[cm].*")  # -c or -m, also behind others, but not in the value of -X and -W


def words_of(program: Sequence[str], environ: Mapping[str, str]) -> Tuple[str, ...]:
    """Return the words by which each rank starts ``program``; ConfigError if it is not there."""
    if not program:
        raise ConfigError("the program is missing")
    name, arguments = program[0], program[1:]
    if name.endswith(".py"):
        _check_script(name)
        # -u: output shows when it is written, not when a block is full.
        return (sys.executable, "-u", name, *arguments)
    path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if path is None:
        where = "is not an executable file" if os.path.exists(name) else "was not found"
        hint = "" if os.sep in name else " on the PATH" + _meant(name, environ.get("PATH", os.defpath))
        raise ConfigError(f"the program {name!r} {where}{hint}")
    script = script_of(program)
    if script:
        _check_script(script)
    return (path, *arguments)


def in_image(program: Sequence[str]) -> Tuple[str, ...]:
    """Return the words unchecked: only ddlrun in the image can see what is there."""
    if not program:
        raise ConfigError("the program is missing")
    return tuple(program)


def script_of(command: Sequence[str]) -> str:
    """Return the script that a Python is to run; empty if it is no Python, or has none."""
    if not os.path.basename(command[0]).startswith("python"):
        return ""
    words = iter(command[1:])
    for word in words:
        if word == "--":
            word = next(words, "")
        elif word in ("-X", "-W", "--check-hash-based-pycs"):
            next(words, None)  # its value
            continue
        elif _CODE_OR_MODULE.fullmatch(word):
            return ""
        elif word.startswith("-"):
            continue
        return word if word.endswith(".py") else ""
    return ""


def _check_script(path: str) -> None:
    if os.path.isfile(path):
        return
    folder = os.path.dirname(path)
    there = sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    meant = did_you_mean(path, [os.path.join(folder, name) for name in there if name.endswith(".py")])
    raise ConfigError(f"there is no program {path!r} in {os.getcwd()!r}{meant}")


def _meant(name: str, path: str) -> str:
    """Return which program may be meant by one that is not on ``path``."""
    if os.path.exists(name):
        return f"; is it ./{name}?"
    folders = [folder for folder in path.split(os.pathsep) if os.path.isdir(folder)]
    return did_you_mean(name, sorted({program for folder in folders for program in os.listdir(folder)}, key=len))
