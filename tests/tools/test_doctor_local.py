"""What a probe says of its own host, where the kernel really refuses: in child processes with limits and filters."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]

#: Refuse system calls by their numbers, as a container's seccomp profile does.
FILTER = """
import ctypes, struct, sys
def refuse(*numbers):
    tests = [(0x15, 0, 1, number, 0x06, 0, 0, 0x00050001) for number in numbers]  # JEQ number: return EPERM
    code = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the number
    code += [struct.pack("HBBI", *half) for test in tests for half in (test[:4], test[4:])]
    code.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # allow
    text = ctypes.create_string_buffer(b"".join(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(text)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""
MEMFD_CREATE, SENDMSG, SCHED_SETAFFINITY, SETSOCKOPT = 319, 46, 203, 54  # of x86-64


def child(program: str) -> str:
    line = [sys.executable, "-c", f"from ddl.tools.doctor import local\n{program}"]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True, timeout=240).stdout.strip()


x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls have other numbers here")


@pytest.mark.few(1)
@x86_64
@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (MEMFD_CREATE, "memfd_create: [Errno 1] Operation not permitted"),
        (SENDMSG, "passing a descriptor over a Unix socket: [Errno 1] Operation not permitted"),
    ],
)
def test_memory_cannot_be_passed(number: int, problem: str) -> None:
    assert child(f"{FILTER}\nrefuse({number})\nprint(local._memfd_problem())") == problem


@x86_64
def test_system_calls_are_refused() -> None:
    said = child(f"{FILTER}\nrefuse({SCHED_SETAFFINITY}, {SETSOCKOPT})\nprint(local._refused())")
    assert said == "('sched_setaffinity', 'setsockopt(TCP_CONGESTION)')"


def test_too_few_descriptors_for_a_memfd() -> None:
    said = child("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\nprint(local._memfd_problem())")
    assert said == "memfd_create: [Errno 24] Too many open files"


def test_nothing_is_refused_here() -> None:
    assert child("print(local._memfd_problem() == '', local._refused())") == "True ()"
