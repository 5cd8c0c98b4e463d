"""``ddlrun --launcher k8s``: the manifest fits the schemas of Kubernetes and of JobSet, and its pods find one another.

Schemas: those of Kubernetes itself, as PyPI's kubernetes-validate carries them; of JobSet, the classes that Kubeflow
generates from its API (kubeflow-trainer-api). Neither sees what only a server checks, such as names that exist.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubernetes_validate.utils import all_versions
from launch.launcher import ROOT, Launcher, eventually, outputs_of
from launch.manifests import expanded
from launch.pods import Pods, catches, first_of

from ddl.errors import ConfigError
from ddl.launch.cli import main, parse
from ddl.launch.job import pods
from ddl.launch.launchers import k8s
from ddl.launch.launchers.yaml import document

IMAGE = "registry.example/user/train:1"
LEAST = ("--launcher", "k8s", "--dry-run", "--image", IMAGE)
FULL = (*LEAST, "-np", "5", "--pods", "2", "--job-name", "digits", "--namespace", "lab", "--limits")
FULL += ("cpu=4,memory=8Gi,nvidia.com/gpu=1", "--env", "COLOUR=$(light) blue", "--timeout", "30", "--verbose")
PROGRAM = ("python", "train.py", "--name", "$(HOME) $$x", "yes", "3")
VERSIONS = [all_versions()[0], all_versions()[-1]]
ALLREDUCE = "import ddl; ddl.init(); print(ddl.allreduce(float(ddl.rank() + 1), op=ddl.Sum))"


def printed(*options: str) -> str:
    return k8s.manifest(parse(options, {}), bytes(range(32)))


def documents(*options: str) -> List[Dict[str, Any]]:
    return list(yaml.safe_load_all(printed(*options)))


def job_of(job_set: Dict[str, Any]) -> Dict[str, Any]:
    """Return the Job that JobSet's controller makes of its only template."""
    template = job_set["spec"]["replicatedJobs"][0]["template"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "made"}, "spec": template["spec"]}


# --- the text ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [LEAST, FULL], ids=["least", "full"])
def test_a_job_fits_the_schemas_of_kubernetes(options: List[str], version: str) -> None:
    manifest = documents(*options, *PROGRAM)
    assert [entry["kind"] for entry in manifest] == ["Secret", "Service", "Job"]
    for entry in manifest:  # an unknown kind, of which the program would only warn, is an exception here
        kubernetes_validate.validate(entry, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [LEAST, FULL], ids=["least", "full"])
def test_a_job_set_fits_the_schemas_of_jobset_and_of_kubernetes(options: List[str], version: str) -> None:
    secret, job_set = documents(*options, "--kind", "jobset", *PROGRAM)
    kubernetes_validate.validate(secret, version, strict=True)
    kubernetes_validate.validate(job_of(job_set), version, strict=True)
    assert job_set["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and job_set["kind"] == "JobSet"
    model = JobsetV1alpha2JobSet.from_dict(job_set)
    assert model is not None and model.to_dict() == job_set  # a name that it does not know would be gone


def test_the_schemas_would_see_a_mistake() -> None:
    _, _, job = documents(*FULL, *PROGRAM)
    job["spec"]["completionz"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="completionz"):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)
    _, job_set = documents(*FULL, "--kind", "jobset", *PROGRAM)
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        kubernetes_validate.validate(job_set, VERSIONS[-1], strict=True)
    job_set["spec"]["network"]["publishUnreadyAddresses"] = True
    model = JobsetV1alpha2JobSet.from_dict(job_set)
    assert model is not None and model.to_dict() != job_set
    job_set["spec"]["failurePolicy"]["maxRestarts"] = "never"
    with pytest.raises(ValueError, match="maxRestarts"):
        JobsetV1alpha2JobSet.from_dict(job_set)


def test_what_the_job_says() -> None:
    secret, service, job = documents(*FULL, *PROGRAM)
    assert secret["stringData"] == {"secret": bytes(range(32)).hex()}
    assert {entry["metadata"]["name"] for entry in (secret, service, job)} == {"digits"}
    assert {entry["metadata"]["namespace"] for entry in (secret, service, job)} == {"lab"}
    template = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (2, 2, 0)
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    # Four processors, and three ranks in the fuller pod.
    assert values.items() >= {"DDL_TIMEOUT": "30", "DDL_START_TIMEOUT": "600", "OMP_NUM_THREADS": "1"}.items()
    assert expanded(values["COLOUR"], {"light": "dark"}) == "$(light) blue"
    assert [expanded(word, {"HOME": "x"}) for word in container["command"][-len(PROGRAM) :]] == list(PROGRAM)
    assert bytes(range(32)).hex() not in str(container)


