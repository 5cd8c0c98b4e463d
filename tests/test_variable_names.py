"""No variable has a name that says nothing: the field has a word for what it is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator, Tuple

ROOT = Path(__file__).resolve().parent.parent
SAY_NOTHING = {"one", "found", "mine", "some", "made"}


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


def test_names_say_what_they_are_for() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    files = [*ROOT.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    assert len(files) > 400
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in files
        for line, name in names(ast.parse(file.read_text(encoding="utf-8")))
        if name.strip("_") in SAY_NOTHING
    ]
    assert not wrong
