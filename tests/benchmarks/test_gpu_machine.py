"""On a machine with a GPU the core is built without CMake and a network: with the flags that CMake would give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_flags_of_the_build_without_cmake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "environments"))
    import gpu_machine as offline

    rules = offline.CMakeRules()
    assert {"-ffp-contract=off", "-Wall"} <= set(rules.common)
    names = {source.relative_to(ROOT).as_posix() for source in rules.sources}
    assert len(names) > 40 and "csrc/python/module.cc" in names
    if os.uname().machine == "x86_64":
        assert "-mavx512f" in rules.flags(ROOT / "csrc/reduce/kernels_avx512_x86.cc")
        assert not any(name.endswith("_generic.cc") for name in names)
    assert "-mavx2" not in rules.flags(ROOT / "csrc/python/module.cc")
    assert not any("$" in flag for source in rules.sources for flag in rules.flags(source))
