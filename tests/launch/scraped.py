"""What ``ddlrun --metrics`` serves, read as Prometheus reads it."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from typing import Dict, FrozenSet, List, Tuple

from prometheus_client.openmetrics.parser import text_string_to_metric_families

Labels = FrozenSet[Tuple[str, str]]
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Scraped:
    """One answer, checked by the rules of OpenMetrics. ``values``: of each sample's name and labels."""

    def __init__(self, text: str) -> None:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.values) == len(samples)
        self.names = {sample.name for sample in samples}

    def of(self, name: str, **labels: str) -> float:
        """Return the sum of what has this name and these labels."""
        fitting = [value for (other, own), value in self.values.items() if other == name and own >= set(labels.items())]
        assert fitting, f"there is no {name} of {labels}"
        return sum(fitting)

    def so_far(self, name: str) -> float:
        """Return the sum of what has this name; 0 before the first sample of a rank."""
        return sum(value for (other, _), value in self.values.items() if other == name)

    def ranks(self, name: str = "ddl_operations_total") -> List[Tuple[str, str]]:
        """Return rank and process of all that have this name."""
        owners = (dict(labels) for other, labels in self.values if other == name)
        return sorted((labels["rank"], labels["process"]) for labels in owners)

    @property
    def links(self) -> Dict[Tuple[str, str], float]:
        """Bytes by the two hosts."""
        by_hosts = {}
        for (name, labels), value in self.values.items():
            if name == "ddl_link_sent_bytes_total":
                own = dict(labels)
                by_hosts[own["from_host"], own["to_host"]] = value
        return by_hosts


def url_of(process: subprocess.Popen[str]) -> str:
    """Return where a ddlrun that was started with ``--metrics`` serves: it says so first of all."""
    assert process.stderr is not None
    told = re.fullmatch(r"ddlrun: metrics are at (http://\S+/metrics)\n", process.stderr.readline())
    assert told is not None
    return told[1]


def fetch(url: str, accept: str = OPEN_METRICS) -> str:
    """Return the text that is served there."""
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=100) as answer:
        return str(answer.read().decode())


def scrape(url: str) -> Scraped:
    """Return what is served there."""
    return Scraped(fetch(url))
