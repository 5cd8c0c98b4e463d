"""What this machine must have for a cluster, and how lab/ runs its programs and waits for them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Callable, Optional, Sequence

from ddl.errors import Error

__all__ = ["PATH", "PATIENCE", "PREFIX", "ClusterError", "cgroups", "checked", "wait_until", "why_not"]

PATIENCE = 20.0  #: seconds for what takes milliseconds, before it counts as failed
PREFIX = "ddl-folder-"  #: of the names of temporary directory and cgroup, which are the same
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  #: a user's may lack the place of sshd and tc
_PACKAGES = {  #: Debian's, by program
    **dict.fromkeys(["unshare", "nsenter", "setpriv"], "util-linux"),
    **dict.fromkeys(["ip", "tc"], "iproute2"),
    **dict.fromkeys(["ssh", "ssh-keygen"], "openssh-client"),
    "sshd": "openssh-server",
}


class ClusterError(Error, RuntimeError):
    """The cluster could not do what was asked; the message says what, on which host, and what was printed."""


def why_not() -> Optional[str]:
    """Return why no cluster can be built here and what to do about it, or None if one can."""
    if os.geteuid() != 0:
        return "hosts are namespaces, which only root may make: run it as root"
    missing = [program for program in _PACKAGES if shutil.which(program, path=PATH) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[program] for program in missing}))
        return f"no {', '.join(missing)} on this machine: apt-get install {packages}"
    trial = cgroups() / f"{PREFIX}trial-{os.getpid()}"
    try:
        checked(["unshare", "-n", "-m", "-u", "-i", "-p", "-f", "mount", "-t", "proc", "proc", "/proc"])
        trial.mkdir()
        able = (trial / "cgroup.kill").exists()
        trial.rmdir()
    except (ClusterError, OSError) as error:
        return f"root may not make namespaces or cgroups (version 2) here, as in an unprivileged container: {error}"
    return None if able else "this kernel's cgroups have no cgroup.kill: Linux 5.14 or later is needed"


def cgroups() -> Path:
    """Return where cgroup version 2 is mounted; some machines have it beside version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"), Path("/no cgroup2 is mounted"))


def checked(command: Sequence[str], given: str = "") -> None:
    """Run ``command`` with ``given`` on its standard input; ``ClusterError`` with what it said if it fails."""
    environ = {**os.environ, "PATH": PATH}
    ended = subprocess.run(command, input=given, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    if ended.returncode != 0:
        raise ClusterError(f"{shlex.join(command)}: {(ended.stderr or ended.stdout).strip()}")


def wait_until(done: Callable[[], bool], complaint: str) -> None:
    """Wait until ``done``; ``ClusterError`` with the complaint if that takes longer than ``PATIENCE``."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise ClusterError(f"{complaint} (waited {PATIENCE} s)")
        time.sleep(0.005)
