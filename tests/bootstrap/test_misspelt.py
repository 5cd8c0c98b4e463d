"""A variable that is next to one of DDL's is named, once, on rank 0; what others call DDL_… is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Dict

import pytest

from ddl.bootstrap.environ import describe
from ddl.bootstrap.misspelt import misspelt

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DDL_TIMEOUTT", "DDL_TIMEOUT"),
        ("DDL_TIME_OUT", "DDL_TIMEOUT"),
        ("DDL_STARTTIMEOUT", "DDL_START_TIMEOUT"),
        ("DDL_ALGORYTHM", "DDL_ALGORITHM"),
        ("DDL_timeout", "DDL_TIMEOUT"),
        ("DDL_RAIL", "DDL_RAILS"),
        ("DDL_TUNE_ALOCATOR", "DDL_TUNE_ALLOCATOR"),
    ],
)
def test_the_nearest_name_is_said(name: str, meant: str) -> None:
    assert misspelt({name: "5"}) == [f"{name} is no variable of DDL and has no effect (did you mean {meant}?)"]


def test_what_is_right_or_of_others_is_left_alone() -> None:
    environ: Dict[str, str] = {name: "1" for name in os.environ if not name.startswith("DDL_")}
    environ.update({line.split()[0]: "1" for line in describe().splitlines()})
    environ.update(DDL_RANK="0", DDL_SECRET="x", DDL_HOST="a", DDL_MODEL_DIR="b", DDL_OPTIONS="c", MYDDL_TIMEOUTT="d")
    environ.update(DDL_="e", DDL_TENSORFLOW_OP="0")
    assert misspelt(environ) == []


def test_a_job_says_it_once() -> None:
    environ = {**os.environ, "DDL_TIMEOUTT": "5"}
    program = "import ddl; ddl.init(); ddl.init(); print(ddl.size())"
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert done.stderr.count("DDL_TIMEOUTT is no variable of DDL") == 1
