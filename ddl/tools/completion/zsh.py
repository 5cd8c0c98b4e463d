"""Makes a completion script for zsh, on zsh's own ``_arguments``: a file of the fpath, or one to be sourced."""

from __future__ import annotations

import shlex
from typing import Iterator, List, Sequence

from ddl.tools.completion.commands import ShellCommand, ShellOption, ShellValue

__all__ = ["zsh_script"]

_HEAD = """#compdef {names}
# Completes {listed} in zsh. Made from their parsers; `ddl completion zsh` prints it.
"""
_PROGRAM = """
# The program that ddlrun starts: a file, or a command.
_open_ddl_program() {
  _alternative 'files:file:_files' 'commands:command:_command_names -e'
}
"""
_TAIL = """
_open_ddl() {{
  case $service in
{cases}
  esac
}}

# Read from the fpath at the first TAB, this file is the function _ddl; else it is sourced.
if [[ $funcstack[1] == _ddl ]]; then
  _open_ddl "$@"
else
  compdef _open_ddl {names}
fi
"""


def zsh_script(commands: Sequence[ShellCommand]) -> str:
    """Return the script that completes these commands; as a file it is called ``_ddl``."""
    names = [command.name for command in commands]
    functions = ["\n".join(_function(command)) for command in commands]
    cases = "\n".join(f"    {name}) _open_ddl_of_{name} ;;" for name in names)
    head = _HEAD.format(names=" ".join(names), listed=", ".join(names))
    return "\n".join([head + _PROGRAM, *functions, _TAIL.format(cases=cases, names=" ".join(names))])


def _function(command: ShellCommand) -> Iterator[str]:
    yield f"\n_open_ddl_of_{command.name}() {{"
    if not command.tools:
        yield from _call(command)
        yield "}"
        return
    yield "  local curcontext=$curcontext state line"
    yield "  typeset -A opt_args"
    lines = [_options_of(option) for option in command.options]
    specs = [
        *(spec for line in lines for spec in line),
        shlex.quote("(-): :->tool"),
        shlex.quote("(-)*:: :->arguments"),
    ]
    yield from _arguments("_arguments -C", specs, "  ")
    yield "  case $state in"
    yield "    tool)"
    yield "      local -a tools=("
    for tool in command.tools:
        yield f"        {shlex.quote(tool.words[-1] + ':' + tool.summary)}"
    yield "      )"
    yield "      _describe tool tools ;;"
    yield "    arguments)"
    yield "      case $line[1] in"
    for tool in command.tools:
        yield f"        {tool.words[-1]})"
        yield from (f"        {line}" for line in _call(tool))
        yield "          ;;"
    yield "      esac ;;"
    yield "  esac"
    yield "}"


def _call(command: ShellCommand) -> Iterator[str]:
    specs = [spec for option in command.options for spec in _options_of(option)]
    if command.starts_program:
        specs += [shlex.quote("(-)1:program:_open_ddl_program"), shlex.quote("*::argument:_normal")]
        yield from _arguments("_arguments -S -A '-*'", specs, "  ")
        return
    for number, value in enumerate(command.arguments, start=1):
        place = "*" if value.many else f"{number}" if value.required else f"{number}:"
        # An argument that is only a message would keep options from being completed: _guard lets them.
        guarded = f':{value.metavar}:_guard "^-*" "{value.metavar}"' if value.kind == "text" else _value(value)
        specs.append(shlex.quote(f"{place}{guarded}"))
    yield from _arguments("_arguments", specs, "  ")


def _arguments(call: str, specs: Sequence[str], indent: str) -> Iterator[str]:
    yield f"{indent}{call} \\"
    for spec in specs[:-1]:
        yield f"{indent}  {spec} \\"
    yield f"{indent}  {specs[-1]}"


def _options_of(option: ShellOption) -> List[str]:
    excluded = "*" if option.repeatable else f"({' '.join(option.names)})"
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    offered = [shlex.quote(f"{excluded}{_name(name, option)}[{text}]{_values(option)}") for name in option.names]
    return offered + [shlex.quote(f"!{_name(name, option)}{_values(option)}") for name in option.also]


def _name(name: str, option: ShellOption) -> str:
    if option.value_behind_equals:
        return f"{name}=-"
    return f"{name}=" if len(option.values) == 1 and name.startswith("--") else name


def _values(option: ShellOption) -> str:
    return "".join((":" if option.value_behind_equals else "") + _value(value) for value in option.values)


def _value(value: ShellValue) -> str:
    message = value.metavar.replace("\\", "\\\\").replace(":", "\\:")
    actions = {"file": "_files", "folder": "_files -/", "program": "_open_ddl_program", "text": " "}
    action = f"({' '.join(value.choices)})" if value.choices else actions[value.kind]
    return f":{message}:{action}"
