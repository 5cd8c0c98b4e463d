"""``compression=``: the same bits on all ranks, no gradient lost, the same accuracy; and what is refused, and said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from core.jobs import connected
from said import Said

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
METHODS = ["bf16", "fp16", "int8", "powersgd"]
SIZES = {"matrix": (160, 300), "image": (32, 16, 3, 3), "vector": (40_000,), "single": (1,)}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    by_name = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SIZES.items()
    }
    by_name["image"].data = by_name["image"].data.to(memory_format=torch.channels_last)
    return by_name


def gradients(rank, step=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in SIZES.items()}


def backward(by_name, wanted):
    sum((by_name[name] * wanted[name].to(by_name[name].dtype)).sum() for name in by_name).backward()


def average_of(wanted):
    return {name: sum(of_rank[name] for of_rank in wanted) / len(wanted) for name in SIZES}


def summed_steps(method, overlap, steps, op="Average"):
    """Constant gradients; the sum of their averages over many steps, against the exact one, by parameter."""
    import ddl_torch as ddl

    by_name = parameters()
    optimizer = ddl.DistributedOptimizer(
        torch.optim.SGD(by_name.values(), lr=0.0),
        by_name.items(),
        compression=method,
        overlap=overlap,
        bucket_bytes=1 << 20,
        op=getattr(ddl, op),
    )
    wanted = [gradients(rank) for rank in range(ddl.size())]
    exact = {name: value * (ddl.size() if op == "Sum" else 1) for name, value in average_of(wanted).items()}
    total = {name: torch.zeros(shape) for name, shape in SIZES.items()}
    for _ in range(steps):
        optimizer.zero_grad()
        backward(by_name, wanted[ddl.rank()])
        optimizer.step()
        for name, parameter in by_name.items():
            total[name] += parameter.grad
    error = {name: (total[name] / steps - exact[name]).norm().item() / exact[name].norm().item() for name in SIZES}
    return optimizer.compression, error, [value.numpy().tobytes() for value in total.values()]


#: (compression, overlap, steps, op)
CASES = [
    *[(method, overlap, 1, "Average") for method in ("bf16", "fp16", "int8", "powersgd") for overlap in (False, True)],
    *[("int8", overlap, 40, "Average") for overlap in (False, True)],
    ("powersgd", False, 120, "Average"),
    ("powersgd", True, 120, "Sum"),
]
HYBRID_CASES = [("int8", True, 40, "Average"), ("powersgd", True, 1, "Average")]
#: Relative to the whole of the gradient's norm.
BOUNDS = {("bf16", 1): 0.004, ("fp16", 1): 0.0006, ("int8", 1): 0.02, ("int8", 40): 0.0006}


def everything(*cases):
    """Of one job, as a rank takes seconds to load PyTorch."""
    torch.set_num_threads(1)
    results = {case: summed_steps(*case) for case in cases}
    return results, {method: spoiled_step(method) for method in ("int8", "powersgd")}


@pytest.fixture(scope="module")
def jobs():
    return {
        "tcp": ranks.run(2, everything, *CASES, **connected("tcp")),
        "hybrid": ranks.run(4, everything, *HYBRID_CASES, **connected("hybrid")),
    }


@pytest.mark.slow
@pytest.mark.parametrize("job", ["tcp", "hybrid"])
def test_all_ranks_have_the_same_bits_close_to_the_average(jobs, job):
    (first, _), *others = jobs[job]
    for case, (used, error, bits) in first.items():
        method, _, steps, _ = case
        assert used == method
        assert all(results[case][2] == bits for results, _ in others)
        if method != "powersgd":
            assert all(value < BOUNDS[method, steps] for value in error.values()), (case, error)
            assert max(error.values()) > 0, "nothing was compressed"


@pytest.mark.slow
def test_powersgd_loses_nothing_in_the_long_run(jobs):
    """One product of rank 4 says little of a random matrix; the sum of many says most of it, and vectors are exact."""
    (results, _), _ = jobs["tcp"]
    once = results["powersgd", False, 1, "Average"][1]
    for case in CASES[-2:]:
        error = results[case][1]
        assert error["vector"] < 1e-5 and error["single"] < 1e-5
        for name in ("matrix", "image"):
            assert once[name] > 0.8 and error[name] < 0.4 * once[name], (case, once, error)


def test_one_bad_step_is_seen_and_does_not_spoil_the_next(jobs):
    for _, seen in [*jobs["tcp"], *jobs["hybrid"]]:
        assert seen == {"int8": [True, False, True], "powersgd": [True, False, True]}


def off_after_uses(method, pauses, overlap):
    """How far the sum of a parameter's averages is from the exact one, after 40 uses with pauses between them."""
    import ddl_torch as ddl

    wanted = [gradients(rank) for rank in range(ddl.size())]
    exact = average_of(wanted)["matrix"]
    rare, often = (torch.nn.Parameter(torch.zeros(160, 300)) for _ in range(2))
    optimizer = torch.optim.SGD([rare, often], lr=0.0)
    optimizer = ddl.DistributedOptimizer(optimizer, compression=method, overlap=overlap, bucket_bytes=1 << 20)
    own, total = wanted[ddl.rank()]["matrix"], torch.zeros(160, 300)
    for _ in range(40):
        for use in (*[False] * pauses, True):
            optimizer.zero_grad()
            ((often * own).sum() + ((rare * own).sum() if use else 0)).backward()
            optimizer.step()
            assert (rare.grad is not None) == use
        total += rare.grad
    return ((total - 40 * exact).norm() / exact.norm()).item()


