"""``ddl topo``: prints, and draws, what hosts there are, which ranks share memory, and what joins the hosts.

Status 0 if all hosts could be asked, 1 if not, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import json
from typing import Sequence

from ddl.errors import ConfigError
from ddl.tools.doctor.command import link_table
from ddl.tools.doctor.facts import Facts, facts_from_json
from ddl.tools.doctor.rails import rails_of
from ddl.tools.doctor.survey import Stopped, add_host_arguments, request, survey
from ddl.tools.files import write_json, write_text
from ddl.tools.topo.drawing import draw
from ddl.tools.topo.tree import tree

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl topo``."""
    add_host_arguments(parser)
    parser.add_argument("--svg", metavar="FILE", help="also draw it to this file")
    parser.add_argument("--json", metavar="FILE", help="also write the facts to this file; -: print only them")
    parser.add_argument("--from", dest="source", metavar="FILE", help="show what ddl doctor or topo wrote by --json")


def run(arguments: argparse.Namespace) -> int:
    """Find out, print and draw; return the exit status."""
    try:
        facts = _read(arguments.source) if arguments.source else survey(request(arguments))
    except Stopped as stopped:
        return stopped.status
    rails = rails_of(facts)
    if arguments.svg:
        write_text(arguments.svg, draw(facts, rails))
    if arguments.json:
        write_json(arguments.json, {"facts": facts.to_json()})
    if arguments.json != "-":
        table = link_table(facts)
        print("\n".join([*tree(facts, rails), *([""] if table else []), *table]))
    return int(any(host.local is None for host in facts.hosts))


def _read(path: str) -> Facts:
    try:
        with open(path, encoding="utf-8") as file:
            return facts_from_json(json.load(file)["facts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--from {path}: it cannot be read as facts ({type(error).__name__}: {error}); "
            "write them by 'ddl doctor --json FILE' of this version"
        ) from error
