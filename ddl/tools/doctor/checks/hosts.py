"""Checks what a host gives its ranks: descriptors, locked and shared memory, processors, and a container's rights."""

from __future__ import annotations

from typing import Iterator, List, Tuple

from ddl.tools.doctor.checks.verdict import ERROR, OK, WARNING, Verdict, each_host
from ddl.tools.doctor.facts import Facts, HostFacts, Local
from ddl.tools.doctor.phrases import bytes_text

__all__ = ["CHECKS", "descriptors_needed"]

_FEW_DESCRIPTORS = 1024
_SMALL_SHM = 256 << 20  # bytes: data loaders with workers soon need more
_Problems = Iterator[Tuple[str, str, str]]


def descriptors_needed(size: int, connections: int) -> int:
    """Return what a rank of a job opens: to each other rank a connection for small messages and some for large ones."""
    return 64 + (size - 1) * (connections + 1)


def descriptors(facts: Facts) -> List[Verdict]:
    needed = descriptors_needed(facts.size, facts.connections)

    def problems(host: HostFacts, local: Local) -> _Problems:
        if local.descriptors < 0:
            return
        wanted = max(needed, _FEW_DESCRIPTORS)
        remedy = f"'ulimit -n {wanted}' before ddlrun, and in the shell that ssh starts"
        if 0 <= local.descriptors_hard < wanted:
            remedy = (
                f"raise it: LimitNOFILE={wanted} for sshd (systemd), 'nofile {wanted}' in /etc/security/limits.conf, "
                f"or docker run --ulimit nofile={wanted}"
            )
        if local.descriptors < needed:
            text = f"a rank may open {local.descriptors} files, but {facts.size} ranks need about {needed} connections"
            yield ERROR, text, remedy
        elif local.descriptors < _FEW_DESCRIPTORS:
            yield WARNING, f"a rank may open only {local.descriptors} files; data loaders need many", remedy

    return each_host(facts, "descriptors", f"enough for the {needed} files that a rank opens", problems)


def memlock(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> _Problems:
        if any(gpu.registering for gpu in local.gpus.usable) and local.pinning == "the GPU":
            return  # it has locked memory just now
        if local.pinning and local.memlock >= 0:
            text = f"only {bytes_text(local.memlock)} of memory may be locked, and {local.pinning} locks what it uses"
            remedy = "'memlock unlimited' in /etc/security/limits.conf, LimitMEMLOCK=infinity for sshd and slurmd, or "
            yield WARNING, text, remedy + "docker run --ulimit memlock=-1"

    return each_host(facts, "memlock", "as much memory may be locked as is needed", problems)


def shm(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> _Problems:
        remedy = "docker run --shm-size=8g, an emptyDir of medium Memory in Kubernetes, or mount -o remount,size=8g"
        if local.shm == 0:
            yield WARNING, "there is no /dev/shm; DDL does without, but data loaders with workers do not", remedy
        elif local.shm < _SMALL_SHM:
            yield WARNING, f"/dev/shm has {bytes_text(local.shm)}, which data loaders with workers soon fill", remedy

    return each_host(facts, "shm", "/dev/shm is large enough for data loaders", problems)


def memfd(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> _Problems:
        if local.memfd_problem:
            remedy = "allow memfd_create, mmap and Unix sockets: in a container, a seccomp profile that has them"
            yield ERROR, f"processes cannot share memory: {local.memfd_problem}", remedy

    return each_host(facts, "memfd", "memory passes from process to process", problems)


def sharing(facts: Facts) -> List[Verdict]:
    """What the ranks of a host proved to one another, as a job's ranks do."""
    if facts.groups is None:
        problem = facts.groups_problem
        remedy = "mend what else is found; without the native core on every host there is no job"
        concerned = tuple(host.name for host in facts.hosts if host.local is not None)
        return [Verdict(ERROR, "sharing", concerned, f"ranks did not meet: {problem}", remedy)] if problem else []
    verdicts = []
    for host in facts.hosts:
        groups = [group for group in facts.groups if set(group) & set(host.ranks)]
        if host.local is None or len(host.ranks) < 2:
            continue
        if len(groups) == 1:
            verdicts.append(Verdict(OK, "sharing", (host.name,), "the ranks of a host share memory: proved"))
        else:
            text = f"its {len(host.ranks)} ranks are in {len(groups)} groups that share no memory, and use TCP instead"
            remedy = "run them in one container, with one network namespace, and without DDL_SHM=0"
            verdicts.append(Verdict(WARNING, "sharing", (host.name,), text, remedy))
    return verdicts


def cpus(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> _Problems:
        ranks, usable = len(host.ranks), local.usable
        remedy = (
            "start fewer ranks, or let them have more cores: taskset, --cpu-bind of srun, --bind-to none of mpiexec"
        )
        if usable == 1 < local.cores:
            yield WARNING, f"all {ranks} ranks are bound to one of {local.cores} cores", remedy
        elif usable < ranks:
            yield WARNING, f"{ranks} ranks take turns on {usable} of {local.cores} cores", remedy
        if 0 < local.quota < ranks:
            limit = "raise the limit: docker run --cpus, resources.limits.cpu in Kubernetes, cpu.max of the cgroup"
            yield WARNING, f"{ranks} ranks get the time of {local.quota:g} cores by their cgroup", limit
        if host.threads > 1:
            yield OK, f"there is a core for every rank, and {host.threads} for large operations of each", ""

    return each_host(facts, "cpus", "there is a core for every rank", problems)


def container(facts: Facts) -> List[Verdict]:
    def problems(host: HostFacts, local: Local) -> _Problems:
        if local.refused:
            text = f"{' and '.join(local.refused)} is refused" + (f" ({local.container})" if local.container else "")
            remedy = "allow it in the container's seccomp profile, or try docker run --security-opt seccomp=unconfined"
            yield WARNING, text, remedy

    return each_host(facts, "container", "nothing that DDL asks of the kernel is refused", problems)


def encryption(facts: Facts) -> List[Verdict]:
    """Whether jobs may have ``--encrypt``; the others do not need it, so its lack is no trouble."""

    def problems(host: HostFacts, local: Local) -> _Problems:
        if local.encryption_problem:
            yield OK, f"no job can use --encrypt: {local.encryption_problem}", ""

    return each_host(facts, "encryption", "jobs can be encrypted (ddlrun --encrypt)", problems)


CHECKS = (descriptors, memlock, shm, memfd, sharing, cpus, container, encryption)
