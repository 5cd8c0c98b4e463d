"""What the user asked ``ddlrun`` for, after all checks: plain data. cli.py makes it, all other modules read it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Tuple

from ddl.bootstrap.environ import Settings
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.ask.placement import UNPLACED, Placement

__all__ = ["PodJob", "RunConfig"]


@dataclass(frozen=True)
class PodJob:
    """What Kubernetes is told of a job beyond its ranks; launchers/k8s.py says what is allowed."""

    image: str
    kind: str  #: "job" or "jobset"
    name: str
    namespace: str = ""  #: empty: the namespace of the user who applies the manifest
    limits: Tuple[Tuple[str, str], ...] = ()  #: of each pod: resource and quantity
    queue: str = ""  #: which has to admit the job: of Kueue's, or of the scheduler's
    scheduler: str = ""  #: of the pods; empty: the cluster's usual one


@dataclass(frozen=True)
class RunConfig:
    """A job to run. ``command`` is complete: its first entry is the path of an executable file.

    Only with ``pod_job`` it is as the user wrote it: the program is looked for in the image.
    """

    num_proc: int
    command: Tuple[str, ...]
    environ: Tuple[Tuple[str, str], ...] = ()  #: variables beyond ddlrun's own environment
    output_dir: Optional[str] = None  #: write rank.N.out and rank.N.err there instead of forwarding
    grace: Optional[float] = None  #: seconds that ranks have to end by themselves; None: see grace.py
    dump_dir: Optional[str] = None  #: keep dumps of jobs that failed there; None: where the user's are kept
    timeline: Optional[str] = None  #: write what all ranks do into this file
    timeline_mb: int = 200  #: megabytes that it may have
    prefix: bool = True  #: put "[rank] " before each line
    verbose: bool = False
    dashboard: Optional[ListeningAddress] = None  #: serve the page about the job there; None: nowhere
    history: Optional[str] = None  #: write what the page shows into this file
    quiet: bool = False  #: show no status line
    metrics: Optional[ListeningAddress] = None  #: serve /metrics there; None: nowhere
    timestamps: bool = False  #: put the time before each line
    placement: Placement = UNPLACED  #: which hosts run which ranks
    launcher: str = "ssh"  #: how agents get onto other hosts: a file of launchers/
    ssh_options: Tuple[str, ...] = ()  #: arguments of ssh
    directory: Optional[str] = None  #: where ranks on several hosts start; None: where ddlrun was started
    interface: str = ""  #: name, address or network of the interface for data between hosts; empty: by the route
    head: str = ""  #: where pods find pod 0, as name:port; empty: these are no pods
    pod_job: Optional[PodJob] = None  #: print a manifest of this instead of running anything
    elastic: Optional[ElasticOptions] = None  #: ranks come and go; None: the first that fails ends the job
    dry_run: bool = False  #: print what would be started, and start nothing
    notes: Tuple[str, ...] = ()  #: what the user is to know before the job starts

    @property
    def settings(self) -> Settings:
        """The ranks' settings, as far as they are known here: by ddlrun's environment and ``environ``."""
        return Settings.from_environ({**os.environ, **dict(self.environ)})

    @property
    def is_local(self) -> bool:
        """Whether this machine runs all ranks, without an agent."""
        by_script = self.elastic is not None and self.elastic.discovery_script
        return not self.placement.hosts and not by_script
