"""The program and the output that docs/blame.md shows are real, but for names, times and processes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import List

import psutil
import pytest
from documents import ROOT, python_blocks, text_of

from ddl.tools.cli import main


def alike(text: str) -> List[str]:
    """Return lines without what differs by run, in any order."""
    text = re.sub(r"host [^,]+, pid \d+|CONT \d+|\d+(\.\d+)? s$", "", text, flags=re.MULTILINE)
    return sorted(line.strip() for line in text.splitlines() if line.strip())


@pytest.mark.slow
@pytest.mark.processes
def test_the_program_and_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = python_blocks("docs/blame.md")
    (tmp_path / "hang.py").write_text(program)
    dumps = str(tmp_path / "dumps")
    line = [sys.executable, "-m", "ddl.launch", "-np", "3", str(tmp_path / "hang.py")]
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.DEVNULL) as job:
        try:
            deadline = time.monotonic() + 200
            while "2 ranks wait for it" not in capsys.readouterr().out:
                assert time.monotonic() < deadline
                time.sleep(0.2)
                pids = [process.pid for process in psutil.Process(job.pid).children(recursive=True)]
                for pid in pids:
                    main(["dump", "--pid", str(pid), "--out", dumps])  # 2 if it is no rank, or not yet
                capsys.readouterr()
                main(["blame", dumps, "--patience", "1"])
        finally:
            job.terminate()
    main(["blame", dumps, "--patience", "1"])
    (shown,) = re.findall(r"^    stopped: .*(?:\n    .+)*", text_of("docs/blame.md"), re.MULTILINE)
    assert alike(capsys.readouterr().out) == alike(shown)
