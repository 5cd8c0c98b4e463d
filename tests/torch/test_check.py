"""``check=``: what is wrong with an average is found and named on all ranks, and what is right raises no alarm.

Averages are spoiled as a stray write would do it: behind the reduction, in the memory that it has written.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import ranks
from core.jobs import connected

torch = pytest.importorskip("torch")

DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64"]


class Spoiled:
    """A communicator that all-reduces, and then lets ``spoil(array)`` write to the result."""

    def __init__(self, group):
        self._group = group
        self.spoil = lambda array: None

    def __getattr__(self, name):
        return getattr(self._group, name)

    def prepare_allreduce(self, x, **options):
        run = self._group.prepare_allreduce(x, **options)
        return lambda: (run(), self.spoil(x))

    def allreduce_async_(self, x, **options):
        self._work, self._x = self._group.allreduce_async_(x, **options), x
        return self

    def wait(self):
        self._work.wait()
        self.spoil(self._x)


def parameters(dtype=torch.float32):
    torch.manual_seed(2)
    named = {"first": (3, 5), "image": (2, 3, 2, 2), "last": (7,), "unused": (4,)}
    by_name = {name: torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for name, shape in named.items()}
    by_name["image"].data = by_name["image"].data.to(memory_format=torch.channels_last)
    return by_name


def backward(by_name, scale=1.0):
    """The gradient of each parameter is its value times ``scale`` times the rank's number from 1."""
    import ddl_torch as ddl

    loss = sum(
        (by_name[name] * (by_name[name].detach() * scale * (ddl.rank() + 1))).sum()
        for name in by_name
        if name != "unused"
    )
    loss.real.backward()


def refused(optimizer, by_name):
    """The error of a backward pass, without its prefix, which all ranks have alike; weights stay as they are."""
    import ddl_torch as ddl

    before = [p.detach().clone() for p in by_name.values()]
    with pytest.raises(ddl.Error) as caught:
        backward(by_name)
    assert all(torch.equal(p, kept) for p, kept in zip(by_name.values(), before))
    prefix, text = str(caught.value).split(": ", 1)
    assert prefix.startswith(f"{ddl.world().who} check of step ")
    texts = ddl.allgather_object([type(caught.value).__name__, prefix.split("] ")[1], text])
    assert all(text == texts[0] for text in texts), texts
    optimizer.zero_grad()
    return texts[0]


def spoilt_averages(overlap):
    import ddl_torch as ddl

    group, size = Spoiled(ddl.world()), ddl.size()
    by_name = parameters()
    optimizer = torch.optim.SGD(by_name.values(), lr=0.1)
    optimizer = ddl.DistributedOptimizer(optimizer, by_name.items(), overlap=overlap, check=2, communicator=group)
    target = by_name["first"][2, 3].item() * (size + 1) / 2

    def find(array):
        return int(np.argmin(np.abs(array - target)))

    def on_rank_1(array):
        if ddl.rank() == 1:
            array[find(array)] += 5

    def one_bit(array):
        if ddl.rank() == size - 1:
            at = find(array)
            array[at] = np.nextafter(array[at], np.float32(np.inf))

    def everywhere(array):
        array[find(array)] *= 1.001

    answers = []
    for spoil in (on_rank_1, one_bit, everywhere):
        group.spoil = spoil
        answers.append(refused(optimizer, by_name))  # an odd step: checked
        backward(by_name)  # an even one: not checked
        optimizer.zero_grad()
        group.spoil = lambda array: None
    backward(by_name)
    optimizer.step()
    return answers


@pytest.mark.processes
@pytest.mark.parametrize(("size", "overlap"), [(2, False), (3, True)])
def test_a_wrong_average_is_named(size, overlap):
    numbers = ", ".join([r"-?[\d.]+"] * size)
    first, *others = ranks.run(size, spoilt_averages, overlap, env={"OMP_NUM_THREADS": "1"})
    assert all(answer == first for answer in others)
    for step, (kind, prefix, text), where in zip((1, 3, 5), first, ("rank 1", f"rank {size - 1}", "all ranks")):
        assert (kind, prefix) == ("InternalError", f"check of step {step}")
        assert text.startswith("the average of the gradients of parameter 'first' at index (2, 3) is "), text
        assert f" on {where}; adding up in float64 gives " in text
        assert re.search(rf"By rank: gradients \[{numbers}\], results \[{numbers}\]\. ", text), text


