"""What other launchers say, and how ranks find one another without ddlrun. The launchers themselves: tests/launch."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Dict

import pytest
from ports import held_port

from ddl.bootstrap import launched
from ddl.bootstrap.environ import Identity
from ddl.bootstrap.launched import detect, numbered
from ddl.bootstrap.meeting import Launched, _first_that_answers
from ddl.errors import ConfigError, RendezvousError
from ddl.store.server import StoreServer
from ddl.store.watch import WatchClient

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-17@1",
}
SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "identity"),
    [
        (TORCHRUN, Launched("torchrun", 3, 4, 1, 2, 1, 2, "none-0-a-29500")),
        (OPENMPI, Launched("Open MPI's mpiexec", 1, 4, 0, 2, 0, 0, "prterun-a-17@1")),
        (SRUN, Launched("srun", 2, 3, 0, 1, 1, 2, "7-0-0")),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x1),1"}, Launched("srun", 2, 3, 0, 1, 1, 2, "7-0-0")),
        ({**SRUN, **OPENMPI}, Launched("Open MPI's mpiexec", 1, 4, 0, 2, 0, 0, "prterun-a-17@1")),
        (MPICH, Launched("MPICH's mpiexec", 1, 2, 1, 2, 0, 0, "")),
        ({}, None),
        ({"WORLD_SIZE": "4"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, None),  # the script of sbatch itself
        ({"PMI_RANK": "0"}, None),
    ],
)
def test_what_launchers_say(environ: Dict[str, str], identity: Launched) -> None:
    assert detect(environ) == identity


@pytest.mark.parametrize(
    ("environ", "match"),
    [
        (
            {**OPENMPI, "OMPI_COMM_WORLD_SIZE": "four"},
            "Open MPI's mpiexec had started this, but .*'four' is missing or no",
        ),
        ({key: value for key, value in SRUN.items() if key != "SLURM_NODEID"}, "'SLURM_NODEID' is missing"),
        ({**TORCHRUN, "RANK": "4"}, "torchrun says that this is rank 4 of 4"),
    ],
)
def test_what_makes_no_sense(environ: Dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        detect(environ)


def test_hosts_are_numbered_where_nobody_said() -> None:
    identity = Identity(2, 4, 0, 2, 0, 0, "a:1", bytes(32))
    assert numbered(identity, ["x", "x", "y", "y"]).cross_rank == 1
    assert numbered(identity, ["x", "x", "y", "y"]).cross_size == 2
    told = Identity(2, 4, 0, 2, 1, 2, "a:1", bytes(32))
    assert numbered(told, ["x"] * 4) is told


def rank(number: int) -> Launched:
    return Launched("a launcher", number, 2, number, 2, 0, 1, "job")


def test_the_file_is_for_this_user_alone_and_an_old_one_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "job.json"
    path.parent.mkdir()
    got = []
    reader = threading.Thread(target=lambda: got.append(launched._by_file(path, None, rank(1), 60)))
    with held_port() as gone, socket.create_server(("127.0.0.1", 0)) as alive:
        path.write_text(json.dumps({"secret": "00", "addresses": [f"127.0.0.1:{gone}"]}))
        reader.start()
        time.sleep(0.2)
        assert not got
        new = json.dumps({"secret": "11", "addresses": [f"127.0.0.1:{alive.getsockname()[1]}"]})
        assert launched._by_file(path, new, rank(0), 60) == new
        reader.join(100)
    assert got == [new]
    assert os.stat(path).st_mode & 0o777 == 0o600 and [entry.name for entry in path.parent.iterdir()] == ["job.json"]


def test_hosts_that_share_no_directory(tmp_path: Path) -> None:
    with pytest.raises(
        RendezvousError, match=r"rank 1 of 2: rank 0 has not written .*set DDL_RENDEZVOUS_DIR, or start"
    ):
        launched._by_file(tmp_path / "job.json", None, rank(1), 0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: .* a launcher started"):
        launched._by_file(tmp_path / "file" / "job.json", "{}", rank(0), 0.1)


def test_rank_0_that_cannot_be_reached_is_said_with_its_addresses() -> None:
    with held_port() as port:
        text = f"rank 1 cannot reach the job's store at 127.0.0.1:{port}.*DDL_INTERFACE"
        with pytest.raises(RendezvousError, match=text):
            _first_that_answers([f"127.0.0.1:{port}"], rank(1))


def wait_for_a_rank(server: StoreServer) -> None:
    deadline = time.monotonic() + 60
    while not server._verdict.present and time.monotonic() < deadline:
        time.sleep(0.01)


def test_the_store_stays_until_the_last_rank_has_left() -> None:
    server = StoreServer(bytes(32), 2)
    other = WatchClient(server.address, bytes(32), 1, 60)
    wait_for_a_rank(server)
    closing = threading.Thread(target=server.close_when_alone, args=(1000,))
    closing.start()
    time.sleep(0.2)
    assert closing.is_alive()
    other.send({"type": "bye"})
    closing.join(100)
    assert not closing.is_alive()
    other.close()
    lonely = StoreServer(bytes(32), 2)
    with WatchClient(lonely.address, bytes(32), 1, 60):
        wait_for_a_rank(lonely)
        begin = time.monotonic()
        lonely.close_when_alone(0.1)
        assert time.monotonic() - begin > 0.05
