"""What Kubernetes makes of a container of a manifest, its command and its variables; and Trainer, of a TrainJob."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping

_FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"


@dataclass(frozen=True)
class Container:
    """``failures``: the variable that counts how often a pod of this number has failed before; "" if there is none."""

    command: List[str]
    environ: Dict[str, str]
    failures: str


def container_of(text: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> Container:
    """Read a container; ``secrets``: the texts of each Secret of the namespace, by its name and theirs."""
    environ: Dict[str, str] = {}
    failures = ""
    for entry in text["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"] == {"fieldPath": _FAILURES}
            failures = entry["name"]
        elif "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            environ[entry["name"]] = secrets[reference["name"]][reference["key"]]
        else:
            environ[entry["name"]] = expanded(entry["value"], environ)
    return Container([expanded(word, environ) for word in text["command"]], environ, failures)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return what Kubernetes makes of a word of a command: $(NAME) is replaced if it is known, and $$ is a $."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def job_set_of(runtime: Mapping[str, Any], train_job: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the JobSet that Kubeflow Trainer makes of a runtime and of a TrainJob, as its documentation says it."""
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    trainer = dict(train_job["spec"]["trainer"])
    spec: Dict[str, Any] = copy.deepcopy(runtime["spec"]["template"]["spec"])
    (node,) = spec["replicatedJobs"]
    assert node["name"] == "node" and node["template"]["metadata"]["labels"][_STEP] == "trainer"
    pods = trainer.pop("numNodes")
    node["replicas"] = 1
    node["template"]["spec"].update(completions=pods, parallelism=pods)
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"
    container.update(resources=trainer.pop("resourcesPerNode"), **trainer)
    metadata = {"name": train_job["metadata"]["name"], "labels": train_job["metadata"].get("labels", {})}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
