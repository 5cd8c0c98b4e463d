"""The ``ddl`` command line: ``ddl TOOL …``. Each tool has an entry in ``TOOLS``; only the named tool is loaded.

A tool is a module with two functions. ``add_arguments(parser, rest)`` adds its options; ``rest`` are the arguments
behind the tool's name. ``run(arguments)`` returns the exit status: 0, or 1 for a bad result. For bad usage it raises
``ConfigError``, and the status is 2. After Ctrl-C it is 130, as in a shell.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from typing import Any, Dict, Optional, Sequence, Tuple

from ddl._version import __version__
from ddl.errors import ConfigError, Error
from ddl.text.spelling import did_you_mean

__all__ = ["DESCRIPTION", "TOOLS", "main", "own_parser", "run"]

DESCRIPTION = "Tools around DDL."

TOOLS: Dict[str, Tuple[str, str]] = {
    "bench": ("ddl.tools.bench.command", "time DDL's collectives on these hosts"),
    "blame": ("ddl.tools.blame.command", "say which rank is to blame for a job that hangs or has failed, by its dumps"),
    "completion": ("ddl.tools.completion.command", "print what makes a shell complete ddlrun, ddl and ddl-caffe"),
    "doctor": ("ddl.tools.doctor.command", "see whether hosts have what a job needs, and what to do if not"),
    "dump": ("ddl.tools.dump.command", "show what the ranks on this host did last, also those that hang"),
    "page": ("ddl.tools.page.command", "show a job that has ended in the browser, from the file of its history"),
    "plan": (
        "ddl.tools.plan.command",
        "show which rank sends what to which in a collective, and count it; nothing is run",
    ),
    "simulate": ("ddl.tools.simulate.command", "time a training step on a machine that is described, not there"),
    "timeline": ("ddl.tools.timeline.command", "say where the time of a step goes, by a file of ddlrun --timeline"),
    "top": ("ddl.tools.top.command", "show what the ranks of a job do now, on all its hosts, in the terminal"),
    "topo": ("ddl.tools.topo.command", "show hosts, ranks, who shares memory, and what the links between hosts carry"),
    "tune": ("ddl.tools.tune.command", "measure which algorithm is best for which size on these hosts; jobs use it"),
}


class _SuggestingParser(argparse.ArgumentParser):
    """Suggests a name for a misspelt tool or option. argparse uses this class for the parsers of all tools, too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. An unknown option is refused here, where the options of the tool are known."""
        known, rest = super().parse_known_args(args, namespace)
        for word in rest:
            name = word.partition("=")[0]
            if name.startswith("-") and name.strip("-"):
                self.error(f"unknown option {name}{did_you_mean(name, self._option_string_actions)}")
        return known, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``ddl``; return its exit status."""
    return run("ddl", DESCRIPTION, TOOLS, sys.argv[1:] if argv is None else argv)


def own_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of what comes before the tool's name, without the tools."""
    parser = _SuggestingParser(prog=program, description=description)
    parser.add_argument("--version", action="version", version=f"ddl {__version__}", help="show the version and exit")
    return parser


def run(program: str, description: str, tools: Dict[str, Tuple[str, str]], argv: Sequence[str]) -> int:
    """Run the tool that ``argv`` names, of a program with these tools; return the exit status.

    ``tools``: module and help text by the tool's name.
    """
    command_line = list(argv)
    parser = own_parser(program, description)
    subparsers = parser.add_subparsers(metavar="TOOL", dest="tool", required=True)
    asked = next((word for word in command_line if not word.startswith("-")), "")
    for name, (module, text) in tools.items():
        subparser = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == asked:
            importlib.import_module(module).add_arguments(subparser, command_line[command_line.index(name) + 1 :])
    arguments = parser.parse_args(command_line)
    try:
        status: int = importlib.import_module(tools[arguments.tool][0]).run(arguments)
    except ConfigError as error:
        print(f"{program} {arguments.tool}: {error}", file=sys.stderr)
        return 2
    except (Error, OSError) as error:
        print(f"{program} {arguments.tool}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{program} {arguments.tool}: ended by Ctrl-C", file=sys.stderr)
        return 128 + signal.SIGINT
    return status