def pauses():
    torch.set_num_threads(1)
    cases = [(method, overlap) for method in ("int8", "powersgd") for overlap in (False, True)]
    return [[off_after_uses(method, n, overlap) for n in (0, 2)] for method, overlap in cases]


@pytest.mark.slow
def test_what_is_left_over_waits_while_no_rank_uses_a_parameter():
    for off in ranks.run(2, pauses, **connected("tcp")):
        for steady, paused in off:
            assert paused < 1.5 * steady, off


def low_rank():
    """A gradient that is a product of rank 2 on every rank comes out as it is, to rounding, from the second step on."""
    import ddl_torch as ddl

    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(90, 2, generator=generator), torch.randn(2, 70, generator=generator)
    parameter = torch.nn.Parameter(torch.zeros(90, 70))
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.0), compression=ddl.PowerSGD(rank=4))
    for step in range(3):
        optimizer.zero_grad()
        gradient = left @ right * (ddl.rank() + 1) * (step != 1)  # none at all in the second step
        (parameter * gradient).sum().backward()
        optimizer.step()
    exact = left @ right * (ddl.size() + 1) / 2
    return ((parameter.grad - exact).norm() / exact.norm()).item()


def test_powersgd_finds_a_product_even_after_a_step_without_gradient(more):
    assert all(error < 1e-5 for _, error, _, _ in more)


def spoiled_step(method):
    """A NaN in one step is seen on all ranks, and the next step is as good as if it had not been."""
    import ddl_torch as ddl

    by_name = parameters()
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(by_name.values(), lr=0.0), by_name.items(), compression=method)
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        wanted = gradients(ddl.rank(), step)
        if step == 1 and ddl.rank() == 1:
            wanted["matrix"][3, 5] = float("nan")
        backward(by_name, wanted)
        optimizer.step()
        seen.append(bool(torch.isfinite(by_name["matrix"].grad).all()))
    return seen


def other_types(method):
    import ddl_torch as ddl

    by_name = parameters(torch.float64)
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(by_name.values(), lr=0.0), by_name.items(), compression=method)
    wanted = [gradients(rank) for rank in range(ddl.size())]
    backward(by_name, wanted[ddl.rank()])
    optimizer.step()
    exact = {name: sum(of_rank[name].double() for of_rank in wanted) / ddl.size() for name in SIZES}
    return max((by_name[name].grad - exact[name]).abs().max().item() for name in SIZES)


def others():
    torch.set_num_threads(1)
    return {method: other_types(method) for method in METHODS}, low_rank(), refusals(), automatic()


@pytest.fixture(scope="module")
def more():
    return ranks.run(2, others, **connected("tcp"))


def test_other_types_are_sent_as_they_are(more):
    assert all(error < 1e-12 for errors, *_ in more for error in errors.values())


def automatic():
    import ddl_torch as ddl

    seen = Said()
    ddl.init()
    by_name = parameters()
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(by_name.values(), lr=0.0), by_name.items(), compression="auto")
    wanted = [gradients(rank) for rank in range(ddl.size())]
    backward(by_name, wanted[ddl.rank()])
    optimizer.step()
    exact = average_of(wanted)
    worst = max((by_name[name].grad - exact[name]).abs().max().item() for name in SIZES)
    return optimizer.compression, worst, [line for line in seen.texts if "compression" in line]


def test_auto_refuses_on_one_host_and_says_so():
    (used, error, said), (other, _, silent) = ranks.run(2, automatic)
    assert used == other == "float32" and error < 1e-6 and not silent
    assert said == ["compression auto: none (all ranks share memory, so nothing is sent that could be compressed)"]


