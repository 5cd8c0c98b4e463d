"""``ddl doctor``: checks hosts as a job would find them, and prints a verdict per line, and what each link carries.

Status 0 if there is no error (a warning is not an error), 1 if there is, 2 for bad usage.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Dict, List, Optional, Sequence, Tuple

from ddl.tools.doctor.facts import Facts, HostLink
from ddl.tools.doctor.gpu_table import gpu_table
from ddl.tools.doctor.phrases import counted, duration, rate
from ddl.tools.doctor.rails import rails_of
from ddl.tools.doctor.survey import Stopped, add_host_arguments, request, survey
from ddl.tools.doctor.verdicts import ERROR, OK, WARNING, Verdict, judge
from ddl.tools.files import write_json

__all__ = ["add_arguments", "link_table", "run", "summary", "verdict_lines"]

_HOSTS_SHOWN = 3  # in a line, before they are counted
_ROWS_SHOWN = 40  # of the table of links


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl doctor``."""
    add_host_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write facts and verdicts there, too; -: nothing but that, here")
    parser.add_argument("-q", "--quiet", action="store_true", help="print warnings and errors only")
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help="what would run, to see whether it is everywhere")


def run(arguments: argparse.Namespace) -> int:
    """Look, judge and print; return the exit status."""
    try:
        facts = survey(request(arguments, arguments.program))
    except Stopped as stopped:
        return stopped.status
    verdicts = judge(facts)
    failed = any(verdict.level == ERROR for verdict in verdicts)
    if arguments.json:
        content = {"facts": facts.to_json(), "verdicts": [asdict(verdict) for verdict in verdicts]}
        write_json(arguments.json, content, quiet=arguments.quiet)
        if arguments.json == "-":
            return int(failed)
    if not arguments.quiet:
        for table in (link_table(facts), gpu_table(facts)):
            if table:
                print("\n".join([*table, ""]))
    shown = [verdict for verdict in verdicts if not arguments.quiet or verdict.level != OK]
    print("\n".join([*verdict_lines(shown, facts), summary(verdicts)]))
    return int(failed)


def verdict_lines(verdicts: Sequence[Verdict], facts: Facts) -> List[str]:
    """Return a line for each verdict: level, check, hosts, text, remedy."""
    rows = [(verdict.level, verdict.check, _hosts(verdict.hosts, facts)) for verdict in verdicts]
    wide = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, wide))
        + "  "
        + verdict.text
        + (f"; remedy: {verdict.remedy}" if verdict.remedy else "")
        for row, verdict in zip(rows, verdicts)
    ]


def _hosts(names: Sequence[str], facts: Facts) -> str:
    if len(names) == len(facts.hosts) > 1:
        return "all hosts"
    return ",".join(names) if len(names) <= _HOSTS_SHOWN else f"{names[0]} and {len(names) - 1} more"


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return the last line."""
    counts = {level: sum(verdict.level == level for verdict in verdicts) for level in (OK, WARNING, ERROR)}
    return f"{counts[OK]} ok, {counted(counts[WARNING], 'warning')}, {counted(counts[ERROR], 'error')}"


def link_table(facts: Facts) -> List[str]:
    """Return what each pair of hosts measured on each rail, the slowest first where there are many."""
    pairs: Dict[Tuple[int, int, int, str], Dict[bool, HostLink]] = {}
    for index, rail in enumerate(rails_of(facts)):
        for (source, target), link in rail.links.items():
            low, high = sorted((source, target))
            pairs.setdefault((low, high, index, rail.name), {})[source == low] = link
    rows = []
    for (low, high, _, name), both in sorted(pairs.items()):
        trips = [link.latency for link in both.values() if link.latency is not None]
        rates = [link.bandwidth or 0.0 for link in both.values()]
        row = (
            facts.host(low).name,
            facts.host(high).name,
            name,
            duration(min(trips)) if trips else "-",
            _rate(both.get(True)),
            _rate(both.get(False)),
        )
        rows.append((min(rates), row))
    if len(rows) > _ROWS_SHOWN:
        rows.sort(key=lambda entry: entry[0])
    shown = [("host", "host", "rail", "latency", "forth", "back"), *(row for _, row in rows[:_ROWS_SHOWN])]
    if not rows:
        return []
    wide = [max(len(row[column]) for row in shown) for column in range(6)]
    aligned = [str.ljust] * 3 + [str.rjust] * 3
    lines = ["  ".join(pad(word, width) for pad, word, width in zip(aligned, row, wide)) for row in shown]
    more = len(rows) - _ROWS_SHOWN
    return lines + ([f"… and {more} faster ones; --json has them all"] if more > 0 else [])


def _rate(link: Optional[HostLink]) -> str:
    if link is None or link.bandwidth is None:
        return link.problem if link is not None and link.problem else "-"
    return rate(link.bandwidth)
