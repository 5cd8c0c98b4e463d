"""The options of ``horovodrun`` that ddlrun does not have itself: what they mean here, or why they mean nothing.

A script that starts jobs by horovodrun can start them by ddlrun without a change. Options that have no meaning here are
accepted, and one line on stderr names them. docs/from_horovod.md has the whole table.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from ddl.bootstrap.environ import HOROVOD_LEVELS
from ddl.errors import ConfigError

__all__ = ["OPTIONS", "no_effect", "options_from_sections", "word"]

# A name has a "=" for each value that it takes.

#: What ddlrun calls it; an empty word: it has no effect with this value.
_SAME: Dict[str, Callable[[str], str]] = {
    "--output-filename=": lambda folder: f"--output-dir={folder}",
    "--prefix-output-with-timestamp": lambda _: "--prefix-timestamp",
    "--gloo-timeout-seconds=": lambda seconds: f"--timeout={seconds}",
    "--stall-check-shutdown-time-seconds=": lambda seconds: f"--timeout={seconds}" if seconds != "0" else "",
    "--timeline-filename=": lambda file: f"--env=DDL_TIMELINE={file}",
    "--timeline-mark-cycles": lambda _: "--env=DDL_TIMELINE_CYCLES=1",
    "--no-timeline-mark-cycles": lambda _: "--env=DDL_TIMELINE_CYCLES=0",
    "--log-level=": lambda level: f"--env=DDL_LOG={HOROVOD_LEVELS.get(level.lower(), level)}",
}

#: Why some have no effect.
_NO_EFFECT: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (
        "gradients are fused once, when the optimizer is wrapped, and sent as soon as a bucket is full",
        ("--fusion-threshold-mb=", "--cycle-time-ms="),
    ),
    ("how many names of operations ranks remember is fixed, and enough for any model", ("--cache-capacity=",)),
    (
        "all-reduces are planned for the layout of the hosts; --mode says it",
        (
            *("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
            *("--hierarchical-allgather", "--no-hierarchical-allgather"),
            *("--torus-allreduce", "--no-torus-allreduce"),
        ),
    ),
    (
        "algorithms are chosen by what `ddl tune` has measured on these hosts; --mode p: measures at the start",
        (
            *("--autotune", "--no-autotune", "--autotune-log-file=", "--autotune-warmup-samples="),
            *("--autotune-steps-per-sample=", "--autotune-bayes-opt-max-samples="),
            "--autotune-gaussian-process-noise=",
        ),
    ),
    (
        "every operation has a deadline, which --timeout sets, and DDL names late ranks before that by itself",
        (
            *("--stall-check", "--no-stall-check"),
            *("--stall-check-warning-time-seconds=", "--stall-check-shutdown-time-seconds="),
        ),
    ),
    ("DDL uses no MPI", ("--mpi-threads-disable", "--no-mpi-threads-disable", "--mpi-args=")),
    ("DDL uses no MPI, no Gloo and no jsrun; --launcher says how hosts are reached", ("--gloo", "--mpi", "--jsrun")),
    ("this release moves the memory of CPUs", ("--num-nccl-streams=",)),
    ("ranks and their threads are not bound to cores", ("--binding-args=", "--thread-affinity=")),
    (
        "DDL's messages have no time of their own; --prefix-timestamp puts it before every line",
        ("--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp", "--no-log-hide-timestamp"),
    ),
    ("ddlrun looks at the hosts anew in every start", ("--disable-cache",)),
)

#: How many values each takes.
OPTIONS = {name.rstrip("="): name.count("=") for name in (*_SAME, *(name for _, names in _NO_EFFECT for name in names))}


def word(name: str, values: Sequence[str]) -> str:
    """Return the option of ddlrun that does the same as one of ``OPTIONS``; empty if there is none."""
    same = _SAME.get(name + "=" * len(values))
    return same(values[0] if values else "") if same else ""


def no_effect(given: Sequence[str]) -> List[str]:
    """Return the lines that name the options of ``given`` that had no ``word``, one for each reason."""
    lines = []
    for why, names in _NO_EFFECT:
        given_names = [name for name in (name.rstrip("=") for name in names) if name in given]
        if given_names:
            lines.append(f"{', '.join(given_names)} {'has' if len(given_names) == 1 else 'have'} no effect: {why}")
    return lines


#: The sections of horovodrun's YAML, and how the options begin that they hold.
_SECTIONS = {
    "params": "",
    "autotune": "autotune-",
    "timeline": "timeline-",
    "stall_check": "stall-check-",
    "library_options": "",
    "logging": "log-",
}


_CONTROLLERS = ("gloo", "mpi", "jsrun")


def options_from_sections(sections: Mapping[str, object]) -> List[str]:
    """Return the settings of a ``--config-file`` of horovodrun as arguments of a command line; ConfigError.

    ``controller``, in no section, is one of the switches ``--gloo``, ``--mpi`` and ``--jsrun``. A name without a value
    (None) sets nothing.
    """
    arguments: List[str] = []
    for section, settings in sections.items():
        if section == "controller" and isinstance(settings, str):
            if settings.lower() not in _CONTROLLERS:
                raise ConfigError(f"controller: {settings!r}: it must be one of {', '.join(_CONTROLLERS)}")
            arguments.append(f"--{settings.lower()}")
            continue
        if settings is None:
            continue
        if section not in _SECTIONS or not isinstance(settings, dict):
            raise ConfigError(f"{section}: it is none of the sections {', '.join(_SECTIONS)}")
        for key, value in settings.items():
            if value is None:
                continue
            name = _SECTIONS[section] + str(key).replace("_", "-")
            if key == "enabled" and _SECTIONS[section]:
                name = _SECTIONS[section].rstrip("-")
            switch = f"--{name}" if value else f"--no-{name}"
            arguments.append(switch if isinstance(value, bool) else f"--{name}={value}")
    return arguments
