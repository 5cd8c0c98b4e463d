"""Kubernetes: ``ddlrun --launcher k8s --dry-run`` prints a manifest for ``kubectl apply -f -``.

The pods are those of one Indexed Job, by itself or inside a JobSet. All of them run the same command, ``ddlrun
--launcher pods`` (ddl/launch/job/pods.py), so no pod needs ssh, or permission to talk to Kubernetes. This module
decides what they must agree on: pod 0's name in the DNS, which a headless Service gives it before it is ready, a port,
and a Secret.

With a queue, Kueue or Volcano lets the job wait until there is room for all its pods. Kueue reads a label of the Job;
Volcano, a scheduler, reads a PodGroup that the pods name.

In an elastic job each pod may come back (``backoffLimitPerIndex``), unless it ends with status ``FINAL``. The job has
succeeded when pod 0 has: others may be lost at that moment, or have been given up.

No I/O. Options are checked here, because only this module knows what Kubernetes accepts.
"""

from __future__ import annotations

import math
import re
from typing import Dict, List, Mapping, Optional, Tuple

from ddl._version import __version__
from ddl.errors import ConfigError
from ddl.launch.agent import grace
from ddl.launch.agent.rank_environ import THREADS
from ddl.launch.ask.config import PodJob, RunConfig
from ddl.launch.ask.elastic_options import ElasticOptions, words_of
from ddl.launch.launchers.yaml import Value, document
from ddl.net.address import format_address

__all__ = ["FAILURES", "FINAL", "KINDS", "PORT", "SCHEDULERS", "head", "manifest", "pod_job"]

KINDS = ("job", "jobset")
SCHEDULERS = ("volcano",)
PORT = 20170  #: where pod 0 listens: below the ports that the kernel gives to outgoing connections
FAILURES = "JOB_INDEX_FAILURE_COUNT"  #: where the manifest of an elastic job puts it; not there, or empty: 0
FINAL = 79  #: the status of a pod in whose place no other one makes sense; above those of sysexits.h
START_TIMEOUT = 600  #: seconds, unless the user says otherwise: one pod pulls the image while others wait
_WORKER = "worker"  # the name of the Job inside a JobSet
_SECRET_KEY = "secret"
_CONTAINER = "ddlrun"
_POD_RETURNS = 6  # how often a pod may come back unless the user says otherwise; Kubernetes has 6 as its backoffLimit
_FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
_KUEUE = "kueue.x-k8s.io/queue-name"  # a label
_GROUP = "scheduling.k8s.io/group-name"  # an annotation, of Volcano
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123
_RESOURCE = re.compile(r"(?:[a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:(m|k|[MGTPE]|[KMGTPE]i)|[eE][+-]?\d{1,2})?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_.-][\w.-]*", re.ASCII)


def pod_job(given: Mapping[str, Optional[str]], pods: int) -> PodJob:
    """Return what the options (by name, without dashes) say. ConfigError names what Kubernetes would refuse."""
    image = given.get("image") or ""
    if not re.fullmatch(r"\S+", image):
        raise ConfigError(
            "--launcher k8s needs the container image that the pods run: --image registry/name:tag; "
            "Python, DDL and the program must be in it"
        )
    kind = given.get("kind") or KINDS[0]
    if kind not in KINDS:
        raise ConfigError(f"--kind {kind}: there is none of that name; choose one of {', '.join(KINDS)}")
    scheduler = given.get("scheduler") or ""
    if scheduler not in ("", *SCHEDULERS):
        raise ConfigError(f"--scheduler {scheduler}: there is none of that name; choose one of {', '.join(SCHEDULERS)}")
    job = PodJob(image, kind, _name(given.get("job_name") or "ddl"), given.get("namespace") or "", ())
    last = f"{_pod_prefix(job)}-{pods - 1}"
    if len(last) > 63:
        raise ConfigError(
            f"--job-name {job.name}: the last pod's host name would be {last}, {len(last)} characters of at most 63; "
            "take a shorter name"
        )
    if job.namespace and not _LABEL.fullmatch(job.namespace):
        raise ConfigError(f"--namespace {job.namespace}: it must be lower-case letters, digits and hyphens")
    queue = given.get("queue") or ""
    if queue and not _LABEL.fullmatch(queue):
        raise ConfigError(f"--queue {queue}: it must be lower-case letters, digits and hyphens")
    return PodJob(image, kind, job.name, job.namespace, _limits(given.get("limits")), queue, scheduler)


