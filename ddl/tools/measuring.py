"""Starts the jobs of the tools that measure: ``ddl bench`` and ``ddl tune``. They take ddlrun's options."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Mapping, Sequence

from ddl.errors import ConfigError
from ddl.launch import cli

__all__ = ["add_job_arguments", "run_job"]

#: ddlrun's options that choose where and how the job runs.
_PASSED_ON = ("num_proc", "hosts", "hostfile", "mode", "launcher", "network_interface", "start_timeout")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose hosts and ranks, as ddlrun has them."""
    add = parser.add_argument
    add("-np", "--num-proc", metavar="N", help="ranks; default: all slots of the hosts")
    add("-H", "--host", "--hosts", dest="hosts", metavar="HOST[:SLOTS],...", help="hosts; default: this machine")
    add("--hostfile", "--machinefile", metavar="FILE", help="the same from a file, as ddlrun reads it")
    add("-m", "--mode", metavar="4x8x2", help="dimensions, innermost first; give the job the same")
    add("--launcher", metavar="NAME", help="ssh, mpi or slurm, as for ddlrun")
    add("--network-interface", metavar="NAME|CIDR,...", help="as for ddlrun; give the job the same")
    add("--start-timeout", metavar="SECONDS", help="how long ranks wait for the others at the start")


def run_job(arguments: argparse.Namespace, module: str, task: Mapping[str, Any], variables: Sequence[str] = ()) -> int:
    """Run ``python -m MODULE TASK`` on every rank, with the task as JSON; return 0, or 1 if the job failed.

    ``variables``: NAME=VALUE for the ranks. Raises ConfigError for bad options, and for a job of one rank.
    """
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name in _PASSED_ON
        for value in [getattr(arguments, name)]
        if value is not None
    ]
    program = [sys.executable, "-m", module, json.dumps(task)]
    environ = [f"--env={variable}" for variable in variables]
    config = cli.parse([*options, *environ, "--no-prefix", *program], dict(os.environ))
    if config.num_proc < 2:
        raise ConfigError("a job of one rank does not communicate; give 2 ranks or more with -np")
    return int(cli.run(config) != 0)
