"""Two hosts on one machine: network namespaces joined by a cable, made for one run and gone after it.

A host has its own network, host name, mounts and IPC; files are shared, as on a cluster with a shared file system. All
processes of both hosts live in one process namespace of their own, whose first process only waits for us to close
a pipe. So when this program ends, however it ends, the kernel kills every process of the hosts, and with the last of
them the namespaces and the cable disappear. Needs root, ``unshare``, ``nsenter`` and ``ip`` (and ``tc`` for a rate).

The cable is a veth pair: 10.77.0.1 on hostA, 10.77.0.2 on hostB, interface rail0. With a rate, a token bucket at both
ends limits each direction.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import List, Optional, Sequence, Type

from ddl.errors import ConfigError

__all__ = ["ADDRESSES", "INTERFACE", "NAMES", "Hosts"]

NAMES = ("hostA", "hostB")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "rail0"
_PATIENCE = 20.0  #: seconds for making the hosts

# Each line needed: /sys of the host's own network (libraries list interfaces there), names that resolve, and a
# loopback interface. $1 is the host's name.
_HOST = """
set -e
hostname "$1"
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$DESK/hosts" /etc/hosts
ip link set lo up
: > "$DESK/$1.ready"
exec sleep infinity
"""

# The first process of the process namespace. Whoever holds the other end of its standard input keeps the hosts alive.
_FIRST = """
set -e
for name in hostA hostB; do
  unshare --net --uts --mount --ipc --propagation private sh -c "$HOST" host $name </dev/null &
  echo $! > "$DESK/$name.pid"
done
while [ ! -e "$DESK/hostA.ready" ] || [ ! -e "$DESK/hostB.ready" ]; do sleep 0.01; done
a=$(cat "$DESK/hostA.pid") b=$(cat "$DESK/hostB.pid")
in_a() { nsenter -t $a -n "$@"; }
in_b() { nsenter -t $b -n "$@"; }
in_a ip link add rail0 type veth peer name rail0 netns $b
in_a ip addr add 10.77.0.1/24 dev rail0
in_b ip addr add 10.77.0.2/24 dev rail0
in_a ip link set rail0 up
in_b ip link set rail0 up
if [ -n "$RATE" ]; then
  in_a tc qdisc add dev rail0 root tbf rate "$RATE" burst 128k latency 20ms
  in_b tc qdisc add dev rail0 root tbf rate "$RATE" burst 128k latency 20ms
fi
: > "$DESK/ready"
read -r _ || exit 0
"""

# How MPI's launchers reach a host: they call this as they would ssh.
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
name=$1
shift
exec nsenter -t "$(cat DESK/$name.pid)" -n -u -m -i -- sh -c "$*"
"""


class Hosts:
    """Two hosts, while the ``with`` block lasts. ``rate`` as ``tc`` writes it, ``1gbit``; empty: as fast as it goes."""

    def __init__(self, rate: str = "") -> None:
        tools = ("unshare", "nsenter", "ip", *(["tc"] if rate else []))
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if missing:
            raise ConfigError(f"hosts on this machine need {', '.join(missing)}, which was not found")
        if os.geteuid() != 0:
            raise ConfigError("hosts on this machine are network namespaces, which only root may make: run it as root")
        self.rate = rate

    def __enter__(self) -> Hosts:
        self._desk = tempfile.TemporaryDirectory(prefix="ddl-hosts-")
        desk = Path(self._desk.name)
        (desk / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for address, name in zip(ADDRESSES, NAMES))
        )
        self.agent = desk / "agent"
        self.agent.write_text(_AGENT.replace("DESK", str(desk)))
        self.agent.chmod(0o755)
        namespace = [
            "unshare",
            "--pid",
            "--mount",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        self._holder = subprocess.Popen(
            [*namespace, "sh", "-c", _FIRST],
            env={**os.environ, "DESK": str(desk), "HOST": _HOST, "RATE": self.rate},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(desk / "log").open("w"),
            start_new_session=True,  # Ctrl-C is for us, who then end it in order
        )
        try:
            self._wait_until_ready(desk)
        except BaseException:
            self.close()
            raise
        return self

    def _wait_until_ready(self, desk: Path) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not (desk / "ready").exists():
            if self._holder.poll() is not None or time.monotonic() > deadline:
                said = (desk / "log").read_text().strip()
                raise ConfigError(f"two hosts could not be made on this machine: {said or 'no reason was given'}")
            time.sleep(0.01)
        holder = self._holder.pid
        self._first = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()[0]
        self._pids = [(desk / f"{name}.pid").read_text().strip() for name in NAMES]

    def command(self, host: int, line: Sequence[str]) -> List[str]:
        """Return the command line that runs ``line`` on host 0 or 1; its working directory is ``/``."""
        inside = ["nsenter", "-t", self._pids[host], "-n", "-u", "-m", "-i", "--", *line]
        return ["nsenter", "-t", self._first, "-p", "-m", "--", *inside]

    def close(self) -> None:
        """Kill every process of the hosts and take the hosts away. Idempotent."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        try:
            self._holder.wait(10)
        except subprocess.TimeoutExpired:
            self._holder.kill()  # --kill-child: its child goes with it
            self._holder.wait()
        self._desk.cleanup()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()