def _name(text: str) -> str:
    if not _LABEL.fullmatch(text) or text[0].isdigit():  # a Service may not begin with a digit
        raise ConfigError(
            f"--job-name {text}: it must be lower-case letters, digits and hyphens, and begin with a letter"
        )
    return text


def _limits(text: Optional[str]) -> Tuple[Tuple[str, str], ...]:
    limits: Dict[str, str] = {}
    for entry in [] if text is None else text.split(","):
        name, _, quantity = entry.strip().partition("=")
        if not _RESOURCE.fullmatch(name) or not _QUANTITY.fullmatch(quantity):
            raise ConfigError(
                f"--limits {entry}: write NAME=QUANTITY, with a quantity as Kubernetes reads it: cpu=4, cpu=500m, "
                "memory=8Gi, nvidia.com/gpu=1"
            )
        if name in limits:
            raise ConfigError(f"--limits {text}: {name} stands there twice")
        limits[name] = quantity
    return tuple(limits.items())


def _pod_prefix(job: PodJob) -> str:
    """Return what comes before ``-0`` in the host name of pod 0: the name of the Job that it is part of."""
    return job.name if job.kind == "job" else f"{job.name}-{_WORKER}-0"


def head(job: PodJob) -> str:
    """Return where the pods find pod 0: its name as the headless Service (or JobSet's) makes it known, and the port."""
    return format_address(f"{_pod_prefix(job)}-0.{job.name}", PORT)


def manifest(config: RunConfig, secret: bytes) -> str:
    """Return the documents that make Kubernetes run ``config`` (which has a ``pod_job`` and a placement)."""
    job = config.pod_job
    assert job is not None
    pods = len(config.placement.hosts)
    of = (f"-n {job.namespace} " if job.namespace else "") + f"-l app.kubernetes.io/instance={job.name}"
    service = "" if job.kind == "jobset" else ",service"
    service += ",podgroups.scheduling.volcano.sh" if job.scheduler else ""
    said = (
        f"Made by ddlrun {__version__}: {config.num_proc} ranks in {pods} pods of {job.image}.\n"
        "The job's secret stands below: who knows it can join the job. Do not put this text where others read it.\n"
        "output:    kubectl logs -f --tail=-1 " + of + ",batch.kubernetes.io/job-completion-index=0\n"
        f"clean up:  kubectl delete {job.kind}{service},secret {of}"
    )
    documents = [document(_secret(job, secret), said)]
    if job.scheduler:
        documents.append(document(_pod_group(job, pods), "Volcano starts all pods at once, or none"))
    if job.kind == "job":
        documents.append(document(_service(job), "gives each pod a name that the others can look up"))
        documents.append(document(_job(config, job)))
    else:
        documents.append(document(_job_set(config, job)))
    return "---\n".join(documents)


def _labels(job: PodJob) -> Dict[str, Value]:
    return {"app.kubernetes.io/name": "ddlrun", "app.kubernetes.io/instance": job.name}


def _metadata(job: PodJob, **labels: Value) -> Dict[str, Value]:
    namespace: Dict[str, Value] = {"namespace": job.namespace} if job.namespace else {}
    return {"name": job.name, **namespace, "labels": {**_labels(job), **labels}}


def _metadata_in_queue(job: PodJob) -> Dict[str, Value]:
    return _metadata(job, **({_KUEUE: job.queue} if job.queue and not job.scheduler else {}))


def _pod_group(job: PodJob, pods: int) -> Dict[str, Value]:
    spec: Dict[str, Value] = {"minMember": pods, **({"queue": job.queue} if job.queue else {})}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": _metadata(job), "spec": spec}


def _secret(job: PodJob, secret: bytes) -> Dict[str, Value]:
    data: Dict[str, Value] = {_SECRET_KEY: secret.hex()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(job), "type": "Opaque", "stringData": data}


def _service(job: PodJob) -> Dict[str, Value]:
    spec: Dict[str, Value] = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(job),
        "ports": [{"name": "ddlrun", "port": PORT}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job), "spec": spec}


def _job(config: RunConfig, job: PodJob) -> Dict[str, Value]:
    metadata = _metadata_in_queue(job)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": _job_spec(config, job)}


def _job_spec(config: RunConfig, job: PodJob) -> Dict[str, Value]:
    pods = len(config.placement.hosts)
    # Ranks cannot go on without one of them, and a pod that comes later finds nobody: one failure is the job's.
    after_failures: Dict[str, Value] = {"backoffLimit": 0} if config.elastic is None else _returns(config.elastic)
    group: Dict[str, Value] = {"annotations": {_GROUP: job.name}} if job.scheduler else {}
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        **after_failures,
        "template": {"metadata": {"labels": _labels(job), **group}, "spec": _pod_spec(config, job)},
    }


