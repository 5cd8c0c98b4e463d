"""``ddl top``: shows what the ranks of a job do now, a line each, in the terminal.

It asks the ddlrun of the job on this host, which looks at the ranks of all hosts once in a second. Status 0, also when
the job ends meanwhile; 2 if there is no such job.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Dict, Iterator, Optional, Sequence

from ddl.errors import ConfigError
from ddl.launch.show.requests import answers_of, jobs_here
from ddl.tools.top.table import HEADINGS, head, lines, rows

__all__ = ["add_arguments", "run"]

_PATIENCE = 15.0  # seconds without a word of ddlrun


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl top``."""
    parser.add_argument(
        "job", nargs="?", type=int, metavar="JOB", help="the process of ddlrun on this host; without: the only one here"
    )
    parser.add_argument("--once", action="store_true", help="print plain text once, when rates are known, and exit")
    parser.add_argument("--json", action="store_true", help="print a line of JSON each second; with --once: one line")


def run(arguments: argparse.Namespace) -> int:
    """Show the job until it ends; return the exit status."""
    pictures = answers_of(_job(arguments.job), "watch", _PATIENCE)
    if arguments.once:
        picture = _first_with_rates(pictures)
        if picture is None:
            raise ConfigError("the job has ended before anything was known of it")
        print(json.dumps(picture) if arguments.json else "\n".join(lines(picture)))
        return 0
    try:
        if arguments.json:
            for picture in pictures:
                print(json.dumps(picture), flush=True)
        else:
            _live(pictures)
    except KeyboardInterrupt:
        return 0
    return 0


def _job(given: Optional[int]) -> int:
    if given is not None:
        return given
    jobs = jobs_here()
    if len(jobs) != 1:
        known = "there is none" if not jobs else f"there are {', '.join(map(str, jobs))}"
        raise ConfigError(f"name the process of ddlrun of this user on this host; {known}")
    return jobs[0]


def _first_with_rates(pictures: Iterator[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    last = None
    for last in pictures:
        if last["ranks"] and all(rank["per_second"] is not None for rank in last["ranks"]):
            break
    return last


def _live(pictures: Iterator[Dict[str, Any]]) -> None:
    """Show each picture in place of the one before."""
    try:
        from rich.console import Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError as error:
        raise ConfigError("ddl top needs rich: pip install rich; --once and --json do without") from error

    def drawn(picture: Dict[str, Any]) -> Group:
        table = Table(box=None, header_style="bold", pad_edge=False, expand=False)
        for heading in HEADINGS:
            text = heading in ("host", "state", "last operation")
            table.add_column(heading, justify="left" if text else "right", no_wrap=True, overflow="ellipsis")
        for row in rows(picture):
            table.add_row(*map(Text, row.cells), style="red" if row.is_odd else "yellow" if row.is_late else None)
        return Group(Text(head(picture), style="bold", no_wrap=True, overflow="ellipsis"), Text(""), table)

    with Live(refresh_per_second=4, screen=True, auto_refresh=False) as live:
        last = None
        for last in pictures:
            live.update(drawn(last), refresh=True)
    if last is not None:
        print("\n".join(["the job has ended; its last second:", *lines(last)]))
