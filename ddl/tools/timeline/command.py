"""``ddl timeline``: sums up what ``ddlrun --timeline FILE`` has written: where the time of a step goes.

The job may still run, or have been killed. Status 0; 2 if the file is no timeline.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Sequence

from ddl.tools.timeline.reading import read_timeline
from ddl.tools.timeline.report import report
from ddl.tools.timeline.summary import summary_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl timeline``."""
    parser.add_argument("file", metavar="FILE", help="what ddlrun --timeline FILE has written, or writes now")
    parser.add_argument("--json", action="store_true", help="print it as JSON, times in microseconds")


def run(arguments: argparse.Namespace) -> int:
    """Read, and print; return the exit status."""
    content = read_timeline(arguments.file)
    summary = summary_of(content)
    if not arguments.json:
        print("\n".join(report(arguments.file, content, summary)))
        return 0
    clocks = {host: {"offset_us": offset, "error_us": error} for host, (offset, error) in content.clocks.items()}
    told = {
        "whole": content.whole,
        "command": content.about["command"],
        "clocks": clocks,
        "totals": dataclasses.asdict(content.totals),
        "notes": content.notes,
    }
    print(json.dumps({**told, **dataclasses.asdict(summary)}))
    return 0
