"""Arrays of torch, CuPy and JAX in the calls of ``ddl``, and a CUDA graph, which no collective may be a part of."""

from __future__ import annotations

import importlib.util

import drivers
import numpy as np
import pytest
import ranks
import torch
from gpu.jobs import device, environment

import ddl
import ddl_torch

pytestmark = pytest.mark.processes
N = 300_007
needs_gpu = pytest.mark.skipif(drivers.device() == "cpu", reason="it needs a GPU: --driver real")


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"there is no {module}")


def total() -> int:
    return ddl.size() * (ddl.size() + 1) // 2


def of_torch() -> None:
    for _ in range(20):
        x = torch.full((N,), float(ddl.rank() + 1), device=device())
        assert ddl.allreduce_(x, op="sum") is x
        assert bool((x == total()).all())
        work = ddl.allreduce_async_(x.fill_(ddl.rank() + 1), op="sum")
        work.wait()
        assert bool((x == total()).all())
        rows = torch.full((3, 5), float(ddl.rank()), device=device())
        out = torch.empty((3 * ddl.size(), 5), device=device())
        assert ddl.allgather(rows, out=out) is out
        assert out[:, 0].tolist() == [float(each) for each in range(ddl.size()) for _ in range(3)]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [2, 4])
def test_tensors_of_torch(size: int) -> None:
    ranks.run(size, of_torch, env=environment())


def of_cupy() -> None:
    import cupy

    for dtype in ("float16", "float32", "float64", "int32"):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.full(N, ddl.rank() + 1, dtype)
            ddl.allreduce_(x, op="sum")
            assert bool((x == total()).all())


@needs_gpu
@needs("cupy")
def test_arrays_of_cupy() -> None:
    ranks.run(2, of_cupy, env=environment())


def of_jax() -> None:
    import jax.numpy as jnp

    x = jnp.full((3, 5), ddl.rank() + 1, jnp.float32)
    out = np.empty((3 * ddl.size(), 5), np.float32)
    ddl.allgather(x, out=out)  # arrays of JAX can be read only
    assert out[:, 0].tolist() == [each + 1 for each in range(ddl.size()) for _ in range(3)]


@needs_gpu
@needs("jax")
def test_arrays_of_jax() -> None:
    ranks.run(2, of_jax, env=environment())


def in_a_graph() -> None:
    x = torch.ones(1000, device=device())
    ddl_torch.allreduce_(x, op=ddl_torch.Sum)
    y = torch.zeros(1000, device=device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y += x
        with pytest.raises(ddl.InvalidState, match="captured"):
            ddl_torch.allreduce_(x)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [2.0 * ddl.size()] * 1000
    ddl_torch.allreduce_(y, op=ddl_torch.Sum)
    assert y.tolist() == [2.0 * ddl.size() ** 2] * 1000


@needs_gpu
def test_a_graph_is_refused_and_stays_valid() -> None:
    ranks.run(2, in_a_graph, env=environment())


def while_another_thread_captures() -> None:
    """A capture in one thread, in the strictest mode, while operations of another are under way."""
    x = torch.ones(N, device=device())
    ddl_torch.allreduce_(x, op=ddl_torch.Sum)  # memory is registered, and torch's allocator has its blocks
    works = [ddl_torch.allreduce_async_(torch.ones(N, device=device()), op=ddl_torch.Sum) for _ in range(20)]
    y = torch.zeros(1000, device=device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            y += 1
    assert all(bool((ddl_torch.synchronize(work) == ddl.size()).all()) for work in works)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [50.0] * 1000


@needs_gpu
def test_a_capture_while_operations_are_under_way() -> None:
    ranks.run(2, while_another_thread_captures, env=environment())
