"""Jobs on two hosts, with ``ddlrun --encrypt`` and without: somebody who listens on the network between them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Set

import pytest

from lab import Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.slow]

#: Writes all that passes on an interface, but for ssh, into a file.
LISTEN = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire, open(sys.argv[1], "wb", 0) as file:
    wire.bind(("rail0", 0))
    print("listens", flush=True)
    while True:
        frame = wire.recv(1 << 16)
        if b"\\x00\\x16" not in (frame[34:36], frame[36:38]):  # the ports of TCP
            file.write(frame)
"""

#: Each rank says things of which nobody else is to know.
PROGRAM = """
import os, sys
import numpy as np
import ddl
ddl.init()
told = ddl.broadcast_object("-".join(["an", "object"]), root=1)
mark = np.frombuffer(b"-gradients-" * 4096, np.uint8)
gathered = ddl.allgather(mark)
assert (gathered.reshape(ddl.size(), -1) == mark).all()
print("printed".join("--"), told, flush=True)
"""

#: What it says, by what carries it: what ranks say to one another, and what ddlrun and its agents do.
BY_RANKS = {"data": b"-gradients-", "an object": b"an-object"}
BY_AGENTS = {"the output": b"-printed-", "an argument": b"the-argument", "a variable": b"the-variable"}


@contextlib.contextmanager
def listening(cluster: Cluster, host: str, path: Path) -> Iterator[None]:
    line = [sys.executable, "-c", LISTEN, str(path)]
    with cluster.popen(host, line, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "listens\n"
        try:
            yield
        finally:
            listener.send_signal(signal.SIGKILL)


def heard(cluster: Cluster, folder: Path, options: List[str], **variables: str) -> Set[str]:
    """Return what passed in clear between the hosts of a job."""
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables}
    line = [sys.executable, "-m", "ddl.launch", "-H", "node1:1,node2:1", "--env", "WORD=the-variable", *options]
    with listening(cluster, "node2", folder / "heard"):
        job = cluster.run(
            "node1", [*line, "program.py", "the-argument"], env=variables, cwd=folder, timeout=240, check=False
        )
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[0] -printed- an-object", "[1] -printed- an-object"], job.stderr
    everything = (folder / "heard").read_bytes()
    assert len(everything) > 50_000
    return {what for what, text in {**BY_RANKS, **BY_AGENTS}.items() if text in everything}


@pytest.mark.parametrize("options", [[], ["--min-np", "1"]], ids=["fixed", "elastic"])
def test_who_listens(cluster: Cluster, tmp_path: Path, options: List[str]) -> None:
    """He hears nothing of an encrypted job. Of any other one he hears no command, variables and output."""
    assert heard(cluster, tmp_path / "without OpenSSL", options, DDL_OPENSSL="/none") == {*BY_RANKS, *BY_AGENTS}
    assert heard(cluster, tmp_path / "plain", options) == {*BY_RANKS}
    assert heard(cluster, tmp_path / "encrypted", ["--encrypt", *options]) == set()
