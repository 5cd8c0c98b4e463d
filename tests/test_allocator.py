"""glibc keeps what is freed, when it is told to in the process or by its environment."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from ddl import ConfigError
from ddl.adapter import malloc_settings

pytestmark = pytest.mark.skipif(
    not hasattr(malloc_settings.ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc"
)

# Pages of 4 KiB that are faulted in for a block of 48 MiB, as large as a layer's gradient, when it is had again.
FAULTS = """
import ctypes, resource
from ddl.adapter import malloc_settings
{tune}
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: where huge pages are the rule, a fault brings 512 pages
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(48 << 20)
    ctypes.memset(block, 1, 48 << 20)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fill()
print(fill())
"""
PAGES = (48 << 20) // os.sysconf("SC_PAGE_SIZE")


def faults(tune: str = "", **environ: str) -> int:
    """In a process of its own, with ``tune`` run at its start."""
    own = {name: value for name, value in os.environ.items() if name not in malloc_settings.environ()}
    line = [sys.executable, "-c", FAULTS.format(tune=tune)]
    done = subprocess.run(line, env={**own, **environ}, capture_output=True, text=True, timeout=240, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    "tune, environ, kept",
    [
        ("", {}, False),
        ("malloc_settings.tune_allocator()", {}, True),
        ("malloc_settings.tune_allocator()", {"DDL_TUNE_ALLOCATOR": "0"}, False),
        ("malloc_settings.tune_allocator(False)", {}, False),
        ("malloc_settings.tune_allocator(True)", {"DDL_TUNE_ALLOCATOR": "0"}, True),
        ("", malloc_settings.environ(), True),
    ],
)
def test_freed_memory_is_kept(tune: str, environ: Dict[str, str], kept: bool) -> None:
    faulted = faults(tune, **environ)
    assert faulted < PAGES // 100 if kept else faulted >= PAGES // 2


def test_it_is_tuned_once_and_can_be_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(malloc_settings, "_tuned", None)
    monkeypatch.setenv("DDL_TUNE_ALLOCATOR", "0")
    assert malloc_settings.tune_allocator() is False
    monkeypatch.setenv("DDL_TUNE_ALLOCATOR", "perhaps")
    with pytest.raises(ConfigError, match="DDL_TUNE_ALLOCATOR='perhaps'"):
        malloc_settings.tune_allocator()
    settings: List[int] = []

    class Library:
        gnu_get_libc_version = None

        def mallopt(self, name: int, value: int) -> int:
            settings.append(name)
            return 1

    def library(_: Any) -> Library:
        return Library()

    monkeypatch.setattr(malloc_settings.ctypes, "CDLL", library)
    with caplog.at_level(logging.INFO, logger="ddl"):
        assert malloc_settings.tune_allocator(True) is True
        assert malloc_settings.tune_allocator(True) is True
    assert sorted(settings) == [-3, -2, -1]
    assert len(caplog.records) == 1
