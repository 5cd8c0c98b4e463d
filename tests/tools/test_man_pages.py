"""Man pages: groff and mandoc have nothing to say against them, every option is there, and ``man`` finds them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest

from ddl.bootstrap.environ import Settings
from ddl.tools.completion.commands import installed_commands
from ddl.tools.completion.share import share_files, write_share

PAGES = [(page, f"{'-'.join(page.words)}.1") for command in installed_commands() for page in command.with_tools()]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = tmp_path_factory.mktemp("environment")
    (environment / "bin").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SOURCE_DATE_EPOCH", "1700000000")
        write_share(environment)
    return environment


def run(words: List[str], **environ: str) -> str:
    done = subprocess.run(words, env={**os.environ, **environ}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and not done.stderr, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.processes
@needs("groff")
@pytest.mark.parametrize(("page", "name"), PAGES, ids=[name for _, name in PAGES])
def test_groff_shows_every_option_and_warns_of_nothing(folder: Path, page, name: str) -> None:
    shown = run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=300n", str(folder / "share/man/man1" / name)])
    for option in page.options:
        assert not option.names or ", ".join(option.names) in shown, option
    for tool in page.tools:
        assert f"ddl-{tool.words[1]}(1)" in shown
    if page.name == "ddlrun":
        assert all(entry.metadata["variable"] in shown for entry in dataclasses.fields(Settings))


@pytest.mark.processes
@needs("mandoc")
def test_mandoc_warns_of_nothing(folder: Path) -> None:
    assert run(["mandoc", "-Tlint", "-Wwarning", *(str(folder / "share/man/man1" / name) for _, name in PAGES)]) == ""


@pytest.mark.processes
@needs("man")
def test_man_finds_them_beside_the_path(folder: Path) -> None:
    if "MANPATH" in os.environ:
        pytest.skip("MANPATH is set")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for name in ("ddlrun", "ddl-bench"):
        assert run(["man", "-w", name], PATH=path).strip() == str(folder / f"share/man/man1/{name}.1")


def test_pages_have_no_date_but_that_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert share_files()["share/man/man1/ddl.1"].startswith('.TH "DDL" 1 "" ')
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert share_files()["share/man/man1/ddl.1"].startswith('.TH "DDL" 1 "1970-01-01" ')
