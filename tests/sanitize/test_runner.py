"""What of the runner can be tested without a sanitizer: which tests it picks, and what it makes of reports."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Iterator

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_MODULES = ("builds", "reports", "threads", "run")


@pytest.fixture(scope="module")
def runner() -> Iterator[ModuleType]:
    """run.py, loaded as a program loads it: beside the modules that it imports."""
    sys.path.insert(0, str(HERE))
    spec = importlib.util.spec_from_file_location("run", HERE / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(HERE))
    for name in _MODULES:
        sys.modules.pop(name, None)


def test_every_line_of_the_selection_names_tests_and_sanitizers(runner: ModuleType) -> None:
    for line in (HERE / "selection.txt").read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        path, _, test = words[0].partition("::")
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), words[0]
        assert set(words[1:]) <= set(runner.SANITIZERS), line
    for name in runner.SANITIZERS:
        assert "tests/core/test_collectives.py" in runner.selection(name)
    assert "tests/test_reduce.py" not in runner.selection("thread")


def test_reports_are_counted_and_those_of_faults_on_purpose_removed(runner: ModuleType, tmp_path: Path) -> None:
    reports = runner.Reports(tmp_path)
    (tmp_path / "report.1").write_text("canary.cc:21: runtime error: signed integer overflow")
    (tmp_path / "report.2").write_text("==2==ERROR: AddressSanitizer: heap-buffer-overflow")
    (tmp_path / "report.3").write_text("")
    assert reports.count() == 2
    assert not reports.take("thread")
    assert reports.take("address") and not reports.take("address")
    assert reports.count() == 1


def test_only_the_death_of_the_runtime_itself_is_set_aside(runner: ModuleType, tmp_path: Path) -> None:
    reports = runner.Reports(tmp_path)
    death = "ThreadSanitizer: CHECK failed: sanitizer_tls_get_addr …\n #2 handle_tls_addr"
    (tmp_path / "report.1").write_text(death)
    (tmp_path / "report.2").write_text("WARNING: ThreadSanitizer: data race\n" + death)
    allocation = "==3==ERROR: ThreadSanitizer failed to allocate 0x{} ({} bytes) at address 100000008000 (errno: 12)"
    (tmp_path / "report.3").write_text(allocation.format("1eed0000d3000", 0x1EED0000D3000))
    (tmp_path / "report.4").write_text(allocation.format("1000d3000", 0x1000D3000))  # what a test could ask for
    assert reports.set_aside_runtime_deaths() == 2
    assert [path.name for path in reports.files()] == ["report.2", "report.4"]
    assert (tmp_path / "runtime-died" / "report.1").exists()


def test_every_suppression_is_explained() -> None:
    """A line that suppresses stands below a comment, and none names a function of ours."""
    for path in HERE.glob("*.supp"):
        before = ""
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                assert before.startswith("# "), f"{path.name}: {line}"
                assert "ddl" not in line, f"{path.name}: {line}"
            before = line


def test_ranks_as_threads_need_no_python(runner: ModuleType) -> None:
    sources = sys.modules["threads"].sources()
    assert any(path.name == "lane.cc" for path in sources)
    for path in sources:
        assert "Python.h" not in path.read_text() and "pybind11" not in path.read_text(), path


def test_the_plans_of_ranks_as_threads_are_numbers(runner: ModuleType) -> None:
    pytest.importorskip("ddl._core", reason="the core is not built")
    lines = sys.modules["threads"].plans(2, 1, "").splitlines()
    assert lines[0] == f"2 {len(lines) - 1}" and all(word.isdecimal() for line in lines for word in line.split())
