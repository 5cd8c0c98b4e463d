"""The ``ddl`` command itself: misspelt tools and options, and what is said of files that were written."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from ddl.tools.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dcotor"], "(did you mean 'doctor'?)"),
        (["benhc", "allreduce"], "(did you mean 'bench'?)"),
        (["bench", "alreduce"], "(did you mean 'allreduce'?)"),
        (["plan", "4", "--allgorithm=ring"], "unknown option --allgorithm (did you mean '--algorithm'?)"),
        (["bench", "allreduce", "--sizse", "8"], "unknown option --sizse (did you mean '--sizes'?)"),
        (["topo", "--nothing-like-it"], "unknown option --nothing-like-it\n"),
    ],
)
def test_what_may_have_been_meant(words: List[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_picture_that_was_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ring.svg"
    assert main(["plan", "4", "--algorithm", "ring", "--verify", "--svg", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == f"wrote {path} ({path.stat().st_size / 1024:.3g} KiB)\n" and "wrote" not in out
