"""``DistributedOptimizer`` on a GPU: the same weights as on the CPU, to the bit, whatever the options and streams."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import ranks
import torch
import torch.utils.checkpoint
from core.jobs import connected
from torch_gpu import environment, fake_gpu

import ddl_torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # the fake device of torch is compiled first
STEPS = 3


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 32), torch.nn.Tanh()
    ).to(dtype)


def batch(step: int, dtype: torch.dtype) -> torch.Tensor:
    seed = 100 * step + ddl_torch.rank()
    return torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


def trained(device: str, loop: Callable[..., None], options: Dict[str, Any], dtype: Any) -> List[torch.Tensor]:
    """Return the weights after some steps on the device."""
    model = network(dtype).to(device)
    torch_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = ddl_torch.DistributedOptimizer(torch_optimizer, model.named_parameters(), **options)
    loop(model, optimizer, device, dtype)
    return [p.detach().cpu() for p in model.parameters()]


def plain_loop(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step, dtype).to(device)).square().mean().backward()
        optimizer.step()


def two_passes(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(2):
            model(batch(2 * step + number, dtype).to(device)).square().mean().backward()
        optimizer.step()


def kept_gradients(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
    """The script keeps gradients: they stay as they are."""
    kept = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step, dtype).to(device)).square().mean().backward()
        kept.append([(p.grad, p.grad.detach().clone()) for p in model.parameters()])
        optimizer.step()
    assert all(torch.equal(grad, was) for grads in kept for grad, was in grads)


def unused(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
    """Rank 1 uses a part of the model only, and clips."""
    for step in range(STEPS):
        optimizer.zero_grad()
        part = model[:3] if ddl_torch.rank() == 1 else model
        part(batch(step, dtype).to(device)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def checkpointed(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
    """Activations are computed anew in the backward pass."""
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(step, dtype).to(device)
        for layer in model:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        x.square().mean().backward()
        optimizer.step()


def with_graph(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(step, dtype).to(device)).square().mean()
        loss.backward(create_graph=True)
        penalty = sum(p.grad.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()


def same_as_on_the_cpu(case: str, dtype: Any = torch.float32) -> None:
    loop, options = CASES[case]
    with fake_gpu():  # autograd's threads know the devices that there are at the first backward pass
        on_cpu = trained("cpu", loop, options, dtype)
        on_device = trained("fake", loop, options, dtype)
    for number, (left, right) in enumerate(zip(on_device, on_cpu)):
        if case == "graph":  # autograd adds gradients up in another order where a device has a thread of its own
            torch.testing.assert_close(left, right)
        else:
            assert torch.equal(left, right), (number, (left - right).abs().max())


CASES: Dict[str, Tuple[Callable[..., None], Dict[str, Any]]] = {
    "plain": (plain_loop, {}),
    "overlap": (plain_loop, {"overlap": True, "bucket_bytes": 4096}),
    "no overlap": (plain_loop, {"overlap": False}),
    "overlap_update": (plain_loop, {"overlap_update": True, "overlap": True, "bucket_bytes": 4096}),
    "two passes": (two_passes, {"backward_passes_per_step": 2}),
    "kept gradients": (kept_gradients, {}),
    "unused and clipped": (unused, {"overlap": True, "bucket_bytes": 4096}),
    "checkpoints": (checkpointed, {"overlap": True, "bucket_bytes": 4096}),
    "sum": (plain_loop, {"op": "sum"}),
    "predivide": (plain_loop, {"gradient_predivide_factor": 2.0}),
    "check": (plain_loop, {"check": 2}),
    "powersgd": (plain_loop, {"compression": "powersgd"}),
    "int8": (plain_loop, {"compression": "int8"}),
    "own compressor": (plain_loop, {"compression": ddl_torch.Compression.fp16}),
    "adasum": (plain_loop, {"op": "adasum"}),
    "graph": (with_graph, {}),
    "deterministic": (plain_loop, {"deterministic": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_cpu(case: str) -> None:
    transport = "tcp" if "compression" in CASES[case][1] else "shared"
    ranks.run(2, same_as_on_the_cpu, case, **connected(transport, **environment()))


def waits_of_steps(options: Dict[str, Any]) -> List[int]:
    """Return how often the host waits for all that a stream has, in each step."""
    with fake_gpu():
        waits = torch.ops.fake_torch.host_waits
        model = network().to("fake")
        optimizer = ddl_torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), bucket_bytes=4096, **options
        )
        x = batch(0, torch.float32).to("fake")
        counts = [waits()]
        for _ in range(6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            counts.append(waits())
        x.cpu()
        assert waits() == counts[-1] + 1  # the test of the test
        return [after - before for before, after in zip(counts, counts[1:])]


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"overlap": False}, {"overlap_update": True}], ids=str)
def test_a_step_waits_for_no_stream(options: Dict[str, Any]) -> None:
    """But for the first ones, in which weights are compared."""
    for counts in ranks.run(2, waits_of_steps, options, env=environment()):
        assert counts[3:] == [0, 0, 0], counts


def half_types() -> None:
    with fake_gpu():
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            on_cpu, on_device = (trained(device, plain_loop, {}, dtype) for device in ("cpu", "fake"))
            few_bits = {"rtol": 1e-2, "atol": 1e-3} if dtype.itemsize == 2 else {"rtol": 0.0, "atol": 0.0}
            for left, right in zip(on_device, on_cpu):  # the CPU rounds to 16 bits in another order with other threads
                torch.testing.assert_close(left, right, **few_bits)


def test_types_of_gradients() -> None:
    ranks.run(2, half_types, env=environment())


def on_side_streams(seed: int) -> None:
    """Layers run on several streams, so gradients come on several; each step runs on another stream, too."""
    with fake_gpu():
        gpu = torch.fake
        expected = trained("cpu", plain_loop, {"bucket_bytes": 4096}, torch.float64)
        streams = [gpu.Stream() for _ in range(3)]

        class Spread(torch.nn.Module):
            def __init__(self, model: Any) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                before = gpu.current_stream()
                for number, layer in enumerate(self.model):
                    stream = streams[(number // 2 + seed) % 3]  # the layers with weights on two of them
                    stream.wait_stream(before)
                    with gpu.stream(stream):
                        x = layer(x)
                    x.record_stream(stream)
                    before = stream
                gpu.current_stream().wait_stream(before)
                return x

        def loop(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
            spread = Spread(model)
            for step in range(STEPS):
                stream = streams[step % 3] if seed else gpu.current_stream()
                stream.wait_stream(gpu.current_stream())
                with gpu.stream(stream):
                    optimizer.zero_grad()
                    spread(batch(step, dtype).to(device)).square().mean().backward()
                    optimizer.step()
                gpu.current_stream().wait_stream(stream)

        for bucket_bytes, overlap in ((1 << 20, True), (4096, True), (1 << 20, False)):
            weights = trained("fake", loop, {"bucket_bytes": bucket_bytes, "overlap": overlap}, torch.float64)
            assert all(map(torch.equal, weights, expected))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_that_come_on_several_streams(seed: int) -> None:
    ranks.run(2, on_side_streams, seed, env=environment(seed=seed))


def two_branches(joined: bool) -> bool:
    """Two layers side by side, each on a stream of its own; return whether the weights are those of the CPU."""
    from ddl_torch import _streams

    if not joined:  # the test of the test: buckets are sent without a wait for the streams on which gradients came
        _streams.StreamJoin.join = lambda self: None  # type: ignore[method-assign]
    weights = []
    with fake_gpu(objects=not joined) as fake:
        for device in ("cpu", "fake"):
            torch.manual_seed(3)
            layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(4)]).to(device)
            streams = [torch.fake.Stream() for _ in layers]
            plain = torch.optim.SGD(layers.parameters(), lr=0.1)
            optimizer = ddl_torch.DistributedOptimizer(plain, layers.named_parameters(), overlap=True)
            for step in range(STEPS):
                optimizer.zero_grad()
                x = batch(step, torch.float32).reshape(3, 64).to(device)
                results = []
                for layer, stream in zip(layers, streams):
                    stream.wait_stream(torch.fake.current_stream())
                    with torch.fake.stream(stream):
                        results.append(layer(x))
                    torch.fake.current_stream().wait_stream(stream)
                torch.stack(results).square().mean().backward()
                optimizer.step()
            weights.append([p.detach().cpu() for p in layers.parameters()])
        objected = fake.violations != []
    return objected or not all(map(torch.equal, *weights))


def test_gradients_of_branches_on_several_streams() -> None:
    assert ranks.run(2, two_branches, True, env=environment()) == [False, False]
    assert ranks.run(2, two_branches, False, env=environment()) == [True, True]


def two_gpus() -> None:
    """A model whose parts are on two GPUs of each rank, and on the CPU."""
    with fake_gpu():
        expected = trained("cpu", plain_loop, {}, torch.float64)
        places = ["fake:0", "fake:0", "fake:0", "fake:1", "cpu"]

        def loop(model: Any, optimizer: Any, device: str, dtype: Any) -> None:
            for step in range(STEPS):
                optimizer.zero_grad()
                x = batch(step, dtype)
                for layer, place in zip(model, places):
                    x = layer(x.to(place))
                x.square().mean().backward()
                optimizer.step()

        model = network(torch.float64)
        for layer, place in zip(model, places):
            layer.to(place)
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters())
        loop(model, optimizer, "", torch.float64)
        assert all(map(torch.equal, [p.detach().cpu() for p in model.parameters()], expected))


def test_a_model_on_two_gpus() -> None:
    ranks.run(2, two_gpus, env=environment(devices=2))


def scaled() -> None:
    """AMP: a step with an infinite gradient is left out on all ranks."""
    with fake_gpu():
        model = network().to("fake")
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ddl_torch.DistributedOptimizer(plain, model.named_parameters())
        scaler = torch.amp.GradScaler("fake", init_scale=2.0**8, growth_interval=2)
        weights = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("fake", dtype=torch.float16):
                loss = model(batch(step, torch.float32).to("fake")).float().square().mean()
            if step == 1 and ddl_torch.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            weights.append([p.detach().cpu() for p in model.parameters()])
        assert all(map(torch.equal, weights[1], weights[0]))  # left out
        assert not all(map(torch.equal, weights[2], weights[1]))
        assert scaler.get_scale() == 2.0**8
        for p in model.parameters():
            everybody = ddl_torch.allgather(p.detach().cpu().reshape(1, -1))
            assert torch.equal(everybody[0], everybody[1])


def test_amp_with_a_scaler() -> None:
    ranks.run(2, scaled, env=environment())


def state_of_rank_0() -> None:
    with fake_gpu():
        torch.manual_seed(ddl_torch.rank())
        model = torch.nn.Linear(30, 20).to("fake")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + ddl_torch.rank()))
        if ddl_torch.rank() == 0:
            model(torch.ones(2, 30, device="fake")).sum().backward()
            optimizer.step()
        ddl_torch.broadcast_parameters(model.state_dict(), 0)
        ddl_torch.broadcast_optimizer_state(optimizer, 0)
        state = optimizer.state_dict()["state"]
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert {entry["exp_avg"].device.type for entry in state.values()} == {"fake"}
        tensors = [*model.parameters(), *(entry["exp_avg"] for entry in state.values())]
        for tensor in tensors:
            everybody = ddl_torch.allgather(tensor.detach().reshape(1, -1))
            assert everybody.device.type == "fake" and torch.equal(everybody[0].cpu(), everybody[1].cpu())


def test_state_is_broadcast() -> None:
    ranks.run(2, state_of_rank_0, env=environment())


def normalised() -> None:
    with fake_gpu():
        results = []
        for device in ("cpu", "fake"):
            layer = ddl_torch.SyncBatchNorm(4).to(device)
            x = batch(1, torch.float32).expand(3, 4, 8, 8).to(device).requires_grad_()
            layer(x).square().sum().backward()
            results.append([each.detach().cpu() for each in (x.grad, layer.weight.grad, layer.running_mean)])
        assert all(torch.allclose(left, right, atol=1e-6) for left, right in zip(*results))


def test_sync_batch_norm() -> None:
    ranks.run(2, normalised, env=environment())
