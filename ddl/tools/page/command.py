"""``ddl page``: serves the page about a job that has ended, from the file that ``ddlrun --history`` has written.

It prints the address, and serves until Ctrl-C. Status 0; 2 for bad usage, and for a file that is no history.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Sequence

from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.dashboard.replay import ReplaySource
from ddl.launch.dashboard.server import PageServer

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl page``."""
    parser.add_argument("file", metavar="FILE", help="the history of a job: by ddlrun --history, or saved on its page")
    parser.add_argument(
        "--listen", default="127.0.0.1", metavar="ADDR[:PORT]", help="where to serve it (%(default)s, any free port)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C; return the exit status."""
    address = ListeningAddress.parse("--listen", arguments.listen, any_port=True)
    server = PageServer(address, "--listen", ReplaySource(Path(arguments.file)))
    server.announce("ddl page:")
    server.start()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    server.close()
    return 0
