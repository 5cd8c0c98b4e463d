"""ddlrun in the pods of a Kubernetes Job: each runs the same ``ddlrun --launcher pods …``, and none needs ssh.

Pod 0 is the head: it runs the job as ``ClusterJob`` does elsewhere, but starts only its own agent, and waits until
those of the others call. Every other pod is such an agent. From the manifest of launchers/k8s.py they know pod 0's name
and port (``--head``) and the secret (DDL_SECRET). JOB_COMPLETION_INDEX, which Kubernetes sets, is the pod's number.
Other systems that give their processes the same may use this, too.

In an elastic job Kubernetes makes a new pod in place of one that has failed, and JOB_INDEX_FAILURE_COUNT says how many
failed before it. The new one calls pod 0 until the old one's connection is gone, and gets its place. The exit status
tells Kubernetes what to do: 0 is done, ``FINAL`` asks for no further pod, and after any other one a new pod comes.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from types import FrameType
from typing import MutableMapping, Optional, Tuple

from ddl import clock
from ddl.bootstrap.environ import Settings
from ddl.errors import ConfigError, RendezvousError
from ddl.launch.agent import remote
from ddl.launch.agent.control import Entrance, Invitation
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import Host
from ddl.launch.job.cluster_job import ClusterJob
from ddl.launch.job.elastic_cluster import ElasticClusterCourse
from ddl.launch.job.fixed_cluster import FixedClusterCourse
from ddl.launch.launchers import Start
from ddl.launch.launchers.k8s import FAILURES, FINAL
from ddl.net.address import format_address, parse_address, resolve
from ddl.net.auth import MINIMUM_SECRET
from ddl.store.watch import HostAgentClient

__all__ = ["NUMBER", "hosts", "run"]

NUMBER = "JOB_COMPLETION_INDEX"
_SECRET = "DDL_SECRET"
_PAUSE = 0.5  # seconds between two attempts; a name server is asked each time
_ATTEMPT = 10.0  # seconds after which the name is looked up again: it may have meant a pod of an earlier attempt


def hosts(head: str, count: int) -> Tuple[Host, ...]:
    """Return the pods as hosts, called as Kubernetes calls them: digits-0, digits-1, … for digits-0.digits:20170."""
    try:
        name = parse_address(head)[0].partition(".")[0]
    except ValueError as error:
        raise ConfigError(f"--head {head}: it must be the name and port of pod 0, as digits-0.digits:20170") from error
    prefix = name[:-2] if name.endswith("-0") else name
    return tuple(Host(f"{prefix}-{number}") for number in range(count))


def run(config: RunConfig, environ: MutableMapping[str, str]) -> int:
    """Be one pod of the job; return its exit status. The secret is taken out of ``environ``.

    Otherwise it would be among the variables that the head passes on, over connections that may not be encrypted.
    """
    placement = config.placement
    secret = _secret(environ.pop(_SECRET, ""))
    number = _number(environ.get(NUMBER, ""), len(placement.hosts))
    failures = _failures(environ.get(FAILURES, ""))
    if number > 0:
        settings = config.settings
        if config.elastic is None:
            return _attend(config.head, secret, number, settings)
        return _attend_elastic(config.head, secret, number, settings, failures)
    own = Start((0,), (sys.executable, "-m", "ddl.launch.agent.remote"), 0, True, placement.hosts[0])
    entrance = Entrance(parse_address(config.head)[1], secret)
    if config.elastic is None:
        return ClusterJob(config, placement, [own], entrance, course=FixedClusterCourse).run()
    if failures > 0:
        return _nothing_more(
            f"pod 0 has failed before ({FAILURES}={failures}), and the job has ended with it, so this pod does "
            "nothing. Ranks in other pods go on by themselves if they are a majority. To run the job again, delete it "
            "and apply its manifest anew"
        )
    return ClusterJob(config, placement, [own], entrance, course=ElasticClusterCourse).run()


def _nothing_more(why: str) -> int:
    print(f"ddlrun: {why}", file=sys.stderr)
    return FINAL


def _secret(text: str) -> bytes:
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < MINIMUM_SECRET:  # its value is not shown
        raise ConfigError(
            f"{_SECRET} {'is not set' if not text else 'does not hold a secret'}; --launcher pods needs the job's "
            f"secret there, the same in all pods, at least {2 * MINIMUM_SECRET} hexadecimal digits"
        )
    return secret


def _number(text: str, pods: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= pods:
        raise ConfigError(
            f"{NUMBER}={text!r}: it must be this pod's number, below --pods {pods}; Kubernetes sets it in the pods of "
            "an Indexed Job, whose completions must be as many. To make such a Job: ddlrun --launcher k8s --dry-run"
        )
    return int(text)


def _failures(text: str) -> int:
    if not text.isascii() or not (text or "0").isdigit():
        raise ConfigError(
            f"{FAILURES}={text!r}: it must say how many pods of this number have failed, as 0; Kubernetes writes that "
            "into the pods of a Job that has backoffLimitPerIndex (in the annotation job-index-failure-count)"
        )
    return int(text or "0")


def _attend_elastic(head: str, secret: bytes, number: int, settings: Settings, failures: int) -> int:
    """Be the agent of pod ``number``; say by the status whether another one makes sense after it."""
    try:
        status = _attend(head, secret, number, settings)
    except RendezvousError as error:
        if failures == 0:
            raise
        return _nothing_more(f"{error} Or has the job ended? Then there is nothing left to do")
    return FINAL if status == 1 else status  # 1: pod 0 had ended the job, or it cannot use this pod, as its log says


def _attend(head: str, secret: bytes, number: int, settings: Settings) -> int:
    """Be the agent of pod ``number``."""
    # The first process of a container ignores signals that it does not ask for. The ranks' agent will, later.
    signal.signal(signal.SIGTERM, _leave)
    with _call(head, secret, number, settings) as control:
        return remote.attend(control, secret)


def _leave(number: int, frame: Optional[FrameType]) -> None:
    sys.exit(128 + number)


def _call(head: str, secret: bytes, number: int, settings: Settings) -> HostAgentClient:
    """Connect to pod 0, which may start minutes later, and whose name is not known before.

    It may also refuse this pod for a while (ConfigError), as it has not seen yet that one with this number is gone.
    The ranks are given its address, not its name: hundreds of them at once would ask the name server.
    """
    name, port = parse_address(head)
    patience = settings.start_timeout
    deadline = clock.now() + patience
    while True:
        try:
            known = tuple(format_address(address, port) for address in resolve(name))
            attempt = max(0.1, min(_ATTEMPT, deadline - clock.now()))
            # Pods of a job are of one image: if this one can encrypt, pod 0 can.
            invitation = Invitation(secret, known, number, attempt, settings.encrypt, True, settings.openssl)
            return remote.call(invitation, number)
        except (socket.gaierror, RendezvousError, ConfigError) as error:
            if clock.now() + _PAUSE >= deadline:
                within = f"within {patience:g} s (--start-timeout)"
                if isinstance(error, ConfigError):
                    raise RendezvousError(f"pod 0 at {head} has not let this pod in {within}: {error}") from error
                raise RendezvousError(
                    f"pod 0 was not reached at {head} {within}: {error}; has it been started (kubectl get pods), and "
                    "is there a headless Service of that name for its pods?"
                ) from error
        time.sleep(_PAUSE)
