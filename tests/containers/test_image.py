"""The image as docs/containers.md and docs/kubernetes.md use it: on one host, on two, as pods, and with an sshd.

Containers run without root, capabilities and a writable root. Two hosts are namespaces of ``lab``.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Iterator, List

import pytest
import yaml
from containers.podman import RESTRICTED, Podman
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime
from launch.manifests import Container, container_of

from ddl.launch.cli import parse
from ddl.launch.launchers import k8s
from lab import Cluster

ROOT = Path(__file__).resolve().parents[2]
SECRET = bytes(range(32)).hex()
TRAIN = "import ddl\nddl.init()\nprint(ddl.allreduce(float(ddl.rank() + 1), op=ddl.Sum), flush=True)\n"
PATIENCE = 240

#: The first test waits for a system and two images.
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def train(podman: Podman, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's image, made as the page says."""
    return with_program(podman, image, "train", tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def train_sshd(podman: Podman, sshd_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_program(podman, sshd_image, "train-sshd", tmp_path_factory.mktemp("train"))


def with_program(podman: Podman, image: str, name: str, folder: Path) -> str:
    (text,) = re.findall(r"```dockerfile\n(.*?)```", (ROOT / "docs/containers.md").read_text(), re.DOTALL)
    (folder / "Containerfile").write_text(text.replace("FROM ddl\n", f"FROM {image}\n"))
    (folder / "train.py").write_text(TRAIN)
    podman.build(folder / "Containerfile", folder, name)
    return name


def sums(size: int) -> List[str]:
    return [f"[{rank}] {size * (size + 1) / 2}" for rank in range(size)]


class Containers:
    """Containers on hosts of a cluster; they are ended with the test."""

    def __init__(self, podman: Podman, hosts: Cluster) -> None:
        self._podman, self._hosts = podman, hosts
        self._processes: List[subprocess.Popen[str]] = []

    def start(self, host: str, *words: str) -> subprocess.Popen[str]:
        """Run a container in the network of a host."""
        line = self._podman.words("run", "--rm", "--network=host", *RESTRICTED, *words)
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        process = self._hosts.popen(host, line, env=self._podman.environ, stdin=null, stdout=pipe, stderr=pipe)
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def containers(podman: Podman, hosts: Cluster) -> Iterator[Containers]:
    containers = Containers(podman, hosts)
    yield containers
    containers.end()


def ended_well(process: subprocess.Popen[str]) -> List[str]:
    """Return the lines of a container's output, sorted, when it has ended with status 0."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    return sorted(out.splitlines())


def test_it_begins_with_ddlrun_and_has_no_compiler(podman: Podman, image: str) -> None:
    assert podman.run("run", "--rm", image).startswith("usage: ddlrun -np N")
    looks = "id -u; pwd; command -v g++ gcc cc clang make cmake || echo none"
    assert podman.run("run", "--rm", "--entrypoint=sh", image, "-c", looks).split() == ["1000", "/home/ddl", "none"]


def test_ranks_in_one_container_as_the_page_says(podman: Podman, train: str) -> None:
    page = (ROOT / "docs/containers.md").read_text()
    commands = re.findall(r"^    docker (run --rm .*train -np 4 python train\.py)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert sorted(podman.run(*shlex.split(command)).splitlines()) == sums(4)


def test_two_hosts_without_ssh_as_the_page_says(podman: Podman, train: str, hosts: Cluster) -> None:
    page = (ROOT / "docs/containers.md").read_text().replace("\\\n", " ").replace("alpha:", "node1:")
    commands = re.findall(r"^    docker (run --rm --network host .*?) +# on (alpha|beta)$", page, re.MULTILINE)
    assert len(commands) == 2
    started = []
    for (command, name), host in zip(commands, hosts.hosts):
        assert (name, host) in (("alpha", "node1"), ("beta", "node2"))
        line = podman.words(*shlex.split(command))
        pipe = subprocess.PIPE
        started.append(hosts.popen(host, line, env={**podman.environ, "DDL_SECRET": SECRET}, stdout=pipe, stderr=pipe))
    assert [ended_well(process) for process in started] == [sums(8), []]


def pods_of(container: Container, image: str, containers: Containers, head: str) -> List[List[str]]:
    """Run two pods as Kubernetes would; return what each has printed. ``head``: the name of pod 0."""
    assert container.environ["DDL_SECRET"] == SECRET
    options = [f"--env={key}={value}" for key, value in container.environ.items()]
    options += [f"--add-host={head}:10.77.0.1", f"--entrypoint={container.command[0]}"]
    started = [
        containers.start(host, *options, f"--env=JOB_COMPLETION_INDEX={number}", image, *container.command[1:])
        for number, host in ((1, "node2"), (0, "node1"))
    ]
    return [ended_well(process) for process in started]


def test_the_pods_of_a_printed_manifest(containers: Containers, train: str) -> None:
    options = "--launcher k8s --dry-run -np 8 --pods 2 --job-name digits --image train python train.py".split()
    secret, *_, job = yaml.safe_load_all(k8s.manifest(parse(options, {}), bytes.fromhex(SECRET)))
    (text,) = job["spec"]["template"]["spec"]["containers"]
    container = container_of(text, {secret["metadata"]["name"]: secret["stringData"]})
    assert pods_of(container, train, containers, "digits-0.digits") == [[], sums(8)]


def test_a_train_job_of_kubeflow(containers: Containers, train: str) -> None:
    runtime, job = yaml.safe_load_all((ROOT / "containers/kubeflow.yaml").read_text())
    for model, text in ((TrainerV1alpha1TrainingRuntime, runtime), (TrainerV1alpha1TrainJob, job)):
        read = model.from_dict(text)
        assert read is not None and read.to_dict() == text  # a name that it does not know would be gone
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (text,) = node["template"]["spec"]["template"]["spec"]["containers"]
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] == 2 and text["name"] == node["name"] == "node"
    container = container_of({**text, **trainer}, {"ddl": {"secret": SECRET}})
    head = f"{job['metadata']['name']}-node-0-0.{job['metadata']['name']}"
    assert pods_of(container, train, containers, head) == [[], sums(8)]


def test_an_mpi_job_of_kubeflow(containers: Containers, hosts: Cluster, train_sshd: str, tmp_path: Path) -> None:
    """The operator mounts a key in all pods, and a hostfile in that of the launcher."""
    job = yaml.safe_load((ROOT / "containers/mpijob.yaml").read_text())
    key = tmp_path / "key"
    key.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key / "id_rsa")], check=True)
    (key / "authorized_keys").write_text((key / "id_rsa.pub").read_text())
    for path in key.iterdir():
        os.chown(path, 1000, 1000)
    (tmp_path / "hostfile").write_text(
        "".join(f"{host} slots={job['spec']['slotsPerWorker']}\n" for host in hosts.hosts)
    )
    mounts = [f"--volume={key}:{job['spec']['sshAuthMountPath']}:ro"]
    specs = {
        kind: job["spec"]["mpiReplicaSpecs"][kind]["template"]["spec"]["containers"][0]
        for kind in ("Launcher", "Worker")
    }
    for host in hosts.hosts:
        command = specs["Worker"]["command"]
        containers.start(host, *mounts, f"--entrypoint={command[0]}", train_sshd, *command[1:])
    port = str(specs["Worker"]["readinessProbe"]["tcpSocket"]["port"])
    for host in hosts.hosts:  # launcherCreationPolicy: WaitForWorkersReady
        ask = f"until bash -c '</dev/tcp/{host}/{port}' 2>/dev/null; do sleep 0.1; done"
        hosts.run("node1", ["sh", "-c", ask], timeout=PATIENCE)
    mounts += [f"--volume={tmp_path / 'hostfile'}:/etc/mpi/hostfile:ro"]
    command = specs["Launcher"]["command"]
    launcher = containers.start("node1", *mounts, f"--entrypoint={command[0]}", train_sshd, *command[1:])
    assert ended_well(launcher) == sums(8)


LEAVES_ORPHANS = """
import os, signal, subprocess, sys, time
def saved(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, saved)
subprocess.run(["sh", "-c", "sleep 0.1 &"])  # its child is an orphan, and ends soon
time.sleep(1)
processes = [pid for pid in os.listdir("/proc") if pid.isdigit()]
states = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] for pid in processes]
print("dead" if "Z" in states else "none", flush=True)
time.sleep(600)
"""


def test_it_is_a_first_process(podman: Podman, image: str) -> None:
    """It ends what ranks have left behind, and passes SIGTERM on."""
    program = ("-np", "1", "--grace", "20", "python", "-c", LEAVES_ORPHANS)
    line = podman.words("run", "--rm", "--name=first", *RESTRICTED, image, *program)
    environ = {**os.environ, **podman.environ}
    with subprocess.Popen(line, env=environ, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "[0] none\n"
        podman.run("stop", "--time=40", "first")
        assert running.stdout.read() == "[0] saved\n"
    assert running.returncode == 128 + signal.SIGTERM