def _returns(elastic: ElasticOptions) -> Dict[str, Value]:
    """Return what makes Kubernetes start a pod again and again, but pod 0 only to say that it cannot go on."""
    final: Value = {"containerName": _CONTAINER, "operator": "In", "values": [FINAL]}
    return {
        # A pod to which no process may be given any more need not come.
        "backoffLimitPerIndex": _POD_RETURNS if elastic.max_restarts is None else elastic.max_restarts,
        "podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": final}]},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    }


def _job_set(config: RunConfig, job: PodJob) -> Dict[str, Value]:
    spec: Dict[str, Value] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": _WORKER, "replicas": 1, "template": {"spec": _job_spec(config, job)}}],
    }
    metadata = _metadata_in_queue(job)
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


def _pod_spec(config: RunConfig, job: PodJob) -> Dict[str, Value]:
    limits: Dict[str, Value] = dict(job.limits)
    resources: Dict[str, Value] = {"resources": {"requests": limits, "limits": limits}} if limits else {}
    # JobSet gives its pods the subdomain itself.
    subdomain: Dict[str, Value] = {"subdomain": job.name} if job.kind == "job" else {}
    scheduler: Dict[str, Value] = {"schedulerName": job.scheduler} if job.scheduler else {}
    return {
        **subdomain,
        **scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(grace.TOLD if config.grace is None else config.grace) + 10,
        "automountServiceAccountToken": False,  # nobody in there talks to Kubernetes
        "enableServiceLinks": False,  # variables named after other people's services: DDL_PORT for one called ddl
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": _CONTAINER,
                "image": job.image,
                "command": [_literal(word) for word in _command(config, job)],
                "env": _environ(config, job),
                **resources,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }


def _command(config: RunConfig, job: PodJob) -> List[str]:
    arguments = [
        "ddlrun",
        "-np",
        str(config.num_proc),
        "--pods",
        str(len(config.placement.hosts)),
        "--launcher",
        "pods",
    ]
    arguments += ["--head", head(job)]
    arguments += ["--network-interface", config.interface] if config.interface else []
    arguments += ["--output-dir", config.output_dir] if config.output_dir is not None else []
    if config.timeline is not None:  # a path in pod 0
        arguments += ["--timeline", config.timeline, "--timeline-mb", str(config.timeline_mb)]
    arguments += [] if config.grace is None else ["--grace", f"{config.grace:g}"]
    arguments += [] if config.prefix else ["--no-prefix"]
    arguments += ["--verbose"] if config.verbose else []
    arguments += [] if config.metrics is None else ["--metrics", format_address(*config.metrics)]
    arguments += [] if config.elastic is None else words_of(config.elastic)
    arguments += ["--"] if config.command[0].startswith("-") else []
    return [*arguments, *config.command]


def _environ(config: RunConfig, job: PodJob) -> List[Value]:
    variables = {"DDL_START_TIMEOUT": str(START_TIMEOUT)}
    cores = dict(job.limits).get("cpu")
    if cores is not None:  # a limit is not seen from inside: a rank would take a thread for each core of the node
        share = math.floor(_number(cores) / max(map(len, config.placement.ranks)))
        variables.update(dict.fromkeys(THREADS, str(max(1, share))))
    variables.update(config.environ)
    for name in variables:
        if name == "DDL_SECRET" or not _VARIABLE.fullmatch(name):
            reason = "the pods take it from the Secret" if name == "DDL_SECRET" else "Kubernetes allows no such name"
            raise ConfigError(f"--env {name}: {reason}; leave it out")
    reference: Value = {"secretKeyRef": {"name": job.name, "key": _SECRET_KEY}}
    referring: List[Value] = [{"name": "DDL_SECRET", "valueFrom": reference}]
    if config.elastic is not None:
        count: Value = {"fieldPath": f"metadata.annotations['{_FAILURE_COUNT}']"}
        referring.append({"name": FAILURES, "valueFrom": {"fieldRef": count}})
    return [*referring, *({"name": name, "value": _literal(value)} for name, value in variables.items())]


def _number(quantity: str) -> float:
    """Return a quantity of processors, 4 or 500m, as a number."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity.rstrip("kKMGTPEi"))


def _literal(text: str) -> str:
    """Return what Kubernetes makes ``text`` again: it replaces $(NAME), and $$ by $, in commands and in values."""
    return re.sub(r"\$(?=[$(])", "$$", text)
