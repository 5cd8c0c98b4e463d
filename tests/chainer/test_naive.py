"""The same as ChainerMN's ``naive`` over a real MPI, in all that ChainerMN does with it: tests/chainer_cases.py."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes


def on_ddl():
    import ddl_chainer

    return cases.run(ddl_chainer.create_communicator("ddl"))


def on_naive(size, folder):
    """Return what came out on each rank; its MPI is MPICH, from PyPI."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    line = [mpiexec, "-n", str(size), sys.executable, cases.__file__, folder]
    environ = {**os.environ, "CHAINER_CASES": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return [pickle.loads(Path(folder, f"{rank}.pickle").read_bytes()) for rank in range(size)]


def check(own, other, close, where):
    """Fail unless both are the same, or as close as the order of additions lets them be."""
    assert type(own) is type(other), where
    if isinstance(own, dict):
        assert own.keys() == other.keys(), where
        for key in own:
            check(own[key], other[key], close, f"{where}, {key}")
    elif isinstance(own, (list, tuple)):
        assert len(own) == len(other), where
        for number, (entry, another) in enumerate(zip(own, other)):
            check(entry, another, close, f"{where}, {number}")
    elif isinstance(own, (np.ndarray, np.floating, float)):
        array, another = np.asarray(own), np.asarray(other)
        assert (array.dtype, array.shape) == (another.dtype, another.shape), where
        assert np.allclose(array, another, **close(array.dtype)) if array.size else True, f"{where}: {array}, {another}"
    else:
        assert own == other, where


def equal_bits(dtype):
    return {"rtol": 0, "atol": 0}


def rounded(dtype):
    return {"rtol": 2e-3, "atol": 1e-4} if dtype == np.float16 else {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize(("size", "close"), [(2, equal_bits), (4, rounded)])
def test_what_naive_does(size, close, tmp_path):
    """A sum of two has one order only; with more ranks the last bits may differ."""
    (tmp_path / "naive").mkdir()
    naive = on_naive(size, tmp_path / "naive")
    results = ranks.run(size, on_ddl, initialise=False, env={"CHAINER_CASES": str(tmp_path)})
    assert [list(result) for result in results] == [[case.__name__ for case in cases.CASES]] * size
    for rank in range(size):
        check(results[rank], naive[rank], close, f"rank {rank}")
    for other in results[1:]:  # the ranks have the same weights, to the bit
        check(results[0]["training"], other["training"], equal_bits, "ranks")
