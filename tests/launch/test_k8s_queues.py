"""Kueue, Volcano, Kubeflow Trainer and the MPI Operator: their manifests, and the pods of a TrainJob as processes.

Kueue takes a label, and Volcano a PodGroup; no package of PyPI has a schema of the latter, so its fields stand here as
Volcano's definition has them. Trainer's and JobSet's models are Kubeflow's own (kubeflow-trainer-api). What Trainer
makes of a TrainJob is ``job_set_of``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime
from kubernetes_validate.utils import all_versions
from launch.elastic_pods import TRAINING, ElasticPods, read_until
from launch.launcher import ROOT, Launcher, outputs_of
from launch.manifests import job_set_of
from launch.pods import Pods

from ddl.launch.agent.elastic_agent import RENEWED
from ddl.launch.cli import parse
from ddl.launch.launchers import k8s
from ddl.launch.launchers.yaml import document

LEAST = ("--launcher", "k8s", "--dry-run", "--image", "x", "--pods", "3", "--job-name", "digits", "--namespace", "lab")
KUEUE, GROUP = "kueue.x-k8s.io/queue-name", "scheduling.k8s.io/group-name"
NEWEST = all_versions()[-1]
MANIFESTS = Path(ROOT) / "containers"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "ddl"},
    "stringData": {"secret": bytes(range(32)).hex()},
}
ALLREDUCE = "import ddl\nddl.init()\nprint(ddl.allreduce(float(ddl.rank() + 1), op=ddl.Sum))\n"


def documents(*options: str) -> List[Dict[str, Any]]:
    return list(yaml.safe_load_all(k8s.manifest(parse([*LEAST, *options, "python", "train.py"], {}), bytes(range(32)))))


def validated(job_set: Dict[str, Any]) -> Dict[str, Any]:
    """Return a JobSet's Job. Both fit the schemas: of JobSet, and of Kubernetes."""
    model = JobsetV1alpha2JobSet.from_dict(job_set)
    assert model is not None and model.to_dict() == job_set  # a name that it does not know would be gone
    (template,) = job_set["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": template["template"]["spec"]}
    kubernetes_validate.validate(job, NEWEST, strict=True)
    return job


# --- queues ---


@pytest.mark.parametrize("elastic", [(), ("--elastic",)], ids=["fixed", "elastic"])
@pytest.mark.parametrize("kind", k8s.KINDS)
def test_kueue_reads_a_label(kind: str, elastic: Tuple[str, ...]) -> None:
    *others, whole = documents("--kind", kind, "--queue", "team-a", *elastic)
    assert whole["metadata"]["labels"].pop(KUEUE) == "team-a" and KUEUE not in str(others)
    assert [*others, whole] == documents("--kind", kind, *elastic)  # and nothing else
    whole["metadata"]["labels"][KUEUE] = "team-a"
    if kind == "jobset":
        validated(whole)
    else:
        kubernetes_validate.validate(whole, NEWEST, strict=True)


@pytest.mark.parametrize("options", [(), ("--elastic",), ("--queue", "team-a")], ids=["fixed", "elastic", "queue"])
@pytest.mark.parametrize("kind", k8s.KINDS)
def test_volcano_reads_a_group_that_the_pods_name(kind: str, options: Tuple[str, ...]) -> None:
    _, group, *_, whole = documents("--kind", kind, "--scheduler", "volcano", *options)
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["spec"] == {"minMember": 3, **({"queue": "team-a"} if "--queue" in options else {})}
    assert (group["metadata"]["name"], group["metadata"]["namespace"]) == ("digits", "lab")
    if kind == "jobset":
        job = validated(whole)
    else:
        kubernetes_validate.validate(whole, NEWEST, strict=True)
        job = whole
    template = job["spec"]["template"]
    assert template["spec"]["schedulerName"] == "volcano" and template["metadata"]["annotations"] == {GROUP: "digits"}
    assert KUEUE not in str(whole)  # the queue is Volcano's


def test_the_comment_deletes_the_group_too() -> None:
    text = k8s.manifest(parse([*LEAST, "--scheduler", "volcano", "true"], {}), bytes(32))
    assert "kubectl delete job,service,podgroups.scheduling.volcano.sh,secret -n lab -l app." in text


# --- Kubeflow ---


def of_trainer(name: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    runtime, train_job = yaml.safe_load_all((MANIFESTS / name).read_text())
    return runtime, train_job


def check_models(runtime: Dict[str, Any], train_job: Dict[str, Any]) -> None:
    for model, text in ((TrainerV1alpha1TrainingRuntime, runtime), (TrainerV1alpha1TrainJob, train_job)):
        read = model.from_dict(text)
        assert read is not None and read.to_dict() == text


@pytest.mark.parametrize("name", ["kubeflow.yaml", "kubeflow-elastic.yaml"])
def test_a_train_job_fits_the_schemas(name: str) -> None:
    runtime, train_job = of_trainer(name)
    check_models(runtime, train_job)
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 1}  # the plain policy: neither torch's nor MPI's
    job = validated(job_set_of(runtime, train_job))
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (2, "Indexed")


