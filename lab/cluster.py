"""A cluster on this machine: its hosts' life, what runs on them, and what may go wrong with them.

A host has its own network, host name, mounts (/dev/shm, /run), IPC, process ids and sshd; files and processors are
shared. The racks' bridges live in one more network, the fabric, so nothing appears among the machine's own interfaces.
All hosts are in one process namespace, whose first process (keeper.sh) waits for the builder's end of a pipe to
close. So there is one way down, whether the builder calls ``close()``, ends or is killed: the keeper kills the hosts
and removes cgroups and files. If the keeper itself is killed, the kernel kills its hosts, and the next build
removes the rest (leftovers.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Dict, List, Mapping, Optional, Sequence, Set, Union

from ddl.tools.progress import Progress
from lab import system, wiring
from lab.leftovers import remove_leftovers
from lab.namespaces import Where, entering, first_process
from lab.shape import TWO_HOSTS, Shape
from lab.system import PATIENCE, PREFIX, ClusterError, cgroups, checked, wait_until, why_not

__all__ = ["Cluster"]

Stream = Union[None, int, IO[str]]  #: as subprocess takes it
_HERE = Path(__file__).resolve().parent


class Cluster:
    """Hosts ``node1``, ``node2``, … while the ``with`` block lasts. Several clusters do not meet each other.

    ``node2`` has the address 10.77.R.2 on its interface ``railR``; ``node2`` means rail 0, ``node2-rail1`` rail 1. With
    IPv6 the address is fd77:0:0:R::2, and with both it has both.
    ``progress`` is told what has been built.
    """

    def __init__(self, shape: Shape = TWO_HOSTS, progress: Optional[Progress] = None) -> None:
        self.shape = shape
        self._progress = progress
        self._steps: Set[str] = set()
        self.hosts = tuple(f"node{number + 1}" for number in range(shape.hosts))
        self._keeper: Optional[subprocess.Popen[bytes]] = None
        self._lock = -1

    # --- up and down ---

    def __enter__(self) -> Cluster:
        reason = why_not()
        if reason is not None:
            raise ClusterError(f"no cluster can be built here: {reason}")
        remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._cgroup = cgroups() / self.directory.name
        self._lock = os.open(self.directory, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._start_hosts()
            self._connect_hosts()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process of the hosts and remove everything. Idempotent."""
        if self._lock < 0:
            return
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed
                self._keeper.stdin.write(b"\n")  # enough, even if a process that we forked holds this pipe, too
                self._keeper.stdin.close()
            try:
                self._keeper.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._keeper.kill()  # and with it, by --kill-child, all others
                self._keeper.wait()
        os.close(self._lock)
        self._lock = -1
        remove_leftovers()

    def _start_hosts(self) -> None:
        folder, cgroup = self.directory, self._cgroup
        sshd = shutil.which("sshd", path=system.PATH) or "sshd"  # wants to be called by its full path
        variables = {"PATH": system.PATH, "FOLDER": str(folder), "CGROUP": str(cgroup), "SSHD": sshd}
        with (folder / "log").open("w") as log:
            self._write_files()
            for directory in (folder / "cgroup", cgroup, *(cgroup / host for host in self.hosts)):
                directory.mkdir()
            self._keeper = subprocess.Popen(
                ["unshare", "--net", "--pid", "--kill-child", "sh", str(_HERE / "keeper.sh"), *self.hosts],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[self._lock],
                start_new_session=True,  # Ctrl-C is for the builder
            )
        wait_until(self._started, f"{folder}: the hosts do not start")
        # The outside has no address in the fabric: for each of its connections an sshd is started in the host.
        with self.ssh_config.open("w") as config:
            for host in self.hosts:
                line = self.command(host, [sshd, "-i", "-f", f"{folder}/sshd_config"], cwd="/")
                config.write(f"Host {host}\n  ProxyCommand {shlex.join(line)}\n")
            config.write((folder / "ssh_config.inside").read_text())

    def _write_files(self) -> None:
        """What keeper.sh and host.sh find in $FOLDER."""
        folder, names = self.directory, ["127.0.0.1 localhost"]
        for host in self.hosts:
            names += [f"{address} {host}" for address in self.addresses(host)]
            for rail in range(len(self.shape.rails)):
                names += [f"{address} {host}-rail{rail}" for address in self.addresses(host, rail)]
        (folder / "hosts").write_text("\n".join(names) + "\n")
        checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", folder.name, "-f", str(folder / "key")])
        (folder / "known_hosts").write_text("* " + (folder / "key.pub").read_text())
        for template, target in (("sshd_config", "sshd_config"), ("ssh_config", "ssh_config.inside")):
            (folder / target).write_text((_HERE / template).read_text().replace("FOLDER", str(folder)))

    def _started(self) -> bool:
        folder = self.directory
        assert self._keeper is not None
        if self._keeper.poll() is not None or (folder / "failed").exists():
            raise ClusterError(f"the hosts did not start: {(folder / 'log').read_text().strip()}")
        pids = [folder / f"{name}.pid" for name in ("fabric", *self.hosts)]
        up = [pid.stem for pid in pids if pid.exists() and pid.read_text().endswith("\n")]
        for name in up:
            self._step(f"{name} is up")
        return len(up) == len(pids)

    def _step(self, what: str) -> None:
        if self._progress is not None and what not in self._steps:
            self._steps.add(what)
            self._progress.step(what, 1 + 2 * len(self.hosts))

    def _connect_hosts(self) -> None:
        pids = [first_process(self.directory, host) for host in self.hosts]
        self._wire("fabric", wiring.of_fabric(self.shape, self.hosts, pids))
        for host in self.hosts:
            addresses = [self.addresses(host, rail) for rail in range(len(self.shape.rails))]
            self._wire(host, wiring.of_host(self.shape, addresses))
            self._step(f"{host} is connected")

    def _wire(self, where: str, lines: wiring.Wiring) -> None:
        """Give lines to ``ip`` and ``tc`` in the network of a host or of the fabric."""
        for tool, given in zip(("ip", "tc"), lines):
            if given:
                enter = ["nsenter", "-t", first_process(self.directory, where), "-n", "--", tool, "-batch", "-"]
                checked(enter, "\n".join(given) + "\n")

    # --- use ---

    def address(self, host: str, rail: int = 0) -> str:
        """Return the host's first address on a rail."""
        return self.addresses(host, rail)[0]

    def addresses(self, host: str, rail: int = 0) -> List[str]:
        """Return the host's addresses on a rail, that of IPv4 first."""
        number = self.hosts.index(host) + 1
        known = {"4": f"10.77.{rail}.{number}", "6": f"fd77:0:0:{rail}::{number}"}
        return [str(ip_address(known[ip])) for ip in ("4", "6") if self.shape.ip in (ip, "both")]

    @property
    def ssh_config(self) -> Path:
        """For the outside: ``ssh -F …/ssh_config node1``. Inside of a host plain ``ssh node1`` works."""
        return self.directory / "ssh_config"

    def with_slots(self, slots: int = 0) -> str:
        """Return the hosts as launchers want them, with the shape's slots or so many: ``node1:2,node2:2``."""
        return ",".join(f"{host}:{slots or self.shape.slots}" for host in self.hosts)

    def processes(self, host: str) -> Dict[int, int]:
        """Return the ids that the host's processes have on this machine, by those that they have on the host."""
        first_process(self.directory, host)  # raises if it is off
        pids = {}
        for pid in (self._cgroup / host / "cgroup.procs").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                _, _, ids = Path(f"/proc/{pid}/status").read_text().partition("\nNSpid:")
                pids[int(ids.split("\n")[0].split()[-1])] = int(pid)
        return pids

    def command(self, host: str, program: Sequence[str], *, cwd: Where = None) -> List[str]:
        """Return the command line that runs ``program`` on ``host``, in this or the given working directory."""
        return entering(self.directory, host, program, cwd)

    def popen(
        self,
        host: str,
        program: Sequence[str],
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Where = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> subprocess.Popen[str]:
        """Start ``program`` on ``host``, in a session of its own; ``env`` adds to our environment.

        A signal that ends the process returned, as of ``terminate``, kills the program.
        """
        return subprocess.Popen(
            self.command(host, program, cwd=cwd),
            env={**os.environ, **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        host: str,
        program: Sequence[str],
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Where = None,
        timeout: float = PATIENCE,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``program`` on ``host`` with no input and return its output; a failure raises unless ``check`` is off."""
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with self.popen(host, program, env=env, cwd=cwd, stdin=null, stdout=pipe, stderr=pipe) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipes, too
                stdout, stderr = process.communicate(timeout=PATIENCE)
                raise ClusterError(f"{host}: {program} was not done after {timeout} s: {stdout}{stderr}") from None
        if check and process.returncode != 0:
            raise ClusterError(f"{host}: {program} ended with status {process.returncode}: {stdout}{stderr}")
        return subprocess.CompletedProcess(list(program), process.returncode, stdout, stderr)

    # --- faults ---

    def cut(self, host: str, rail: int = 0) -> None:
        """Let nothing pass between the host's rail and its rack, silently: both ends still have a carrier."""
        self._wire("fabric", wiring.Wiring([f"link set {self._port(host, rail)} nomaster"]))

    def mend(self, host: str, rail: int = 0) -> None:
        """Undo ``cut``."""
        rack = self.shape.rack(self.hosts.index(host))
        self._wire("fabric", wiring.Wiring([f"link set {self._port(host, rail)} master rack{rack}.{rail}"]))

    def link_down(self, host: str, rail: int = 0) -> None:
        """Switch the rack's port off: the host's interface loses its carrier."""
        self._wire("fabric", wiring.Wiring([f"link set {self._port(host, rail)} down"]))

    def link_up(self, host: str, rail: int = 0) -> None:
        """Undo ``link_down``."""
        self._wire("fabric", wiring.Wiring([f"link set {self._port(host, rail)} up"]))

    def deafen(self, host: str, rail: int = 0) -> None:
        """Let nothing that comes to the host be heard there, silently; what it says still goes out."""
        self._drop(host, "ingress", rail, wiring.EVERYTHING)

    def mute(self, host: str, rail: int = 0) -> None:
        """Let nothing go out that the host says, silently; it still hears the others."""
        self._drop(host, "egress", rail, wiring.EVERYTHING)

    def restore(self, host: str, rail: int = 0) -> None:
        """Undo ``deafen``, ``mute``, ``refuse`` and, at both hosts, ``part``."""
        self._wire(host, wiring.Wiring([], [f"qdisc del dev rail{rail} clsact"]))

    def split(self, rack: int, rail: int = 0) -> None:
        """Let nothing pass between a rack and the others, silently. For good."""
        self._wire("fabric", wiring.Wiring([f"link set up{rack}.{rail} nomaster"]))

    def refuse(self, host: str, source: str, rail: int = 0) -> None:
        """Let the host's firewall drop what would open a TCP connection from ``source`` to a port from 32768 up."""
        self._drop(host, "ingress", rail, *map(wiring.no_openings_from, self.addresses(source, rail)))

    def part(self, host: str, other: str, rail: int = 0) -> None:
        """Let two hosts not hear each other any more, silently; both still hear all others."""
        for here, there in ((host, other), (other, host)):
            self._drop(here, "ingress", rail, *map(wiring.nothing_from, self.addresses(there, rail)))

    def freeze(self, host: str) -> None:
        """Stop all processes of the host, which do not notice; its kernel goes on acknowledging what comes."""
        self._control(host, "cgroup.freeze", "1", "frozen 1")

    def thaw(self, host: str) -> None:
        """Undo ``freeze``."""
        self._control(host, "cgroup.freeze", "0", "frozen 0")

    def kill(self, host: str) -> None:
        """Kill all processes of the host, for good. Its kernel says goodbye: peers see their connections end."""
        self._control(host, "cgroup.kill", "1", "populated 0")
        (self.directory / f"{host}.pid").unlink()

    def power_off(self, host: str) -> None:
        """Kill the host as a power cut does: nobody hears of it."""
        for rail in range(len(self.shape.rails)):
            self.cut(host, rail)
        self.kill(host)

    def _drop(self, host: str, way: str, rail: int, *codes: str) -> None:
        lines = [f"qdisc add dev rail{rail} clsact"]
        for number, code in enumerate(codes, 1):
            lines.append(f'filter add dev rail{rail} {way} prio {number} bpf da bytecode "{code}"')
        self._wire(host, wiring.Wiring([], lines))

    def _port(self, host: str, rail: int) -> str:
        first_process(self.directory, host)  # raises if it is off
        return f"{host}.{rail}"

    def _control(self, host: str, file: str, value: str, event: str) -> None:
        """Write to a file of the host's cgroup and wait until the cgroup says that it happened."""
        first_process(self.directory, host)
        cgroup = self._cgroup / host
        (cgroup / file).write_text(value)
        events = cgroup / "cgroup.events"
        wait_until(lambda: event in events.read_text(), f"{host}: {file} {value} does not come to '{event}'")