def test_auto_measures_between_hosts_and_all_ranks_agree(more):
    """Which one is fastest is the machine's affair; that it is said, with figures, and used by all is not."""
    (used, error, said), (other, _, silent) = (answer for *_, answer in more)
    assert used == other and used in ("float32", "bf16", "int8") and not silent
    assert error < {"float32": 1e-6, "bf16": 0.02, "int8": 0.05}[used]
    (line,) = said
    assert line.startswith(f"compression auto: {'none' if used == 'float32' else used} (")
    assert all(f"{name} " in line for name in ("float32", "bf16", "int8"))


def refusals():
    import ddl_torch as ddl

    def wrap(**options):
        parameter = torch.nn.Parameter(torch.zeros(3))
        return ddl.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), **options)

    for options, words in [
        ({"compression": "int4"}, "choose one of 'none', 'fp16', 'bf16', 'int8', 'powersgd', 'auto'"),
        ({"compression": 8}, "compression=8"),
        ({"compression": "int8", "op": ddl.Max}, "combined by ddl.Average, ddl.Sum and ddl.Adasum"),
        ({"compression": "int8", "check": 1}, "leave one of them away"),
        ({"compression": "powersgd", "check": 1}, "leave one of them away"),
        ({"compression": "auto", "check": 1}, "leave one of them away"),
    ]:
        with pytest.raises(ddl.InvalidArgument, match=words):
            wrap(**options)
    with pytest.raises(ddl.InvalidArgument, match="rank=0"):
        ddl.PowerSGD(rank=0)
    for methods in (["int8", "powersgd"], [ddl.PowerSGD(2), ddl.PowerSGD(4)], ["auto", None]):
        with pytest.raises(ddl.InvalidArgument, match="on rank 0 there is compression=.*; on rank 1 compression="):
            wrap(compression=methods[ddl.rank()])
    wrap(compression=ddl.Compression.bf16, check=1)
    return ddl.allreduce(torch.ones(1)).item()


def test_what_is_refused_and_that_all_ranks_are_told(more):
    assert [left for _, _, left, _ in more] == [1.0, 1.0]


def test_casts_as_horovod_has_them():
    from ddl_torch import Compression

    x = torch.tensor([1.0, 2.5, -3.0])
    for choice, dtype in [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)]:
        small, context = choice.compress(x)
        assert small.dtype is dtype
        assert torch.equal(choice.decompress(small, context), x) and choice.decompress(small, context).dtype is x.dtype
        whole, context = choice.compress(torch.tensor([1, 2]))
        assert whole.dtype is torch.int64 and choice.decompress(whole, context) is whole
    same, context = Compression.none.compress(x)
    assert same is x and Compression.none.decompress(same, context) is x


def test_orthonormal_columns():
    from ddl_torch.gradients.powersgd import orthonormal

    generator = torch.Generator().manual_seed(1)
    for rows in (5, 64, 1001):
        columns = torch.randn(rows, 4, generator=generator)
        basis = orthonormal(columns)
        assert torch.allclose(basis.t() @ basis, torch.eye(4), atol=1e-6)
        assert torch.allclose(basis @ (basis.t() @ columns), columns, atol=1e-5)  # they span the same
        columns[:, 2] = columns[:, 0] - 2 * columns[:, 1]
        assert (orthonormal(columns)[:, 2] == 0).all()
    assert not orthonormal(torch.zeros(7, 2)).any()
    assert torch.isnan(orthonormal(torch.full((7, 2), float("nan")))).all()


#: Runs a script once for each method, in one process: to load PyTorch takes longer than to train.
ONE_AFTER_THE_OTHER = """
import runpy, sys
folder, methods, *sys.argv = sys.argv[1:]
line = list(sys.argv)
for method in methods.split(","):
    sys.argv = [*line, "--compression", method, "--json", f"{folder}/{method}"]
    runpy.run_path(line[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "options", "methods", "wanted"),
    [
        (
            "torch_digits",
            ["--epochs", "12", "--width", "16"],
            ("none", "int8", "powersgd"),
            lambda result: result["accuracy"],
        ),
        (
            "torch_text",
            ["--epochs", "1", "--steps", "40", "--width", "64"],
            ("none", "int8"),
            lambda result: -result["loss"],
        ),
    ],
    ids=["digits", "text"],
)
def test_the_examples_learn_as_much(tmp_path, example, options, methods, wanted):
    """On two ranks that share no memory: compressed gradients against float32."""
    pytest.importorskip("sklearn")
    line = [sys.executable, "-m", "ddl.launch", "-np", "2", sys.executable, "-c", ONE_AFTER_THE_OTHER, str(tmp_path)]
    environ = {**os.environ, "DDL_SHM": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*line, ",".join(methods), f"examples/{example}.py", *options],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = {method: wanted(json.loads((tmp_path / method).read_text())) for method in methods}
    assert min(accuracies.values()) > accuracies["none"] - 0.02, accuracies
