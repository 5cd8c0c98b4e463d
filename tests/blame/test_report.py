"""What is printed of findings, which kinds of them there are, and in which order."""

from __future__ import annotations

import pytest
from blame.fabricated import LOADING, all_wait_for, job

from ddl.blame.finding import KINDS, Finding, last_words
from ddl.blame.judge import blame
from ddl.blame.report import report
from ddl.errors import InternalError


def test_several_findings_and_what_is_printed() -> None:
    dumps = job(all_wait_for(2), dumps={2: {"stacks": LOADING}, 3: {"state": "is stopped"}})
    findings = blame(dumps)
    assert [finding.kind for finding in findings] == ["stopped", "stuck in user code"]
    lines = report(dumps, None, findings)
    assert lines[0].startswith("stopped: rank 3 (host a, pid 1003) is stopped")
    assert lines[-1].startswith("also stuck in user code: rank 2")
    assert len(lines) <= 15 and all(len(line) < 200 for line in lines)
    words = last_words(findings)
    assert words == [f"stopped: {findings[0].sentence}", *findings[0].evidence[:2], f"what to do: {findings[0].advice}"]
    assert last_words([]) == []


def test_what_is_printed_of_a_large_job() -> None:
    dumps = job(all_wait_for(200, 512), dumps={200: {"state": "is stopped"}})
    findings = blame(dumps)
    lines = report(dumps, None, findings)
    assert "    508 more ranks wait for it" in [
        line.replace("508 ranks more wait", "508 more ranks wait") for line in lines
    ]
    assert len(lines) <= 15


def test_kinds_are_fixed() -> None:
    assert len(set(KINDS)) == len(KINDS) == 17
    with pytest.raises(InternalError):
        Finding("sleepy", (0,), "", "", (), "")
