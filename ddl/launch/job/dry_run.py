"""``ddlrun --dry-run``: says what would be started, where, and with which environment. It starts nothing.

It never shows the job's secret, which is made when a job begins. Of a variable that has ddlrun's own value (--env NAME)
it shows only the name, because the value may be secret, too. No I/O: the environment is an argument.
"""

from __future__ import annotations

import os
import shlex
from typing import Dict, List, Mapping, Sequence

from ddl.bootstrap.environ import Identity
from ddl.launch.agent.control import assignment_of
from ddl.launch.agent.rank_environ import meeting_point, rank_environ
from ddl.launch.ask.config import RunConfig
from ddl.launch.launchers import Start
from ddl.text.units import counted

__all__ = ["describe"]

_LATER = "(chosen at the start)"
_HIDDEN = {"DDL_SECRET": "(made at the start, never shown)", "DDL_STORE": _LATER}


def describe(config: RunConfig, starts: Sequence[Start], environ: Mapping[str, str]) -> List[str]:
    """Return the lines that ``--dry-run`` prints; ``environ`` is ddlrun's own. ``starts``: none for a job here."""
    if config.elastic is None:
        return _job(config, starts, environ)
    elastic = config.elastic
    most = f"at most {elastic.max_np}" if elastic.max_np is not None else "as many as there are slots"
    lines = [f"elastic: ranks come and go, at least {elastic.min_np}, {most}"]
    if not elastic.discovery_script:
        return [*lines, *_job(config, starts, environ)]
    ranks = f"{counted(config.num_proc, 'rank')} or more"
    where = f"{ranks}, in {os.getcwd()}, on the hosts that the script names (it is not run now):"
    return [*lines, where, f"    {elastic.discovery_script}", f"    {shlex.join(config.command)}", *_output(config)]


def _job(config: RunConfig, starts: Sequence[Start], environ: Mapping[str, str]) -> List[str]:
    if config.is_local:
        where = f"{counted(config.num_proc, 'rank')} on this machine, in {os.getcwd()}:"
        lines = [where, f"    {shlex.join(config.command)}", *_output(config)]
        return [*lines, "environment: ddlrun's own, and", *_here(config, environ)]
    return _elsewhere(config, starts, environ)


def _output(config: RunConfig) -> List[str]:
    return [] if config.output_dir is None else [f"output: {os.path.abspath(config.output_dir)}/rank.N.out and .err"]


def _here(config: RunConfig, environ: Mapping[str, str]) -> List[str]:
    """What all ranks have in common first, then what each has for itself."""
    place = meeting_point("127.0.0.1", 0, environ)
    if place:
        place["MASTER_PORT"] = _LATER
    size = config.num_proc
    told = [
        {
            name: value
            for name, value in rank_environ(config, Identity(rank, size, rank, size, 0, 1), environ).items()
            if environ.get(name) != value or name in dict(config.environ)
        }
        for rank in range(size)
    ]
    common = {name: value for name, value in told[0].items() if all(each.get(name) == value for each in told)}
    lines = [f"    {line}" for line in _variables({**common, **place, **_HIDDEN}, environ)]
    for rank, each in enumerate(told):
        own = {name: value for name, value in each.items() if name not in {**common, **_HIDDEN}}
        if own:
            lines.append(f"    rank {rank}: {' '.join(_variables(own, environ))}")
    return lines


def _variables(variables: Mapping[str, str], environ: Mapping[str, str]) -> List[str]:
    shown: Dict[str, str] = {}
    for name, value in sorted(variables.items()):
        if name in environ and environ[name] == value:
            shown[name] = "(ddlrun's own)"
        else:
            shown[name] = value if value in (_LATER, *_HIDDEN.values()) else shlex.quote(value)
    return [f"{name}={value}" for name, value in shown.items()]


def _elsewhere(config: RunConfig, starts: Sequence[Start], environ: Mapping[str, str]) -> List[str]:
    placement = config.placement
    lines = [f"{counted(placement.size, 'rank')} on {counted(len(placement.hosts), 'host')}:"]
    for number, host in enumerate(placement.hosts):
        job = assignment_of(config, placement, number)
        ranks = ", ".join(map(str, job.ranks))
        lines += [f"    host {host}: rank{'s' * (len(job.ranks) > 1)} {ranks}, in {job.directory}:"]
        lines += [f"        {shlex.join(job.command)}"]
    lines += [
        *_output(config),
        "started from here, one agent on each host, which is told the secret in private:",
    ]
    lines += [f"    {shlex.join(start.command)}" for start in starts]
    own = {name: value for name, value in config.environ if name not in _HIDDEN}
    carried = [name for name, _ in job.environ if name not in own and name not in _HIDDEN]
    lines += ["environment: that of the agent on each host, and", f"    ddlrun's own: {' '.join(sorted(carried))}"]
    lines += [f"    {line}" for line in _variables(own, environ)]
    own_numbers = "DDL_RANK, DDL_SIZE, DDL_LOCAL_RANK and their sisters by the names of Horovod and torch"
    return [*lines, f"    {own_numbers}", *(f"    {name}={value}" for name, value in _HIDDEN.items())]