def test_the_comment_names_commands_that_work() -> None:
    text = printed(*FULL, *PROGRAM)
    chosen = "-n lab -l app.kubernetes.io/instance=digits"
    assert f"kubectl logs -f --tail=-1 {chosen},batch.kubernetes.io/job-completion-index=0\n" in text
    assert f"kubectl delete job,service,secret {chosen}\n" in text


def test_pods_read_their_own_command_as_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # as the working directory of the image: with the program
    python = tmp_path / "python"
    python.touch(0o755)
    (tmp_path / "train.py").touch()
    for kind, name in [("job", "digits"), ("jobset", "digits-worker-0")]:
        (*_, whole) = documents(*FULL, "--kind", kind, *PROGRAM)
        job = whole if kind == "job" else job_of(whole)
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[0] == "ddlrun"
        config = parse([expanded(word, {}) for word in command[1:]], {"PATH": str(tmp_path)})
        assert config.launcher == "pods" and config.head == f"{name}-0.digits:{k8s.PORT}" and config.verbose
        assert str(config.placement) == f"{name}-0:3,{name}-1:2"
        assert config.command == (str(python), *PROGRAM[1:])


def test_every_option_of_the_job_reaches_the_pods() -> None:
    passed = "--network-interface eth1 --output-dir /logs --no-prefix --metrics 0.0.0.0:9400"
    options = [*passed.split(), "--start-timeout", "7"]
    (*_, job) = documents(*LEAST, *options, "--", "-odd", "a")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert " ".join(container["command"]).endswith(f"{passed} -- -odd a")
    assert {"name": "DDL_START_TIMEOUT", "value": "7"} in container["env"]


def test_processors_are_divided_among_the_ranks_of_a_pod() -> None:
    for cpu, ranks, threads in [("8", 2, "4"), ("500m", 1, "1"), ("2500m", 1, "2"), ("7.5", 3, "2"), ("1", 4, "1")]:
        text = printed(*LEAST, "-np", str(ranks), "--limits", f"cpu={cpu}", "train.py")
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            assert f'{name}\n              value: "{threads}"' in text
    assert "OMP_NUM_THREADS" not in printed(*LEAST, "--limits", "memory=1Gi", "train.py")
    assert 'value: "6"' in printed(*LEAST, "--limits", "cpu=4", "--env", "OMP_NUM_THREADS=6", "train.py")


def test_each_print_has_a_secret_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    secrets = set()
    for _ in range(2):
        assert main([*LEAST, "train.py"]) == 0
        secrets.add(next(yaml.safe_load_all(capsys.readouterr().out))["stringData"]["secret"])
    assert len(secrets) == 2 and {len(text) for text in secrets} == {64}


WRONG: Dict[str, List[str]] = {
    "--launcher k8s only prints a manifest: add --dry-run": ["--launcher", "k8s", "--image", "x"],
    "needs the container image": ["--launcher", "k8s", "--dry-run"],
    "--kind pod: there is none of that name; choose one of job, jobset": [*LEAST, "--kind", "pod"],
    "--job-name Digits: it must be lower-case letters": [*LEAST, "--job-name", "Digits"],
    "--job-name 2d: it must be": [*LEAST, "--job-name", "2d"],
    f"{'a' * 60}-999, 64 characters of at most 63": [*LEAST, "--job-name", "a" * 60, "--pods", "1000"],
    "--namespace my_lab: it must be": [*LEAST, "--namespace", "my_lab"],
    "--limits memory=8GB: write NAME=QUANTITY": [*LEAST, "--limits", "cpu=2,memory=8GB"],
    "cpu stands there twice": [*LEAST, "--limits", "cpu=2,cpu=3"],
    "--scheduler slurm: there is none of that name; choose one of volcano": [*LEAST, "--scheduler", "slurm"],
    "--queue Team_A: it must be lower-case letters": [*LEAST, "--queue", "Team_A"],
    "--queue is for --launcher k8s, and this is --launcher ssh": ["-np", "2", "--queue", "x"],
    "--pods none: it must be a whole number": [*LEAST, "--pods", "none"],
    "-np 2 is less than --pods 3: every pod needs a rank": [*LEAST, "-np", "2", "--pods", "3"],
    "Kubernetes chooses the hosts; say --pods N": [*LEAST, "-H", "a,b"],
    "--head is for --launcher pods, and this is --launcher k8s": [*LEAST, "--head", "a-0.a:1"],
    "--image is for --launcher k8s, and this is --launcher ssh": ["-np", "2", "--image", "x"],
    "--pods is for --launcher k8s or pods": ["-np", "2", "--pods", "2"],
    "--launcher pods needs --head NAME:PORT": ["--launcher", "pods", "-np", "2"],
    "--head here: it must be the name and port": ["--launcher", "pods", "-np", "2", "--head", "here"],
}


