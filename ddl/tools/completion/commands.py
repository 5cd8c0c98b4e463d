"""Our commands as plain data, read from their parsers: names, options, and what a value may be.

The parsers say most of it. Two things they do not say: what a value without choices is (its metavar tells: FILE is a
file, DIR a folder), and names that ddlrun checks by itself (``_CHECKED_LATER``).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ddl.launch.ask import horovod_only
from ddl.launch.ask import options as launch_options
from ddl.launch.launchers import k8s
from ddl.launch.launchers.in_pods import IN_PODS
from ddl.launch.launchers.reaching import REACHING
from ddl.tools import cli

__all__ = ["ShellCommand", "ShellOption", "ShellValue", "installed_commands"]

#: Options that the parsers leave open, as a check that comes later says more: command, option, what it may be.
_CHECKED_LATER: Dict[Tuple[str, str], Tuple[str, ...]] = {
    ("ddlrun", "--launcher"): (*REACHING, *IN_PODS),
    ("ddlrun", "--kind"): k8s.KINDS,
    ("ddl", "--launcher"): tuple(REACHING),
}


@dataclass(frozen=True)
class ShellValue:
    """A value of an option, or an argument. ``kind``: choice, file, folder, program or text."""

    metavar: str
    kind: str
    choices: Tuple[str, ...] = ()  #: of kind choice, in the parser's order
    help: str = ""
    required: bool = True
    many: bool = False  #: an argument that may be repeated


@dataclass(frozen=True)
class ShellOption:
    """An option. ``also``: spellings that are understood, but not offered."""

    names: Tuple[str, ...]
    values: Tuple[ShellValue, ...] = ()
    help: str = ""
    group: str = ""  #: the heading in the command's help
    also: Tuple[str, ...] = ()
    value_behind_equals: bool = False  #: it may have a value, and only behind "="
    repeatable: bool = False

    @property
    def following(self) -> int:
        """How many of the words behind this option are its values."""
        return 0 if self.value_behind_equals else len(self.values)


@dataclass(frozen=True)
class ShellCommand:
    """A command, or a tool of one. ``starts_program``: from the first word that is no option it is another command."""

    words: Tuple[str, ...]  #: as they are typed: ("ddl", "bench")
    summary: str
    options: Tuple[ShellOption, ...]
    description: str = ""
    usage: str = ""
    epilog: str = ""
    arguments: Tuple[ShellValue, ...] = ()
    tools: Tuple[ShellCommand, ...] = ()
    starts_program: bool = False

    @property
    def name(self) -> str:
        """All words, as one line."""
        return " ".join(self.words)

    def with_tools(self) -> Iterator[ShellCommand]:
        """Yield this command, and each of its tools."""
        yield self
        yield from self.tools


def installed_commands() -> Tuple[ShellCommand, ...]:
    """Return the commands that a user gets with DDL, described from their parsers: ddlrun, ddl and ddl-caffe."""
    return _ddlrun(), _ddl(), _ddl_caffe()


def _ddlrun() -> ShellCommand:
    parser = launch_options.parser()
    options = []
    for option in _options(parser, ("ddlrun",)):
        single = tuple(name[1:] for name in option.names if name.startswith("--"))  # -hostfile, as mpirun has it
        options.append(ShellOption(**{**vars(option), "also": single}))
    known = {name for option in options for name in option.names}
    for name, count in horovod_only.OPTIONS.items():
        if name not in known:
            options.append(ShellOption((), (ShellValue("VALUE", "text"),) * count, also=(name, name[1:])))
    return ShellCommand(
        words=("ddlrun",),
        summary="start a program as the ranks of one job",
        description=parser.description or "",
        usage=(parser.usage or "").replace("ddlrun ", "", 1),
        epilog="The options of horovodrun are understood as well.",
        options=tuple(options),
        arguments=(ShellValue("program", "program"),),
        starts_program=True,
    )


def _ddl() -> ShellCommand:
    tools = []
    for name, (module, text) in cli.TOOLS.items():
        parser = argparse.ArgumentParser(prog=f"ddl {name}")
        importlib.import_module(module).add_arguments(parser, [])
        tools.append(_command(parser, ("ddl", name), text, f"{text[0].upper()}{text[1:]}."))
    top = cli.own_parser("ddl", cli.DESCRIPTION)
    options = tuple(_options(top, ("ddl",)))
    return ShellCommand(("ddl",), "tools around DDL", options, cli.DESCRIPTION, "TOOL ...", tools=tuple(tools))


def _ddl_caffe() -> ShellCommand:
    parser = _without_its_package("ddl_caffe", "options").parser()
    summary = "train with Caffe on all ranks of a job"
    return _command(
        parser, ("ddl-caffe",), summary, parser.description, (parser.usage or "").partition("ddl-caffe ")[2]
    )


def _without_its_package(package: str, module: str) -> ModuleType:
    """Load a module whose package needs a framework that may not be installed."""
    origin = importlib.util.find_spec(package)
    assert origin is not None and origin.origin is not None, package
    path = Path(origin.origin).with_name(f"{module}.py")
    spec = importlib.util.spec_from_file_location(f"_{package}_{module}", path)
    assert spec is not None and spec.loader is not None, path
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _command(
    parser: argparse.ArgumentParser, words: Tuple[str, ...], summary: str, description: Optional[str], usage: str = ""
) -> ShellCommand:
    arguments = tuple(_arguments(parser, words))
    options = tuple(_options(parser, words))
    return ShellCommand(words, summary, options, description or "", usage or _usage(arguments), arguments=arguments)


def _usage(arguments: Sequence[ShellValue]) -> str:
    shown = [value.metavar + (" ..." if value.many else "") for value in arguments]
    return " ".join(
        ["[option ...]", *(text if value.required else f"[{text}]" for text, value in zip(shown, arguments))]
    )


def _options(parser: argparse.ArgumentParser, words: Tuple[str, ...]) -> Iterator[ShellOption]:
    for group in parser._action_groups:
        for action in group._group_actions:
            if not action.option_strings or action.help == argparse.SUPPRESS:
                continue
            names = tuple(dict.fromkeys(action.option_strings))
            repeatable = isinstance(action, (argparse._AppendAction, argparse._CountAction))
            title = group.title if group.title not in (None, "options", "optional arguments") else ""
            behind = action.nargs == argparse.OPTIONAL
            values = tuple(_values(action, words))
            yield ShellOption(names, values, _help(parser, action), title or "", (), behind, repeatable)


def _arguments(parser: argparse.ArgumentParser, words: Tuple[str, ...]) -> Iterator[ShellValue]:
    for action in parser._actions:
        if not action.option_strings:
            (value,) = _values(action, words)
            required = action.nargs not in (argparse.OPTIONAL, argparse.ZERO_OR_MORE)
            many = action.nargs in (argparse.ZERO_OR_MORE, argparse.ONE_OR_MORE)
            text = _help(parser, action)
            yield ShellValue(value.metavar, value.kind, value.choices, text, required, many)


def _values(action: argparse.Action, words: Tuple[str, ...]) -> List[ShellValue]:
    count = 0 if action.nargs == 0 else action.nargs if isinstance(action.nargs, int) else 1
    named = action.metavar if action.metavar is not None else action.dest.upper()
    metavars = named if isinstance(named, tuple) else (named,) * count
    return [_value(metavar, action, words) for metavar in metavars[:count]]


def _value(metavar: str, action: argparse.Action, words: Tuple[str, ...]) -> ShellValue:
    choices = tuple(map(str, action.choices or ()))
    for name in action.option_strings:
        choices = choices or _CHECKED_LATER.get((words[0], name), ())
    kinds = {"FILE": "file", "DIR": "folder", "PROGRAM": "program"}
    return ShellValue(metavar, "choice" if choices else kinds.get(metavar.partition(",")[0], "text"), choices)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}
