"""podman with a store of its own, so that no image or container of the user is seen or left behind."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Optional

__all__ = ["RESTRICTED", "Podman", "why_not"]

#: Options of a container as Kubernetes' *restricted* standard wants it, and stricter: nothing can be written.
RESTRICTED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges")
_PATIENCE = 1000  #: seconds; an image takes one to three minutes
#: What is needed, and the package of Debian that has it.
_PROGRAMS = (("podman", "podman"), ("runc", "runc"), ("mmdebstrap", "mmdebstrap"))
#: A machine may have no bridge for containers, and may not let a process raise its limits, as podman does by default.
_CONFIG = """
[containers]
netns = "host"
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""


def why_not() -> Optional[str]:
    """Return which program is missing, None if all are there."""
    for program, package in _PROGRAMS:
        if shutil.which(program) is None:
            return f"there is no {program}; on Debian: apt install {package}"
    return None


def _limit(kind: int) -> int:
    most = resource.getrlimit(kind)[1]
    return 4096 if most == resource.RLIM_INFINITY else min(4096, most)


class Podman:
    """Images and containers below ``folder``; ``close`` removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = [f"--root={folder / 'store'}", f"--runroot={folder / 'run'}", f"--tmpdir={folder / 'tmp'}"]
        config = folder / "containers.conf"
        config.write_text(_CONFIG.format(files=_limit(resource.RLIMIT_NOFILE), processes=_limit(resource.RLIMIT_NPROC)))
        #: The variables by which a command of ``words`` finds its configuration.
        self.environ: Dict[str, str] = {"CONTAINERS_CONF": str(config)}

    def words(self, *words: str) -> List[str]:
        """Return a command line of podman. What it mounts, nobody else sees, and it is gone with its processes."""
        return ["unshare", "--mount", "podman", *self._options, *words]

    def run(self, *words: str) -> str:
        """Run a command of podman; return what it printed. AssertionError if it fails."""
        return self._run(self.words(*words))

    def build(self, file: Path, folder: Path, name: str, *options: str) -> None:
        """Build an image of a Containerfile; ``folder`` is what it can copy from. What it runs ends with the test."""
        line = ["build", "--isolation=chroot", "--network=host", *options, f"--file={file}", f"--tag={name}"]
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._run([*apart, *self.words(*line, str(folder))])

    def _run(self, line: List[str]) -> str:
        environ = {**os.environ, **self.environ}
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        assert done.returncode == 0, f"{' '.join(line)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def close(self) -> None:
        """Remove all containers and images."""
        self.run("rm", "--all", "--force", "--time=0")
        self.run("rmi", "--all", "--force")
        shutil.rmtree(self._folder)
