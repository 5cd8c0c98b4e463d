"""The pods of a printed manifest, as processes here: what Kubernetes makes of command and environment, and no more.

A pod is its first process (in a namespace of its own where that is allowed), the variables of its container, and a name
server that knows pod 0. What must differ from Kubernetes: all pods share this machine's ports, so the manifest's port
is replaced by a free one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import yaml
from launch.launcher import ROOT, Launcher
from launch.manifests import container_of

from ddl.launch.launchers.k8s import PORT
from ddl.net.address import is_loopback
from ddl.net.interfaces import addresses

#: Knows the name of pod 0 once there is one, as with a headless Service; nobody needs a name of the other pods.
_NAME_SERVER = """
import os, socket
_ask = socket.getaddrinfo
def getaddrinfo(host, *rest, **more):
    if host == {head!r} and os.path.exists({started!r}):
        host = {address!r}
    elif isinstance(host, str) and not host.replace(".", "").isdigit():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _ask(host, *rest, **more)
socket.getaddrinfo = getaddrinfo
"""
_FIRST_PROCESS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_AS_USER = ("unshare", "--user", "--map-root-user", *_FIRST_PROCESS[1:])


def first_process() -> List[str]:
    """Return what makes a program the first process of its own world, as in a container; nothing if it is forbidden."""
    for prefix in (_FIRST_PROCESS, _AS_USER):
        if (
            shutil.which("unshare")
            and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
        ):
            return list(prefix)
    return []


def first_of(pid: int) -> int:
    """Return the pid of the pod's first process: the child of ``unshare`` (0: not yet), or the process itself."""
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        if file.read().strip() != "unshare":
            return pid
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int((file.read().split() or ["0"])[0])


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class Pods:
    """What ``text``, a manifest, asks for. Pods are started one by one, in any order."""

    def __init__(self, launcher: Launcher, folder: Path, text: str) -> None:
        self._launcher = launcher
        text = text.replace(str(PORT), str(free_port()))
        self.documents: List[Dict[str, Any]] = list(yaml.safe_load_all(text))
        secret, whole = self.documents[0], self.documents[-1]
        spec = whole["spec"] if whole["kind"] == "Job" else whole["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
        self.count = int(spec["completions"])
        (text_of_container,) = spec["template"]["spec"]["containers"]
        container = container_of(text_of_container, {secret["metadata"]["name"]: secret["stringData"]})
        self._environ, self._failures, self._command = container.environ, container.failures, container.command
        self._image(folder)

    def _image(self, folder: Path) -> None:
        """Make what is in the image, ``ddlrun`` and ``python``, and the cluster's name server."""
        self.folder = folder / "image"
        self.folder.mkdir()
        for name, arguments in (("ddlrun", "-m ddl.launch "), ("python", "")):
            program = self.folder / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
            program.chmod(0o755)
        head = self._command[self._command.index("--head") + 1].partition(":")[0]
        real = [address for address in addresses() if not is_loopback(address)]
        self._started = self.folder / "pod 0 has been started"
        site = _NAME_SERVER.format(head=head, started=str(self._started), address=(real or ["127.0.0.1"])[0])
        (self.folder / "sitecustomize.py").write_text(site)
        path = os.environ["PATH"]
        self._environ.update(PATH=f"{self.folder}:{path}", PYTHONPATH=f"{self.folder}:{ROOT}")

    def start(self, number: int, failures: int = 0, **environ: str) -> subprocess.Popen[str]:
        """Start pod ``number``, before which ``failures`` with this number have failed."""
        if number == 0:
            self._started.touch()
        own = {"JOB_COMPLETION_INDEX": str(number), **environ}
        own.update({self._failures: str(failures)} if self._failures else {})
        words = [*first_process(), *self._command]
        path = shutil.which(words[0], path=self._environ["PATH"])
        assert path is not None
        return self._launcher.start(*words[1:], command=path, environ={**self._environ, **own}, cwd=self.folder)
