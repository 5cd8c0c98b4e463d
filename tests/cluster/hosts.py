"""A cluster on a desk: hosts, racks and rails made of this machine's namespaces, gone when their builder is gone.

A host has its own network, host name, mounts (/dev/shm, /run), IPC, process ids and sshd; files and processors are
shared. The racks' bridges live in one more network, the fabric, so nothing appears among the machine's own interfaces.
All hosts are in one process namespace, whose first process (keeper.sh) waits for the builder's end of a pipe to
close. So there is one way down, whether the builder calls ``close()``, ends or is killed: the keeper kills the hosts
and removes cgroups and files. If the keeper itself is killed, the kernel kills its hosts, and the next build
removes the rest. For people there is desk.py beside this file; what hosts share and what not: docs/cluster.md.
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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

PATIENCE = 20.0  #: seconds for what takes milliseconds, before it counts as failed
Where = Union[None, str, Path]  #: a working directory; None: this process's
Stream = Union[None, int, IO[str]]  #: as subprocess takes it
_HERE = Path(__file__).resolve().parent
_PREFIX = "ddl-desk-"  #: of the names of temporary directory and cgroup, which are the same
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  #: a user's may lack the place of sshd and tc
_PACKAGES = {  #: Debian's, by program
    **dict.fromkeys(["unshare", "nsenter", "setpriv"], "util-linux"),
    **dict.fromkeys(["ip", "tc"], "iproute2"),
    **dict.fromkeys(["ssh", "ssh-keygen"], "openssh-client"),
    "sshd": "openssh-server",
}


class ClusterError(RuntimeError):
    """The cluster could not do what was asked; the message says what, on which host, and what was printed."""


@dataclass(frozen=True)
class Shape:
    """What to build. Rates are in bits per second, for each direction; None: as fast as it goes."""

    hosts: int
    racks: int = 1  #: hosts are dealt to them in blocks; each has a bridge per rail
    slots: int = 1  #: ranks meant for each host
    rails: Tuple[Optional[int], ...] = (None,)  #: the rates of a host's interfaces rail0, rail1, …
    uplink: Optional[int] = None  #: the rate between a rack and all others, on each rail

    def __post_init__(self) -> None:
        rates = [rate for rate in (*self.rails, self.uplink) if rate is not None]
        if not (1 <= self.racks <= self.hosts <= 99 and self.slots >= 1 and self.rails and all(r > 0 for r in rates)):
            raise ValueError(f"{self} should have 1 to 99 hosts, 1 to that many racks, slots, rails, positive rates")

    def rack(self, host: int) -> int:
        """Return the rack of host 0, 1, …"""
        return host * self.racks // self.hosts


def burst_bytes(rate: int) -> int:
    """Return what passes at once where ``rate`` bits per second do: 1 ms keeps TCP near the rate, without much more."""
    return max(64 << 10, rate // 8000)


TWO_HOSTS = Shape(2)
FOUR_HOSTS = Shape(4, slots=2)
TWO_RACKS = Shape(4, racks=2, slots=2, rails=(10**9,), uplink=10**9 // 4)
TWO_RAILS = Shape(2, rails=(10**9, 10**9 // 4))


class Cluster:
    """Hosts ``node1``, ``node2``, … while the ``with`` block lasts. Several clusters do not meet each other.

    ``node2`` has the address 10.77.R.2 on its interface ``railR``; ``node2`` means rail 0, ``node2-rail1`` rail 1.
    """

    def __init__(self, shape: Shape = TWO_HOSTS) -> None:
        self.shape = shape
        self.hosts = tuple(f"node{number + 1}" for number in range(shape.hosts))
        self._keeper: Optional[subprocess.Popen[bytes]] = None
        self._lock = -1

    # --- up and down ---

    def __enter__(self) -> Cluster:
        reason = why_not()
        if reason is not None:
            raise ClusterError(f"no cluster can be built here: {reason}")
        _remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._cgroup = _cgroups() / self.directory.name
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
        _remove_leftovers()

    def _start_hosts(self) -> None:
        desk, cgroup = self.directory, self._cgroup
        sshd = shutil.which("sshd", path=_PATH) or "sshd"  # wants to be called by its full path
        variables = {"PATH": _PATH, "DESK": str(desk), "CGROUP": str(cgroup), "SSHD": sshd}
        with (desk / "log").open("w") as log:
            self._write_files()
            for directory in (desk / "cgroup", cgroup, *(cgroup / host for host in self.hosts)):
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
        _wait_until(self._started, f"{desk}: the hosts do not start")
        # The outside has no address in the fabric: for each of its connections an sshd is started in the host.
        with self.ssh_config.open("w") as config:
            for host in self.hosts:
                line = self.command(host, [sshd, "-i", "-f", f"{desk}/sshd_config"], cwd="/")
                config.write(f"Host {host}\n  ProxyCommand {shlex.join(line)}\n")
            config.write((desk / "ssh_config.inside").read_text())

    def _write_files(self) -> None:
        """What keeper.sh and host.sh find in $DESK."""
        desk, names = self.directory, ["127.0.0.1 localhost"]
        for host in self.hosts:
            names += [f"{self.address(host)} {host}"]
            names += [f"{self.address(host, rail)} {host}-rail{rail}" for rail in range(len(self.shape.rails))]
        (desk / "hosts").write_text("\n".join(names) + "\n")
        _checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", desk.name, "-f", str(desk / "key")])
        (desk / "known_hosts").write_text("* " + (desk / "key.pub").read_text())
        for template, target in (("sshd_config", "sshd_config"), ("ssh_config", "ssh_config.inside")):
            (desk / target).write_text((_HERE / template).read_text().replace("DESK", str(desk)))

    def _started(self) -> bool:
        desk = self.directory
        assert self._keeper is not None
        if self._keeper.poll() is not None or (desk / "failed").exists():
            raise ClusterError(f"the hosts did not start: {(desk / 'log').read_text().strip()}")
        pids = [desk / f"{name}.pid" for name in ("fabric", *self.hosts)]
        return all(pid.exists() and pid.read_text().endswith("\n") for pid in pids)

    def _connect_hosts(self) -> None:
        shape, links = self.shape, ["link set lo up"]
        shaped: List[Tuple[str, Optional[int]]] = []  # interfaces of the fabric, which limit what they send
        for rail, rate in enumerate(shape.rails):
            for bridge in [f"rack{rack}.{rail}" for rack in range(shape.racks)] + [f"core.{rail}"]:
                links += [f"link add {bridge} type bridge stp_state 0 forward_delay 0", f"link set {bridge} up"]
            for rack in range(shape.racks):
                up, down = f"up{rack}.{rail}", f"down{rack}.{rail}"
                links += [f"link add {up} type veth peer name {down}", f"link set {down} master core.{rail} up"]
                links += [f"link set {up} master rack{rack}.{rail} up"]
                shaped += [(up, shape.uplink), (down, shape.uplink)]
            for number, host in enumerate(self.hosts):
                port = f"{host}.{rail}"
                links += [f"link add {port} type veth peer name rail{rail} netns {_pid(self.directory, host)}"]
                links += [f"link set {port} master rack{shape.rack(number)}.{rail} up"]
                shaped += [(port, rate)]
        self._batch("fabric", links, shaped)
        for host in self.hosts:
            rails = [(f"rail{rail}", rate) for rail, rate in enumerate(shape.rails)]
            addresses = [f"addr add {self.address(host, n)}/24 dev {name}" for n, (name, _) in enumerate(rails)]
            self._batch(host, [*addresses, *(f"link set {name} up" for name, _ in rails)], rails)

    def _batch(self, where: str, links: Sequence[str], shaped: Sequence[Tuple[str, Optional[int]]] = ()) -> None:
        """Give lines to ``ip`` in the network of a host or of the fabric; ``tc`` shapes what interfaces send."""
        limits = [
            f"qdisc add dev {name} root tbf rate {rate}bit burst {burst_bytes(rate)} latency 20ms"
            for name, rate in shaped
            if rate is not None
        ]
        for tool, lines in (("ip", links), ("tc", limits)):
            if lines:
                enter = ["nsenter", "-t", _pid(self.directory, where), "-n", "--", tool, "-batch", "-"]
                _checked(enter, "\n".join(lines) + "\n")

    # --- use ---

    def address(self, host: str, rail: int = 0) -> str:
        return f"10.77.{rail}.{self.hosts.index(host) + 1}"

    @property
    def ssh_config(self) -> Path:
        """For the outside: ``ssh -F …/ssh_config node1``. Inside of a host plain ``ssh node1`` works."""
        return self.directory / "ssh_config"

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
        self._batch("fabric", [f"link set {self._port(host, rail)} nomaster"])

    def mend(self, host: str, rail: int = 0) -> None:
        """Undo ``cut``."""
        rack = self.shape.rack(self.hosts.index(host))
        self._batch("fabric", [f"link set {self._port(host, rail)} master rack{rack}.{rail}"])

    def link_down(self, host: str, rail: int = 0) -> None:
        """Switch the rack's port off: the host's interface loses its carrier."""
        self._batch("fabric", [f"link set {self._port(host, rail)} down"])

    def link_up(self, host: str, rail: int = 0) -> None:
        """Undo ``link_down``."""
        self._batch("fabric", [f"link set {self._port(host, rail)} up"])

    def refuse(self, host: str, source: str, rail: int = 0) -> None:
        """Let the host's firewall drop what would open a TCP connection from ``source`` to a port from 32768 up.

        A classifier in classic BPF, as there is no nftables in every kernel: IP, TCP, SYN without ACK, source, port.
        """
        number = int.from_bytes(bytes(map(int, self.address(source, rail).split("."))), "big")
        ip_and_tcp = "40 0 0 12,21 0 9 2048,48 0 0 23,21 0 7 6"
        opens, comes_from = "48 0 0 47,84 0 0 18,21 0 4 2", f"32 0 0 26,21 0 2 {number}"
        high_port, drop = "40 0 0 36,53 1 0 32768", "6 0 0 4294967295,6 0 0 2"
        code = f"13,{ip_and_tcp},{opens},{comes_from},{high_port},{drop}"
        self.run(host, ["tc", "qdisc", "add", "dev", f"rail{rail}", "clsact"])
        rule = ["filter", "add", "dev", f"rail{rail}", "ingress", "bpf", "da", "bytecode", code]
        self.run(host, ["tc", *rule])

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

    def _port(self, host: str, rail: int) -> str:
        _pid(self.directory, host)  # raises if it is off
        return f"{host}.{rail}"

    def _control(self, host: str, file: str, value: str, event: str) -> None:
        """Write to a file of the host's cgroup and wait until the cgroup says that it happened."""
        _pid(self.directory, host)
        cgroup = self._cgroup / host
        (cgroup / file).write_text(value)
        events = cgroup / "cgroup.events"
        _wait_until(lambda: event in events.read_text(), f"{host}: {file} {value} does not come to '{event}'")


