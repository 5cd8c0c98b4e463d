"""A real Slurm on a cluster of lab: slurmctld on node1, slurmd on every host, gone with the cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, Optional

from lab import PATIENCE, Cluster, ClusterError

__all__ = ["slurm", "why_no_slurm"]

# No munge: who is who is not what is tested. Nothing of the machine's cgroups is touched.
_CONFIG = """
ClusterName=lab
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
KillWait=5
NodeName={nodes} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def why_no_slurm() -> Optional[str]:
    """Return which program is missing, None if all are there."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for program, package in (("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("srun", "slurm-client")):
        if shutil.which(program, path=path) is None:
            return f"there is no {program}; on Debian: apt install {package}"
    return None


@contextlib.contextmanager
def slurm(cluster: Cluster) -> Iterator[Dict[str, str]]:
    """Run Slurm on ``cluster``; the environment variables by which its commands find it. ClusterError if it fails."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=cluster.directory))
    for name in ("state", *(f"spool.{host}" for host in cluster.hosts)):
        (folder / name).mkdir()
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(folder=folder, nodes=",".join(cluster.hosts)))
    environ = {"SLURM_CONF": str(config), "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
    null = subprocess.DEVNULL
    with contextlib.ExitStack() as stack:
        for host, line in [
            ("node1", ["slurmctld", "-D"]),
            *((host, ["slurmd", "-D", "-N", host]) for host in cluster.hosts),
        ]:
            log = stack.enter_context(open(folder / f"{line[0]}.{host}.out", "w", encoding="utf-8"))
            process = cluster.popen(host, line, env=environ, stdin=null, stdout=log, stderr=log)
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.kill)
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = cluster.run("node1", ["sinfo", "-h", "-o", "%t %D"], env=environ, check=False)
            if seen.stdout.split() == ["idle", str(len(cluster.hosts))]:
                break
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-500:] for path in sorted(folder.glob("*.log")))
                raise ClusterError(f"Slurm has not come up: sinfo says {seen.stdout}{seen.stderr}\n{logs}")
            time.sleep(0.1)
        yield environ
