"""Reads what ``pytest -v`` printed, also of a run that was ended in the middle."""

from __future__ import annotations

import re
from typing import Any, Dict, List

__all__ = ["outcomes"]

_TEST = re.compile(r"^(tests/\S+\.py::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)
_BEGUN = re.compile(r"^tests/\S+\.py::.+$", re.MULTILINE)
_REASON = re.compile(r"^SKIPPED \[(\d+)\] \S+?: (.*)$", re.MULTILINE)


def outcomes(output: str) -> Dict[str, Any]:
    """Return how many tests passed, the names of those that failed, and why how many were skipped."""
    by_outcome: Dict[str, List[str]] = {"PASSED": [], "FAILED": [], "ERROR": [], "SKIPPED": []}
    for name, outcome in _TEST.findall(output):
        by_outcome[outcome].append(name.partition("::")[2])
    reasons: Dict[str, int] = {}
    for count, reason in _REASON.findall(output):
        reasons[reason] = reasons.get(reason, 0) + int(count)
    answer: Dict[str, Any] = {
        "passed": len(by_outcome["PASSED"]),
        "failed": by_outcome["FAILED"] + by_outcome["ERROR"],
        "skipped": reasons,
    }
    unfinished = [line for line in _BEGUN.findall(output) if not _TEST.match(line)]
    if unfinished:
        answer["did not end"] = unfinished[-1].partition("::")[2].strip()
    return answer
