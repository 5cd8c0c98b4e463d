"""The options of jobs whose ranks come and go: what they mean, their defaults, and what contradicts what. No I/O.

The names and meanings are horovodrun's, but for ``--elastic``, ``--max-restarts`` and ``--leave-failed-hosts``. A job
is elastic when it is given ``--min-np``, ``--host-discovery-script`` or ``--elastic``; in every other job a rank that
fails ends the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.launch.ask.hosts import Host
from ddl.launch.ask.numbers import seconds, whole_number

__all__ = ["ElasticOptions", "check_company", "elastic_options", "smallest_size", "words_of"]

#: The options by which a job becomes elastic, and those that only an elastic job has; by what the parser calls them.
_SWITCHES = {"min_np": "--min-np", "discovery_script": "--host-discovery-script", "elastic": "--elastic"}
_DETAILS = {
    "max_np": "--max-np",
    "slots_per_host": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "max_restarts": "--max-restarts",
    "leave_failed_hosts": "--leave-failed-hosts",
}
_TIMEOUT_VARIABLE = "HOROVOD_ELASTIC_TIMEOUT"
_TIMEOUT = 600.0  # seconds, as in Horovod
#: What an elastic job cannot have, as it says for good which rank runs where.
_FIXED = {
    "rankfile": "--rankfile",
    "accelerators": "--accelerators",
    "nodes": "--nodes",
    "racks": "--racks",
    "aisles": "--aisles",
}


@dataclass(frozen=True)
class ElasticOptions:
    """How many ranks an elastic job may have, where they may run, and when it gives up."""

    min_np: int  #: fewer ranks wait for more, for ``timeout`` seconds at most
    max_np: Optional[int]  #: more slots are not used; None: all slots are
    hosts: Tuple[Host, ...] = ()  #: all with their slots; empty: the script names them
    timeout: float = _TIMEOUT
    discovery_script: str = ""
    slots_per_host: Optional[int] = None  #: of hosts that the script names without slots
    reset_limit: Optional[int] = None  #: how often the ranks may form anew
    cooldown_range: Optional[Tuple[float, float]] = None  #: seconds that a host which failed gets no new process
    max_restarts: Optional[int] = None  #: how many processes may be started in place of lost ones, in all
    leave_failed_hosts: bool = False  #: a rank that fails takes the others of its host along, as in Horovod
    returning: Tuple[str, ...] = ()  #: names of hosts that call again by themselves after they were lost (pods.py)


def _is_elastic(given: Mapping[str, Any]) -> bool:
    """Return whether these options make a job elastic."""
    return any(given[name] for name in _SWITCHES)


def smallest_size(given: Mapping[str, Any]) -> Optional[str]:
    """Return the value of ``-np`` for a job without ``-np`` and hosts, if the other options say it."""
    return given["min_np"] if given["hosts"] is None and given["hostfile"] is None else None


def check_company(given: Mapping[str, Any]) -> None:
    """Refuse what an elastic job cannot have beside it, and what only an elastic job can have. ConfigError."""
    if not _is_elastic(given):
        idle = [name for attribute, name in _DETAILS.items() if given[attribute] not in (None, False)]
        if idle:
            raise ConfigError(f"{idle[0]} is for elastic jobs; add --min-np N (or --elastic), or leave it out")
        return
    switch = next(name for attribute, name in _SWITCHES.items() if given[attribute])
    for attribute, name in _FIXED.items():
        if given[attribute] is not None:
            raise ConfigError(f"{name} says for good what runs where, and {switch} lets ranks come and go; drop one")
    if "x" in given["mode"]:
        raise ConfigError(
            f"--mode {given['mode']} says for good how many ranks there are, and {switch} lets them come and go; "
            "leave out the sizes"
        )
    if given["discovery_script"]:
        for attribute, name in (("hosts", "-H"), ("hostfile", "--hostfile")):
            if given[attribute] is not None:
                raise ConfigError(f"--host-discovery-script names the hosts, and so does {name}; give one of them")
    elif given["slots_per_host"] is not None:
        raise ConfigError(
            "--slots-per-host is for hosts that --host-discovery-script names without slots; write -H HOST:SLOTS"
        )


def elastic_options(
    given: Mapping[str, Any],
    environ: Mapping[str, str],
    size: int,
    hosts: Sequence[Host],
    returning: Sequence[Host] = (),
) -> Optional[ElasticOptions]:
    """Return what ``given`` asks for; None: the job is not elastic. ConfigError names numbers that contradict.

    ``size``: of the job at its start. ``hosts``: where it may run, all with slots; empty: this machine, or the script.
    ``returning`` ones call again by themselves after they were lost.
    """
    if not _is_elastic(given):
        return None
    script = given["discovery_script"] or ""
    min_np = whole_number("--min-np", given["min_np"]) or (1 if given["elastic"] else size)
    max_np = whole_number("--max-np", given["max_np"])
    if min_np > size:
        raise ConfigError(f"--min-np {min_np} is more than the {size} ranks that the job begins with; raise -np")
    if max_np is not None and max_np < size:
        raise ConfigError(f"--max-np {max_np} is less than the {size} ranks that the job begins with; lower -np")
    places = () if script else tuple(hosts) or (Host("localhost", size),)
    if given["leave_failed_hosts"] and not script and len({place.name for place in places}) == 1:
        raise ConfigError(
            f"--leave-failed-hosts: all ranks are on {places[0].name}, so the first failure would end the job; name "
            "other hosts by -H or --host-discovery-script, or leave it out"
        )
    restarts = whole_number("--max-restarts", given["max_restarts"], least=0)
    if restarts is None and not script and not returning and sum(host.slots or 0 for host in places) == size:
        restarts = 0  # every slot is taken: the job goes on with fewer ranks
    return ElasticOptions(
        min_np=min_np,
        max_np=max_np if max_np is not None or script else size,
        hosts=places,
        timeout=seconds("--elastic-timeout", given["elastic_timeout"])
        or seconds(_TIMEOUT_VARIABLE, environ.get(_TIMEOUT_VARIABLE))
        or _TIMEOUT,
        discovery_script=script,
        slots_per_host=whole_number("--slots-per-host", given["slots_per_host"]),
        reset_limit=whole_number("--reset-limit", given["reset_limit"], least=0),
        cooldown_range=_range(given["cooldown_range"]),
        max_restarts=restarts,
        leave_failed_hosts=bool(given["leave_failed_hosts"]),
        returning=tuple(host.name for host in returning),
    )


def words_of(options: ElasticOptions) -> List[str]:
    """Return the options of ddlrun by which ``elastic_options`` makes these again, on the same hosts without a script.

    All are written out, since their defaults depend on variables.
    """
    low, high = options.cooldown_range or (None, None)
    numbers: Dict[str, Sequence[Optional[float]]] = {
        "min_np": [options.min_np],
        "max_np": [options.max_np],
        "elastic_timeout": [options.timeout],
        "reset_limit": [options.reset_limit],
        "cooldown_range": [low, high],
        "max_restarts": [options.max_restarts],
    }
    words = ["--leave-failed-hosts"] if options.leave_failed_hosts else []
    for attribute, values in numbers.items():
        given = [str(value).removesuffix(".0") for value in values if value is not None]
        words += [{**_SWITCHES, **_DETAILS}[attribute], *given] if given else []
    return words


def _range(texts: Optional[List[str]]) -> Optional[Tuple[float, float]]:
    if texts is None:
        return None
    name = "--blacklist-cooldown-range"
    low, high = (seconds(name, text) or 0.0 for text in texts)
    if not 0 < low <= high:
        raise ConfigError(f"{name} {' '.join(texts)}: write the shorter time first, as {name} 10 100")
    return low, high
