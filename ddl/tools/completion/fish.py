"""Makes a completion script for fish 3.0 or later.

Each command has a function that gives the words of the line which are neither options nor their values: the tool and
its arguments, or the program of ddlrun. All conditions go by these words.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Sequence

from ddl.tools.completion.commands import ShellCommand, ShellOption, ShellValue

__all__ = ["fish_script"]

_HEAD = "# Completes {names} in fish. Made from their parsers; `ddl completion fish` prints it.\n"
_WORDS = """
function __open_ddl_words_{ident} -d 'the words that are neither options nor values of options'
    set -l words (commandline -opc)
    set -l at ''
    set -e words[1]
    while set -q words[1]
        set -l following 0
        switch "$at $words[1]"
            case '* --'
                set -e words[1]
                set -q words[1]; and printf '%s\\n' $words
                return
            case '* -*=*'
{cases}            case '* -?*'
            case '*'
{word}
        end
        for number in (seq 0 $following)
            set -e words[1]
        end
    end
end

function __open_ddl_in_{ident} -d 'is this the tool, with so many words behind it at least, and at most?'
    set -l words (__open_ddl_words_{ident})
    if test -n "$argv[1]"
        test "$words[1]" = "$argv[1]"; or return 1
        set -e words[1]
    end
    set -q argv[2]; or return 0
    test (count $words) -ge $argv[2] -a (count $words) -le $argv[3]
end
"""
_PROGRAM = """
function __open_ddl_program_{ident} -d 'what the program itself completes'
    complete -C (string join ' ' -- (string escape -- (__open_ddl_words_{ident})) (commandline -ct))
end
"""
_TOOL_WORD = """                test -n "$at"; or set at $words[1]
                echo $words[1]"""
_PROGRAM_WORD = """                printf '%s\\n' $words
                return"""
#: Files, and commands if something is typed: there are thousands.
_PROGRAM_OR_FILE = "-F -a '(test -n (commandline -ct); and __fish_complete_command)'"
_ANY = 999  # words, at most


def fish_script(commands: Sequence[ShellCommand]) -> str:
    """Return the script that completes these commands."""
    lines = [_HEAD.format(names=", ".join(command.name for command in commands))]
    for command in commands:
        lines.append(_functions(command))
        lines += [f"complete -c {command.name} -e", f"complete -c {command.name} -f"]
        for part in command.with_tools():
            lines += _completions(command, part)
    return "\n".join(lines) + "\n"


def _ident(command: ShellCommand) -> str:
    return command.words[0].replace("-", "_")


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _functions(command: ShellCommand) -> str:
    following: Dict[int, List[str]] = {}
    for part in command.with_tools():
        at = part.words[1] if len(part.words) > 1 else ""
        for option in part.options:
            if option.following:
                names = following.setdefault(option.following, [])
                names += [_quote(f"{at} {name}") for name in (*option.names, *option.also)]
    cases = "".join(
        f"            case {' '.join(names)}\n                set following {count}\n"
        for count, names in following.items()
    )
    word = (
        _PROGRAM_WORD if command.starts_program else _TOOL_WORD if command.tools else "                echo $words[1]"
    )
    text = _WORDS.format(ident=_ident(command), cases=cases, word=word)
    return text + (_PROGRAM.format(ident=_ident(command)) if command.starts_program else "")


def _completions(command: ShellCommand, part: ShellCommand) -> Iterator[str]:
    inside = f"__open_ddl_in_{_ident(command)}"
    tool = part.words[1] if len(part.words) > 1 else "''"
    head = f"complete -c {command.name}"
    # Before a tool, or a program, is named: its own options. Behind it: those of the tool, wherever.
    here = f"{inside} {tool}" if len(part.words) > 1 or not (command.tools or command.starts_program) else ""
    condition = here or f"{inside} '' 0 0"
    for option in part.options:
        if option.names:
            yield f"{head} -n {_quote(condition)} {_option(option)}"
    for each in part.tools:
        yield f"{head} -n {_quote(condition)} -a {each.words[-1]} -d {_quote(each.summary)}"
    if part.starts_program:
        yield f"{head} -n {_quote(condition)} {_PROGRAM_OR_FILE}"
        yield f"{head} -n {_quote(f'{inside} {tool} 1 {_ANY}')} -x -a '(__open_ddl_program_{_ident(command)})'"
        return
    for number, value in enumerate(part.arguments):
        last = _ANY if value.many else number
        offer = _offer(value)
        if offer:
            yield f"{head} -n {_quote(f'{inside} {tool} {number} {last}')} {offer} -d {_quote(value.metavar)}"


def _option(option: ShellOption) -> str:
    names = []
    for name in option.names:
        names.append(f"-l {name[2:]}" if name.startswith("--") else f"-{'s' if len(name) == 2 else 'o'} {name[1:]}")
    parts = [" ".join(names), f"-d {_quote(option.help)}"]
    if option.values and not option.value_behind_equals:
        offer = _offer(option.values[0])
        parts.insert(1, f"-r {offer}" if offer.startswith("-F") else f"-x {offer}".strip())
    return " ".join(parts)


def _offer(value: ShellValue) -> str:
    if value.choices:
        return f"-k -a {_quote(' '.join(value.choices))}"
    folders = "-a '(__fish_complete_directories (commandline -ct))'"
    return {"file": "-F", "program": _PROGRAM_OR_FILE, "folder": folders, "text": ""}[value.kind]