@pytest.mark.parametrize("message", WRONG)
def test_bad_usage_is_said_clearly(message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([*WRONG[message], "true"], {"PATH": os.environ["PATH"]})
    assert message in str(caught.value)


def test_what_kubernetes_could_not_carry() -> None:
    with pytest.raises(ConfigError, match="--env DDL_SECRET: the pods take it from the Secret"):
        printed(*LEAST, "--env", "DDL_SECRET=1", "train.py")
    with pytest.raises(ConfigError, match="--env A B: Kubernetes allows no such name"):
        printed(*LEAST, "--env", "A B=1", "train.py")
    with pytest.raises(ConfigError, match="bytes that are not UTF-8"):
        printed(*LEAST, "train.py", "\udcff")
    with pytest.raises(ConfigError, match="the program is missing"):
        printed(*LEAST)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    [
        "yes",
        "Null",
        "~",
        "1e3",
        "-1",
        ".inf",
        "a: b",
        "a:",
        "#",
        "- a",
        "0x1",
        "2020-01-01",
        "=",
        "<<",
        "\u2028",
        "\x85",
    ]
)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXT, VALUES))
def test_yaml_reads_back_what_was_written(value: Dict[str, Any]) -> None:
    assert (yaml.safe_load(document(value, "said\nbefore")) or {}) == value


@given(st.text("$()aB", max_size=12))
def test_no_dollar_means_more_than_itself(text: str) -> None:
    assert expanded(k8s._literal(text), {"a": "known", "B": "$$"}) == text


# --- the pods ---


@pytest.fixture
def image(launcher: Launcher, tmp_path: Path) -> Iterator[Any]:
    yield lambda *options: Pods(launcher, tmp_path, printed("--launcher", "k8s", "--dry-run", "--image", "x", *options))


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize(("kind", "order"), [("job", (1, 2, 0)), ("jobset", (0, 2, 1))])
def test_the_ranks_of_the_pods_meet(image: Any, kind: str, order: List[int]) -> None:
    job = image("-np", "4", "--pods", "3", "--kind", kind, "python", "-c", ALLREDUCE)
    started = {}
    for number in order:
        started[number] = job.start(number)
        time.sleep(0.3)  # in this order: nobody may rely on another being there
    ended = dict(zip(started, outputs_of(*started.values())))
    assert sorted(ended[0][0].splitlines()) == [f"[{rank}] 10.0" for rank in range(4)], ended
    assert [ended[0][1], ended[1], ended[2]] == ["", ("", ""), ("", "")]
    assert [process.returncode for process in started.values()] == [0, 0, 0]


@pytest.mark.processes
def test_ranks_know_their_pod_and_have_its_variables(image: Any) -> None:
    program = (
        "echo $DDL_RANK $DDL_CROSS_RANK $DDL_LOCAL_SIZE $JOB_COMPLETION_INDEX $COLOUR $DDL_TIMEOUT $OMP_NUM_THREADS"
    )
    options = ("--no-prefix", "--env", "COLOUR=$(blue)", "--timeout", "30", "--limits", "cpu=6")
    job = image("-np", "3", "--pods", "2", *options, "sh", "-c", program)
    head, other = job.start(0), job.start(1)
    (out, _), _ = outputs_of(head, other)
    assert sorted(out.splitlines()) == ["0 0 2 0 $(blue) 30 3", "1 0 2 0 $(blue) 30 3", "2 1 1 1 $(blue) 30 3"]


@pytest.mark.processes
def test_a_rank_that_fails_in_another_pod_is_named_in_the_first(image: Any) -> None:
    program = '[ $DDL_RANK = 3 ] || exec sleep 60; echo "last words" >&2; exit 3'
    job = image("-np", "4", "--pods", "2", "--grace", "1", "sh", "-c", program)
    head, other = job.start(0), job.start(1)
    (_, err), _ = outputs_of(head, other)
    assert head.returncode == 3
    assert re.search(r"ddlrun: rank 3 \(host ddl-1, pid \d+\) exited with status 3", err) and "last words" in err


