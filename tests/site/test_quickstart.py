"""docs/quickstart.md: each program runs, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest
from documents import ROOT, python_blocks, text_of

pytestmark = [pytest.mark.slow, pytest.mark.processes]
PAGE = "docs/quickstart.md"


def shown() -> List[Tuple[str, List[str]]]:
    """Return each command of ddlrun's on the page, and the lines that it printed."""
    blocks = re.findall(r"^    \$ ddlrun (.+)\n((?:    .+\n)+)", text_of(PAGE), re.MULTILINE)
    return [(command, [line.strip() for line in lines.splitlines()]) for command, lines in blocks]


def run(number: int, folder: Path) -> subprocess.CompletedProcess[str]:
    command, _ = shown()[number]
    options, _, program = command.rpartition(" ")
    (folder / program).write_text(python_blocks(PAGE)[number])
    line = [sys.executable, "-m", "ddl.launch", *options.split(), "--dump-dir", str(folder), str(folder / program)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_each_program_has_its_output():
    assert len(python_blocks(PAGE)) == len(shown()) == 3


@pytest.mark.parametrize("number", [0, 1], ids=["average", "train"])
def test_a_program_prints_what_the_page_says(number: int, tmp_path: Path):
    if number == 1:
        pytest.importorskip("torch")
    ended = run(number, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == shown()[number][1]


def test_a_lost_rank_is_reported_as_the_page_says(tmp_path: Path):
    ended = run(2, tmp_path)
    assert ended.returncode == 137
    for line in shown()[2][1]:
        # The host, the process and the folder are those of the machine; "…" stands for the rest of a line.
        pattern = re.escape(line.partition("…")[0]).replace("host\\ vm", r"host\ \S+")
        pattern = re.sub(r"pid\\ \d+", r"pid\\ \\d+", pattern).replace(re.escape("~/.local/state/ddl/dumps/"), ".*")
        assert re.search(pattern, ended.stderr), line
