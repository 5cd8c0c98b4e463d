"""Elastic jobs on Kubernetes: the manifest fits its schemas; a pod that is lost comes back, and its ranks join."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubernetes_validate.utils import all_versions
from launch.elastic_pods import SIMPLE, TRAINING, ElasticPods, both_have_begun, read_until
from launch.launcher import Launcher, eventually
from launch.manifests import expanded
from launch.pods import catches, first_of

from ddl.errors import ConfigError
from ddl.launch.agent.elastic_agent import RENEWED
from ddl.launch.cli import parse
from ddl.launch.job import pods
from ddl.launch.launchers import k8s
from ddl.launch.launchers.k8s import FINAL

LEAST = ("--launcher", "k8s", "--dry-run", "--image", "registry.example/user/train:1")
FULL = (*LEAST, "-np", "5", "--pods", "2", "--min-np", "2", "--max-np", "5", "--elastic-timeout", "7.5")
FULL += ("--reset-limit", "4", "--max-restarts", "3", "--blacklist-cooldown-range", "10", "100", "--leave-failed-hosts")
#: The first one that has successPolicy unless it is switched on, and the last one.
VERSIONS = [version for version in all_versions() if version.startswith("1.31.")][:1] + [all_versions()[-1]]


def documents(*options: str) -> List[Dict[str, Any]]:
    text = k8s.manifest(parse([*options, "python", "train.py"], {}), bytes(range(32)))
    return list(yaml.safe_load_all(text))


def spec_of(*options: str) -> Dict[str, Any]:
    """Return the specification of the Job, also of one in a JobSet."""
    whole = documents(*options)[-1]
    spec: Dict[str, Any] = whole["spec"]
    return spec if whole["kind"] == "Job" else spec["replicatedJobs"][0]["template"]["spec"]


# --- the text ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [(*LEAST, "--elastic"), FULL], ids=["least", "full"])
def test_an_elastic_job_fits_the_schemas(options: List[str], version: str) -> None:
    for entry in documents(*options):
        kubernetes_validate.validate(entry, version, strict=True)
    secret, job_set = documents(*options, "--kind", "jobset")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}
    spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    kubernetes_validate.validate({**job, "spec": spec}, version, strict=True)
    model = JobsetV1alpha2JobSet.from_dict(job_set)
    assert model is not None and model.to_dict() == job_set


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_what_an_elastic_job_says(kind: str) -> None:
    spec = spec_of(*FULL, "--kind", kind)
    assert "backoffLimit" not in spec and spec["backoffLimitPerIndex"] == 3
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = spec["podFailurePolicy"]["rules"]
    (container,) = spec["template"]["spec"]["containers"]
    codes = {"containerName": container["name"], "operator": "In", "values": [FINAL]}
    assert rule == {"action": "FailIndex", "onExitCodes": codes}
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert spec_of(*LEAST, "--pods", "2", "--elastic", "--kind", kind)["backoffLimitPerIndex"] == 6


def test_without_elastic_options_a_job_is_as_ever() -> None:
    spec = spec_of(*LEAST)
    assert spec["backoffLimit"] == 0
    assert not {"backoffLimitPerIndex", "podFailurePolicy", "successPolicy"} & spec.keys()
    assert "JOB_INDEX_FAILURE_COUNT" not in str(spec)


@pytest.mark.parametrize("options", [(*LEAST, "--pods", "3", "--elastic"), FULL], ids=["least", "full"])
def test_pods_are_told_all_options_of_the_job(options: List[str], monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HOROVOD_ELASTIC_TIMEOUT": "33"}
    config = parse([*options, sys.executable], environ)
    container = yaml.safe_load_all(k8s.manifest(config, bytes(range(32))))
    (container,) = list(container)[-1]["spec"]["template"]["spec"]["containers"]
    there = parse([expanded(word, {}) for word in container["command"][1:]], {})
    assert there.elastic == config.elastic and there.num_proc == config.num_proc
    assert there.elastic is not None
    assert there.elastic.returning == there.placement.hosts[1:]
    assert there.elastic.timeout == (33.0 if options[-1] == "--elastic" else 7.5)


def test_a_pod_that_returns_gets_processes_unless_the_user_forbids_it() -> None:
    config = parse([*LEAST, "--pods", "3", "--min-np", "2", "true"], {})
    assert config.elastic is not None and config.elastic.max_restarts is None


def test_a_script_that_names_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="--host-discovery-script: with --launcher k8s, Kubernetes chooses the hosts"):
        parse([*LEAST, "--host-discovery-script", "./hosts.sh", "true"], {})


# --- the pods ---


@pytest.fixture
def job(launcher: Launcher, tmp_path: Path) -> Iterator[Any]:
    """Makes the pods of an elastic job that trains, or only pretends to."""

    def pods_of(*options: str, trains: bool = True) -> ElasticPods:
        text = "--launcher", "k8s", "--dry-run", "--image", "x", "--elastic-timeout", "60", *options
        program = ("python", TRAINING) if trains else ("sh", "-c", SIMPLE)
        config = parse([*text, *program, str(tmp_path)], {})
        return ElasticPods(launcher, tmp_path, k8s.manifest(config, bytes(range(32))))

    yield pods_of


@pytest.mark.processes
def test_a_pod_that_is_lost_comes_back(job: Any) -> None:
    training = job("-np", "2", "--pods", "2", "--elastic")
    head = training.start_all()
    both_have_begun(head)
    training.kill(1)
    read_until(head.stdout, "0 is rank 0 of 1")
    training.start(1, failures=1)
    read_until(head.stdout, "0 is rank 0 of 2")
    training.end()
    _, err = head.communicate(timeout=240)
    assert training.statuses() == {0: 0, 1: 0}, err
    assert "ddlrun: host ddl-1 is back, with 1 slot\n" in err
    assert "ranks that were lost: 1; that left: 0; that came: 1, of which 1 in place of lost ones" in err


@pytest.mark.processes
def test_a_pod_that_calls_too_early_waits_until_the_old_one_is_gone(job: Any) -> None:
    training = job("-np", "2", "--pods", "2", "--elastic", trains=False)
    head = training.start_all()
    read_until(head.stdout, "1 is on")
    old = training.running[1]
    new = training.start(1, failures=1)
    assert eventually(lambda: first_of(new.pid) and catches(first_of(new.pid), signal.SIGTERM))
    time.sleep(1.5)  # it calls now, again and again
    assert (old.poll(), new.poll()) == (None, None)
    os.kill(first_of(old.pid), signal.SIGKILL)
    told = []
    while "is back" not in (line := read_until(head.stderr, "^ddlrun: host")):
        told.append(line)
    assert len(told) == 1 and told[0].startswith("ddlrun: host ddl-1 is lost: the connection to its agent is gone")
    read_until(head.stdout, "2 is on")
    training.end()
    assert training.statuses() == {0: 0, 1: 0}


@pytest.mark.slow
@pytest.mark.processes
def test_a_pod_that_is_told_to_end_lets_its_ranks_leave(job: Any) -> None:
    """As when a node is drained."""
    training = job("-np", "2", "--pods", "2", "--elastic")
    head = training.start_all()
    both_have_begun(head)
    os.kill(first_of(training.running[1].pid), signal.SIGTERM)
    assert read_until(head.stderr, "^ddlrun: host") == (
        "ddlrun: host ddl-1 is to end: its agent was told to stop by SIGTERM\n"
    )
    read_until(head.stdout, "0 is rank 0 of 1")
    assert training.running.pop(1).wait(240) == 128 + signal.SIGTERM
    training.start(1, failures=1)
    read_until(head.stdout, "0 is rank 0 of 2")
    training.end()
    _, err = head.communicate(timeout=240)
    assert training.statuses() == {0: 0, 1: 0}
    assert "ranks that were lost: 0; that left: 1; that came: 1, of which 0 in place of lost ones" in err


@pytest.mark.processes
def test_a_pod_without_a_rank_ends_so_that_a_new_one_comes(job: Any) -> None:
    training = job("-np", "3", "--pods", "2", "--elastic", trains=False)
    head = training.start_all()
    read_until(head.stdout, "2 is on")
    (training.folder / "kill.2").touch()
    assert training.running.pop(1).wait(240) == RENEWED
    training.start(1, failures=1)
    read_until(head.stdout, "3 is on")
    training.end()
    _, err = head.communicate(timeout=240)
    assert training.statuses() == {0: 0, 1: 0}
    assert "ddlrun: host ddl-1 has no rank left, so it ends, and a new one may take its place\n" in err


@pytest.mark.processes
@pytest.mark.slow
def test_the_others_go_on_without_pod_0(job: Any) -> None:
    training = job("-np", "5", "--pods", "5", "--elastic", "--output-dir", "logs")
    training.start_all()
    for rank in range(5):  # a death before all have begun ends an elastic job, too
        training.wait_for(f"logs/rank.{rank}.out", f"{rank} is rank {rank} of 5")
    training.kill(0)
    training.wait_for("logs/rank.4.out", "4 is rank 3 of 4")
    again = training.start(0, failures=1)
    _, err = again.communicate(timeout=240)
    assert "ddlrun: pod 0 has failed before (JOB_INDEX_FAILURE_COUNT=1), and the job has ended with it" in err
    (training.folder / "kill.3").touch()
    assert training.running.pop(3).wait(240) == RENEWED  # it cannot know that pod 0 is not only cut off
    training.start(3, failures=1, DDL_START_TIMEOUT="1")
    training.wait_for("logs/rank.4.out", "4 is rank 2 of 3")
    training.end()
    assert training.statuses() == {0: FINAL, 1: 0, 2: 0, 3: FINAL, 4: 0}


@pytest.mark.slow
@pytest.mark.processes
def test_a_pod_that_is_lost_before_the_beginning_ends_the_job(job: Any) -> None:
    training = job("-np", "3", "--pods", "3", "--elastic", "--verbose", trains=False)
    head, _ = [training.start(number) for number in (0, 1)]
    read_until(head.stderr, "host ddl-1 is ")  # pod 2 is awaited
    training.kill(1)
    _, err = head.communicate(timeout=240)
    assert "ddlrun: host ddl-1 (rank 1): the connection to its agent is gone" in err
    again = training.start(1, failures=1, DDL_START_TIMEOUT="1")
    assert training.statuses() == {0: 1, 1: FINAL} and "not reached" in again.communicate()[1]


@pytest.mark.processes
def test_pod_0_that_is_told_to_end_ends_the_job(job: Any) -> None:
    training = job("-np", "2", "--pods", "2", "--elastic", trains=False)
    head = training.start_all()
    for _ in range(2):
        read_until(head.stdout, "is on")
    os.kill(first_of(head.pid), signal.SIGTERM)
    assert training.statuses() == {0: 128 + signal.SIGTERM, 1: 0}


@pytest.mark.processes
def test_when_the_job_is_given_up_all_pods_end(job: Any) -> None:
    training = job("-np", "3", "--pods", "3", "--min-np", "3", "--max-restarts", "0", trains=False)
    head = training.start_all()
    for _ in range(3):
        read_until(head.stdout, "is on")
    training.kill(1)
    _, err = head.communicate(timeout=240)
    assert "2 ranks left, and --min-np is 3; --max-restarts 0 allows no other process in place of a lost one" in err
    assert training.statuses() == {0: 1, 2: 0}


@pytest.mark.processes
def test_a_pod_that_returns_after_the_job_says_so_and_returns_no_more(job: Any) -> None:
    late = job("-np", "2", "--pods", "2", "--elastic").start(1, failures=1, DDL_START_TIMEOUT="1")
    _, err = late.communicate(timeout=240)
    assert late.returncode == FINAL
    assert "pod 0 was not reached at ddl-0.ddl:" in err and "Or has the job ended?" in err and len(err) < 1000


def test_the_count_of_failures_must_be_a_number() -> None:
    environ = {"DDL_SECRET": "ab" * 32, "JOB_COMPLETION_INDEX": "0", "JOB_INDEX_FAILURE_COUNT": "many"}
    options = ["--launcher", "pods", "-np", "2", "--elastic", "--head", "a-0.a:77", sys.executable]
    config = parse(options, {})
    with pytest.raises(ConfigError, match="JOB_INDEX_FAILURE_COUNT='many': it must say how many pods"):
        pods.run(config, environ)
