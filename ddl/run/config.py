"""What the user asked ``ddlrun`` for, after all checks: plain data that cli.py makes and everything else reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ddl.run.placement import Placement

__all__ = ["RunConfig"]


@dataclass(frozen=True)
class RunConfig:
    """A job to run. ``command`` is complete: its first entry is the path of an executable file."""

    num_proc: int
    command: Tuple[str, ...]
    environ: Tuple[Tuple[str, str], ...] = ()  #: variables beyond ddlrun's own environment
    output_dir: Optional[str] = None  #: write rank.N.out and rank.N.err there instead of forwarding
    prefix: bool = True  #: put "[rank] " before each line
    verbose: bool = False
    placement: Optional[Placement] = None  #: which hosts run which ranks; None: this machine runs all
    launcher: str = "ssh"  #: how agents get onto other hosts: a file of launchers/
    interface: str = ""  #: name, address or network of the interface for data between hosts; empty: by the route