def why_not() -> Optional[str]:
    """Return why no cluster can be built here and what to do about it, or None if one can."""
    if os.geteuid() != 0:
        return "hosts are namespaces, which only root may make: run it as root"
    missing = [program for program in _PACKAGES if shutil.which(program, path=_PATH) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[program] for program in missing}))
        return f"no {', '.join(missing)} on this machine: apt-get install {packages}"
    trial = _cgroups() / f"{_PREFIX}trial-{os.getpid()}"
    try:
        _checked(["unshare", "-n", "-m", "-u", "-i", "-p", "-f", "mount", "-t", "proc", "proc", "/proc"])
        trial.mkdir()
        able = (trial / "cgroup.kill").exists()
        trial.rmdir()
    except (ClusterError, OSError) as error:
        return f"root may not make namespaces or cgroups (version 2) here, as in an unprivileged container: {error}"
    return None if able else "this kernel's cgroups have no cgroup.kill: Linux 5.14 or later is needed"


def _cgroups() -> Path:
    """Where cgroup version 2 is mounted; some machines have it beside version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"), Path("/no cgroup2 is mounted"))


def _checked(command: Sequence[str], given: str = "") -> None:
    environ = {**os.environ, "PATH": _PATH}
    ended = subprocess.run(command, input=given, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    if ended.returncode != 0:
        raise ClusterError(f"{shlex.join(command)}: {(ended.stderr or ended.stdout).strip()}")


def _wait_until(done: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise ClusterError(f"{complaint} (waited {PATIENCE} s)")
        time.sleep(0.005)


def _pid(desk: Path, host: str) -> str:
    """The first process of a host or of the fabric, by its id out here."""
    try:
        return (desk / f"{host}.pid").read_text().strip()
    except FileNotFoundError:
        raise ClusterError(f"{host} is off, or no host of {desk}") from None


def entering(desk: Path, host: str, program: Sequence[str], cwd: Where = None) -> List[str]:
    """A command line that enters the host's namespaces, and then its cgroup, to be frozen and killed with it.

    nsenter itself stays outside: it must live to reap what it started, or else the kernel could not end the host. It
    passes no signal on; so the kernel shall kill what it started when nsenter is killed.
    """
    enter = ["nsenter", "-t", _pid(desk, host), "-n", "-m", "-u", "-i", "-p", f"--wdns={os.path.abspath(cwd or '.')}"]
    join = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(_cgroups() / desk.name / host / "cgroup.procs")]
    return [*enter, "--", "setpriv", "--pdeathsig", "KILL", *join, *program]


def desks() -> Iterator[Tuple[Path, bool]]:
    """All clusters' directories, and whether a builder or keeper lives, which share a lock that dies with the last."""
    for log in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/log")):  # the log is made after the lock
        with contextlib.suppress(FileNotFoundError):  # its keeper has just removed it
            lock = os.open(log.parent, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield log.parent, False
            except BlockingIOError:
                yield log.parent, True
            finally:
                os.close(lock)


def _remove_leftovers() -> None:
    """Remove what a killed keeper could not; what is still busy dying stays for the next build."""
    for desk, alive in desks():
        cgroup = _cgroups() / desk.name
        if not alive:
            with contextlib.suppress(OSError):
                for directory in (*cgroup.glob("*/"), cgroup):
                    if directory.exists():
                        directory.rmdir()
                shutil.rmtree(desk)
