"""The code of docs/xgboost.md and the example run on two ranks, by ddlrun and by torchrun, to one model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, python_blocks, text_of
from process_groups import launch, run

pytest.importorskip("xgboost", reason="XGBoost is not installed; make test-full installs it")
pytest.importorskip("sklearn", reason="the example's data are in scikit-learn; make test installs it")
import ddl_xgboost  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("launcher", ["ddlrun", "torchrun"])
def test_the_example_has_one_model_by_any_launcher(launcher: str, tmp_path: Path) -> None:
    printed = launch(launcher, [str(ROOT / "examples/xgboost_digits.py"), "--rounds", "8"], tmp_path)
    reports = re.findall(r"rank (\d) of 2: model (\w+), accuracy (0\.\d+)", printed)
    assert sorted(rank for rank, _, _ in reports) == ["0", "1"], printed
    assert len({(model, accuracy) for _, model, accuracy in reports}) == 1, printed
    assert float(reports[0][2]) > 0.9


def test_the_example_runs_on_one_process(tmp_path: Path) -> None:
    assert "rank 0 of 1: model" in run([str(ROOT / "examples/xgboost_digits.py"), "--rounds", "2"], tmp_path)


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    (block,) = python_blocks("docs/xgboost.md")
    (tmp_path / "program.py").write_text(block)
    launch("ddlrun", ["program.py"], tmp_path)
    assert (tmp_path / "model.json").stat().st_size > 1000


def test_all_names_are_in_the_document() -> None:
    text = text_of("docs/xgboost.md")
    assert [name for name in ddl_xgboost.__all__ if not re.search(rf"`(ddl\.)?{name}\b", text)] == []
    assert all(hasattr(ddl_xgboost, name) for name in ddl_xgboost.__all__)