@pytest.mark.processes
def test_a_pod_that_is_told_to_end_ends_the_job(image: Any) -> None:
    """As when a node is drained: the pod's first process gets SIGTERM, and would be killed 30 seconds later."""
    job = image("-np", "2", "--pods", "2", "--grace", "1", "sh", "-c", "echo on; exec sleep 600")
    head, other = job.start(0), job.start(1)
    assert head.stdout is not None
    assert sorted(head.stdout.readline() for _ in range(2)) == ["[0] on\n", "[1] on\n"]
    os.kill(first_of(other.pid), signal.SIGTERM)
    (_, err), _ = outputs_of(head, other)
    assert (head.returncode, err) == (1, "ddlrun: host ddl-1 (rank 1): its agent was told to stop by SIGTERM\n")


@pytest.mark.processes
def test_a_pod_that_waits_can_be_told_to_end(image: Any) -> None:
    waiting = image("-np", "2", "--pods", "2", "true").start(1)
    # A first process never gets a signal that it does not catch; this one must soon.
    assert eventually(lambda: first_of(waiting.pid) and catches(first_of(waiting.pid), signal.SIGTERM))
    os.kill(first_of(waiting.pid), signal.SIGTERM)
    waiting.communicate(timeout=240)
    assert waiting.returncode == 128 + signal.SIGTERM


@pytest.mark.processes
def test_a_head_that_never_comes_is_named(image: Any) -> None:
    done = image("-np", "2", "--pods", "2", "--start-timeout", "1", "true").start(1)
    _, err = done.communicate(timeout=240)
    assert done.returncode == 2
    assert "pod 0 was not reached at ddl-0.ddl:" in err and "is there a headless Service" in err


@pytest.mark.slow
@pytest.mark.processes
def test_a_pod_with_another_secret_is_refused(image: Any) -> None:
    job = image("-np", "2", "--pods", "2", "echo", "started")
    head, other = job.start(0), job.start(1, DDL_SECRET="ab" * 32)
    _, err = other.communicate(timeout=240)
    assert other.returncode == 2 and "cannot join the store" in err
    os.kill(first_of(head.pid), signal.SIGTERM)  # it would wait for the right one for ten minutes
    out, err = head.communicate(timeout=240)
    assert (head.returncode, out) == (128 + signal.SIGTERM, "") and "stopped by SIGTERM" in err


def test_the_secret_is_not_left_for_the_head_to_pass_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Job:
        def __init__(self, config: object, placement: object, starts: object, entrance: Any, *, course: object) -> None:
            self.entrance = entrance

        def run(self) -> int:
            assert self.entrance == pods.Entrance(77, b"\xab" * 32) and "ab" * 32 not in repr(self.entrance)
            return 0

    monkeypatch.setattr(pods, "ClusterJob", Job)
    # The line break is what a file leaves at the end, where the Secret was made by hand.
    environ = {"DDL_SECRET": "ab" * 32 + "\n", "JOB_COMPLETION_INDEX": "0", "PATH": os.environ["PATH"]}
    config = parse(["--launcher", "pods", "-np", "2", "--head", "a-0.a:77", "true"], environ)
    assert pods.run(config, environ) == 0
    assert "DDL_SECRET" not in environ


def test_outside_of_a_job_pods_say_what_is_missing() -> None:
    config = parse(["--launcher", "pods", "-np", "2", "--pods", "2", "--head", "a-0.a:77", sys.executable], {})
    for environ, words in [
        ({}, "DDL_SECRET is not set; --launcher pods needs the job's secret there"),
        ({"DDL_SECRET": "xyz"}, "DDL_SECRET does not hold a secret"),
        ({"DDL_SECRET": "ab" * 32}, "JOB_COMPLETION_INDEX=''"),
        ({"DDL_SECRET": "ab" * 32, "JOB_COMPLETION_INDEX": "2"}, "below --pods 2"),
    ]:
        with pytest.raises(ConfigError, match=words):
            pods.run(config, dict(environ))


# --- the page ---


def test_commands_of_the_page_print_what_it_says() -> None:
    text = (Path(ROOT) / "docs" / "kubernetes.md").read_text()
    blocks = "\n".join(re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)).replace("\\\n", " ")
    lines = [line.partition("|")[0].partition(">")[0] for line in blocks.splitlines() if "ddlrun " in line]
    assert len(lines) >= 3
    for line in lines:
        options = shlex.split(line)
        assert options[0] == "ddlrun"
        for entry in documents(*options[1:]):
            if entry["kind"] != "JobSet" and not entry["apiVersion"].startswith("scheduling.volcano.sh/"):
                kubernetes_validate.validate(entry, VERSIONS[-1], strict=True)
