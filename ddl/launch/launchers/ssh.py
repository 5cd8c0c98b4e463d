"""OpenSSH: one ``ssh`` per host, without a password and without a terminal; this machine's own agent needs none."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import ClassVar, List, Mapping, Optional, Tuple

from ddl.errors import ConfigError
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import Host, bare_name
from ddl.launch.ask.placement import Placement
from ddl.launch.launchers import Start
from ddl.net.address import HOST_TIMEOUT
from ddl.net.interfaces import is_local

__all__ = ["SshLauncher"]

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_ALIVE = 5  # seconds between two questions of ssh whether the other host is there
_SSH_FAILED, _NOT_FOUND = 255, 127  # the status of ssh itself, and of a shell


@dataclass(frozen=True)
class SshLauncher:
    """``options``: more arguments for ssh. ``host_timeout``: seconds that a host may be silent."""

    options: Tuple[str, ...] = ()
    host_timeout: float = HOST_TIMEOUT
    name: ClassVar[str] = "ssh"
    takes: ClassVar[Tuple[str, ...]] = ("--ssh-port", "--ssh-identity-file", "--host-discovery-script")
    one_by_one: ClassVar[bool] = True

    @classmethod
    def of(cls, config: RunConfig) -> SshLauncher:
        return cls(config.ssh_options, config.settings.host_timeout)

    @staticmethod
    def allocated(environ: Mapping[str, str]) -> Optional[Tuple[Host, ...]]:
        return None

    def starts(self, placement: Placement, environ: Mapping[str, str]) -> List[Start]:
        # An agent that is not heard is for the store to give up, so ssh is to be more patient.
        count = math.ceil(self.host_timeout / _ALIVE) + 1
        patient = ("-o", f"ServerAliveInterval={_ALIVE}", "-o", f"ServerAliveCountMax={count}")
        result = []
        for number, host in enumerate(placement.hosts):
            if is_local(bare_name(host)):
                here = (sys.executable, "-m", "ddl.launch.agent.remote")
                result.append(Start((number,), here, number, True, host))
                continue
            reached = (*self.options, host.strip("[]"))
            command = (_ssh(environ), *_OPTIONS, *patient, *reached, _remote_command(environ))
            remedies = {
                _SSH_FAILED: f"`{shlex.join(['ssh', *reached, 'true'])}` must work here without a question",
                _NOT_FOUND: f"{sys.executable} must be on that host, too",
            }
            result.append(Start((number,), command, number, True, host, remedies=remedies))
        return result


def _ssh(environ: Mapping[str, str]) -> str:
    path = shutil.which("ssh", path=environ.get("PATH", os.defpath))
    if path is None:
        raise ConfigError("there is no ssh on the PATH; install openssh-client, or choose another --launcher")
    return path


def _remote_command(environ: Mapping[str, str]) -> str:
    """Return what the shell on the other side, whichever it is, runs: the same Python, found by its path."""
    arguments = ["exec"]
    if environ.get("PYTHONPATH"):
        arguments += ["env", f"PYTHONPATH={environ['PYTHONPATH']}"]
    arguments += [sys.executable, "-m", "ddl.launch.agent.remote"]
    return " ".join(shlex.quote(word) for word in arguments)
