"""A name says what it is for, and has one meaning: the field has a word for each thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import DefaultDict, Iterator, List, Tuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAY_NOTHING = {"one", "found", "mine", "some", "made"}
ADAPTERS = (
    "ddl_torch",
    "ddl_tensorflow",
    "ddl_caffe",
    "ddl_chainer",
    "ddl_theano",
    "ddl_jax",
    "ddl_lightgbm",
    "ddl_xgboost",
)
PACKAGES = ("ddl", *ADAPTERS, "benchmarks", "lab")
#: What the adapters of two frameworks have under one name, with one meaning; most of them are Horovod's names.
IN_TWO_ADAPTERS = {"cast", "compression", "fp16compressor", "where"}


def names(tree: ast.AST) -> Iterator[Tuple[int, str]]:
    """Each name that a program gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname is not None:
            yield node.lineno, node.asname


def parsed(*folders: str) -> Iterator[Tuple[Path, ast.AST]]:
    """Each Python file of these folders, by its path in the checkout."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT), ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_names_say_what_they_are_for() -> None:
    files = list(parsed(*PACKAGES, "examples", "tests"))
    assert len(files) > 400
    wrong = [
        f"{file}:{line}: {name}"
        for file, tree in files
        for line, name in names(tree)
        if name.strip("_").lower() in SAY_NOTHING
    ]
    assert not wrong


def test_a_class_has_a_name_that_no_other_class_has() -> None:
    """``_Round`` and ``Round`` count as the same name."""
    classes: DefaultDict[str, List[str]] = defaultdict(list)
    for file, tree in parsed(*PACKAGES):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name.strip("_").lower()].append(f"{file}:{node.lineno} {node.name}")
    assert len(classes) > 350
    twice = {name: places for name, places in classes.items() if len(places) > 1}
    assert not [places for name, places in twice.items() if name not in IN_TWO_ADAPTERS]
    assert set(twice) >= IN_TWO_ADAPTERS, "an exception that is no longer one"


def test_a_module_is_known_by_its_name() -> None:
    """``from ddl.tuning.measure import table_file as file``: the reader of ``file`` would not know what that is."""
    wrong = [
        f"{file}:{node.lineno}: {alias.name} as {alias.asname}"
        for file, tree in parsed(*PACKAGES)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES
        for alias in node.names
        if alias.asname is not None
        and (ROOT / (node.module or "").replace(".", "/") / f"{alias.name}.py").is_file()
        and alias.asname not in alias.name
        and alias.name not in alias.asname
    ]
    assert not wrong
