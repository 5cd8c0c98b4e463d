"""What Kubernetes makes of a container of a manifest: its command and its variables."""

from __future__ import annotations

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
