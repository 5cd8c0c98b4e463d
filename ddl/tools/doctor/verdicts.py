"""Judges facts: what is right for a job, what will make it slow or surprising, what will make it fail. No I/O.

Every check is a function from ``Facts`` to verdicts, in checks/: ``starting.py`` (can ranks run there), ``hosts.py``
(what a host gives them), ``gpus.py``, ``addresses.py`` and ``links.py`` (what is between hosts); ``judge`` runs all of
them. A warning leaves a job possible, an error does not. Both come with a remedy. docs/doctor.md lists them all.
"""

from __future__ import annotations

from typing import Callable, List, Tuple

from ddl.tools.doctor.checks import addresses, gpus, hosts, links, starting
from ddl.tools.doctor.checks.verdict import ERROR, OK, WARNING, Verdict, merged
from ddl.tools.doctor.facts import Facts

__all__ = ["ERROR", "OK", "WARNING", "Verdict", "judge"]

CHECKS: Tuple[Callable[[Facts], List[Verdict]], ...] = (
    *starting.CHECKS,
    *hosts.CHECKS,
    *gpus.CHECKS,
    *addresses.CHECKS,
    *links.CHECKS,
)


def judge(facts: Facts) -> List[Verdict]:
    """Return all verdicts: what is well first, errors last."""
    verdicts = merged(verdict for check in CHECKS for verdict in check(facts))
    return sorted(verdicts, key=lambda verdict: (OK, WARNING, ERROR).index(verdict.level))
