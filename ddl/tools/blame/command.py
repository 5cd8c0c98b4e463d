"""``ddl blame``: says which rank is to blame for a job that hangs, is slow or has failed, by the dumps of its ranks.

``ddl/blame`` judges. Status 0, also without a finding; 2 for bad usage, and for files that
are no dumps.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Sequence

from ddl.blame.judge import PATIENCE, blame
from ddl.blame.report import report
from ddl.errors import ConfigError
from ddl.tools.dump_files import read_dumps
from ddl.tools.files import write_json

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl blame``."""
    parser.add_argument(
        "folder", metavar="DIR", help="has the dumps of all ranks: rank.N.json, by 'ddl dump --out DIR'"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        metavar="S",
        help=f"seconds that a rank waits before another one is blamed, in a job that runs (default: {PATIENCE:g})",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the findings to FILE; - is stdout, without the text")


def run(arguments: argparse.Namespace) -> int:
    """Read, judge, print and write; return the exit status."""
    if not arguments.patience >= 0:
        raise ConfigError(f"--patience {arguments.patience:g}: it must be 0 or more")
    dumps, end = read_dumps(Path(arguments.folder))
    findings = blame(dumps, end, patience=arguments.patience)
    if arguments.json != "-":
        print("\n".join(report(dumps, end, findings)))
    if arguments.json is not None:
        write_json(arguments.json, {"findings": [dataclasses.asdict(finding) for finding in findings]})
    return 0
