"""ddl_jax.allreduce, in compiled functions and outside, with a compiler and without; and training with Optax."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_is_right(ddlrun, size):
    done = ddlrun(size, "allreduce.py", options="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all right") == size


def test_without_a_compiler_it_calls_python(ddlrun, tmp_path):
    environ = {"CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    done = ddlrun(2, "allreduce.py", options="", environ=environ)
    assert done.returncode == 0 and done.stdout.count("all right") == 2, done.stdout + done.stderr
    assert "its op cannot be compiled: there is no C++ compiler no-such-compiler" in done.stderr


@pytest.mark.faults
@pytest.mark.parametrize("compiler", ["g++", "no-such-compiler"])
def test_a_lost_rank_is_named_in_a_compiled_function(ddlrun, compiler, tmp_path):
    environ = {} if compiler == "g++" else {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    done = ddlrun(2, "lost.py", "dies", options="", environ=environ)
    assert done.returncode == 3, done.stdout + done.stderr
    for word in ("raised", "again"):
        assert re.search(rf"{word} .*PeerLost: \[rank 0/2 .*lost rank 1", done.stdout, re.DOTALL), done.stdout


@pytest.mark.faults
def test_other_shapes_are_told_on_both_ranks(ddlrun):
    done = ddlrun(2, "lost.py", "mismatch", options="")
    assert done.returncode == 5, done.stdout + done.stderr
    assert len(re.findall(r"raised .*CollectiveMismatch.*1000.*10", done.stdout)) >= 1, done.stdout + done.stderr


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_ranks_train_as_one_process_with_the_whole_batch(ddlrun, tmp_path, rule):
    """From another seed on each rank; parameters and the optimizer's state come out alike, and equal on all ranks."""
    weights = {}
    for size in (1, 2):
        done = ddlrun(size, "training.py", rule, str(tmp_path / str(size)), options="")
        assert done.returncode == 0, done.stdout + done.stderr
        ranks = [np.load(tmp_path / f"{size}.{rank}.npy") for rank in range(size)]
        assert all(rank.tobytes() == ranks[0].tobytes() for rank in ranks)
        weights[size] = ranks[0]
    difference = np.linalg.norm(weights[2] - weights[1])
    assert difference < 1e-6 * np.linalg.norm(weights[1])


def test_the_op_knows_the_calls_as_the_core_does():
    """Its source repeats declarations of a header that wheels do not have."""
    from ddl_jax._primitive import _SOURCE

    header = _SOURCE.parents[1] / "csrc" / "python" / "native_calls.h"
    (fields,) = re.findall(r"struct DdlNativeCall \{(.*?)\};", header.read_text(encoding="utf-8"), re.DOTALL)
    op = _SOURCE.read_text(encoding="utf-8")
    assert f"struct DdlNativeCall {{{fields}}};" in op
    first = r"struct DdlNativeCalls \{.*?(int \(\*run\).*?;)"
    declared = [re.search(first, text, re.DOTALL).group(1) for text in (header.read_text(encoding="utf-8"), op)]
    assert declared[0] == declared[1]
