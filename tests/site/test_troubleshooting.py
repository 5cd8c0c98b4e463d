"""docs/troubleshooting.md has an entry for whatever a user may see: errors, ddlrun's last words, kinds of blame."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Iterator, Set

import pytest

from ddl import errors
from ddl.blame.finding import KINDS
from ddl.launch.agent.failures import Exit, report

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### (.+)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", errors.__all__)
def test_each_error_has_its_entry(name):
    assert [heading for heading in HEADINGS if heading.startswith(f"`{name}`")]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_blame_has_its_entry(kind):
    assert kind in HEADINGS


def test_each_way_in_which_a_rank_ends_has_its_entry():
    for code in (1, -9):
        said = report(Exit(1, 4711, code, 0), None, []).replace("ddlrun: ", "").replace(" (pid 4711)", "")
        assert said.partition(": out of memory?")[0] in HEADINGS
    silent = report(Exit(0, 4711, 1, 0), {"culprit": 1, "reason": "it was silent"}, [])
    assert silent.startswith("ddlrun: the failure began with rank 1: ")
    assert "the failure began with rank 1" in HEADINGS


#: What ddlrun says that is no failure.
NO_FAILURE = {"metrics are at ", "the page of this job is at ", "warning: "}


def said_by_ddlrun() -> Iterator[str]:
    """Yield the constant beginnings of what the launcher prints behind its name, and why it gives a job up."""
    for path in sorted((ROOT / "ddl" / "launch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                begin = str(node.values[0].value)
                if begin.startswith("ddlrun: ") and len(begin) > len("ddlrun: "):
                    yield begin[len("ddlrun: ") :]
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if called in ("_give_up", "_nothing_more", "lost"):
                yield from (text_of(argument) for argument in node.args if is_text(argument))
            if isinstance(node, ast.ClassDef) and node.name == "ElasticProspects":  # why it gives up
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                yield from (text_of(value) for value in returned if is_text(value) and text_of(value))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def text_of(node: ast.AST) -> str:
    return " ".join(str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant))


def test_each_failure_of_ddlrun_has_its_entry():
    said: Set[str] = set(said_by_ddlrun()) - NO_FAILURE
    assert len(said) >= 8
    missing = []
    for words in said:
        known = [heading for heading in HEADINGS if heading in words or words.strip() in heading]
        known += [phrase for phrase in re.findall(r"\*([^*\n]+)\*", TEXT) if phrase in words]
        if not known:
            missing.append(words)
    assert not missing
