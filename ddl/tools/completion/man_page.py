"""Makes the man page of a command: troff with the macros of man(7), in ASCII."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import textwrap
from typing import Iterator, Sequence

from ddl._version import __version__
from ddl.bootstrap.environ import Settings
from ddl.tools.completion.commands import ShellCommand, ShellOption, ShellValue

__all__ = ["man_page"]

_STATUS = {
    "ddlrun": (
        ("0", "all ranks have ended with 0"),
        ("2", "bad usage; nothing was started"),
        ("130, 143", "ended by Ctrl-C, or by SIGTERM"),
        ("other", "that of the rank that failed first; 1 if a host was lost"),
    ),
    "ddl": (("0", "all is well"), ("1", "a bad result"), ("2", "bad usage")),
    "ddl-caffe": (("0", "the training has ended"), ("2", "bad usage")),
}


def man_page(command: ShellCommand, all_commands: Sequence[ShellCommand]) -> str:
    """Return the page of ``command``; it refers to the others."""
    return "\n".join(_lines(command, all_commands)) + "\n"


def _lines(command: ShellCommand, all_commands: Sequence[ShellCommand]) -> Iterator[str]:
    title = "-".join(command.words)
    yield f'.TH "{_text(title.upper())}" 1 "{_date()}" "open\\-ddl {__version__}" "DDL"'
    yield ".SH NAME"
    yield _line(f"{title} - {command.summary}")
    yield ".SH SYNOPSIS"
    yield f".B {_text(command.name)}"
    yield _line(command.usage)
    yield ".SH DESCRIPTION"
    yield _line(command.description)
    if command.tools:
        yield ".SH TOOLS"
        for tool in command.tools:
            yield from _item(f"\\fB{_text(tool.words[-1])}\\fR", f"{tool.summary}; {'-'.join(tool.words)}(1)")
    arguments = [value for value in command.arguments if value.help]
    if arguments:
        yield ".SH ARGUMENTS"
        for value in arguments:
            yield from _item(f"\\fI{_text(value.metavar)}\\fR", _with_choices(value.help, [value]))
    yield ".SH OPTIONS"
    group = ""
    for option in command.options:
        if option.names:
            if option.group != group:
                group = option.group
                yield f".SS {_text(group[0].upper() + group[1:])}"
            yield from _item(_heading(option), _with_choices(option.help, option.values))
    if command.epilog:
        yield ".PP"
        yield _line(command.epilog)
    yield ".SH EXIT STATUS"
    for status, meaning in _STATUS[command.words[0]]:
        yield from _item(f"\\fB{status}\\fR", meaning)
    if command.name == "ddlrun":
        yield from _environment()
    others = ["-".join(page.words) for other in all_commands for page in other.with_tools() if page is not command]
    near = others if command.name == "ddl" else [name for name in others if name in ("ddlrun", "ddl", "ddl-caffe")]
    yield ".SH SEE ALSO"
    yield ",\n".join(f".BR {_text(name)} (1)" for name in near).replace(",\n", " ,\n")


def _environment() -> Iterator[str]:
    yield ".SH ENVIRONMENT"
    yield "These variables are read in every rank. ddlrun passes them on."
    for entry in dataclasses.fields(Settings):
        default = str(int(entry.default)) if isinstance(entry.default, bool) else f"{entry.default}"
        yield from _item(
            f"\\fB{entry.metadata['variable']}\\fR", f"{entry.metadata['meaning']} [{default or 'not set'}]"
        )


def _item(heading: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield heading
    yield _line(text or "(no more is said of it)")


def _heading(option: ShellOption) -> str:
    names = ", ".join(f"\\fB{_text(name)}\\fR" for name in option.names)
    values = " ".join(f"\\fI{_text(value.metavar)}\\fR" for value in option.values)
    return f"{names}[={values}]" if option.value_behind_equals else f"{names} {values}".rstrip()


def _with_choices(text: str, values: Sequence[ShellValue]) -> str:
    choices = values[0].choices if values else ()
    if not choices or all(choice in text for choice in choices):
        return text
    return f"{text}; one of {', '.join(choices)}" if text else f"one of {', '.join(choices)}"


def _line(text: str) -> str:
    """Text as lines of the source: short ones; each sentence ends a line, and none begins as a request."""
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(text.split()))
    lines = [
        line
        for sentence in sentences
        for line in textwrap.wrap(_text(sentence), 76, break_long_words=False, break_on_hyphens=False)
    ]
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in lines)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    escaped = escaped.replace('"', "\\(dq").replace("~", "\\(ti").replace("^", "\\(ha")
    return "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in escaped)


def _date() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch.isdecimal():
        return ""
    return datetime.datetime.fromtimestamp(int(epoch), tz=datetime.timezone.utc).date().isoformat()