def test_a_train_job_in_queues() -> None:
    """What docs/kubernetes.md says to add."""
    runtime, train_job = of_trainer("kubeflow.yaml")
    train_job["metadata"]["labels"] = {KUEUE: "team-a"}
    runtime["spec"]["podGroupPolicy"] = {"volcano": {}}
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    node["template"]["spec"]["template"]["spec"]["schedulerName"] = "volcano"
    check_models(runtime, train_job)
    validated(job_set_of(runtime, train_job))


def test_the_elastic_runtime_is_what_ddlrun_prints() -> None:
    job = job_set_of(*of_trainer("kubeflow-elastic.yaml"))["spec"]["replicatedJobs"][0]["template"]["spec"]
    printed = documents("--min-np", "2", "--kind", "jobset")[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    for name in ("completionMode", "backoffLimitPerIndex", "successPolicy"):
        assert job[name] == printed[name]
    assert str(job["podFailurePolicy"]) == str(printed["podFailurePolicy"]).replace("ddlrun", "node")
    counts = [
        next(entry for entry in spec["template"]["spec"]["containers"][0]["env"] if entry["name"] == k8s.FAILURES)
        for spec in (job, printed)
    ]
    assert counts[0] == counts[1]


def manifest_of(name: str, ranks: int, pods: int, program: List[str], *options: str) -> str:
    """Return the JobSet of a manifest, with the Secret that its comment makes, for another program and size."""
    runtime, train_job = of_trainer(name)
    trainer = train_job["spec"]["trainer"]
    end = trainer["command"].index("python")
    words = [*trainer["command"][:end], *options, *program]
    assert words[:3] == ["ddlrun", "-np", "8"] and words[3:5] == ["--pods", "2"]
    trainer.update(command=["ddlrun", "-np", str(ranks), "--pods", str(pods), *words[5:]], numNodes=pods)
    return "---\n".join(map(document, (SECRET, job_set_of(runtime, train_job))))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "program.py").write_text(ALLREDUCE)
    yield tmp_path


@pytest.mark.processes
def test_the_ranks_of_a_train_job_meet(launcher: Launcher, folder: Path) -> None:
    text = manifest_of("kubeflow.yaml", 4, 2, ["python", str(folder / "program.py")])
    pods = Pods(launcher, folder, text)
    started = [pods.start(number) for number in (1, 0)]
    other, head = outputs_of(*started)
    assert sorted(head[0].splitlines()) == [f"[{rank}] 10.0" for rank in range(4)], (head, other)
    assert [process.returncode for process in started] == [0, 0]


@pytest.mark.slow
@pytest.mark.processes
def test_a_pod_of_a_train_job_comes_back(launcher: Launcher, folder: Path) -> None:
    text = manifest_of(
        *("kubeflow-elastic.yaml", 3, 3, ["python", TRAINING, str(folder)]), "--elastic-timeout", "60", "--min-np", "1"
    )
    training = ElasticPods(launcher, folder, text)
    head = training.start_all()
    for _ in range(3):
        read_until(head.stdout, "is rank . of 3")
    training.kill(1)
    read_until(head.stdout, "0 is rank 0 of 2")
    training.start(1, failures=1)
    read_until(head.stdout, "0 is rank 0 of 3")
    (folder / "kill.2").touch()  # a rank fails, and leaves its pod empty
    assert training.running.pop(2).wait(240) == RENEWED
    training.start(2, failures=1)
    read_until(head.stdout, "0 is rank 0 of 3")
    training.end()
    _, err = head.communicate(timeout=240)
    assert training.statuses() == {0: 0, 1: 0, 2: 0}, err
    assert "ddlrun: host digits-node-0-1 is back, with 1 slot\n" in err


#: What an MPIJob of kubeflow.org/v2beta1 may have in spec and in runPolicy.
MPI_JOB = "launcherCreationPolicy mpiImplementation mpiReplicaSpecs runLauncherAsWorker runPolicy slotsPerWorker"
MPI_JOB += " sshAuthMountPath"
RUN_POLICY = "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend"
RUN_POLICY += " ttlSecondsAfterFinished"


def test_the_pods_of_an_mpi_job_fit_the_schemas() -> None:
    """No package of PyPI has the operator's own schema."""
    job = yaml.safe_load((MANIFESTS / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert job["spec"].keys() <= set(MPI_JOB.split()) and job["spec"]["runPolicy"].keys() <= set(RUN_POLICY.split())
    assert job["spec"]["mpiReplicaSpecs"].keys() == {"Launcher", "Worker"}
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        assert replicas.keys() <= {"replicas", "restartPolicy", "template"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": replicas["template"]["spec"]}
        kubernetes_validate.validate(pod, NEWEST, strict=True)