def not_finite():
    import ddl_torch as ddl

    by_name = parameters()
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(by_name.values(), lr=0.1), by_name.items(), check=True)
    answers = []
    for name, index, value in (("last", (6,), "nan"), ("image", (1, 2, 0, 1), "inf"), ("first", (0, 0), "-inf")):

        def spoil(gradient, index=index, value=value):
            gradient = gradient.clone()
            gradient[index] = float(value)
            return gradient

        hooks = [by_name[name].register_hook(spoil)] if ddl.rank() == 1 else []
        answers.append([name, index, value, refused(optimizer, by_name)])
        for hook in hooks:
            hook.remove()
    backward(by_name)
    optimizer.step()
    return answers


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_a_gradient_that_is_not_finite_is_named(size):
    for answers in ranks.run(size, not_finite, env={"OMP_NUM_THREADS": "1", "DDL_SHM": "0"}):
        for step, (name, index, value, (kind, prefix, text)) in enumerate(answers, 1):
            assert (kind, prefix) == ("InvalidState", f"check of step {step}")
            assert text.startswith(f"the gradient of parameter '{name}' at index {index} is {value} on rank 1, before")


def right_averages(dtype_names):
    """Gradients of many magnitudes, in buckets large and small, every step checked."""
    import ddl_torch as ddl

    for name, op, bucket_bytes in itertools.product(dtype_names, (ddl.Average, ddl.Sum), (1 << 10, 8 << 20)):
        dtype = getattr(torch, name)
        make = torch.Generator().manual_seed(ddl.rank())
        table = {"large": torch.nn.Parameter(torch.zeros(37, 1100, dtype=dtype)), **parameters(dtype)}
        optimizer = torch.optim.SGD(table.values(), lr=0.01)
        optimizer = ddl.DistributedOptimizer(optimizer, table.items(), op=op, bucket_bytes=bucket_bytes, check=1)
        for step in range(2):
            for p in table.values():
                if p.numel() == 4 and ddl.rank() != step:
                    p.grad = None  # used by some rank, or by none
                    continue
                magnitudes = 2.0 ** torch.randint(-20, 8, p.shape, generator=make)
                p.grad = (torch.randn(p.shape, generator=make) * magnitudes).to(dtype)
            optimizer.step()
    return True


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("transport", "size"), [("shared", 1), ("shared", 2), ("shared", 4), ("tcp", 3), ("hybrid", 4)]
)
def test_no_false_alarm(transport, size):
    job = connected(transport, OMP_NUM_THREADS="1")
    assert ranks.run(size, right_averages, DTYPES, **job) == [True] * size


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize("codec", ["bf16", "fp16"])
def test_no_false_alarm_where_the_wire_is_narrow(codec):
    job = connected("tcp", OMP_NUM_THREADS="1", DDL_WIRE=codec)
    assert ranks.run(3, right_averages, ["float32", "complex64", "float64"], **job) == [True] * 3


def as_scripts_do():
    """Accumulation, clipping, freezing, dropping; returns the operations of each step, and those without a check."""
    import ddl_torch as ddl

    counts = []
    for check in (3, 0):
        by_name = parameters(torch.float64)
        optimizer = torch.optim.SGD(by_name.values(), lr=0.01, momentum=0.9)
        optimizer = ddl.DistributedOptimizer(optimizer, by_name.items(), backward_passes_per_step=2, check=check)
        counts.append([])
        for step in range(9):
            by_name["last"].requires_grad_(step % 2 == 0)
            if step == 4:  # a round counts even if this rank drops it: others may not
                backward(by_name, 3.0)
                backward(by_name, 3.0)
                optimizer.zero_grad()
            group = optimizer._ddl.communicator
            before = group.metrics().operations
            backward(by_name)
            backward(by_name, 0.5)
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(by_name.values(), 0.5)
            optimizer.step()
            counts[-1].append(group.metrics().operations - before)
            optimizer.zero_grad()
    return counts


@pytest.mark.processes
def test_every_third_step_is_checked_and_costs_messages():
    for with_check, without in ranks.run(2, as_scripts_do, env={"OMP_NUM_THREADS": "1"}):
        assert without == [2] + 8 * [1]  # one bucket; and at the start weights are compared
        # The second round of the fifth step is the sixth of all.
        assert [more > 1 for more in with_check] == [True, False, False] + [True, False] + [True, False, False, True]
        assert [more for more in with_check if more == 1] == [1] * 5


def at_the_edge_of_half():
    """Small numbers that are divided first, and numbers whose sum float16 cannot hold."""
    import ddl_torch as ddl

    def step(value, **options):
        parameter = torch.nn.Parameter(torch.ones(8, dtype=torch.float16))
        optimizer = ddl.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), check=1, **options)
        (parameter * torch.tensor(value, dtype=torch.float16)).sum().backward()
        optimizer.step()

    step(1.01e-4, gradient_predivide_factor=1024.0)
    step(40000.0, gradient_predivide_factor=2.0)
    with pytest.raises(ddl.InvalidState, match=r"index \(0,\), \[40000.0, 40000.0\] by rank, add up to more than"):
        step(40000.0, op=ddl.Sum)
    return True


@pytest.mark.processes
def test_what_half_precision_loses_is_no_wrong_average():
    assert ranks.run(2, at_the_edge_of_half, env={"OMP_NUM_THREADS": "1"}) == [True, True]
